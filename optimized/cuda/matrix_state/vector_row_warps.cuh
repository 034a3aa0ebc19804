#pragma once
// What a warp of vector_gradient.cuh does with its 16 rows of R, S, q, k and f.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "optimized/cuda/matrix_state/vector_block.cuh"
#include "optimized/cuda/matrix_state/vector_pair_warps.cuh"

namespace lethe::matrix_state {

/// Rows g and g + 8 of a warp's 16 are a lane's.
template <typename Element, int kRows, int kColumns, bool kColumnGate>
struct VectorRows {
  using Shared = VectorGradientShared<kRows, kColumns, kColumnGate>;
  static constexpr bool kHalf = std::is_same_v<Element, __half>, kKeepStates = kColumns <= 64;
  static constexpr int kSteps = kColumns / 16;
  const VectorGradientArguments& p;
  const RowTile& place;
  uint32_t shared;
  int warp, lane;
  float grad[kColumns / 8][4];  // R: row g + 8·(e / 2), column 8n + 2t + e % 2

  __device__ __forceinline__ int row_of(int half) const { return place.row + 16 * warp + lane / 4 + 8 * half; }
  __device__ __forceinline__ bool in_state(int n, int e) const {
    return row_of(e / 2) < p.rows && 8 * n + 2 * (lane % 4) + e % 2 < p.columns;
  }
  __device__ __forceinline__ int64_t state_at(int n, int e) const {
    return place.head * p.rows * p.columns + row_of(e / 2) * p.row_stride +
           (8 * n + 2 * (lane % 4) + e % 2) * p.column_stride;
  }
  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) grad[n][e] = p.grad_last && in_state(n, e) ? p.grad_last[state_at(n, e)] : 0.0f;
  }
  __device__ __forceinline__ void end() const {
    if (!p.grad_initial) return;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (in_state(n, e)) p.grad_initial[state_at(n, e)] = grad[n][e];
  }

  /// Columns 16k … of the warp's rows of S before the chunk, from the other side's states, where they are rows.
  __device__ __forceinline__ uint4 transposed_state(int chunk, int k) const {
    const int warps = row_tile_of(p.columns) / kBlock, tile = warps == 2 ? k / 2 : k / 4;
    const int64_t tile_head = static_cast<int64_t>(tile) * p.batch * p.heads + place.head;
    const int64_t at = ((tile_head * place.chunks + chunk) * warps + k % warps) * (padded_columns(p.rows) / kBlock) +
                       place.row / kBlock + warp;
    const uint4 four = p.states[at * 32 + lane];
    return {ptx::transpose_matrix(four.x), ptx::transpose_matrix(four.z), ptx::transpose_matrix(four.y),
            ptx::transpose_matrix(four.w)};
  }

  __device__ __forceinline__ void step(int n) {
    const int g = lane / 4, t = lane % 4;
    const bool upper2 = t & 1, upper4 = t & 2;
    const uint32_t stage = shared + n % Shared::kStages * Shared::kStage;
    const uint32_t pairs = shared + Shared::kPairs;
    const int chunk = place.chunks - 1 - n;
    const int64_t state_at = (place.index * place.chunks + chunk) * Shared::kWarps + warp;
    const auto load_state = [&](int k) {
      if constexpr (kColumnGate && !kHalf) {
        if (p.transposed) return transposed_state(chunk, k);
      }
      return p.states[(state_at * kSteps + k) * 32 + lane];
    };
    uint4 kept[kKeepStates ? kSteps : 1];
    if constexpr (kKeepStates) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) kept[k] = load_state(k);
    }
    const auto state_of = [&](int k, uint32_t(&to)[4]) {
      uint4 four;
      if constexpr (kKeepStates) four = kept[k];
      else four = load_state(k);
      to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    };
    float grad_unit = 1.0f, grad_unscale = 1.0f, state_unit = 1.0f, pair_units[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    if constexpr (kHalf) {
      float x = 0.0f;
#pragma unroll
      for (int k = 0; k < kColumns / 8; ++k)
#pragma unroll
        for (int e = 0; e < 4; ++e) x = fmaxf(x, fabsf(grad[k][e]));
      grad_unit = power_below(__uint_as_float(__reduce_max_sync(kEveryLane, __float_as_uint(x))));
      grad_unscale = inverse_of_power(grad_unit);
      state_unit = p.state_units[state_at];
#pragma unroll
      for (int i = 0; i < 4; ++i) pair_units[i] = __uint_as_float(ptx::load_word(pairs + PairRecord::kUnits + i * 4));
    }
    const auto total_of = [&](int eight) {  // E_C of columns 8·eight + 2t and the next
      return ptx::load_floats(pairs + PairRecord::kTotals + (8 * eight + 2 * t) * 4);
    };
    const uint32_t columns_at = ptx::swizzled_chunk<kRows>(lane % 8 + lane / 16 * 8, 2 * warp + lane / 8 % 2);
    const auto load_rows = [&](int m, uint32_t(&q)[4], uint32_t(&k)[4]) {  // transposed: rows of the state by tokens
      const uint32_t at = stage + columns_at + 16 * m * (kRows * 2);
      ptx::load_matrices_transposed(q, at);
      ptx::load_matrices_transposed(k, at + Shared::kKey);
    };
    const auto gate_at = [&](int eight, int j) {
      return shared + Shared::kGates + (8 * eight + 2 * t + j % 2) * kGateStride<kRows> +
             (16 * warp + g + 8 * (j / 2)) * 4;
    };

    // ⟨S, R⟩ of each row, but for its own gates; R as left operands.
    float product[2] = {};
    uint32_t grads[kSteps][4];
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      uint32_t s[4];
      state_of(k, s);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 two = unpack<Element>(s[i]);
        float(&r)[4] = grad[2 * k + i / 2];
        float& x = r[i % 2 * 2];
        float& y = r[i % 2 * 2 + 1];
        grads[k][i] = pack<Element>(x * grad_unscale, y * grad_unscale);
        if constexpr (kColumnGate) {
          const float2 column_total = total_of(2 * k + i / 2);
          x *= column_total.x, y *= column_total.y;
        }
        product[i % 2] += two.x * x + two.y * y;
      }
    }

    // The gates, in the place of their logarithms, and the operands of halves of 16 and 32 tokens and of the whole chunk.
    EightGates gates[8];
    float logs[2] = {}, total[2];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) gates[i].f[j] = __uint_as_float(ptx::load_word(gate_at(i, j)));
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float log = kLog2e * gates[i].f[j];
        logs[j / 2] += log;
        gates[i].f[j] = exp2_approximate(log);
        ptx::store_word(gate_at(i, j), __float_as_uint(gates[i].f[j]));
      }
      gates[i].multiply();
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      logs[h] += __shfl_xor_sync(kEveryLane, logs[h], 1);
      logs[h] += __shfl_xor_sync(kEveryLane, logs[h], 2);
      total[h] = exp2f(logs[h]);
