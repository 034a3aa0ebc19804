#pragma once
// The shared memory of the delta rule's gradients inside a chunk: the places of its parts in bytes; and what is weighed and summed there.

#include "optimized/cuda/matrix_state/hopper/delta_arguments.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_rows.cuh"
#include "optimized/cuda/matrix_state/hopper/products.cuh"

namespace lethe::matrix_state {

/// kTiles: of 64 columns of the values. M lies over the residual and Z over R, when these are read; dQ over dO and dK over S. kOneUnit: the tiles of a token
/// or a state have one. What the two warpgroups have is by warpgroup.
template <int kTiles, bool kOneUnit>
struct ChunkGradientsShared {
  static constexpr int kUnits = kOneUnit ? 1 : kTiles, kThreads = 2 * kComputing;
  struct Small {
    ChunkGates gates;
    alignas(16) float beta[kChunk];
    alignas(16) float residual_unit[kUnits][kChunk], written_unit[kUnits][kChunk], gradient_unit[kChunk];
    float largest[4][kWarps];                ///< of Q, K, M and Z
    float pairs[2][kWarps][kChunk];          ///< sums of pairs that a gate separates, by block of 16 rows
    float rows[2][kChunk], columns[kChunk];  ///< shares of each token, by what reads S and by what R reads
    float states[kWarps];                    ///< of ⟨S, R⟩
    float state_unit[2][kUnits];             ///< of S and R
    uint64_t full[3];                        ///< of what has Element's type; of what each sweep has left
  };
  static constexpr int kTile = kTiles * kPanel, kGradient = 0, kResidual = kTile, kWritten = 2 * kTile,
                       kBefore = 3 * kTile, kAfter = 4 * kTile, kQuery = 5 * kTile, kKey = kQuery + kPanel,
                       kReads = kResidual, kCorrections = kAfter, kGradQuery = kGradient, kGradKey = kBefore,
                       kSmall = kKey + kPanel;
  static constexpr int kBytes = kSmall + int{sizeof(Small)}, kTogether = kOneUnit ? 2 : 1;
  static_assert(kTogether * (kBytes + 1024) <= 228 * 1024 && (kOneUnit || kTiles > 1));
};

/// Of rows g and g + 8 of a square the numbers on its diagonal, in the lanes that have them: those whose lane % 4 is lane / 8.
__device__ __forceinline__ void take_diagonal(float (&diagonal)[2], const float (&square)[32], int block, int lane) {
#pragma unroll
  for (int c = 0; c < 8; ++c)
    if (c / 2 == block) {
      const int at = 4 * c + 2 * (c % 2);
      diagonal[c % 2] = lane / 4 % 2 ? square[at + 1] : square[at];
    }
}

/// M, or Z, before its unit, from dO rᵀ or dN̄ rᵀ, whose true numbers are these times `row` and `column`.
template <typename Small>
__device__ __forceinline__ void weigh_tokens(Small& at, bool gated, bool corrects, int block, int lane,
                                             float (&pairs)[32], const float (&row_factor)[2],
                                             const float* column_unit) {
  const int i0 = 16 * block + lane / 4, t = lane % 4;
  const int first_seen[2] = {gated ? at.gates.first_seen[i0] : 0, gated ? at.gates.first_seen[i0 + 8] : 0};
  const bool cuts = gated && at.gates.first_seen[kChunk - 1] > 0;
  const float sum[2] = {gated ? at.gates.sum[i0] : 0.0f, gated ? at.gates.sum[i0 + 8] : 0.0f};
  float largest = 0.0f;
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    if (c / 2 > block) {
#pragma unroll
      for (int e = 0; e < 4; ++e) pairs[4 * c + e] = 0.0f;
      continue;
    }
    const int j = 8 * c + 2 * t;
    float2 beta = *reinterpret_cast<const float2*>(&at.beta[j]), sum_j{};
    if (column_unit) {
      const float2 unit = *reinterpret_cast<const float2*>(&column_unit[j]);
      beta = {beta.x * unit.x, beta.y * unit.y};
    }
    if (gated) sum_j = *reinterpret_cast<const float2*>(&at.gates.sum[j]);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float factor = e % 2 ? beta.y : beta.x;
      if (gated) factor *= exp2_approximate(sum[e / 2] - (e % 2 ? sum_j.y : sum_j.x));
      pairs[4 * c + e] *= factor * row_factor[e / 2];
      if (c / 2 == block || cuts) {
        const int i = i0 + 8 * (e / 2), column = j + e % 2;
        if (!sees(i, column, first_seen[e / 2]) || (corrects && column == i)) pairs[4 * c + e] = 0.0f;
      }
      largest = fmaxf(largest, fabsf(pairs[4 * c + e]));
    }
  }
  const float most = largest_of_warp(largest);
  if (lane == 0) at.largest[corrects ? 3 : 2][block] = most;
}

