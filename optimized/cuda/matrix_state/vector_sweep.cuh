#pragma once
// A pass of a matrix state with a gate a row over the tokens of one head and 64 columns (VectorSweepArguments), in chunks of four blocks of
// 16 tokens.
//
// Four warps prepare a chunk, a block each, while four sweep over the one before, 16 columns each: their part of Sᵀ stays in float accumulators,
// which rounded to 16 bits are the left operand of the next product. They have less to do, and so copy and store, too. Between two chunks both meet.
//
//   prepare    E ∘ a and D_B ∘ b over a and b; P_ij = Σ_κ D_ijκ a_iκ b_jκ
//   sweep      Oᵀ = Sᵀ (E ∘ a)ᵀ + Cᵀ Pᵀ;  Sᵀ = E_B Sᵀ + Cᵀ (D_B ∘ b), of one block after the other
//
// Halving: of i > j let 2n be the smallest aligned run of tokens that has both. The gates between them are those from j to the middle, times those
// from the middle to i. So a token has one operand for every n = 1, 2, 4, 8: in the upper half of its run a times the gates since the middle, in the
// lower b times those up to it. Both are products of gates: none is divided by, and 0 is 0.
//
// float16: the rounded state and each row of P are divided by a power of two, so that neither overflows nor becomes subnormal.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "optimized/cuda/launch.cuh"
#include "optimized/cuda/matrix_state/vector_preparation.cuh"

namespace lethe::matrix_state {

/// A sweeping warp's share: 16 columns of the state, rows g and g + 8 of Sᵀ.
template <typename Element, int kRows, bool kValueGate>
struct VectorSweep {
  using Shared = VectorSweepShared<kRows, kValueGate>;
  static constexpr bool kHalf = std::is_same_v<Element, __half>, kLeavesStates = !kHalf && !kValueGate;
  const VectorSweepArguments& p;
  const VectorPlace& place;
  uint32_t shared;
  int warp, lane;
  float state[kRows / 8][4];  // column of the state g + 8·(e / 2), row 8n + 2t + e % 2

  __device__ __forceinline__ int column_of(int e) const { return place.column + 16 * warp + lane / 4 + 8 * (e / 2); }
  __device__ __forceinline__ int64_t state_at(int n, int e) const {
    return (place.head * p.rows + 8 * n + 2 * (lane % 4) + e % 2) * p.columns + column_of(e);
  }
  __device__ __forceinline__ bool in_state(int n, int e) const {
    return 8 * n + 2 * (lane % 4) + e % 2 < p.rows && column_of(e) < p.columns;
  }

