// dQ and the row sums of dS: one CTA a tile of queries, which walks over the keys that they see.

#include <numbers>

#include "optimized/cuda/ampere/backward_warp.cuh"
#include "optimized/cuda/ampere/dimensions.hpp"

namespace lethe::ampere {
namespace {

template <typename Element, int kDim>
struct QueryTile {
  using Sizes = SweepSizesOf<Element, kDim>;
  using Warp = BackwardWarp<Element, Sizes, true, false>;
  using Registers = typename Warp::Registers;
  static constexpr int kRowTiles = Sizes::kRowTiles, kColumns = Sizes::kColumns, kBlock = kGateBlock;

  const BackwardParameters& p;
  const Warp& warp;
  const tile::Tile<Sizes::kRows>& tile;
  const int first_position, first_block;
  float row_bias[kRowTiles][2];  // log₂e (c_i − c before the tile's first block − log_normalizer_i); −inf past Tq

  __device__ __forceinline__ int position_of(int row_tile, int h) const {
    return min(first_position + warp.row_of(row_tile, h), p.key_length - 1);
  }
  __device__ __forceinline__ int64_t number_of(int row_tile, int h) const {
    return int64_t{tile.row} * p.padded_queries + tile.query + warp.row_of(row_tile, h);
  }

  /// Whether the keys have positions of the tile's queries or later ones. There c_i and c_j may be large and their difference small: it is added to
  /// each logit, and no bias enters the product.
  __device__ __forceinline__ bool is_near(int key) const { return key / kBlock >= first_block; }

  /// Other threads see row_first after a barrier.
  __device__ __forceinline__ void load_rows(Registers& r) {
    if (threadIdx.x < Sizes::kRows)
      warp.shared.row_first[threadIdx.x] =
          visibility_of_queries(p.prefix, tile.row, p.key_blocks)
              .first_key(min(first_position + static_cast<int>(threadIdx.x), p.key_length - 1));
    const double base = p.prefix.base[int64_t{tile.row} * (p.key_blocks + 1) + first_block];
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int64_t at = number_of(i, h);
        row_bias[i][h] = static_cast<float>((p.workspace.row_number[at] - base) * std::numbers::log2e);
        r.negative_delta[i][h] = reinterpret_cast<const float*>(p.workspace.negative_delta + at / 2)[at % 2];
        r.sum[i][h] = 0;
      }
  }

  /// S += (c_i − log_normalizer_i − c_j) / scale of sixteen near keys; near strong gates from more than floats.
  __device__ __forceinline__ void add_decay(typename Warp::Scores& score, int key) const {
    const bool strong = Warp::kFloat || near_strong(p, tile.row, first_block);
    const float of_blocks = decay_of_blocks(p, tile.row, first_block, key / kBlock);
    const float4* bias = p.scratch.key_bias + int64_t{tile.row} * p.key_blocks * (kBlock / 2) + key / 2 + warp.lane % 4;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float4 of_keys = bias[4 * c];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const double exact =
            prefix_at(p.prefix, tile.row, p.key_blocks, min(key + 8 * c + 2 * (warp.lane % 4) + e, p.key_length - 1));
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int64_t at = number_of(i, h);
            const float of_query = reinterpret_cast<const float*>(p.workspace.row_bias + at / 2)[at % 2];
            score[i][c][2 * h + e] += strong
                                          ? static_cast<float>((p.workspace.row_number[at] - exact) * p.inverse_scale)
                                          : (of_query + of_blocks) + (e ? of_keys.y : of_keys.x);
          }
      }
    }
  }

  __device__ __forceinline__ void mask(typename Warp::Scores& score, int key) const {
    const float masked = p.scale_log2 > 0 ? -INFINITY : INFINITY;
    const int column = key + 2 * (warp.lane % 4);
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int last = Visibility<QueryCuts>::last_key(position_of(i, h)) - column,
                  first = warp.shared.row_first[warp.row_of(i, h)] - column;
#pragma unroll
        for (int c = 0; c < 2; ++c)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (8 * c + e > last || 8 * c + e < first) score[i][c][2 * h + e] = masked;
      }
  }

  /// Whether some of a stage's pairs may be masked.
  __device__ __forceinline__ bool is_special(int key) const {
    return is_near(key) || key < warp.shared.row_first[Sizes::kRows - 1];
  }

  __device__ __forceinline__ void find_offset(Registers& r, const typename Warp::Stage& stage, bool near) const {
    const float decay = (tile.frame.high - stage.base.high) + (tile.frame.low - stage.base.low);
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) r.offset[i][h] = near ? 0 : decay + row_bias[i][h];
  }

  __device__ __forceinline__ void visit(Registers& r, const typename Warp::Stage& stage, int key) const {
    if (key >= first_position + warp.warp_row + 16 * kRowTiles ||
        key + kColumns <= warp.shared.row_first[warp.warp_row])
      return;  // the warp's queries see none of these keys
    const bool near = is_near(key);
    find_offset(r, stage, near);
#pragma unroll 1
    for (int column = 0; column < kColumns; column += 16)
      warp.template add_columns<false>(
          r, stage, ptx::shared_address(&stage), column,
          [&](typename Warp::Scores& score) {
            if (near) add_decay(score, key + column);
            mask(score, key + column);
          },
          [](int, const auto&, const auto&) {});
  }

  __device__ __forceinline__ void visit_clean(Registers& r, const typename Warp::Stage& stage) const {
    find_offset(r, stage, false);
#pragma unroll
    for (int column = 0; column < kColumns; column += 16)
      warp.template add_columns<false>(
          r, stage, ptx::shared_address(&stage), column, [](typename Warp::Scores&) {},
          [](int, const auto&, const auto&) {});
  }
};

