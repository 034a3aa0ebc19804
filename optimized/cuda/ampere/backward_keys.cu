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
  using Shared = std::conditional_t<kQueries, FusedShared<Sizes>, typename Warp::Shared>;
  constexpr int kHalves = sizeof(Element) / 2, kColumns = Sizes::kColumns, kBlock = kGateBlock;
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  wait_for_previous_kernel();

  const KeyPlace place = key_place<Sizes::kRows>(p);
  const int group = p.query_heads / p.heads, first_key = place.first_key, batch = place.batch, head = place.head;
  const Warp warp(shared, p.scale_log2);
  typename Warp::Registers r;
  const int key_halves = p.key_dim * kHalves, value_halves = p.value_dim * kHalves;
  warp.load(r, {p.key, batch, head, p.key_length, key_halves}, {p.value, batch, head, p.key_length, value_halves},
            first_key);
  KeyTile<Warp> tile{p, warp, first_key};
  for (int query_head = head * group; query_head < (head + 1) * group; ++query_head) {
    tile.enter_head(batch * p.query_heads + query_head);
#pragma unroll
    for (int i = 0; i < Sizes::kRowTiles; ++i) r.sum[i][0] = r.sum[i][1] = 0;
    const StageCopies<Sizes> copies(p, batch, query_head, tile.row);
    const auto [first, past] = tile.steps();
    const auto load = [&, past = past](int step) {
      if (step < past) copies.load(shared.stage[step & 1], step * kColumns, tile.is_near(step * kColumns));
      ptx::copies_commit();
    };
    load(first);
    const auto advance = [&, first = first](int step) {
      ptx::copies_wait<0>();
      __syncthreads();
      load(step + 1);
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
  const int left = p.key_length - first_key;
  if constexpr (kKeys)
    warp.store(r.first, p.scale, rows_of<Element>(p.grad_key, batch, head), first_key, left, p.grad_key.token_stride,
               p.key_dim);
  if constexpr (kValues)
    warp.store(r.second, 1, rows_of<Element>(p.grad_value, batch, head), first_key, left, p.grad_value.token_stride,
               p.value_dim);
}

template <typename Element, typename Sizes, bool kKeys, bool kValues, bool kQueries>
void launch(const BackwardArguments& arguments, BackwardParameters p) {
  const Shape& s = arguments.shape;
  const int rows = int(s.batch * s.heads);
  p.query_tiles = int((s.key_length + Sizes::kRows - 1) / Sizes::kRows);
  p.tiles = rows * p.query_tiles;
  p.section = section_of_key_tiles(s, sizeof(Element), p.prefix.window);
  constexpr int kBytes = sizeof(std::conditional_t<kQueries, FusedShared<Sizes>, BackwardSharedOf<Element, Sizes>>);
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
  const bool of_floats = a.dtype == Dtype::kFloat32;
  p.query = of_floats ? in_halves<float>(a.query) : a.query;
  p.key = of_floats ? in_halves<float>(a.key) : a.key;
  p.value = of_floats ? in_halves<float>(a.value) : a.value;
  p.grad_values = of_floats ? in_halves<float>(a.grad_values) : a.grad_values;
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
    using Sizes = SweepSizesOf<Element, kDim>;
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
    if constexpr (kDim == 96 && sizeof(Element) == 2) launch<Element, FusedSizes<kDim>, true, true, true>(arguments, p);
  });
}

}  // namespace lethe::ampere
