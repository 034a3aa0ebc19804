#pragma once
// One warp's work on a tile of queries.
//
// Key blocks are visited from the diagonal back to the boundary. Some keys at a time, a block's logits become weights and are multiplied with V; the
// next block's logits take their registers at once, so that the tensor core has work under the exponentials.

#include <algorithm>
#include <numbers>
#include <type_traits>

#include "optimized/cuda/ampere/forward_loads.cuh"
#include "optimized/cuda/ampere/forward_scores.cuh"
#include "optimized/cuda/arithmetic.cuh"
#include "optimized/cuda/tile/softmax.cuh"

namespace lethe::ampere {

/// kEdges: of a call with a window. Where a tile's queries are of one sequence, what a window hides gets the weight 0 after the exponentials, and
/// there is no maximum: of a block that some of a warp's rows see in part, before the tile's own positions.
template <typename Element, typename TileSizes, bool kEdges>
struct ForwardTile {
  using Sizes = TileSizes;
  using Shared = ForwardSharedOf<Element, Sizes>;
  static constexpr bool kFloat = std::is_same_v<Element, float>;
  static constexpr int kDim = Sizes::kDim, kPitch = Sizes::kPitch;
  static constexpr int kRowTiles = Sizes::kRowTiles, kKeys = Sizes::kKeys, kKeysAtOnce = Sizes::kKeysAtOnce;
  static constexpr int kScoreTiles = kKeys / 8, kOutputTiles = kDim / 8;
  static constexpr bool kRunning = kEdges || Sizes::kRunning;

  // A thread's rows are 16·tile + 8·h + lane / 4 of its warp's.
  struct Registers {
    float score[kRowTiles][kScoreTiles][4];
    float output[kRowTiles][kOutputTiles][4];
    LeftFragments<16 * std::max(1, Sizes::kHeldSteps), kRowTiles> query;
    float maximum[kRowTiles][2], sum[kRowTiles][2];
  };

  const ForwardParameters& p;
  Shared& shared;
  const tile::Tile<Sizes::kRows>& tile;
  const int lane, warp_row, first_position, first_block;  // the warp's first row; of the tile's first query
  using Loads = ForwardLoads<Element, Sizes>;
  const Loads loads;
  const uint32_t query_address, key_address, value_address;
  const LaneOffsets<kPitch> offsets;

  __device__ __forceinline__ ForwardTile(const ForwardParameters& p, Shared& shared)
      : p(p), shared(shared), tile(shared.tile), lane(threadIdx.x % 32), warp_row(threadIdx.x / 32 * 16 * kRowTiles),
        first_position(tile.query + p.key_length - p.query_length), first_block(first_position / tile::kColumns),
        loads(p, shared, first_position),
        query_address(ptx::shared_address(shared.query) + tile_bytes<kPitch>(warp_row)),
        key_address(ptx::shared_address(shared.key)), value_address(ptx::shared_address(shared.value)) {}

  /// The position of a thread's row; rows past the last query count as the last.
  __device__ __forceinline__ int position_of(int row_tile, int h) const {
    return min(first_position + warp_row + 16 * row_tile + 8 * h + lane / 4, p.key_length - 1);
  }

  __device__ __forceinline__ bool is_near(int n) const { return loads.is_near(n); }

