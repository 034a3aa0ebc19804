#pragma once
// The states before each chunk, which vector_gradient.cuh reads.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "optimized/cuda/matrix_state/vector_chunk.cuh"

namespace lethe::matrix_state {

template <int kRows, int kColumns>
struct VectorStatesShared {
  static constexpr int kStages = kColumns == 64 ? 3 : 2;
  static constexpr int kValue = kTokens * kRows * 2, kGates = kValue + kTokens * kColumns * 2,
                       kStage = kGates + kTokens * kGateStride<kRows>, kBytes = kStages * kStage;
};

/// The state before each chunk, in 16 bits: S ← E_C S + Σ_j (D_Cj ∘ k_j) v_jᵀ. A warp owns 16 rows.
template <typename Element, int kRows, int kColumns, bool kColumnGate>
__global__ void __launch_bounds__(2 * kRows, (kColumns <= 64 ? 3 : 2) * (64 / kRows))
    vector_states(const __grid_constant__ VectorGradientArguments p) {
  using Shared = VectorStatesShared<kRows, kColumns>;
  constexpr int kWarps = kRows / 16;
  constexpr bool kHalf = std::is_same_v<Element, __half>;
  extern __shared__ __align__(1024) char memory[];
  const uint32_t shared = ptx::shared_address(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const RowTile place = row_tile<kRows>(p);
  const auto load = [&](int n) {
    if (n < place.chunks) {
      const uint32_t stage = shared + n % Shared::kStages * Shared::kStage;
      each_block<kWarps>(warp, [&](int block) {
        const int row = kBlock * block;
        const int64_t first = static_cast<int64_t>(n) * kTokens + row;
        copy_rows<2, kRows / 8>(p.key, place, first, p.length, place.row, p.rows, lane, tile_rows<kRows>(stage, row));
        copy_rows<2, kColumns / 8>(p.value, place, first, p.length, 0, p.columns, lane,
                                   tile_rows<kColumns>(stage + Shared::kValue, row));
        copy_rows<4, kRows / 4>(p.key_gate, place, first, p.length, place.row, p.rows, lane,
                                [&](int r, int piece, int further) {
                                  return stage + Shared::kGates + (row + r + further) * kGateStride<kRows> + piece * 16;
                                });
      });
    }
    ptx::copies_commit();
  };
  float state[kColumns / 8][4];  // row g + 8·(e / 2), column 8n + 2t + e % 2
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = place.row + 16 * warp + g + 8 * (e / 2), column = 8 * n + 2 * t + e % 2;
      state[n][e] = p.initial && row < p.rows && column < p.columns
                        ? p.initial[place.head * p.rows * p.columns + row * p.row_stride + column * p.column_stride]
                        : 0.0f;
    }
#pragma unroll
  for (int n = 0; n + 1 < Shared::kStages; ++n) load(n);
  const bool upper2 = t & 1, upper4 = t & 2;
#pragma unroll 1
  for (int n = 0; n < place.chunks; ++n) {
    ptx::copies_wait<Shared::kStages - 2>();
    __syncthreads();
    load(n + Shared::kStages - 1);
    const uint32_t stage = shared + n % Shared::kStages * Shared::kStage;
    const int64_t at = (place.index * place.chunks + n) * kWarps + warp;
    float unscale = 1.0f;
    if constexpr (kHalf) {
      float x = 0.0f;
#pragma unroll
      for (int k = 0; k < kColumns / 8; ++k)
#pragma unroll
        for (int e = 0; e < 4; ++e) x = fmaxf(x, fabsf(state[k][e]));
      const float unit = power_below(__uint_as_float(__reduce_max_sync(kEveryLane, __float_as_uint(x))));
      unscale = inverse_of_power(unit);
      if (lane == 0) p.state_units[at] = unit;
    }
#pragma unroll
    for (int k = 0; k < kColumns / 16; ++k) {
      const float(&s0)[4] = state[2 * k], (&s1)[4] = state[2 * k + 1];
      p.states[(at * (kColumns / 16) + k) * 32 + lane] = {
          pack<Element>(s0[0] * unscale, s0[1] * unscale), pack<Element>(s0[2] * unscale, s0[3] * unscale),
          pack<Element>(s1[0] * unscale, s1[1] * unscale), pack<Element>(s1[2] * unscale, s1[3] * unscale)};
    }
    // From the last token back: `after` is the product of the gates that follow.
    uint32_t keys[4][4];
    float after[2] = {1.0f, 1.0f}, logs[2] = {};
#pragma unroll
    for (int m = 3; m >= 0; --m) {
      uint32_t raw[4];
      ptx::load_matrices_transposed(
          raw, stage + ptx::swizzled_chunk<kRows>(16 * m + lane % 8 + lane / 16 * 8, 2 * warp + lane / 8 % 2));
#pragma unroll
      for (int i = 1; i >= 0; --i) {
        EightGates gates;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float log =
              kLog2e * __uint_as_float(ptx::load_word(stage + Shared::kGates +
                                                      (16 * m + 8 * i + 2 * t + j % 2) * kGateStride<kRows> +
                                                      (16 * warp + g + 8 * (j / 2)) * 4));
          logs[j / 2] += log;
          gates.f[j] = exp2_approximate(log);
        }
        gates.multiply();
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float2 k = unpack<Element>(raw[h + 2 * i]);
          keys[m][h + 2 * i] = pack<Element>(k.x * gates.down(2 * h, upper2, upper4) * after[h],
                                             k.y * gates.down(2 * h + 1, upper2, upper4) * after[h]);
          after[h] *= gates.eight[h];
        }
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      logs[h] += __shfl_xor_sync(kEveryLane, logs[h], 1);
      logs[h] += __shfl_xor_sync(kEveryLane, logs[h], 2);
      const float total = exp2f(logs[h]);
#pragma unroll
      for (int k = 0; k < kColumns / 8; ++k) {
        state[k][2 * h] *= total;
        state[k][2 * h + 1] *= total;
      }
    }
    if constexpr (kColumnGate) {
      const char* totals = p.pairs + (place.head * place.chunks + n) * PairRecord::kBytes + PairRecord::kTotals;
#pragma unroll
      for (int k = 0; k < kColumns / 8; ++k) {
        const float2 total = *reinterpret_cast<const float2*>(totals + (8 * k + 2 * t) * 4);
#pragma unroll
        for (int e = 0; e < 4; ++e) state[k][e] *= e % 2 ? total.y : total.x;
      }
    }
    const uint32_t values = stage + Shared::kValue + ptx::swizzled_chunk<kColumns>(lane % 16, lane / 16);
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int k = 0; k < kColumns / 16; ++k) {
        uint32_t right[4];
        ptx::load_matrices_transposed(right, steps_right<kColumns>(values + 16 * m * (kColumns * 2), k));
        ptx::multiply_add<Element>(state[2 * k], keys[m], right[0], right[1]);
        ptx::multiply_add<Element>(state[2 * k + 1], keys[m], right[2], right[3]);
      }
  }
}

}  // namespace lethe::matrix_state