  /// Where the lane leaves the first of its operands before chunk n of the pass; null: none of the warp's columns.
  __device__ __forceinline__ uint4* state_operand(int n) const {
    const int warps = row_tile_of(p.columns) / kBlock, chunks = static_cast<int>((p.length + kTokens - 1) / kTokens);
    if (warp >= warps) return nullptr;
    const int64_t tile_head = static_cast<int64_t>(place.column / kSweepColumns) * p.batch * p.heads + place.head;
    const int64_t at = (tile_head * chunks + (p.reverse ? chunks - 1 - n : n)) * warps + warp;
    return static_cast<uint4*>(p.states) + at * (kRows / 16) * 32 + lane;
  }

  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int n = 0; n < kRows / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) state[n][e] = p.initial && in_state(n, e) ? p.initial[state_at(n, e)] : 0.0f;
    if constexpr (kValueGate) {
      load_gates(0);
      ptx::copies_commit();
    }
  }

  __device__ __forceinline__ uint32_t gates_of(int n) const {
    return shared + Shared::kColumnGates + (warp * 2 + n % 2) * Shared::kColumnGateStage;
  }
  /// Copies the warp's value gates of chunk n.
  __device__ __forceinline__ void load_gates(int n) const {
    const int piece = lane % 4, column = place.column + 16 * warp + 4 * piece;
    const char* const begin =
        static_cast<const char*>(p.value_gate.data) +
        (place.b * p.value_gate.batch_stride + place.h * p.value_gate.head_stride + place.column) * 4;
    const uint32_t to = gates_of(n) + piece * 16;
#pragma unroll
    for (int i = 0; i < kTokens; i += 8) {
      const int row = i + lane / 4;
      const int64_t token = place.token(static_cast<int64_t>(n) * kTokens + row) + (p.reverse ? 1 : 0);
      const bool valid = token < p.length && column < p.columns;
      ptx::copy_chunk(to + row * Shared::kColumnGateStride,
                      valid ? begin + (token * p.value_gate.token_stride + 16 * warp + 4 * piece) * 4 : begin, valid);
    }
  }

  __device__ __forceinline__ void end() const {
    if (!p.last) return;
    const auto entry = [&](const Operand& gate, int at) {
      if (!gate.data || !p.reverse) return 1.0f;
      return expf(static_cast<const float*>(gate.data)[place.b * gate.batch_stride + place.h * gate.head_stride + at]);
    };
#pragma unroll
    for (int n = 0; n < kRows / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (in_state(n, e))
          p.last[state_at(n, e)] = state[n][e] * entry(p.key_gate, 8 * n + 2 * (lane % 4) + e % 2) *
                                   (kValueGate ? entry(p.value_gate, column_of(e)) : 1.0f);
  }

  __device__ __forceinline__ void sweep(int n, int chunks) {
    if constexpr (kValueGate) {
      if (n + 1 < chunks) load_gates(n + 1);
      ptx::copies_commit();
    }
#pragma unroll 1
    for (int block = 0; block < kTokens / kBlock; ++block) sweep_block(n, block);
  }

  __device__ __forceinline__ void sweep_block(int n, int block) {
    const int g = lane / 4, t = lane % 4;
    const uint32_t stage = shared + n % Shared::kStages * Shared::kStage;
    const int first = kBlock * block;
    float unit = 1.0f, unscale = 1.0f, row_unit[2][2] = {{1.0f, 1.0f}, {1.0f, 1.0f}};
    if constexpr (kHalf) {
      float x = 0.0f;
#pragma unroll
      for (int k = 0; k < kRows / 8; ++k)
#pragma unroll
        for (int e = 0; e < 4; ++e) x = fmaxf(x, fabsf(state[k][e]));
      unit = power_below(__uint_as_float(__reduce_max_sync(kEveryLane, __float_as_uint(x))));
      unscale = inverse_of_power(unit);
      const uint32_t units = shared + Shared::kUnits + n % 2 * Shared::kUnitStage + (first + 2 * t) * 4;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 both = ptx::load_floats(units + 32 * i);
        row_unit[i][0] = both.x;
        row_unit[i][1] = both.y;
      }
    }

    const uint32_t queries =
                       stage + first * (kRows * 2) + ptx::swizzled_chunk<kRows>(lane % 8 + lane / 16 * 8, lane / 8 % 2),
                   keys = stage + Shared::kKey + first * (kRows * 2) + ptx::swizzled_chunk<kRows>(lane % 16, lane / 16);
    uint4* const to = kLeavesStates && block == 0 && p.states ? state_operand(n) : nullptr;
    float out[2][4] = {};  // column g + 8·(e / 2), token 8i + 2t + e % 2
#pragma unroll
    for (int k = 0; k < kRows / 16; ++k) {
      const float(&s0)[4] = state[2 * k], (&s1)[4] = state[2 * k + 1];
      const uint32_t left[4] = {
          pack<Element>(s0[0] * unscale, s0[1] * unscale), pack<Element>(s0[2] * unscale, s0[3] * unscale),
          pack<Element>(s1[0] * unscale, s1[1] * unscale), pack<Element>(s1[2] * unscale, s1[3] * unscale)};
      if constexpr (kLeavesStates) {
        if (to) to[32 * k] = {left[0], left[1], left[2], left[3]};
      }
      uint32_t right[4];
      ptx::load_matrices(right, steps_right<kRows>(queries, k));
      ptx::multiply_add<Element>(out[0], left, right[0], right[1]);
      ptx::multiply_add<Element>(out[1], left, right[2], right[3]);
    }
    if constexpr (kHalf) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) out[i][e] *= unit * inverse_of_power(row_unit[i][e % 2]);
    }

    uint32_t values[4], pairs[4];  // Cᵀ; Pᵀ: keys 0–7 and 8–15 of rows 0–7, the same of rows 8–15
    ptx::load_matrices_transposed(
        values, stage + Shared::kValue +
                    ptx::swizzled_chunk<kSweepColumns>(first + lane % 8 + lane / 16 * 8, 2 * warp + lane / 8 % 2));
    ptx::load_matrices(pairs, shared + Shared::kPairs + n % 2 * Shared::kPairStage + block * (kBlock * kBlock * 2) +
                                  pair_piece(lane % 8 + lane / 16 * 8, lane / 8 % 2));
    float column_total[2] = {1.0f, 1.0f};
    if constexpr (kValueGate) {
      gated_pairs(out, values, pairs, column_total, gates_of(n) + first * Shared::kColumnGateStride);
    } else {
      ptx::multiply_add<Element>(out[0], values, pairs[0], pairs[1]);
      ptx::multiply_add<Element>(out[1], values, pairs[2], pairs[3]);
    }