  __device__ __forceinline__ void clear(Registers& r) const {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) r.maximum[i][h] = -INFINITY, r.sum[i][h] = 0;
#pragma unroll
      for (int d = 0; d < kOutputTiles; ++d)
#pragma unroll
        for (int e = 0; e < 4; ++e) r.output[i][d][e] = 0;
    }
  }

  static __device__ __forceinline__ constexpr int stage(int n) { return ForwardLoads<Element, Sizes>::stage(n); }

  __device__ __forceinline__ float& row_decay(int row_tile, int h) const {
    return shared.row_decay[warp_row + 16 * row_tile + 8 * h + lane / 4];
  }

  __device__ __forceinline__ int first_key(int row) const { return shared.row_first[warp_row + row]; }

  __device__ __forceinline__ void find_rows() const {
    const auto visibility = visibility_of_queries(p.prefix, tile.row, p.key_blocks);
    const double base = p.prefix.base[int64_t{tile.row} * (p.key_blocks + 1) + first_block];
    if constexpr (kEdges) {
      static_assert(16 * kRowTiles == 32);  // a row a lane
      const int position = min(first_position + warp_row + lane, p.key_length - 1);
      shared.row_decay[warp_row + lane] =
          static_cast<float>((prefix_at(p.prefix, tile.row, p.key_blocks, position) - base) * std::numbers::log2e);
      shared.row_first[warp_row + lane] = visibility.first_key(position);
    } else {
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          if (lane % 4 == 0) {
            const int position = position_of(i, h);
            row_decay(i, h) = static_cast<float>((prefix_at(p.prefix, tile.row, p.key_blocks, position) - base) *
                                                 std::numbers::log2e);
            shared.row_first[warp_row + 16 * i + 8 * h + lane / 4] = visibility.first_key(position);
          }
    }
    __syncwarp();
  }

  /// S of the keys [first, first + kKeysAtOnce) of block n, and their bias.
  __device__ __forceinline__ void multiply_scores(Registers& r, int n, int first) const {
    float sums[kRowTiles][kKeysAtOnce / 8][4];
    float4 bias[kKeysAtOnce / 8];
#pragma unroll
    for (int c = 0; c < kKeysAtOnce / 8; ++c) bias[c] = shared.bias[stage(n)][(first + 8 * c) / 2 + lane % 4];
    if constexpr (kFloat) {
      // The bias may be large: it comes last.
      multiply_float_rows<kDim>(sums, shared.query + tile_bytes<kPitch>(warp_row),
                                shared.key[stage(n)] + tile_bytes<kPitch>(first));
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
        for (int c = 0; c < kKeysAtOnce / 8; ++c) {
          sums[i][c][0] += bias[c].x, sums[i][c][1] += bias[c].y;
          sums[i][c][2] += bias[c].z, sums[i][c][3] += bias[c].w;
        }
    } else {
      const uint32_t keys = key_address + stage(n) * sizeof(shared.key[0]) + tile_bytes<kDim>(first) + offsets.right;
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k)
        multiply_rows<Element, kDim, Sizes::kHeldSteps>(sums, r.query, query_address + offsets.left, keys, k,
                                                        [&](int, int c) { return bias[c]; });
    }
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int column = 0; column < kKeysAtOnce / 8; ++column)
#pragma unroll
        for (int e = 0; e < 4; ++e) r.score[i][first / 8 + column][e] = sums[i][column][e];
  }

  __device__ __forceinline__ void multiply_scores(Registers& r, int n) const {
#pragma unroll
    for (int first = 0; first < kKeys; first += kKeysAtOnce) multiply_scores(r, n, first);
  }

  __device__ __forceinline__ FloatWeights<kRowTiles>& own_weights(int k) const {
    return shared.weights[threadIdx.x / 32][k];
  }

  /// Weights of block n, O += P V, and S of the block before it. `hidden`, unless null: the first key that a row sees, less the lane's first column.
  template <bool kMore>
  __device__ __forceinline__ void step(Registers& r, int n, const float (&offset)[kRowTiles][2],
                                       const int (*hidden)[2] = nullptr) const {
#pragma unroll
    for (int first = 0; first < kKeys; first += kKeysAtOnce) {
      uint32_t weights[kKeysAtOnce / 16][kRowTiles][4];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
        for (int column = 0; column < kKeysAtOnce / 8; ++column) {
          float(&x)[4] = r.score[i][first / 8 + column];
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            x[e] = exp2_approximate(fmaf(x[e], p.scale_log2, offset[i][e / 2]));
            if (hidden && first + 8 * column + e % 2 < hidden[i][e / 2]) x[e] = 0;
            r.sum[i][e / 2] += x[e];
          }
          if constexpr (!kFloat) {
            weights[column / 2][i][column % 2 * 2] = pack<Element>(x[0], x[1]);
            weights[column / 2][i][column % 2 * 2 + 1] = pack<Element>(x[2], x[3]);
          }
        }
      if constexpr (kFloat) {
#pragma unroll
        for (int k = 0; k < kKeysAtOnce / 16; ++k) own_weights(k).store(r.score, first / 8 + 2 * k);
      }
      if constexpr (kMore) multiply_scores(r, n - 1, first);
#pragma unroll
      for (int k = 0; k < kKeysAtOnce / 16; ++k) {
        const int row = first + 16 * k;
        if constexpr (kFloat)
          multiply_float_columns<kDim>(r.output, own_weights(k), shared.value[stage(n)] + tile_bytes<kPitch>(row));
        else
          multiply_columns<Element, kDim, kRowTiles>(
              r.output, weights[k],
              value_address + stage(n) * sizeof(shared.value[0]) + tile_bytes<kDim>(row) + offsets.left);
      }
    }
  }

  /// S += (c_i − c_j) / scale of a near block where strong gates are near, from more than floats.
  __device__ __forceinline__ void add_strong_decay(Registers& r, int n) const {
#pragma unroll
    for (int c = 0; c < kScoreTiles; ++c)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int key = min(n * kKeys + 8 * c + 2 * (lane % 4) + e, p.key_length - 1);
        const double of_key = prefix_at(p.prefix, tile.row, p.key_blocks, key);
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
          for (int h = 0; h < 2; ++h)
            r.score[i][c][2 * h + e] += static_cast<float>(
                (prefix_at(p.prefix, tile.row, p.key_blocks, position_of(i, h)) - of_key) * p.inverse_scale);
      }
  }

  /// kBegins: of a block that also has keys before the first that some row sees.
  template <bool kBegins = true>
  __device__ __forceinline__ void mask(Registers& r, int n) const {
    const float masked = p.scale_log2 > 0 ? -INFINITY : INFINITY;
    const int column = n * kKeys + 2 * (lane % 4);
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int last = Visibility<QueryCuts>::last_key(position_of(i, h)) - column,
                  first = kBegins ? first_key(16 * i + 8 * h + lane / 4) - column : 0;
#pragma unroll
        for (int c = 0; c < kScoreTiles; ++c)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (8 * c + e > last || (kBegins && 8 * c + e < first)) r.score[i][c][2 * h + e] = masked;
      }
  }

  /// Moves m where a logit is above it by more than kRescaleAbove, and the sum and O with it.
  /// A row that is masked in the whole block loses the block's bias, which may be NaN. `first`: there is nothing to move yet.
  __device__ __forceinline__ void follow_maximum(Registers& r, float (&bias)[kRowTiles][2], bool first) const {
    float shrink[kRowTiles][2];
    bool moved = false;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float largest = -INFINITY;
#pragma unroll
        for (int c = 0; c < kScoreTiles; ++c)
          largest = fmaxf(largest, fmaxf(r.score[i][c][2 * h] * p.scale_log2, r.score[i][c][2 * h + 1] * p.scale_log2));
        largest = tile::largest_of_four(largest);
        if (largest == -INFINITY) bias[i][h] = 0;
        largest += bias[i][h];
        const float before = r.maximum[i][h];
        const float maximum = !(largest <= before + tile::kRescaleAbove) ? largest : before;
        moved |= maximum != before;
        shrink[i][h] = maximum == -INFINITY ? 1 : exp2_approximate(before - maximum);  // a row may see nothing yet
        r.maximum[i][h] = maximum;
      }
    if ((kEdges && first) || !__any_sync(~0u, moved)) return;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) r.sum[i][h] *= shrink[i][h];
