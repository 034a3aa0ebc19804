// dK, dV and the column sums of dS: one CTA a tile of keys, which walks over the queries that see it. Fused, it adds to dQ and the row sums, too.

#include <numbers>

#include "optimized/cuda/ampere/dimensions.hpp"
#include "optimized/cuda/ampere/grad_query.cuh"
#include "optimized/cuda/ampere/key_tile.cuh"

namespace lethe::ampere {
namespace {

template <typename Element, typename Sizes, bool kKeys, bool kValues, bool kQueries>
__global__ void __launch_bounds__(Sizes::kThreads, 256 / Sizes::kThreads)
    backward_keys(const __grid_constant__ BackwardParameters p) {
  using Warp = BackwardWarp<Element, Sizes, kKeys, kValues>;
  using Shared = std::conditional_t<kQueries, FusedShared<Sizes>, BackwardShared<Sizes>>;
  constexpr int kDim = Sizes::kDim, kColumns = Sizes::kColumns, kBlock = kGateBlock;
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  wait_for_previous_kernel();

  // Longest first: sections of heads, those with most blocks first; inside a section from the first keys on, heads innermost.
  const int group = p.query_heads / p.heads, rows = p.tiles / p.query_tiles;
  const int per_section = p.section * p.query_tiles, section = blockIdx.x / per_section,
            within = blockIdx.x % per_section, width = min(p.section, rows - section * p.section);
  const int key_row = p.order.key_head_order[section * p.section + within % width],
            first_key = within / width * Sizes::kRows;
  const int batch = key_row / p.heads, head = key_row % p.heads;

  const Warp warp(shared, p.scale_log2);
  typename Warp::Registers r;
  warp.load(r, {p.key, batch, head, p.key_length, p.key_dim}, {p.value, batch, head, p.key_length, p.value_dim},
            first_key);
  KeyTile<Warp> tile{p, warp, first_key};
  for (int query_head = head * group; query_head < (head + 1) * group; ++query_head) {
    tile.enter_head(batch * p.query_heads + query_head);
#pragma unroll
    for (int i = 0; i < Sizes::kRowTiles; ++i) r.sum[i][0] = r.sum[i][1] = 0;
    const RowCopies<kDim, Sizes::kThreads> queries(p.query, batch, query_head, p.query_length, p.key_dim),
        grads(p.grad_values, batch, query_head, p.query_length, p.value_dim);
    const int64_t of_row = int64_t{tile.row} * p.padded_queries / 2;
    const auto load = [&](int step) {
      BackwardStage<Sizes>& stage = shared.stage[step & 1];
      const int query = step * kColumns;
      queries.template copy<kColumns>(ptx::shared_address(stage.first), query);
      grads.template copy<kColumns>(ptx::shared_address(stage.second), query);
      if (threadIdx.x < kColumns / 2)
        ptx::copy_chunk(ptx::shared_address(&stage.bias[threadIdx.x]),
                        p.workspace.row_bias + of_row + query / 2 + threadIdx.x, !tile.is_near(query));
      else if (threadIdx.x < kColumns)
        ptx::copy_chunk(ptx::shared_address(&stage.negative_delta[threadIdx.x - kColumns / 2]),
                        p.workspace.negative_delta + of_row + query / 2 + threadIdx.x - kColumns / 2);
      else if (threadIdx.x == kColumns)
        ptx::copy_chunk(ptx::shared_address(&stage.base),
                        p.scratch.base_log2 + int64_t{tile.row} * (p.key_blocks + 1) + block_of(p, query));
    };
    const int last_block = p.boundary.last_query_block[int64_t{tile.row} * p.key_blocks + first_key / kBlock];
    // The boundary's blocks have 128 queries.
    const int end = min(min((last_block + 1) * kBlock, p.query_length), tile.end_query - p.query_offset);
    const int first = max(0, first_key - p.query_offset) / kColumns, past = (end + kColumns - 1) / kColumns;
    if (first < past) load(first);
    ptx::copies_commit();
    const auto advance = [&](int step) {
      ptx::copies_wait<0>();
      __syncthreads();
      if (step + 1 < past) load(step + 1);
      ptx::copies_commit();
      // dQ of the step before: all warps have stored their dS.
      if constexpr (kQueries)
        if (step > first) add_grad_query<Element>(shared, p, tile.row, step - 1);
    };
    const auto keep = [&](int step) {
      return [&, step](int column, const auto& grad, const auto& rounded) {
        if constexpr (kQueries) keep_grad_scores(shared, step & 1, column, grad, rounded);
      };
    };
    for (int step = first; step < past;) {
#pragma unroll 1
      for (; step < past && tile.is_special(step * kColumns); ++step) {
        advance(step);
        if (!tile.is_unseen(step * kColumns)) tile.visit(r, shared.stage[step & 1], step * kColumns, keep(step));
        else if constexpr (kQueries) keep_no_grad_scores(shared, step & 1);
      }
#pragma unroll 1
      for (; step < past && !tile.is_special(step * kColumns); ++step) {
        advance(step);
        tile.visit_clean(r, shared.stage[step & 1], keep(step));
      }
    }
    if constexpr (kQueries) {
      __syncthreads();
      if (first < past) add_grad_query<Element>(shared, p, tile.row, past - 1);
    }
    if constexpr (kKeys) {
#pragma unroll
      for (int i = 0; i < Sizes::kRowTiles; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float sum = tile::sum_of_column(r.sum[i][h]);
          if (warp.lane % 4 == 0)
            p.workspace.column_sums[int64_t{tile.row} * p.key_blocks * kBlock + tile.key_of(i, h)] = sum;
        }
    }
    __syncthreads();
  }
  const int64_t first_row = int64_t{batch} * p.key_length + first_key;
  const int left = p.key_length - first_key;
  if constexpr (kKeys)
    warp.store(r.first, p.scale, static_cast<Element*>(p.grad_key) + head * p.key_dim, first_row, left,
               int64_t{p.heads} * p.key_dim, p.key_dim);
  if constexpr (kValues)
    warp.store(r.second, 1, static_cast<Element*>(p.grad_value) + head * p.value_dim, first_row, left,
               int64_t{p.heads} * p.value_dim, p.value_dim);
}

template <typename Element, typename Sizes, bool kKeys, bool kValues, bool kQueries>
void launch(const BackwardArguments& arguments, BackwardParameters p) {
  const Shape& s = arguments.shape;
  const int rows = int(s.batch * s.heads);
  p.query_tiles = int((s.key_length + Sizes::kRows - 1) / Sizes::kRows);
  p.tiles = rows * p.query_tiles;
  p.section = heads_in_cache(s.query_length * (s.key_dim + s.value_dim) * 2 * (s.query_heads / s.heads), rows);
  constexpr int kBytes = sizeof(std::conditional_t<kQueries, FusedShared<Sizes>, BackwardShared<Sizes>>);
  static_assert(kBytes <= kSmallSharedBytes);
  const auto kernel = backward_keys<Element, Sizes, kKeys, kValues, kQueries>;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "backward");
  launch_overlapping(kernel, p.tiles, Sizes::kThreads, kBytes, arguments.stream, p);
}

}  // namespace

