#pragma once
// A warp of the wide backward: two share the rows of Sᵀ. Each has half of a stage's queries of S and dP, and half of the columns of dK and dV, for
// which it multiplies its own P and dS from registers before the others' have arrived. At head dim 96 these halves are every other sixteen columns,
// so that a fragment's address is a lane's offset and a constant.

#include "optimized/cuda/ampere/grad_query.cuh"
#include "optimized/cuda/ampere/key_tile.cuh"
#include "optimized/cuda/hopper/ptx/fragment.cuh"
#include "optimized/cuda/ptx/keep_order.cuh"

namespace lethe::ampere {

template <typename Sizes>
struct WideShared : FusedShared<Sizes> {
  alignas(128) char weights[tile_bytes<Sizes::kColumns>(Sizes::kRows)];  // Pᵀ of a stage
  float column_sums[Sizes::kRows];                                       // of dS, over the second half of the queries
};

/// A warp's number, in a uniform register: a reduction's result is there from compute capability 8.0 on.
__device__ __forceinline__ int warp_of_cta() { return __reduce_or_sync(~0u, threadIdx.x / 32); }

/// A lane's offsets in a tile at each sixteen columns of a panel: a fragment's address is one of these and what all lanes have in common.
template <int kDim>
struct SteppedOffsets {
  static constexpr int kSteps = kDim % 64 == 0 ? 4 : 2;  // of a panel
  uint32_t left[kSteps], right[kSteps];                  // as LaneOffsets

  __device__ __forceinline__ SteppedOffsets() {
    const LaneOffsets<kDim> offsets;
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      left[step] = offsets.left ^ step << 5, right[step] = offsets.right ^ step << 5;
  }

  static __device__ __forceinline__ constexpr int panel(int step) { return step / kSteps * (kSteps * 32); }
};

/// multiply(fragments, i) for each i < kCount in turn, after load(fragments, i), which is issued before the step before is multiplied.
template <typename Fragments, int kCount, typename Load, typename Multiply>
__device__ __forceinline__ void load_ahead(Load load, Multiply multiply) {
  Fragments fragments[2];
  load(fragments[0], 0);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (i + 1 < kCount) load(fragments[(i + 1) % 2], i + 1);
    multiply(fragments[i % 2], i);
  }
}

template <typename Element, typename WarpSizes>
struct WideWarp {
  using Sizes = WarpSizes;
  using Shared = WideShared<Sizes>;
  using Stage = BackwardStage<Sizes>;
  static constexpr bool kFloat = false;
  static constexpr int kDim = Sizes::kDim, kRowTiles = Sizes::kRowTiles, kColumns = Sizes::kColumns;
  static constexpr int kOwnColumns = kColumns / 2, kScoreTiles = kOwnColumns / 8, kOwnDims = kDim / 2;
  static constexpr bool kEveryOther = Sizes::kEveryOther;

  struct Registers {
    float key[kRowTiles][kOwnDims / 8][4], value[kRowTiles][kOwnDims / 8][4];  // dK and dV
    float sum[kRowTiles][2];                                                   // of a row of dSᵀ
    float offset[kRowTiles][2];  // of a row's logits in this stage, in log₂
  };
  using Scores = float[kRowTiles][kScoreTiles][4];

  Shared& shared;
  const int lane, half, warp_row;
  const float scale_log2;
  const SteppedOffsets<kDim> offsets;
  const SteppedOffsets<kColumns> score_offsets;

  __device__ __forceinline__ WideWarp(Shared& shared, float scale_log2) : WideWarp(shared, scale_log2, warp_of_cta()) {}
  __device__ __forceinline__ WideWarp(Shared& shared, float scale_log2, int warp)
      : shared(shared), lane(threadIdx.x % 32), half(warp / 4), warp_row(warp % 4 * 16 * kRowTiles),
        scale_log2(scale_log2) {}

  __device__ __forceinline__ int row_of(int row_tile, int h) const {
    return warp_row + 16 * row_tile + 8 * h + lane / 4;
  }
  __device__ __forceinline__ int first_column() const { return half * kOwnColumns; }