#pragma unroll
      for (int d = 0; d < kOutputTiles; ++d)
#pragma unroll
        for (int e = 0; e < 4; ++e) r.output[i][d][e] *= shrink[i][e / 2];
    }
  }

  /// log₂e (c_i − c at the end of the keys' block).
  __device__ __forceinline__ void find_decay(float (&decay)[kRowTiles][2], int n) const {
    const TwoFloats end = shared.base[stage(n)];
    const float of_blocks = (tile.frame.high - end.high) + (tile.frame.low - end.low);
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) decay[i][h] = of_blocks + row_decay(i, h);
  }

  /// Whether some of a tile's rows are masked in a block, or m follows its logits. Without `follow`, m does so near the diagonal and at cuts.
  __device__ __forceinline__ bool is_special(int n, bool follow) const {
    return follow || is_near(n) || n * kKeys < shared.row_first[Sizes::kRows - 1];
  }

  /// Whether all of the warp's rows see all of a block.
  __device__ __forceinline__ bool sees_whole(int n) const {
    return n * kKeys >= first_key(16 * kRowTiles - 1) &&
           (n + 1) * kKeys <= min(first_position + warp_row + 1, p.key_length);
  }

  /// A special block whose logits are in registers, or the warp's last. `first`: the first that it visits.
  __device__ __forceinline__ void visit(Registers& r, int n, bool first, bool more, bool follow) const {
    float offset[kRowTiles][2];
    find_decay(offset, n);
    const bool near = is_near(n);
    if (near) {
      if (kFloat || tile.strong) add_strong_decay(r, n);
      else add_decay(r.score, offset, shared.near_bias[stage(n)] + lane % 4, p.inverse_scale_log2);
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) offset[i][0] = offset[i][1] = 0;
    }
    const bool masked = near || n * kKeys < first_key(16 * kRowTiles - 1);
    if constexpr (kEdges) {
      if (masked && !sees_whole(n)) {
        if (n * kKeys < first_key(16 * kRowTiles - 1)) mask(r, n);
        else mask<false>(r, n);
      }
    } else if (masked) {
      mask(r, n);
    }
    if (masked && !follow) keep_sums_beyond_their_bound(r.sum);
    if (masked || follow) follow_maximum(r, offset, first);
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        // What a row doesn't see of may have a number that is NaN.
        const bool sees = r.maximum[i][h] != -INFINITY && first_key(16 * i + 8 * h + lane / 4) < (n + 1) * kKeys;
        offset[i][h] = sees ? offset[i][h] - r.maximum[i][h] : 0;
      }
    if (more) step<true>(r, n, offset);
    else step<false>(r, n, offset);
  }

  /// Any other block.
  __device__ __forceinline__ void visit_clean(Registers& r, int n) const {
    float offset[kRowTiles][2];
    find_decay(offset, n);
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) offset[i][h] -= r.maximum[i][h];
    step<true>(r, n, offset);
  }

  /// A block before the tile's positions that the warp's rows see in part, or its last.
  __device__ __forceinline__ void visit_edge(Registers& r, int n, bool more) const {
    float offset[kRowTiles][2];
    int hidden[kRowTiles][2];
    find_decay(offset, n);
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        offset[i][h] -= r.maximum[i][h];
        hidden[i][h] = first_key(16 * i + 8 * h + lane / 4) - n * kKeys - 2 * (lane % 4);
      }
    if (more) step<true>(r, n, offset, hidden);
    else step<false>(r, n, offset, hidden);
  }

  __device__ __forceinline__ int last_block() const {
    return (min(first_position + Sizes::kRows, p.key_length) - 1) / kKeys;
  }

  /// All blocks of the tile, whose loads have begun. Returns whether this thread's weights and sums were within their formats.
  __device__ __forceinline__ bool visit_blocks(Registers& r, bool follow) {
    // The boundary's blocks have 128 keys.
    const int first = max(tile.first * (tile::kColumns / kKeys), shared.row_first[0] / kKeys),
              own_first = max(first, first_key(0) / kKeys), cut = shared.row_first[Sizes::kRows - 1];
    const int last = last_block(),
              own_last = (min(first_position + warp_row + 16 * kRowTiles, p.key_length) - 1) / kKeys;

    clear(r);
    ptx::copies_wait<Sizes::kStages - 1>();
    __syncthreads();
    if constexpr (Sizes::kHeldSteps > 0) load_lefts<kDim, kRowTiles>(r.query, query_address + offsets.left);
    if (own_last == last) multiply_scores(r, last);
    const bool by_weights = kEdges && !follow && !tile.cut_within;
    for (int n = last; n >= first;) {
#pragma unroll 1
      for (; by_weights ? n >= first && is_near(n) : n == first || (n > first && is_special(n, follow)); --n) {
        loads.template advance<true>(n, first);
        if (own_first <= n && n <= own_last) visit(r, n, n == own_last, n > own_first, follow);
        else if (n - 1 == own_last && n > first) multiply_scores(r, n - 1);
      }
      [[maybe_unused]] typename Loads::Sources sources;
      if constexpr (kRunning) sources = loads.sources_from(n);
        // Nothing of the special blocks is in the loop of most.
#pragma unroll 1
      for (; n > first && n * kKeys >= cut; --n) {
        if constexpr (kRunning) loads.advance(sources, n, first);
        else loads.template advance<false>(n, first);
        visit_clean(r, n);
      }
      if constexpr (kEdges) {
#pragma unroll 1
        for (; by_weights && n >= first; --n) {
          loads.advance(sources, n, first);
          if (own_first <= n) visit_edge(r, n, n > own_first);
        }
      }
    }
    bool fit = true;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        r.sum[i][h] = tile::sum_of_four(r.sum[i][h]);
        fit = fit && r.sum[i][h] < tile::kLargestSum;
        if constexpr (std::is_same_v<Element, __half>) fit = fit && isfinite(r.output[i][0][2 * h]);
      }
    return fit;
  }
};

}  // namespace lethe::ampere
