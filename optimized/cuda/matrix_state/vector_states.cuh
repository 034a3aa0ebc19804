#pragma once
// The states before each chunk and their gradients after it, which vector_gradient.cuh reads.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "optimized/cuda/launch.cuh"
#include "optimized/cuda/matrix_state/vector_chunk.cuh"

namespace lethe::matrix_state {

template <int kRows, int kColumns>
struct VectorStatesShared {
  static constexpr int kStages = kColumns == 64 ? 3 : 2;
  static constexpr int kValue = kTokens * kRows * 2, kGates = kValue + kTokens * kColumns * 2,
                       kStage = kGates + kTokens * kGateStride<kRows>;
  /// Of 16 rows and each block of 16 tokens what a lane holds of a left operand; of each half of a chunk the product of a row's gates; of each warp
  /// the largest entry of its share of a state.
  static constexpr int kOperands = kStages * kStage, kTotals = kOperands + kRows / 16 * 4 * 512,
                       kLargest = kTotals + 2 * kRows * 4, kBytes = kLargest + kRows / 8 * 4;
};

/// The state before each chunk, in 16 bits: S ← E_C S + Σ_j (D_Cj ∘ k_j) v_jᵀ. Or, `kReverse`, from the last chunk on the gradient of that after it:
/// R ← E_C R + Σ_i scale (E_i ∘ q_i) dO_iᵀ. A half of a chunk at a time, to whose end, or beginning, the operands have their gates.
///
/// Two warps share 16 rows: of the operands each prepares those of 32 tokens, of the state it owns half the columns.
template <typename Element, int kRows, int kColumns, bool kColumnGate, bool kReverse>
__global__ void __launch_bounds__(4 * kRows, 128 / kRows)
    vector_states(const __grid_constant__ VectorGradientArguments p) {
  using Shared = VectorStatesShared<kRows, kColumns>;
  constexpr int kWarps = kRows / 16, kSteps = kColumns / 32;
  constexpr bool kHalf = std::is_same_v<Element, __half>;
  extern __shared__ __align__(1024) char memory[];
  const uint32_t shared = ptx::shared_address(memory);
  let_next_kernel_start();
  const int warp = threadIdx.x / 32 % kWarps, part = threadIdx.x / 32 / kWarps, lane = threadIdx.x % 32, g = lane / 4,
            t = lane % 4;
  const RowTile place = row_tile<kRows>(p, blockIdx.x, 0);
  const float* const initial = kReverse ? p.grad_last : p.initial;
  uint4* const states = kReverse ? p.grad_states : p.states;
  const auto chunk_of = [&](int n) { return kReverse ? place.chunks - 1 - n : n; };
  const auto load = [&](int n) {
    if (n < place.chunks) {
      const uint32_t stage = shared + n % Shared::kStages * Shared::kStage;
      each_block<kWarps>(warp, [&](int block) {
        const int row = kBlock * block;
        const int64_t first = static_cast<int64_t>(chunk_of(n)) * kTokens + row;
        if (part == 0) {
          copy_rows<4, kRows / 4>(
              p.key_gate, place, first, p.length, place.row, p.rows, lane, [&](int r, int piece, int further) {
                return stage + Shared::kGates + (row + r + further) * kGateStride<kRows> + piece * 16;
              });
          return;
        }
        copy_rows<2, kRows / 8>(kReverse ? p.query : p.key, place, first, p.length, place.row, p.rows, lane,
                                tile_rows<kRows>(stage, row));
        copy_rows<2, kColumns / 8>(kReverse ? p.grad_values : p.value, place, first, p.length, 0, p.columns, lane,
                                   tile_rows<kColumns>(stage + Shared::kValue, row));
      });
    }
    ptx::copies_commit();
  };
  float state[2 * kSteps][4] = {};  // row g + 8·(e / 2), column 8n + 2t + e % 2 of the warp's half
  const auto each_entry = [&](auto work) {
#pragma unroll
    for (int n = 0; n < 2 * kSteps; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = place.row + 16 * warp + g + 8 * (e / 2), column = part * (kColumns / 2) + 8 * n + 2 * t + e % 2;
        if (row < p.rows && column < p.columns)
          work(state[n][e], place.head * p.rows * p.columns + row * p.row_stride + column * p.column_stride);
      }
  };
  const auto largest_at = [&](int half) { return shared + Shared::kLargest + (warp * 2 + half) * 4; };
  const auto keep_largest = [&] {
    if constexpr (kHalf) {
      float x = 0.0f;
#pragma unroll
      for (int n = 0; n < 2 * kSteps; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) x = fmaxf(x, fabsf(state[n][e]));
      const uint32_t largest = __reduce_max_sync(kEveryLane, __float_as_uint(x));
      if (lane == 0) ptx::store_word(largest_at(part), largest);
    }
  };
  if (initial) each_entry([&](float& x, int64_t at) { x = initial[at]; });
  keep_largest();
#pragma unroll
  for (int n = 0; n + 1 < Shared::kStages; ++n) load(n);
  const bool upper2 = t & 1, upper4 = t & 2;
  const auto operand_at = [&](int m) { return shared + Shared::kOperands + (warp * 4 + m) * 512 + lane * 16; };
  const auto total_at = [&](int half) { return shared + Shared::kTotals + (half * kRows + 16 * warp + g) * 4; };
#pragma unroll 1
  for (int n = 0; n < place.chunks; ++n) {
    ptx::copies_wait<Shared::kStages - 2>();
    __syncthreads();
    load(n + Shared::kStages - 1);
    const uint32_t stage = shared + n % Shared::kStages * Shared::kStage;
    const int64_t at = (place.index * place.chunks + chunk_of(n)) * kWarps + warp;
    float unscale = 1.0f;
    if constexpr (kHalf) {
      const float unit = power_below(
          fmaxf(__uint_as_float(ptx::load_word(largest_at(0))), __uint_as_float(ptx::load_word(largest_at(1)))));
      unscale = inverse_of_power(unit);
      if (lane == 0 && part == 0) (kReverse ? p.grad_units : p.state_units)[at] = unit;
    }
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const float(&s0)[4] = state[2 * k], (&s1)[4] = state[2 * k + 1];
      states[(at * (2 * kSteps) + part * kSteps + k) * 32 + lane] = {
          pack<Element>(s0[0] * unscale, s0[1] * unscale), pack<Element>(s0[2] * unscale, s0[3] * unscale),
          pack<Element>(s1[0] * unscale, s1[1] * unscale), pack<Element>(s1[2] * unscale, s1[3] * unscale)};
    }
    // From the last token back, `others` is the product of the gates that follow; in reverse from the first one on, of those before, by the scale.
    const float scale = kReverse ? p.scale : 1.0f;
    float others[2] = {scale, scale}, logs[2] = {};
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      const int m = 2 * part + (kReverse ? block : 1 - block);
      uint32_t raw[4], keys[4];
      ptx::load_matrices_transposed(
          raw,
          stage + ptx::swizzled_chunk<kRows>(lane % 8 + lane / 16 * 8, 2 * warp + lane / 8 % 2) + 16 * m * (kRows * 2));
#pragma unroll
      for (int eight = 0; eight < 2; ++eight) {
        const int i = kReverse ? eight : 1 - eight;
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
          const auto factor = [&](int j) {
            return (kReverse ? gates.up(j, upper2, upper4) : gates.down(j, upper2, upper4)) * others[h];
          };
          keys[h + 2 * i] = pack<Element>(k.x * factor(2 * h), k.y * factor(2 * h + 1));
          others[h] *= gates.eight[h];
        }
      }
      ptx::store_words(operand_at(m), {keys[0], keys[1], keys[2], keys[3]});
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      logs[h] += __shfl_xor_sync(kEveryLane, logs[h], 1);
      logs[h] += __shfl_xor_sync(kEveryLane, logs[h], 2);
      if (t == h) ptx::store_word(total_at(part) + 32 * h, __float_as_uint(exp2f(logs[h])));
    }
    if constexpr (kColumnGate) {
      const char* totals = p.pairs + (place.head * place.chunks + chunk_of(n)) * PairRecord::kBytes +
                           PairRecord::kTotals + part * (kColumns / 2) * 4;
#pragma unroll
      for (int k = 0; k < 2 * kSteps; ++k) {
        const float2 total = *reinterpret_cast<const float2*>(totals + (8 * k + 2 * t) * 4);
#pragma unroll
        for (int e = 0; e < 4; ++e) state[k][e] *= e % 2 ? total.y : total.x;
      }
    }
    __syncthreads();
    if constexpr (!kHalf && !kColumnGate && !kReverse) {
      if (p.state_marks && threadIdx.x == 0) mark(p.state_marks + place.index, n + 1, place.chunks);
    }
    const uint32_t values = stage + Shared::kValue + ptx::swizzled_chunk<kColumns>(lane % 16, lane / 16);
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const int half = kReverse ? 1 - step : step;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float total = __uint_as_float(ptx::load_word(total_at(half) + 32 * h));
#pragma unroll
        for (int k = 0; k < 2 * kSteps; ++k) {
          state[k][2 * h] *= total;
          state[k][2 * h + 1] *= total;
        }
      }
#pragma unroll
      for (int m = 2 * half; m < 2 * half + 2; ++m) {
        const uint4 four = ptx::load_words(operand_at(m));
        const uint32_t keys[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          uint32_t right[4];
          ptx::load_matrices_transposed(right,
                                        steps_right<kColumns>(values, part * kSteps + k) + 16 * m * (kColumns * 2));
          ptx::multiply_add<Element>(state[2 * k], keys, right[0], right[1]);
          ptx::multiply_add<Element>(state[2 * k + 1], keys, right[2], right[3]);
        }
      }
    }
    keep_largest();
  }
  if constexpr (kReverse) {
    if (p.grad_initial) each_entry([&](float& x, int64_t at) { p.grad_initial[at] = x; });
  }
  end_after_previous_kernel();
}

}  // namespace lethe::matrix_state