template <typename Element, int kDim>
__global__ void __launch_bounds__((SweepSizesOf<Element, kDim>::kThreads), 2)
    backward_queries(const __grid_constant__ BackwardParameters p) {
  using Sizes = SweepSizesOf<Element, kDim>;
  using Warp = BackwardWarp<Element, Sizes, true, false>;
  constexpr int kPitch = Sizes::kPitch, kHalves = sizeof(Element) / 2, kColumns = Sizes::kColumns, kBlock = kGateBlock;
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<typename Warp::Shared*>(memory);
  wait_for_previous_kernel();
  if (threadIdx.x == 0) {
    tile::Tile<Sizes::kRows> tile = tile::tile_at<Sizes::kRows>(p, blockIdx.x, __ldcg(p.order.query_section));
    tile.frame = p.scratch.base_log2[int64_t{tile.row} * (p.key_blocks + 1) + block_of(p, tile.query)];
    shared.tile = tile;
  }
  __syncthreads();
  const tile::Tile<Sizes::kRows>& tile = shared.tile;
  const int key_head = tile.head / (p.query_heads / p.heads), first_position = tile.query + p.query_offset;
  const Warp warp(shared, p.scale_log2);
  typename Warp::Registers r;
  const int key_halves = p.key_dim * kHalves, value_halves = p.value_dim * kHalves;
  warp.load(r, {p.query, tile.batch, tile.head, p.query_length, key_halves},
            {p.grad_values, tile.batch, tile.head, p.query_length, value_halves}, tile.query);
  QueryTile<Element, kDim> rows{p, warp, tile, first_position, block_of(p, tile.query)};
  rows.load_rows(r);
  __syncthreads();
  const RowCopies<kPitch, Sizes::kThreads> keys(p.key, tile.batch, key_head, p.key_length, key_halves),
      values(p.value, tile.batch, key_head, p.key_length, value_halves);
  const auto load = [&](int step) {
    BackwardStage<Sizes>& stage = shared.stage[step & 1];
    const int key = step * kColumns;
    keys.template copy<kColumns>(ptx::shared_address(stage.first), key);
    values.template copy<kColumns>(ptx::shared_address(stage.second), key);
    if (threadIdx.x < kColumns / 2)
      ptx::copy_chunk(ptx::shared_address(&stage.bias[threadIdx.x]),
                      p.scratch.key_bias + int64_t{tile.row} * p.key_blocks * (kBlock / 2) + key / 2 + threadIdx.x,
                      !rows.is_near(key));
    else if (threadIdx.x == kColumns)
      ptx::copy_chunk(ptx::shared_address(&stage.base),
                      p.scratch.base_log2 + int64_t{tile.row} * (p.key_blocks + 1) + key / kBlock + 1);
  };
  const int first = max(tile.first * (kBlock / kColumns), shared.row_first[0] / kColumns),
            last = (min(first_position + Sizes::kRows, p.key_length) - 1) / kColumns;
  load(last);
  ptx::copies_commit();
  const auto advance = [&](int step) {
    ptx::copies_wait<0>();
    __syncthreads();
    if (step > first) load(step - 1);
    ptx::copies_commit();
  };
  for (int step = last; step >= first;) {
#pragma unroll 1
    for (; step >= first && rows.is_special(step * kColumns); --step) {
      advance(step);
      rows.visit(r, shared.stage[step & 1], step * kColumns);
    }
#pragma unroll 1
    for (; step >= first && !rows.is_special(step * kColumns); --step) {
      advance(step);
      rows.visit_clean(r, shared.stage[step & 1]);
    }
  }
#pragma unroll
  for (int i = 0; i < Sizes::kRowTiles; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float sum = tile::sum_of_column(r.sum[i][h]);
      if (warp.lane % 4 == 0) p.workspace.row_sums[rows.number_of(i, h)] = sum;
    }
  __syncthreads();
  const tile::Tile<Sizes::kRows> own = tile;
  warp.store(r.first, p.scale, rows_of<Element>(p.grad_query, own.batch, own.head), own.query,
             p.query_length - own.query, p.grad_query.token_stride, p.key_dim);
}

}  // namespace

void launch_backward_queries(const BackwardArguments& arguments, const BackwardWorkspace& workspace, const Plan& plan) {
  const Shape& s = arguments.shape;
  BackwardParameters p = backward_parameters(arguments, workspace, plan);
  for_dimension(arguments.dtype, s, [&]<typename Element, int kDim> {
    using Sizes = SweepSizesOf<Element, kDim>;
    const int rows = int(s.batch * s.query_heads);
    p.query_tiles = int((s.query_length + Sizes::kRows - 1) / Sizes::kRows);
    p.tiles = rows * p.query_tiles;
    constexpr int kBytes = sizeof(BackwardSharedOf<Element, Sizes>);
    static_assert(kBytes <= kSmallSharedBytes);
    const auto kernel = backward_queries<Element, kDim>;
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "backward");
    launch_overlapping(kernel, p.tiles, Sizes::kThreads, kBytes, arguments.stream, p);
  });
}

}  // namespace lethe::ampere
