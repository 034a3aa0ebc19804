// dQ in 16 bits from the float sums of the fused kernel. Bound by memory.

#include "optimized/cuda/ampere/dimensions.hpp"
#include "optimized/cuda/ampere/grad_query.cuh"

namespace lethe::ampere {
namespace {

constexpr int kThreads = 64;

struct FinishParameters {
  BackwardWorkspace workspace;
  MutableOperand grad_query;
  float scale;
  int query_length, padded_queries, query_heads, dim;
};

// A warp has sixteen queries.
template <typename Element, int kDim>
__global__ void __launch_bounds__(kThreads) finish(const __grid_constant__ FinishParameters p) {
  __shared__ __align__(128) char rows[kThreads / 32][tile_bytes<kDim>(16)];
  const int warp = threadIdx.x / 32, tiles = p.padded_queries / 16, tile = blockIdx.x * (kThreads / 32) + warp;
  const int row = tile / tiles, query = tile % tiles * 16, batch = row / p.query_heads, head = row % p.query_heads;
  wait_for_previous_kernel();
  float sums[1][kDim / 8][4];
  const float* from = grad_query_tile<kDim>(p.workspace, int64_t{row} * p.padded_queries, query);
#pragma unroll
  for (int d = 0; d < kDim / 8; ++d) load_tile(sums[0][d], from + 128 * d);
  store_rows<Element, kDim, 1>(sums, p.scale, rows[warp], rows_of<Element>(p.grad_query, batch, head), query,
                               p.query_length - query, p.grad_query.token_stride, p.dim);
}

}  // namespace

void launch_backward_finish(const BackwardArguments& arguments, const BackwardWorkspace& workspace) {
  const Shape& s = arguments.shape;
  const int padded = int(whole_blocks(s.query_length));
  const FinishParameters parameters{workspace, arguments.grad_query, float(arguments.scale), int(s.query_length),
                                    padded,    int(s.query_heads),   int(s.key_dim)};
  for_dimension(arguments.dtype, s, [&]<typename Element, int kDim> {
    if constexpr (is_fused(kDim) && sizeof(Element) == 2)
      launch_overlapping(finish<Element, kDim>, int(s.batch * s.query_heads * (padded / 16 / (kThreads / 32))),
                         kThreads, 0, arguments.stream, parameters);
  });
}

}  // namespace lethe::ampere
