#pragma once
// A CTA's tile of keys in the backward: the gate and the masks of the queries that pass by.

#include "optimized/cuda/ampere/backward_warp.cuh"

namespace lethe::ampere {

/// One tile of keys, for one query head after the other.
template <typename Warp>
struct KeyTile {
  using Sizes = typename Warp::Sizes;
  using Registers = typename Warp::Registers;
  static constexpr int kRowTiles = Sizes::kRowTiles, kColumns = Sizes::kColumns, kBlock = kGateBlock;

  const BackwardParameters& p;
  const Warp& warp;
  const int first_key;
  int row;                       // b·Hq + h
  int cut, end_query;            // the first queries that don't see the tile's first and last key
  float key_bias[kRowTiles][2];  // log₂e (c at the keys' block's end − c_j)
  TwoFloats end;                 // log₂e·c there

  __device__ __forceinline__ int key_of(int row_tile, int h) const { return first_key + warp.row_of(row_tile, h); }

  /// Whether the keys have positions of these queries or later ones. There c_i and c_j may be large and their difference small: it is added to each
  /// logit, and no bias enters the product.
  __device__ __forceinline__ bool is_near(int query) const { return first_key / kBlock >= block_of(p, query); }

  __device__ __forceinline__ float bias_of(int key) const {
    const float4* bias = p.scratch.key_bias + int64_t{row} * p.key_blocks * (kBlock / 2);
    return reinterpret_cast<const float*>(bias + key / 2)[key % 2];
  }

  /// Other threads see row_end after a barrier.
  __device__ __forceinline__ void enter_head(int of_row) {
    row = of_row;
    end = p.scratch.base_log2[int64_t{row} * (p.key_blocks + 1) + first_key / kBlock + 1];
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) key_bias[i][h] = bias_of(key_of(i, h)) * p.scale_log2;
    const auto visibility = visibility_of_keys(p.prefix, row, p.key_blocks, first_key / kBlock);
    cut = visibility.end_query(first_key);
    end_query = visibility.end_query(min(first_key + Sizes::kRows, p.key_length) - 1);
    if (threadIdx.x < Sizes::kRows) warp.shared.row_end[threadIdx.x] = visibility.end_query(first_key + threadIdx.x);
  }

  /// S += (c_i − log_normalizer_i − c_j) / scale of sixteen near queries; near strong gates from more than floats.
  __device__ __forceinline__ void add_decay(typename Warp::Scores& score, int query) const {
    const int64_t at = int64_t{row} * p.padded_queries + query + 2 * (warp.lane % 4);
    const bool strong = near_strong(p, row, block_of(p, query));
    const float of_blocks = decay_of_blocks(p, row, block_of(p, query), first_key / kBlock);
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int key = min(key_of(i, h), p.key_length - 1);
        const double exact = prefix_at(p.prefix, row, p.key_blocks, key);
        const float of_key = bias_of(key);
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float4 of_queries = p.workspace.row_bias[at / 2 + 4 * c];
#pragma unroll
          for (int e = 0; e < 2; ++e)
            score[i][c][2 * h + e] +=
                strong ? static_cast<float>((p.workspace.row_number[at + 8 * c + e] - exact) * p.inverse_scale)
                       : ((e ? of_queries.y : of_queries.x) + of_blocks) + of_key;
        }
      }
  }

  __device__ __forceinline__ void mask(typename Warp::Scores& score, int query) const {
    const float masked = p.scale_log2 > 0 ? -INFINITY : INFINITY;
    const int position = query + p.query_offset + 2 * (warp.lane % 4);
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int first = Visibility<KeyBlockCuts>::first_query(key_of(i, h)) - position,
                  past = warp.shared.row_end[warp.row_of(i, h)] - position;
#pragma unroll
        for (int c = 0; c < 2; ++c)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (8 * c + e < first || 8 * c + e >= past) score[i][c][2 * h + e] = masked;
      }
  }

  /// Whether some of a stage's pairs may be masked.
  __device__ __forceinline__ bool is_special(int query) const {
    return is_near(query) || query + p.query_offset + kColumns > cut;
  }

  __device__ __forceinline__ void find_offset(Registers& r, const typename Warp::Stage& stage, bool near) const {
    const float decay = (stage.base.high - end.high) + (stage.base.low - end.low);
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) r.offset[i][h] = near ? 0 : decay + key_bias[i][h];
  }

  /// A stage near the diagonal or at a cut. `keep(column, dS, dS in 16 bits)` of sixteen queries.
  template <typename Keep>
  __device__ __forceinline__ void visit(Registers& r, const typename Warp::Stage& stage, int query, Keep keep) const {
    const bool near = is_near(query);
    find_offset(r, stage, near);
#pragma unroll 1
    for (int column = 0; column < kColumns; column += 16)
      warp.template add_columns<true>(
          r, stage, ptx::shared_address(&stage), column,
          [&](typename Warp::Scores& score) {
            if (near) add_decay(score, query + column);
            mask(score, query + column);
          },
          [&](const auto& grad, const auto& rounded) { keep(column, grad, rounded); });
  }

  /// Any other stage.
  template <typename Keep>
  __device__ __forceinline__ void visit_clean(Registers& r, const typename Warp::Stage& stage, Keep keep) const {
    find_offset(r, stage, false);
#pragma unroll
    for (int column = 0; column < kColumns; column += 16)
      warp.template add_columns<true>(
          r, stage, ptx::shared_address(&stage), column, [](typename Warp::Scores&) {},
          [&](const auto& grad, const auto& rounded) { keep(column, grad, rounded); });
  }

  /// Whether the warp's keys are seen by no query of a stage.
  __device__ __forceinline__ bool is_unseen(int query) const {
    const int position = query + p.query_offset;
    return position + kColumns <= first_key + warp.warp_row ||
           position >= warp.shared.row_end[warp.warp_row + 16 * kRowTiles - 1];
  }
};

}  // namespace lethe::ampere