#pragma unroll
    for (int k = 0; k < kRows / 16; ++k) {
      uint32_t right[4];
      ptx::load_matrices_transposed(right, steps_right<kRows>(keys, k));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float(&s)[4] = state[2 * k + i];
        const float2 total = ptx::load_floats(shared + Shared::kTotals + n % 2 * Shared::kTotalStage +
                                              (block * kRows + 16 * k + 8 * i + 2 * t) * 4);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          s[e] *= e % 2 ? total.y : total.x;
          if constexpr (kValueGate) s[e] *= column_total[e / 2];
        }
        ptx::multiply_add<Element>(s, values, right[2 * i], right[2 * i + 1]);
      }
    }

    if constexpr (kHalf) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) out[i][e] *= row_unit[i][e % 2];
    }
    if (p.float_out) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int64_t token = place.token(static_cast<int64_t>(n) * kTokens + first + 8 * i + 2 * t + e % 2);
          if (token < p.length && column_of(e) < p.columns)
            static_cast<float*>(p.out)[((place.b * p.length + token) * p.heads + place.h) * p.columns + column_of(e)] =
                out[i][e];
        }
      return;
    }
    // To the place of c, whose 16 columns this warp alone reads.
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        ptx::store_word(
            stage + Shared::kValue + ptx::swizzled_chunk<kSweepColumns>(first + 8 * i + g, 2 * warp + half) + 4 * t,
            ptx::transpose_matrix(pack<Element>(out[i][2 * half], out[i][2 * half + 1])));
  }

  /// Value gates: out ∘ E + Σ over halvings; `values` become D_B ∘ c, `total` E_B of columns g and g + 8.
  __device__ __forceinline__ void gated_pairs(float (&out)[2][4], uint32_t (&values)[4], const uint32_t (&pairs)[4],
                                              float (&total)[2], uint32_t gates) const {
    const int g = lane / 4, t = lane % 4;
    float f[2][4], c[2][4];  // as out
    float log[2] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 two = unpack<Element>(values[half + 2 * i]);
        c[i][2 * half] = two.x;
        c[i][2 * half + 1] = two.y;
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          const float l =
              kLog2e * __uint_as_float(ptx::load_word(gates + (8 * i + 2 * t + e % 2) * Shared::kColumnGateStride +
                                                      (g + 8 * half) * 4));
          log[half] += l;
          f[i][e] = exp2_approximate(l);
        }
      }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      log[half] += __shfl_xor_sync(kEveryLane, log[half], 1);
      log[half] += __shfl_xor_sync(kEveryLane, log[half], 2);
      total[half] = exp2f(log[half]);
    }
    // Products of runs of 2, 4 and 8 tokens, of this lane's run and of its neighbour's.
    float two[2][2], four[2][2], eight[2][2], other_two[2][2], other_four[2][2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        two[i][half] = f[i][2 * half] * f[i][2 * half + 1];
        other_two[i][half] = __shfl_xor_sync(kEveryLane, two[i][half], 1);
        four[i][half] = two[i][half] * other_two[i][half];
        other_four[i][half] = __shfl_xor_sync(kEveryLane, four[i][half], 2);
        eight[i][half] = four[i][half] * other_four[i][half];
      }
    // Keys to the middle of their runs, from the shortest on: d is D from each token to the end of the last one.
    const bool upper2 = t & 1, upper4 = t & 2;
    float d[2][4];
    uint32_t by1[4], by2[4], by4[4], by8[2];
    const auto weighted = [&](uint32_t(&to)[4]) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          to[half + 2 * i] = pack<Element>(c[i][2 * half] * d[i][2 * half], c[i][2 * half + 1] * d[i][2 * half + 1]);
    };
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        by1[e / 2 + 2 * i] = values[e / 2 + 2 * i];
        d[i][e] = e % 2 ? 1.0f : f[i][e + 1];
      }
    weighted(by2);
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) d[i][e] *= upper2 ? 1.0f : other_two[i][e / 2];
    weighted(by4);
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) d[i][e] *= upper4 ? 1.0f : other_four[i][e / 2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      by8[half] = pack<Element>(c[0][2 * half] * d[0][2 * half], c[0][2 * half + 1] * d[0][2 * half + 1]);
#pragma unroll
    for (int e = 0; e < 4; ++e) d[0][e] *= eight[1][e / 2];
    weighted(values);

    // Sums, from the longest run on: what lies before a run is multiplied by its gates.
    {
      float sum[4] = {};
      const uint32_t left[4] = {by8[0], by8[1], 0, 0};
      ptx::multiply_add<Element>(sum, left, pairs[2], 0);
#pragma unroll
      for (int e = 0; e < 4; ++e) out[1][e] = out[1][e] * eight[0][e / 2] + sum[e];
    }
    // Of Pᵀ's two diagonal eights, the pairs of one halving: row g, keys 2t and 2t + 1.
    const auto keep = [&](int which) {
      return (halving_of(g, 2 * t) == which ? 0xffffu : 0) | (halving_of(g, 2 * t + 1) == which ? 0xffff0000u : 0);
    };
    const auto sums = [&](float(&sum)[2][4], const uint32_t(&left)[4], uint32_t mask) {
      ptx::multiply_add<Element>(sum[0], left, pairs[0] & mask, 0);
      ptx::multiply_add<Element>(sum[1], left, 0, pairs[3] & mask);
    };
    {
      float sum[2][4] = {};
      sums(sum, by4, keep(4));
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (upper4) out[i][e] = out[i][e] * other_four[i][e / 2] + sum[i][e];
    }
    {
      float sum[2][4] = {};
      sums(sum, by2, keep(2));
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (upper2) out[i][e] = out[i][e] * other_two[i][e / 2] + sum[i][e];
    }
    {
      float sum[2][4] = {}, own[2][4] = {};
      sums(sum, by1, keep(1));
      sums(own, by1, keep(0));
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (e % 2) out[i][e] = out[i][e] * f[i][e - 1] + sum[i][e];
          out[i][e] = out[i][e] * f[i][e] + own[i][e];
        }
    }
  }
};