#pragma unroll
      for (int c = 0; c < kColumns / 8; ++c) {
        grad[c][2 * h] *= total[h];
        grad[c][2 * h + 1] *= total[h];
      }
    }
    ChunkProducts runs;
#pragma unroll
    for (int i = 0; i < 8; ++i) runs.eight[i][0] = gates[i].eight[0], runs.eight[i][1] = gates[i].eight[1];
    const auto operand_at = [&](int which, int m) {
      return shared + Shared::kOperands + ((warp * 2 + which) * 4 + m) * 512 + lane * 16;
    };
    const auto load_operand = [&](int which, int m, uint32_t(&to)[4]) {
      const uint4 four = ptx::load_words(operand_at(which, m));
      to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    };
    const auto products_at = [&](int m, int h) {
      return shared + Shared::kProducts + (warp * 4 + m) * 128 + (g + 8 * h) * 8;
    };
    const uint32_t grads_at = stage + Shared::kGradValue + ptx::swizzled_chunk<kColumns>(lane % 16, lane / 16);
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      uint32_t q[4], k[4], by16[4], by32[4], query[4];
      load_rows(m, q, k);
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const EightGates& run = gates[2 * m + i];
          const float2 a = unpack<Element>(q[h + 2 * i]), b = unpack<Element>(k[h + 2 * i]);
          const float2 up{run.up(2 * h, upper2, upper4), run.up(2 * h + 1, upper2, upper4)};
          const float2 down{run.down(2 * h, upper2, upper4), run.down(2 * h + 1, upper2, upper4)};
          const auto packed = [](float2 x, float2 y, float factor) {
            return pack<Element>(x.x * y.x * factor, x.y * y.y * factor);
          };
          by16[h + 2 * i] = m % 2 ? packed(a, up, runs.up16(m, i, h)) : packed(b, down, runs.down16(m, i, h));
          by32[h + 2 * i] = m / 2 ? packed(a, up, runs.up32(m, i, h)) : packed(b, down, runs.down32(m, i, h));
          query[h + 2 * i] = packed(a, up, runs.up64(m, i, h) * p.scale);
        }
      ptx::store_words(operand_at(0, m), {by16[0], by16[1], by16[2], by16[3]});
      ptx::store_words(operand_at(1, m), {by32[0], by32[1], by32[2], by32[3]});
      if (t == 0) {
#pragma unroll
        for (int h = 0; h < 2; ++h)
          ptx::store_floats(products_at(m, h), runs.eight[2 * m][h], runs.eight[2 * m + 1][h]);
      }
      // R of the chunk before.
