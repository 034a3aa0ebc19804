// All gradients in one kernel: a CTA owns keys and walks over the queries that see them. Two warps share the rows of Sᵀ: each has half of a stage's
// queries of S and dP, and half of the columns of dK and dV, to which it adds its own queries' products and, after a barrier, the other's.

#include <climits>

#include "optimized/cuda/ampere/dimensions.hpp"
#include "optimized/cuda/ampere/wide_warp.cuh"

namespace lethe::ampere {
namespace {

template <typename Element, typename Sizes>
__global__ void __launch_bounds__(Sizes::kThreads, 1) backward_wide(const __grid_constant__ BackwardParameters p) {
  using Warp = WideWarp<Element, Sizes>;
  constexpr int kPitch = Sizes::kPitch, kColumns = Sizes::kColumns, kBlock = kGateBlock;
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<WideShared<Sizes>*>(memory);
  wait_for_previous_kernel();

  const KeyPlace place = key_place<Sizes::kRows>(p);
  const int group = p.query_heads / p.heads, first_key = place.first_key, batch = place.batch, head = place.head;
  const Warp warp(shared, p.scale_log2);
  typename Warp::Registers r;
  RowCopies<kPitch, Sizes::kThreads>(p.key, batch, head, p.key_length, p.key_dim)
      .template copy<Sizes::kRows>(ptx::shared_address(shared.first_kept), first_key);
  RowCopies<kPitch, Sizes::kThreads>(p.value, batch, head, p.key_length, p.value_dim)
      .template copy<Sizes::kRows>(ptx::shared_address(shared.second_kept), first_key);
  warp.clear(r);
  KeyTile<Warp> tile{p, warp, first_key};
  for (int query_head = head * group; query_head < (head + 1) * group; ++query_head) {
    tile.enter_head(batch * p.query_heads + query_head);
#pragma unroll
    for (int i = 0; i < Sizes::kRowTiles; ++i) r.sum[i][0] = r.sum[i][1] = 0;
    const StageCopies<Sizes> copies(p, batch, query_head, tile.row);
    const auto [first, past] = tile.steps();
    const auto stage_of = [&](int step) -> BackwardStage<Sizes>& { return shared.stage[step & (Sizes::kStages - 1)]; };
    const auto load = [&, past = past](int step) {
      if (step < past) copies.load(stage_of(step), step * kColumns, tile.is_near(step * kColumns));
      ptx::copies_commit();
    };
    load(first);
    const auto advance = [&](int step) {
      ptx::copies_wait<0>();
      __syncthreads();
      if constexpr (Sizes::kStages > 1) load(step + 1);
    };
    const auto keep = [&](int column, const auto& grad, const auto&) { keep_row_sums(shared, 0, column, grad); };
    // `seen`: by a query of the stage, as both warps of these keys know.
    const auto finish = [&](int step, bool seen) {
      __syncthreads();
      constexpr int kEarly = Sizes::kEarlyTiles;
      if constexpr (kEarly > 0) warp.template add_grad_query<0, kEarly>(p, tile.row, step);
      if (seen) warp.add_others(r, stage_of(step));
      if constexpr (Sizes::kStages == 1) {  // all have read it; the next one comes under dQ's products
        __syncthreads();
        load(step + 1);
      }
      warp.template add_grad_query<kEarly, Sizes::kQueryTiles - kEarly>(p, tile.row, step);
      add_row_sums(shared, 0, p.workspace.row_sums + int64_t{tile.row} * p.padded_queries + step * kColumns);
    };
    for (int step = first; step < past;) {
#pragma unroll 1
      for (; step < past && tile.is_special(step * kColumns); ++step) {
        advance(step);
        const bool seen = !tile.is_unseen(step * kColumns);
        if (seen) tile.visit(r, stage_of(step), step * kColumns, keep);
        else keep_no_grad_scores(shared, 0);
        finish(step, seen);
      }
#pragma unroll 1
      for (; step < past && !tile.is_special(step * kColumns); ++step) {
        advance(step);
        tile.visit_clean(r, stage_of(step), keep);
        finish(step, true);
      }
    }
    float sums[Sizes::kRowTiles][2];
#pragma unroll
    for (int i = 0; i < Sizes::kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        sums[i][h] = tile::sum_of_column(r.sum[i][h]);
        if (warp.half == 1 && warp.lane % 4 == 0) shared.column_sums[warp.row_of(i, h)] = sums[i][h];
      }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < Sizes::kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (warp.half == 0 && warp.lane % 4 == 0)
          p.workspace.column_sums[int64_t{tile.row} * p.key_blocks * kBlock + tile.key_of(i, h)] =
              sums[i][h] + shared.column_sums[warp.row_of(i, h)];
    __syncthreads();
  }
  ptx::copies_wait<0>();
  const int left = p.key_length - first_key;
  warp.store(r.key, p.scale, rows_of<Element>(p.grad_key, batch, head), first_key, left, p.grad_key.token_stride,
             p.key_dim);
  warp.store(r.value, 1, rows_of<Element>(p.grad_value, batch, head), first_key, left, p.grad_value.token_stride,
             p.value_dim);
}

template <int kDim>
using LargestSizes = WideSizes<kDim, stages_of_wide(kDim).most>;
template <int kDim>
using LeastSizes = WideSizes<kDim, stages_of_wide(kDim).fewest>;

template <typename Element, typename Sizes>
void launch(const BackwardArguments& arguments, BackwardParameters& p) {
  const Shape& s = arguments.shape;
  p.query_tiles = int((s.key_length + Sizes::kRows - 1) / Sizes::kRows);
  p.tiles = int(s.batch * s.heads) * p.query_tiles;
  p.section = section_of_key_tiles(s, sizeof(Element), p.prefix.window);
  constexpr int kBytes = sizeof(WideShared<Sizes>);
  const auto kernel = backward_wide<Element, Sizes>;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "backward");
  launch_overlapping(kernel, p.tiles, Sizes::kThreads, kBytes, arguments.stream, p);
}

template <int kDim>
constexpr bool kIsCounted = bytes_of_wide(kDim).least == sizeof(WideShared<LeastSizes<kDim>>) &&
                            bytes_of_wide(kDim).largest == sizeof(WideShared<LargestSizes<kDim>>);
static_assert(kIsCounted<64> && kIsCounted<96> && kIsCounted<128> && kIsCounted<256>);
static_assert(bytes_of_wide(64).least <= kSmallSharedBytes);

}  // namespace

void launch_backward_wide(const BackwardArguments& arguments, const BackwardWorkspace& workspace, const Plan& plan,
                          int shared_bytes) {
  BackwardParameters p = backward_parameters(arguments, workspace, plan);
  for_dimension(arguments.dtype, arguments.shape, [&]<typename Element, int kDim> {
    if constexpr (sizeof(Element) == 2 && is_fused(kDim)) {
      if (wide_stages(kDim, shared_bytes) == LargestSizes<kDim>::kStages)
        launch<Element, LargestSizes<kDim>>(arguments, p);
      else launch<Element, LeastSizes<kDim>>(arguments, p);
    }
  });
}

}  // namespace lethe::ampere
