#include <algorithm>

#include "optimized/cuda/layers/row.cuh"

namespace lethe::layers {
namespace {

constexpr int kLanes = 32;

template <typename Number>
struct Every {
  Partials<Number> all[kMostPartials];
};

// A block sums 32 columns: each of its rows of threads one partial in 32, then each of its warps one column.
template <typename Number>
__global__ void __launch_bounds__(kLanes* kLanes) sum_columns(const __grid_constant__ Every<Number> every) {
  __shared__ Number columns[kLanes][kLanes + 1];
  const Partials<Number>& of = every.all[blockIdx.y];
  const int x = threadIdx.x, y = threadIdx.y;
  const int64_t first = int64_t{blockIdx.x} * kLanes;
  if (first >= of.width) return;
  Number sum = 0;
  if (first + x < of.width) {
#pragma unroll 8
    for (int p = y; p < of.count; p += kLanes) sum += of.partials[p * of.width + first + x];
  }
  columns[y][x] = sum;
  __syncthreads();
  const Number total = lane_sum(columns[x][y]);
  if (x == 0 && first + y < of.width) of.sums[first + y] = total;
}

}  // namespace

template <typename Number>
void sum_partials(const Partials<Number> (&all)[kMostPartials], cudaStream_t stream) {
  Every<Number> every;
  int64_t width = 0;
  for (int i = 0; i < kMostPartials; ++i) {
    every.all[i] = all[i];
    width = std::max(width, all[i].width);
  }
  if (width == 0) return;
  const dim3 blocks(static_cast<unsigned>((width + kLanes - 1) / kLanes), kMostPartials);
  sum_columns<<<blocks, dim3(kLanes, kLanes), 0, stream>>>(every);
  check_launch("sum_partials");
}
template void sum_partials(const Partials<float> (&)[kMostPartials], cudaStream_t);
template void sum_partials(const Partials<double> (&)[kMostPartials], cudaStream_t);

}  // namespace lethe::layers