#pragma unroll
      for (int c = 0; c < kSteps; ++c) {
        uint32_t right[4];
        ptx::load_matrices_transposed(right, steps_right<kColumns>(grads_at + 16 * m * (kColumns * 2), c));
        ptx::multiply_add<Element>(grad[2 * c], query, right[0], right[1]);
        ptx::multiply_add<Element>(grad[2 * c + 1], query, right[2], right[3]);
      }
    }
    __syncwarp();

    // What every gate of a block separates, of other blocks: by lane, summed over the lanes of a row at the end.
    float shared_terms[4][2];
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int m = 0; m < 4; ++m) shared_terms[m][h] = product[h] * total[h] * state_unit;

    const EightMasks masks(g, t);
    const uint32_t rows_at = ptx::swizzled_chunk<kTokens>(lane % 8 + lane / 16 * 8, lane / 8 % 2),
                   transposed_at = ptx::swizzled_chunk<kTokens>(lane % 16, lane / 16);
    // B of row block r and column block c as a right operand whose columns are its rows; or its columns.
    const auto load_pairs = [&](int r, int c, uint32_t(&to)[4]) {
      ptx::load_matrices(to, steps_right<kTokens>(pairs + rows_at + 16 * r * (kTokens * 2), c));
    };
    const auto load_pairs_transposed = [&](int r, int c, uint32_t(&to)[4]) {
      ptx::load_matrices_transposed(to, steps_right<kTokens>(pairs + transposed_at + 16 * r * (kTokens * 2), c));
    };
    const uint32_t tokens_at = ptx::swizzled_chunk<kColumns>(lane % 8 + lane / 16 * 8, lane / 8 % 2);