template <typename Element, int kRows, bool kValueGate>
__global__ void __launch_bounds__(kVectorThreads, kRows <= 32 || (kRows == 64 && !kValueGate) ? 2 : 1)
    vector_sweep(const __grid_constant__ VectorSweepArguments p) {
  extern __shared__ __align__(1024) char memory[];
  if constexpr (!kValueGate) let_next_kernel_start();
  const uint32_t shared = ptx::shared_address(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int chunks = static_cast<int>((p.length + kTokens - 1) / kTokens);
  const int tiles = (p.columns + kSweepColumns - 1) / kSweepColumns;
  const int64_t head = blockIdx.x / tiles;
  const VectorPlace place{head, head / p.heads, head % p.heads, static_cast<int>(blockIdx.x % tiles) * kSweepColumns,
                          p.reverse ? static_cast<int64_t>(chunks) * kTokens - 1 : -1};
  const VectorPreparation<Element, kRows> block{p, place, shared, warp % 4, lane};
  if (warp < 4) {
    VectorSweep<Element, kRows, kValueGate> columns{p, place, shared, warp, lane};
    columns.begin();
    const auto load = [&](int n) {
      if (n < chunks) block.load(n);
      ptx::copies_commit();
    };
    load(0);
    ptx::copies_wait<0>();
    meet_other_half(0, 0);
    load(1);
    ptx::copies_wait<0>();
    meet_other_half(0, 1);
#pragma unroll 1
    for (int n = 0; n < chunks; ++n) {
      if (n > 0 && !p.float_out) block.store(n - 1);
      load(n + 2);
      columns.sweep(n, chunks);
      ptx::copies_wait<0>();
      meet_other_half(0, n);
      if constexpr (VectorSweep<Element, kRows, kValueGate>::kLeavesStates) {
        if (p.marks && threadIdx.x == 0) mark(p.marks + blockIdx.x, n + 1, chunks);
      }
    }
    if (!p.float_out) block.store(chunks - 1);
    columns.end();
  } else {
    meet_other_half(1, 0);
#pragma unroll 1
    for (int n = 0; n <= chunks; ++n) {
      if (n < chunks) block.prepare(n);
      meet_other_half(1, n + 1);
    }
  }
  end_after_previous_kernel();
}

}  // namespace lethe::matrix_state
