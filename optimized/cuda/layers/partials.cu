#include "optimized/cuda/layers/row.cuh"

namespace lethe::layers {
namespace {

constexpr int kLanes = 32;

// A block sums 32 columns: each of its rows of threads one partial in 32, then each of its warps one column.
template <typename Number>
__global__ void __launch_bounds__(kLanes* kLanes)
    sum_columns(const Number* __restrict__ partials, int count, int64_t width, Number* __restrict__ sums) {
  __shared__ Number columns[kLanes][kLanes + 1];
  const int x = threadIdx.x, y = threadIdx.y;
  const int64_t first = int64_t{blockIdx.x} * kLanes;
  Number sum = 0;
  if (first + x < width) {
#pragma unroll 8
    for (int p = y; p < count; p += kLanes) sum += partials[p * width + first + x];
  }
  columns[y][x] = sum;
  __syncthreads();
  const Number total = lane_sum(columns[x][y]);
  if (x == 0 && first + y < width) sums[first + y] = total;
}

}  // namespace

template <typename Number>
void sum_partials(const Number* partials, int count, int64_t width, Number* sums, cudaStream_t stream) {
  const unsigned blocks = static_cast<unsigned>((width + kLanes - 1) / kLanes);
  sum_columns<<<blocks, dim3(kLanes, kLanes), 0, stream>>>(partials, count, width, sums);
  check_launch("sum_partials");
}
template void sum_partials(const float*, int, int64_t, float*, cudaStream_t);
template void sum_partials(const double*, int, int64_t, double*, cudaStream_t);

}  // namespace lethe::layers
