#pragma once
// A CTA's tile of keys in the backward: the gate and the masks of the queries that pass by.

#include "optimized/cuda/ampere/backward_warp.cuh"

namespace lethe::ampere {

/// Where a CTA's keys are.
struct KeyPlace {
  int batch, head, first_key;
};

/// Longest first: sections of heads in WorkOrder's order; inside a section from the first keys on, heads innermost.
template <int kRows>
__device__ __forceinline__ KeyPlace key_place(const BackwardParameters& p) {
  const int rows = p.tiles / p.query_tiles, per_section = p.section * p.query_tiles, section = blockIdx.x / per_section,
            within = blockIdx.x % per_section, width = min(p.section, rows - section * p.section);
  const int key_row = p.order.key_head_order[section * p.section + within % width];
  return {key_row / p.heads, key_row % p.heads, within / width * kRows};
}

/// Copies of one query head's rows to stages.
template <typename Sizes>
struct StageCopies {
  const BackwardParameters& p;
  const int row;  // b·Hq + h
  const RowCopies<Sizes::kPitch, Sizes::kThreads> queries, grads;

  __device__ __forceinline__ StageCopies(const BackwardParameters& p, int batch, int head, int row)
      : p(p), row(row), queries(p.query, batch, head, p.query_length, p.key_dim * (Sizes::kPitch / Sizes::kDim)),
        grads(p.grad_values, batch, head, p.query_length, p.value_dim * (Sizes::kPitch / Sizes::kDim)) {}

  /// The queries from `query` on; `near`: without their bias.
  __device__ __forceinline__ void load(BackwardStage<Sizes>& stage, int query, bool near) const {
    constexpr int kColumns = Sizes::kColumns;
    const int64_t of_row = int64_t{row} * p.padded_queries / 2;
    queries.template copy<kColumns>(ptx::shared_address(stage.first), query);
    grads.template copy<kColumns>(ptx::shared_address(stage.second), query);
    if (threadIdx.x < kColumns / 2)
      ptx::copy_chunk(ptx::shared_address(&stage.bias[threadIdx.x]),
                      p.workspace.row_bias + of_row + query / 2 + threadIdx.x, !near);
    else if (threadIdx.x < kColumns)
      ptx::copy_chunk(ptx::shared_address(&stage.negative_delta[threadIdx.x - kColumns / 2]),
                      p.workspace.negative_delta + of_row + query / 2 + threadIdx.x - kColumns / 2);
    else if (threadIdx.x == kColumns)
      ptx::copy_chunk(ptx::shared_address(&stage.base),
                      p.scratch.base_log2 + int64_t{row} * (p.key_blocks + 1) + block_of(p, query));
  }
};

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

  /// S += (c_i − log_normalizer_i − c_j) / scale of near queries; near strong gates from more than floats.
  __device__ __forceinline__ void add_decay(typename Warp::Scores& score, int query) const {
    const int64_t at = int64_t{row} * p.padded_queries + query + 2 * (warp.lane % 4);
    const bool strong = Warp::kFloat || near_strong(p, row, block_of(p, query));
    const float of_blocks = decay_of_blocks(p, row, block_of(p, query), first_key / kBlock);
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int key = min(key_of(i, h), p.key_length - 1);
        const double exact = prefix_at(p.prefix, row, p.key_blocks, key);
        const float of_key = bias_of(key);
#pragma unroll
        for (int c = 0; c < Warp::kScoreTiles; ++c) {
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
        for (int c = 0; c < Warp::kScoreTiles; ++c)
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
    for (int own = 0; own < Warp::kOwnColumns; own += 8 * Warp::kScoreTiles) {
      const int column = warp.first_column() + own;
      warp.template add_columns<true>(
          r, stage, ptx::shared_address(&stage), column,
          [&](typename Warp::Scores& score) {
            if (near) add_decay(score, query + column);
            mask(score, query + column);
          },
          [&](int more, const auto& grad, const auto& rounded) { keep(column + more, grad, rounded); });
    }
  }

  /// Any other stage.
  template <typename Keep>
  __device__ __forceinline__ void visit_clean(Registers& r, const typename Warp::Stage& stage, Keep keep) const {
    find_offset(r, stage, false);
#pragma unroll
    for (int own = 0; own < Warp::kOwnColumns; own += 8 * Warp::kScoreTiles) {
      const int column = warp.first_column() + own;
      warp.template add_columns<true>(
          r, stage, ptx::shared_address(&stage), column, [](typename Warp::Scores&) {},
          [&](int more, const auto& grad, const auto& rounded) { keep(column + more, grad, rounded); });
    }
  }

  struct Steps {
    int first, past;
  };
  /// The stages of kColumns queries that see some of the keys. The boundary's blocks have 128 queries.
  __device__ __forceinline__ Steps steps() const {
    const int last_block = p.boundary.last_query_block[int64_t{row} * p.key_blocks + first_key / kBlock],
              end = min(min((last_block + 1) * kBlock, p.query_length), end_query - p.query_offset);
    return {max(0, first_key - p.query_offset) / kColumns, (end + kColumns - 1) / kColumns};
  }

  /// Whether the warp's keys are seen by no query of a stage.
  __device__ __forceinline__ bool is_unseen(int query) const {
    const int position = query + p.query_offset;
    return position + kColumns <= first_key + warp.warp_row ||
           position >= warp.shared.row_end[warp.warp_row + 16 * kRowTiles - 1];
  }
};

}  // namespace lethe::ampere