  __device__ __forceinline__ void clear(Registers& r) const {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int d = 0; d < kOwnDims / 8; ++d)
#pragma unroll
        for (int e = 0; e < 4; ++e) r.key[i][d][e] = r.value[i][d][e] = 0;
  }

  /// Of sixteen columns of the head: the warp's rows of K or V, its queries of Q or dO.
  struct ScoreFragments {
    uint32_t left[kRowTiles][4], right[kScoreTiles / 2][4];
  };
  __device__ __forceinline__ void load(ScoreFragments& of, uint32_t left, uint32_t right, int k) const {
    const int panel = offsets.panel(k), step = k % SteppedOffsets<kDim>::kSteps;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
      ptx::load_matrices(of.left[i], offsets.left[step] + (left + panel + tile_bytes<kDim>(16 * i)));
#pragma unroll
    for (int c = 0; c < kScoreTiles / 2; ++c)
      ptx::load_matrices(of.right[c], offsets.right[step] + (right + panel + tile_bytes<kDim>(16 * c)));
  }
  /// initial(column tile) is read at k = 0.
  template <typename Initial>
  __device__ __forceinline__ void multiply(Scores& sums, const ScoreFragments& of, int k, Initial initial) const {
#pragma unroll
    for (int c = 0; c < kScoreTiles; ++c)
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        const uint32_t low = of.right[c / 2][c % 2 * 2], high = of.right[c / 2][c % 2 * 2 + 1];
        if (k == 0) ptx::multiply_add<Element>(sums[i][c], of.left[i], low, high, initial(c));
        else ptx::multiply_add<Element>(sums[i][c], of.left[i], low, high);
      }
  }

  /// Sixteen columns of the warp's rows of Pᵀ or dSᵀ.
  __device__ __forceinline__ void store_scores(char* tile, int column, const uint32_t (&packed)[kRowTiles][4]) const {
#if __CUDA_ARCH__ >= 900
    const uint32_t rows = ptx::shared_address(tile) + tile_bytes<kColumns>(warp_row);
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
      ptx::store_matrices(score_offset(column) + rows + tile_bytes<kColumns>(16 * i), packed[i][0], packed[i][1],
                          packed[i][2], packed[i][3]);
#else
    ampere::store_scores<kColumns, kRowTiles>(tile + tile_bytes<kColumns>(warp_row), column, packed);
#endif
  }

  /// Of a lane's left fragments of sixteen columns of scores.
  __device__ __forceinline__ uint32_t score_offset(int column) const {
    constexpr int kPanelColumns = 16 * SteppedOffsets<kColumns>::kSteps;
    return (score_offsets.left[0] ^ column % kPanelColumns * 2) + column / kPanelColumns * (kPanelColumns * 2);
  }

  /// Sixteen rows of the warp's columns of Q or dO.
  struct RowFragments {
    uint32_t right[kOwnDims / 16][4];
  };
  __device__ __forceinline__ void load(RowFragments& of, uint32_t rows) const {
    constexpr int kSteps = SteppedOffsets<kDim>::kSteps;
#pragma unroll
    for (int d = 0; d < kOwnDims / 16; ++d)
      if constexpr (kEveryOther)
        ptx::load_matrices_transposed(of.right[d], (offsets.left[0] ^ half << 5) + (rows + 64 * d));
      else if constexpr (kOwnDims % 64 == 0)
        ptx::load_matrices_transposed(of.right[d],
                                      offsets.left[d % kSteps] + (rows + offsets.panel(d) + half * kOwnDims * 2));
      else ptx::load_matrices_transposed(of.right[d], (offsets.left[d % kSteps] ^ half * kOwnDims * 2) + rows);
  }
  /// The warp's columns of `sums` += left · these rows.
  __device__ __forceinline__ void multiply(float (&sums)[kRowTiles][kOwnDims / 8][4],
                                           const uint32_t (&left)[kRowTiles][4], const RowFragments& of) const {
#pragma unroll
    for (int d = 0; d < kOwnDims / 16; ++d)
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        ptx::multiply_add<Element>(sums[i][2 * d], left[i], of.right[d][0], of.right[d][1]);
        ptx::multiply_add<Element>(sums[i][2 * d + 1], left[i], of.right[d][2], of.right[d][3]);
      }
  }

  template <int kPlace = 0>
  static __device__ __forceinline__ void keep_order_at(int place, uint32_t number) {
    if constexpr (kPlace < kDim / 16) {
      if (place == kPlace) return ptx::keep_order<kPlace>(number);
      keep_order_at<kPlace + 1>(place, number);
    }
  }

  /// P and dS of the warp's queries of a stage, to shared memory, and what they add to dV and dK. As BackwardWarp::add_columns. A part of the
  /// exponentials goes under each of dP's products, which ptxas would all move after the last of these.
  template <bool kDeltaOfColumns, typename Mask, typename Keep>
  __device__ __forceinline__ void add_columns(Registers& r, const Stage& stage, uint32_t, int column, Mask mask,
                                              Keep keep) const {
    const uint32_t own = tile_bytes<kDim>(warp_row), right = tile_bytes<kDim>(column);
    const uint32_t keys = ptx::shared_address(shared.first_kept) + own,
                   values = ptx::shared_address(shared.second_kept) + own,
                   queries = ptx::shared_address(stage.first) + right,
                   grads = ptx::shared_address(stage.second) + right;
    Scores score, grad;
    const float4 *bias = stage.bias + column / 2 + lane % 4, *delta = stage.negative_delta + column / 2 + lane % 4;
    constexpr int kSteps = kDim / 16, kTiles = kRowTiles * kScoreTiles;
    uint32_t number = 0;
    const auto exponentiate = [&](int tile) {
      float(&x)[4] = score[tile % kRowTiles][tile / kRowTiles];
#pragma unroll
      for (int e = 0; e < 4; ++e) x[e] = exp2_approximate(fmaf(x[e], scale_log2, r.offset[tile % kRowTiles][e / 2]));
      // a weight's bits are 0 or at least 2²³: it is not subnormal
      return __float_as_uint(x[0]) | __float_as_uint(x[1]) | __float_as_uint(x[2]) | __float_as_uint(x[3]);
    };
    load_ahead<ScoreFragments, 2 * kSteps>(
        [&](ScoreFragments& of, int i) {
          if (i < kSteps) load(of, keys, queries, i);
          else load(of, values, grads, i - kSteps);
        },
        [&](const ScoreFragments& of, int i) {
          if (i < kSteps) return multiply(score, of, i, [&](int c) { return bias[4 * c]; });
          const int k = i - kSteps;
          number = 0;
          if (k == 0) mask(score);
          multiply(grad, of, k, [&](int c) { return delta[4 * c]; });
#pragma unroll
          for (int tile = k * kTiles / kSteps; tile < (k + 1) * kTiles / kSteps; ++tile) number |= exponentiate(tile);
          keep_order_at(k, number);
        });
#pragma unroll
    for (int pair = 0; pair < kScoreTiles; pair += 2) {
      float x[kRowTiles][2][4];
      uint32_t weights[kRowTiles][4], rounded[kRowTiles][4];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
#pragma unroll
          for (int h = 0; h < 2; ++h)
            weights[i][2 * c + h] = pack<Element>(score[i][pair + c][2 * h], score[i][pair + c][2 * h + 1]);
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            x[i][c][e] = score[i][pair + c][e] * grad[i][pair + c][e];
            r.sum[i][e / 2] += x[i][c][e];
          }
#pragma unroll
          for (int h = 0; h < 2; ++h) rounded[i][2 * c + h] = pack<Element>(x[i][c][2 * h], x[i][c][2 * h + 1]);
        }
      store_scores(shared.weights, column + 8 * pair, weights);
      store_scores(shared.grad_scores[0], column + 8 * pair, rounded);
      keep(8 * pair, x, rounded);
      load_ahead<RowFragments, 2>(
          [&](RowFragments& of, int i) { load(of, (i ? queries : grads) + tile_bytes<kDim>(8 * pair)); },
          [&](const RowFragments& of, int i) {
            if (i) multiply(r.key, rounded, of);
            else multiply(r.value, weights, of);
          });
    }
  }

  /// dV and dK of a stage's other queries, whose P and dS are the other warp's.
  struct OtherFragments : RowFragments {
    uint32_t left[kRowTiles][4];
  };
  __device__ __forceinline__ void add_others(Registers& r, const Stage& stage) const {
    constexpr int kSteps = kOwnColumns / 16;
    const int column = (1 - half) * kOwnColumns;
    const uint32_t of_keys = tile_bytes<kColumns>(warp_row), weights = ptx::shared_address(shared.weights) + of_keys,
                   grad_scores = ptx::shared_address(shared.grad_scores[0]) + of_keys,
                   queries = ptx::shared_address(stage.first), grads = ptx::shared_address(stage.second);
    load_ahead<OtherFragments, 2 * kSteps>(
        [&](OtherFragments& of, int i) {
          const int query = column + 16 * (i % kSteps);
          load(of, (i < kSteps ? grads : queries) + tile_bytes<kDim>(query));
#pragma unroll
          for (int tile = 0; tile < kRowTiles; ++tile)
            ptx::load_matrices(of.left[tile], score_offset(query) + (i < kSteps ? weights : grad_scores) +
                                                  tile_bytes<kColumns>(16 * tile));
        },
        [&](const OtherFragments& of, int i) { multiply(i < kSteps ? r.value : r.key, of.left, of); });
  }

  /// By all warps, after a barrier: what a stage adds to dQ. A warp has a part of the queries, of which these are kTiles tiles of sixteen from the
  /// kFirst-th on, and some groups of sixteen columns of K.
  template <int kFirst, int kTiles>
  __device__ __forceinline__ void add_grad_query(const BackwardParameters& p, int row, int step) const {
    constexpr int kParts = Sizes::kQueryParts, kGroups = kDim / 16 / (Sizes::kWarps / kParts),
                  kQueryTiles = Sizes::kQueryTiles, kKeySteps = SteppedOffsets<kDim>::kSteps,
                  kQuerySteps = SteppedOffsets<kColumns>::kSteps;
    static_assert(kGroups * (Sizes::kWarps / kParts) * 16 == kDim && (kEveryOther || kGroups <= kKeySteps) &&
                  kQueryTiles <= kQuerySteps);
    // Groups group … group + kGroups − 1; of kEveryOther, which has two parts of the groups, every other one.
    const int warp = half * 4 + warp_row / (16 * kRowTiles), group = warp / kParts * (kEveryOther ? 1 : kGroups),
              query_tile = warp % kParts * kQueryTiles;
    const uint32_t keys = ptx::shared_address(shared.first_kept) + offsets.panel(group),
                   scores = ptx::shared_address(shared.grad_scores[0]) + score_offsets.panel(query_tile);
    struct Fragments {
      uint32_t left[kTiles][4], right[kGroups][4];
    };
    float sums[kGroups][kTiles][2][4] = {};
    load_ahead<Fragments, Sizes::kRows / 16>(
        [&](Fragments& of, int i) {
#pragma unroll
          for (int g = 0; g < kGroups; ++g)
            ptx::load_matrices_transposed(of.right[g], (offsets.left[kEveryOther ? 0 : g] ^ group % kKeySteps << 5) +
                                                           keys + tile_bytes<kDim>(16 * i) +
                                                           (kEveryOther ? 64 * g : 0));
#pragma unroll
          for (int t = 0; t < kTiles; ++t)
            ptx::load_matrices_transposed(of.left[t],
                                          (score_offsets.right[kFirst + t] ^ query_tile % kQuerySteps << 5) + scores +
                                              tile_bytes<kColumns>(16 * i));
        },
        [&](const Fragments& of, int) {
#pragma unroll
          for (int t = 0; t < kTiles; ++t)
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
              ptx::multiply_add<Element>(sums[g][t][0], of.left[t], of.right[g][0], of.right[g][1]);
              ptx::multiply_add<Element>(sums[g][t][1], of.left[t], of.right[g][2], of.right[g][3]);
            }
        });
    float* tile = grad_query_tile<kDim>(p.workspace, int64_t{row} * p.padded_queries,
                                        step * kColumns + 16 * (query_tile + kFirst)) +
                  256 * group;
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
#pragma unroll
        for (int c = 0; c < 2; ++c)
          add_to_tile(tile + 16 * kDim * i + 128 * (2 * (kEveryOther ? 2 * g : g) + c), sums[g][i][c]);
  }

  __device__ __forceinline__ void store(const float (&sums)[kRowTiles][kOwnDims / 8][4], float scale, Element* gradient,
                                        int64_t first_row, int rows, int64_t row_elements, int dim) const {
    const int first = half * (kEveryOther ? 16 : kOwnDims);
    store_rows<Element, kOwnDims, kRowTiles, kEveryOther>(
        sums, scale, shared.left + threadIdx.x / 32 * tile_bytes<kOwnDims>(16 * kRowTiles), gradient + first,
        first_row + warp_row, rows - warp_row, row_elements, dim - first);
  }
};

}  // namespace lethe::ampere