BackwardParameters backward_parameters(const BackwardArguments& a, const BackwardWorkspace& workspace,
                                       const Plan& plan) {
  const Shape& s = a.shape;
  BackwardParameters p;
  p.prefix = plan.prefix;
  p.boundary = plan.boundary;
  p.order = plan.order;
  p.query_length = int(s.query_length);
  p.key_length = int(s.key_length);
  p.heads = int(s.heads);
  p.query_heads = int(s.query_heads);
  p.query_blocks = int(gate_blocks(s.query_length));
  p.key_blocks = int(gate_blocks(s.key_length));
  p.query = a.query;
  p.key = a.key;
  p.value = a.value;
  p.grad_values = a.grad_values;
  p.scratch = plan.scratch;
  p.workspace = workspace;
  p.grad_query = a.grad_query;
  p.grad_key = a.grad_key;
  p.grad_value = a.grad_value;
  p.key_dim = int(s.key_dim);
  p.value_dim = int(s.value_dim);
  p.padded_queries = int(whole_blocks(s.query_length));
  p.query_offset = int(s.key_length - s.query_length);
  p.scale = float(a.scale);
  p.scale_log2 = float(divisor_scale(a.scale) * std::numbers::log2e);
  p.inverse_scale = 1 / divisor_scale(a.scale);
  return p;
}

void launch_backward_keys(const BackwardArguments& arguments, const BackwardWorkspace& workspace, const Plan& plan) {
  const BackwardParameters p = backward_parameters(arguments, workspace, plan);
  for_dimension(arguments.dtype, arguments.shape, [&]<typename Element, int kDim> {
    using Sizes = SweepSizes<kDim>;
    if constexpr (kDim <= 128) {
      launch<Element, Sizes, true, true, false>(arguments, p);
    } else {  // registers for one of the two sums
      launch<Element, Sizes, true, false, false>(arguments, p);
      launch<Element, Sizes, false, true, false>(arguments, p);
    }
  });
}

void launch_backward_fused(const BackwardArguments& arguments, const BackwardWorkspace& workspace, const Plan& plan) {
  const BackwardParameters p = backward_parameters(arguments, workspace, plan);
  for_dimension(arguments.dtype, arguments.shape, [&]<typename Element, int kDim> {
    if constexpr (is_fused(kDim)) launch<Element, FusedSizes<kDim>, true, true, true>(arguments, p);
  });
}

}  // namespace lethe::ampere