/// Of 2 · kCount sums half are this lane's from here on, with what the lane 2 · kCount away has of them.
template <int kCount>
__device__ __forceinline__ void halve_sums(float (&sums)[16], int lane) {
  const bool upper = lane & 2 * kCount;
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const float kept = upper ? sums[kCount + k] : sums[k], given = upper ? sums[k] : sums[kCount + k];
    sums[k] = kept + __shfl_xor_sync(kAllLanes, given, 2 * kCount);
  }
}

/// As sum_crossing_pairs (crossings.cuh), by fewer exchanges: number 4n + 2h + e of `pairs` is row 16·block + g + 8h, column 8n + 2t + e.
__device__ __forceinline__ void sum_pairs_across_gates(const float (&pairs)[32], int block, int lane, float* to) {
  const int g = lane / 4, t = lane % 4;
  float sums[16] = {};  // of columns 8n + 2t + e at 2n + e
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = 16 * block + g + 8 * half;
    float before = 0.0f;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float m = pairs[4 * n + 2 * half], own = m + pairs[4 * n + 2 * half + 1];
      const float near = __shfl_xor_sync(kAllLanes, own, 1), two = own + near, far = __shfl_xor_sync(kAllLanes, two, 2);
      const float here = before + ((t % 2 ? near : 0.0f) + (t / 2 ? far : 0.0f));
      const int l = 8 * n + 2 * t;
      if (l <= i) sums[2 * n] += here;
      if (l + 1 <= i) sums[2 * n + 1] += here + m;
      before += two + far;
    }
  }
  // Over the eight lanes of each t, each of which gets two columns.
  halve_sums<8>(sums, lane);
  halve_sums<4>(sums, lane);
  halve_sums<2>(sums, lane);
  const int n = (lane & 16) / 4 + (lane & 8) / 4 + (lane & 4) / 4;
  *reinterpret_cast<float2*>(to + 8 * n + 2 * t) = {sums[0], sums[1]};
}

/// A warp: d log f of a lane's two tokens from the shares in shared memory.
template <typename Small>
__device__ __forceinline__ float2 sum_gate_shares(const Small& at, int lane) {
  // A lane's two tokens: the rows from each on, and the columns before it.
  const float2 of_query = *reinterpret_cast<const float2*>(&at.rows[0][2 * lane]),
               of_key = *reinterpret_cast<const float2*>(&at.rows[1][2 * lane]),
               columns = *reinterpret_cast<const float2*>(&at.columns[2 * lane]),
               rows{of_query.x + of_key.x, of_query.y + of_key.y};
  float later = rows.x + rows.y, earlier = columns.x + columns.y;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float from_later = __shfl_down_sync(kAllLanes, later, step),
                from_earlier = __shfl_up_sync(kAllLanes, earlier, step);
    if (lane + step < 32) later += from_later;
    if (lane >= step) earlier += from_earlier;
  }
  later = __shfl_down_sync(kAllLanes, later, 1);
  earlier = __shfl_up_sync(kAllLanes, earlier, 1);
  if (lane == 31) later = 0.0f;
  if (lane == 0) earlier = 0.0f;
  const float whole = at.gates.total * ((at.states[0] + at.states[1]) + (at.states[2] + at.states[3]));
  float2 sums{whole + (later + rows.y + rows.x) + earlier, whole + (later + rows.y) + (earlier + columns.x)};
  for (int rows_block = lane / 8; rows_block < kWarps; ++rows_block) {
    const float2 reads = *reinterpret_cast<const float2*>(&at.pairs[0][rows_block][2 * lane]),
                 corrections = *reinterpret_cast<const float2*>(&at.pairs[1][rows_block][2 * lane]);
    sums.x += reads.x + corrections.x;
    sums.y += reads.y + corrections.y;
  }
  return sums;
}

}  // namespace lethe::matrix_state