#pragma unroll 1
    for (int m = 0; m < 4; ++m) {
      const bool upper32 = m / 2, upper16 = m % 2;
      uint32_t raw_q[4], raw_k[4];
      load_rows(m, raw_q, raw_k);
      VectorBlock<Element> block(t);
      float(&q)[2][4] = block.q, (&k)[2][4] = block.k, (&dq)[2][4] = block.dq, (&dk)[2][4] = block.dk,
      (&query_terms)[2][4] = block.query_terms, (&key_terms)[2][4] = block.key_terms, (&query8)[2][4] = block.query8,
      (&key8)[2][4] = block.key8;
      EightGates(&run)[2] = block.run;
      float sibling[2], other_half[2];  // products of the block's sibling of 16 and of the other 32 tokens
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float2 own = ptx::load_floats(products_at(m, h)), near = ptx::load_floats(products_at(m ^ 1, h)),
                     far = ptx::load_floats(products_at(m ^ 2, h)), last = ptx::load_floats(products_at(m ^ 3, h));
        block.eights[0][h] = own.x;
        block.eights[1][h] = own.y;
        sibling[h] = near.x * near.y;
        other_half[h] = (far.x * far.y) * (last.x * last.y);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) run[i].f[j] = __uint_as_float(ptx::load_word(gate_at(2 * m + i, j)));
        run[i].multiply();
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float2 a = unpack<Element>(raw_q[h + 2 * i]), b = unpack<Element>(raw_k[h + 2 * i]);
          q[i][2 * h] = a.x, q[i][2 * h + 1] = a.y, k[i][2 * h] = b.x, k[i][2 * h + 1] = b.y;
        }
      }
      // States outside the chunk.
      {
        const uint32_t at = stage + Shared::kGradValue + tokens_at + 16 * m * (kColumns * 2);
#pragma unroll
        for (int c = 0; c < kSteps; ++c) {
          uint32_t left[4], right[4];
          state_of(c, left);
          ptx::load_matrices(right, steps_right<kColumns>(at, c));
          ptx::multiply_add<Element>(dq[0], left, right[0], right[1]);
          ptx::multiply_add<Element>(dq[1], left, right[2], right[3]);
          ptx::load_matrices(right, steps_right<kColumns>(at + Shared::kValue - Shared::kGradValue, c));
          ptx::multiply_add<Element>(dk[0], grads[c], right[0], right[1]);
          ptx::multiply_add<Element>(dk[1], grads[c], right[2], right[3]);
        }
      }
      // q times the gates since the beginning of its run of 8, 16, 32 tokens, k times those up to the end.
      float query16[2][4], key16[2][4], query32[2][4], key32[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int h = j / 2;
          query8[i][j] = q[i][j] * run[i].up(j, upper2, upper4);
          key8[i][j] = k[i][j] * run[i].down(j, upper2, upper4);
          query16[i][j] = i ? query8[i][j] * block.eights[0][h] : query8[i][j];
          key16[i][j] = i ? key8[i][j] : key8[i][j] * block.eights[1][h];
          query32[i][j] = query16[i][j] * (upper16 ? sibling[h] : 1.0f);
          key32[i][j] = key16[i][j] * (upper16 ? 1.0f : sibling[h]);
          dq[i][j] *= p.scale * state_unit;
          dk[i][j] *= grad_unit;
          query_terms[i][j] = dq[i][j] * query32[i][j] * (upper32 ? other_half[h] : 1.0f);
          key_terms[i][j] = dk[i][j] * key32[i][j] * (upper32 ? 1.0f : other_half[h]);
        }
      const auto unit_of = [&](int r) {
        return r == 0 ? pair_units[0] : r == 1 ? pair_units[1] : r == 2 ? pair_units[2] : pair_units[3];
      };
      // What the tokens give to the gates of the blocks of the other half of their run of 64 or 32, by lane.
      float to_half[2], to_sibling[2];
      const auto row_sums = [](const float(&x)[2][4], float(&to)[2]) {
#pragma unroll
        for (int h = 0; h < 2; ++h) to[h] = (x[0][2 * h] + x[0][2 * h + 1]) + (x[1][2 * h] + x[1][2 * h + 1]);
      };
      // Halves of 32 and 16 tokens: rows of the upper half by the lower one's keys, or keys of the lower one by the upper one's queries.
      const auto half_of = [&](int which, int r, int c, auto is_upper, float(&sum)[2][4]) {
        constexpr bool kUpper = decltype(is_upper)::value;
        uint32_t left[4], right[4];
        load_operand(which, kUpper ? c : r, left);
        if constexpr (kUpper) load_pairs(r, c, right);
        else load_pairs_transposed(r, c, right);
        ptx::multiply_add<Element>(sum[0], left, right[0], right[1]);
        ptx::multiply_add<Element>(sum[1], left, right[2], right[3]);
        VectorBlock<Element>::scale(sum, unit_of(r));
      };
      const auto halves_of_32 = [&](auto is_upper, float(&gradient)[2][4], float(&terms)[2][4],
                                    const float(&operand)[2][4]) {
        row_sums(terms, to_half);
        float sum[2][4] = {}, more[2][4] = {};
        half_of(1, is_upper.value ? m : 2, is_upper.value ? 0 : m, is_upper, sum);
        half_of(1, is_upper.value ? m : 3, is_upper.value ? 1 : m, is_upper, more);
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            sum[i][j] += more[i][j];
            gradient[i][j] = gradient[i][j] * other_half[j / 2] + sum[i][j];
            terms[i][j] += sum[i][j] * operand[i][j];
          }
      };
      const auto halves_of_16 = [&](auto is_upper, float(&gradient)[2][4], float(&terms)[2][4],
                                    const float(&operand)[2][4]) {
        row_sums(terms, to_sibling);
        float sum[2][4] = {};
        half_of(0, is_upper.value ? m : m + 1, is_upper.value ? m - 1 : m, is_upper, sum);
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            gradient[i][j] = gradient[i][j] * sibling[j / 2] + sum[i][j];
            terms[i][j] += sum[i][j] * operand[i][j];
          }
      };
      if (upper32) halves_of_32(std::true_type(), dq, query_terms, query32);
      else halves_of_32(std::false_type(), dk, key_terms, key32);
      if (upper16) halves_of_16(std::true_type(), dq, query_terms, query16);
      else halves_of_16(std::false_type(), dk, key_terms, key16);
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int other = 0; other < 4; ++other) {
          shared_terms[other][h] += other / 2 == m / 2 ? 0.0f : to_half[h];
          shared_terms[other][h] += other == (m ^ 1) ? to_sibling[h] : 0.0f;
        }
      uint32_t diagonal[4], transposed[4];
      load_pairs(m, m, diagonal);
      load_pairs_transposed(m, m, transposed);
      block.halve(
          masks, diagonal, transposed, [&] { return unit_of(m); }, pairs, m);
      // To the places of the gates, q and k, whose 16 rows this warp alone reads.
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
          for (int j = 2 * h; j < 2 * h + 2; ++j)
            ptx::store_word(gate_at(2 * m + i, j), __float_as_uint(block.y[i][j]));
          const uint32_t to = stage + ptx::swizzled_chunk<kRows>(16 * m + 8 * i + g, 2 * warp + h) + 4 * t;
          ptx::store_word(to, ptx::transpose_matrix(pack<Element>(dq[i][2 * h], dq[i][2 * h + 1])));
          ptx::store_word(to + Shared::kKey, ptx::transpose_matrix(pack<Element>(dk[i][2 * h], dk[i][2 * h + 1])));
        }
    }

#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) shared_terms[m][h] = quad_total(shared_terms[m][h]);
    const int64_t first = static_cast<int64_t>(chunk) * kTokens + 2 * t,
                  stride = static_cast<int64_t>(p.heads) * p.rows;
    const int left = static_cast<int>(min(p.length - first, static_cast<int64_t>(kTokens)));
    float* to = p.grad_key_gate + (place.b * p.length + first) * stride + place.h * p.rows + row_of(0);
    const bool inside[2] = {row_of(0) < p.rows, row_of(1) < p.rows};
#pragma unroll
    for (int i = 0; i < 8; ++i, to += 8 * stride)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float x = __uint_as_float(ptx::load_word(gate_at(i, j))) + shared_terms[i / 2][j / 2];
        if (8 * i + j % 2 < left && inside[j / 2]) to[j % 2 * stride + j / 2 * 8] = x;
      }
  }
};

}  // namespace lethe::matrix_state
