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
  uint4 states[kKeepStates ? kSteps : 1], grads[kSteps];  // S and R as left operands
  float grad_factor[2];  // of rows g and g + 8 what R has been divided by; in bfloat16, log2 of it

  __device__ __forceinline__ int row_of(int half) const { return place.row + 16 * warp + lane / 4 + 8 * half; }

  /// Step k of the warp's rows of S or R from operands of the same rows; or of the other side, where they are columns.
  __device__ __forceinline__ uint4 load_state(const uint4* from, int k) const {
    const int64_t at = (place.index * place.chunks + place.chunk) * Shared::kWarps + warp;
    return from[(at * kSteps + k) * 32 + lane];
  }
  __device__ __forceinline__ uint4 load_transposed(const uint4* from, int k) const {
    const int warps = row_tile_of(p.columns) / kBlock, tile = warps == 2 ? k / 2 : k / 4;
    const int64_t tile_head = static_cast<int64_t>(tile) * p.batch * p.heads + place.head;
    const int64_t at =
        ((tile_head * place.chunks + place.chunk) * warps + k % warps) * (padded_columns(p.rows) / kBlock) +
        place.row / kBlock + warp;
    return from[at * 32 + lane];
  }
  __device__ __forceinline__ static uint4 exchanged(const uint4& four, bool transposed) {
    if (!transposed) return four;
    return {ptx::transpose_matrix(four.x), ptx::transpose_matrix(four.z), ptx::transpose_matrix(four.y),
            ptx::transpose_matrix(four.w)};
  }
  // Which they are: known to the compiler but with gates of both in bfloat16.
  __device__ __forceinline__ bool transposed() const { return kColumnGate && !kHalf && p.transposed; }
  __device__ __forceinline__ bool grad_transposed() const { return !kHalf && (!kColumnGate || p.grad_transposed); }
  __device__ __forceinline__ uint4 state(int k) const {
    return exchanged(transposed() ? load_transposed(p.states, k) : load_state(p.states, k), transposed());
  }

  /// Begins to load S, R and the factors of R.
  __device__ __forceinline__ void begin() {
    if constexpr (kKeepStates) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k)
        states[k] = transposed() ? load_transposed(p.states, k) : load_state(p.states, k);
    }
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
      grads[k] = grad_transposed() ? load_transposed(p.grad_states, k) : load_state(p.grad_states, k);
    grad_factor[0] = grad_factor[1] = 0.0f;
    if constexpr (kHalf) {
      grad_factor[0] = grad_factor[1] =
          p.grad_units[(place.index * place.chunks + place.chunk) * Shared::kWarps + warp];
    } else if constexpr (!kColumnGate) {
      // The sweep's lacks the gate of the next chunk's first token.
      const int64_t token = place.first() + kTokens;
      if (token < p.length) {
        const float* const gates = static_cast<const float*>(p.key_gate.data) + place.b * p.key_gate.batch_stride +
                                   token * p.key_gate.token_stride + place.h * p.key_gate.head_stride;
#pragma unroll
        for (int h = 0; h < 2; ++h)
          if (row_of(h) < p.rows) grad_factor[h] = kLog2e * gates[row_of(h)];
      }
    }
  }

  __device__ __forceinline__ void step() {
    const int g = lane / 4, t = lane % 4;
    const bool upper2 = t & 1, upper4 = t & 2;
    const uint32_t pairs = shared + Shared::kPairs;
    const auto state_of = [&](int k, uint32_t(&to)[4]) {
      uint4 four;
      if constexpr (kKeepStates) four = states[k];
      else four = state(k);
      to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    };
    float state_unit = 1.0f, pair_units[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    if constexpr (kHalf) {
      state_unit = p.state_units[(place.index * place.chunks + place.chunk) * Shared::kWarps + warp];
#pragma unroll
      for (int i = 0; i < 4; ++i) pair_units[i] = __uint_as_float(ptx::load_word(pairs + PairRecord::kUnits + i * 4));
    }
    const auto total_of = [&](int eight) {  // E_C of columns 8·eight + 2t and the next
      return ptx::load_floats(pairs + PairRecord::kTotals + (8 * eight + 2 * t) * 4);
    };
    const uint32_t columns_at = ptx::swizzled_chunk<kRows>(lane % 8 + lane / 16 * 8, 2 * warp + lane / 8 % 2);
    const auto load_rows = [&](int m, uint32_t(&q)[4], uint32_t(&k)[4]) {  // transposed: rows of the state by tokens
      const uint32_t at = shared + columns_at + 16 * m * (kRows * 2);
      ptx::load_matrices_transposed(q, at);
      ptx::load_matrices_transposed(k, at + Shared::kKey);
    };
    const uint32_t gates_at[2] = {shared + Shared::kGates + gate_offset<kRows>(2 * t, 16 * warp + g),
                                  shared + Shared::kGates + gate_offset<kRows>(2 * t, 16 * warp + g + 8)};
    const auto gate_at = [&](int eight, int j) { return gates_at[j / 2] + (8 * eight + j % 2) * (kRows * 4); };

    if constexpr (!kHalf) {
#pragma unroll
      for (int h = 0; h < 2; ++h) grad_factor[h] = kColumnGate ? 1.0f : exp2_approximate(grad_factor[h]);
    }
    // ⟨S, R⟩ of each row, but for its own gates.
    float product[2] = {}, products[4] = {};
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      if constexpr (kKeepStates) states[k] = exchanged(states[k], transposed());
      grads[k] = exchanged(grads[k], grad_transposed());
      uint32_t s[4];
      state_of(k, s);
      const uint32_t r[4] = {grads[k].x, grads[k].y, grads[k].z, grads[k].w};
      if constexpr (kColumnGate) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 a = unpack<Element>(s[i]), b = unpack<Element>(r[i]), gates = total_of(2 * k + i / 2);
          product[i % 2] += a.x * (b.x * gates.x) + a.y * (b.y * gates.y);
        }
      } else {
        // The diagonal of S Rᵀ, of rows g by columns below 8 and of rows g + 8 by those above: R's registers as a left operand are those of Rᵀ as a
        // right one.
        const uint32_t low[4] = {s[0], 0, 0, s[1]}, high[4] = {s[2], 0, 0, s[3]};
        ptx::multiply_add<Element>(products, low, r[0], r[1]);
        ptx::multiply_add<Element>(products, high, r[2], r[3]);
      }
    }
    if constexpr (!kColumnGate) {
      if (g / 2 == t) {
        product[0] = g % 2 ? products[1] : products[0];
        product[1] = g % 2 ? products[3] : products[2];
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
    }
    ChunkProducts runs;
#pragma unroll
    for (int i = 0; i < 8; ++i) runs.eight[i][0] = gates[i].eight[0], runs.eight[i][1] = gates[i].eight[1];
    // Where a lane's part of one of the operands that wait is.
    const auto operand_at = [&](int slot) {
      if (slot >= Shared::kInPairs)
        return shared + Shared::kOperands +
               (warp * (Shared::kWaiting - Shared::kInPairs) + slot - Shared::kInPairs) * 512 + lane * 16;
      // B's blocks 0, 1 and 0, 2 and 0, 3 of warp 0; 1, 2 and 1, 3 and 2, 3 of warp 1.
      const int r = slot == 2 ? 2 * warp : warp, c = slot == 2 ? 3 : slot + 1 + warp;
      return pairs +
             ptx::swizzled_chunk<kTokens>(16 * r + lane / 16 * 8 + lane / 2 % 4 * 2 + lane / 8 % 2, 2 * c + lane % 2);
    };
    const auto load_operand = [&](int slot, uint32_t(&to)[4]) {
      const uint4 four = ptx::load_words(operand_at(slot));
      to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    };
    const auto keep_operand = [&](int slot, const float(&x)[2][4]) {
      uint32_t left[4];
      VectorBlock<Element>::pack_left(x, left);
      ptx::store_words(operand_at(slot), {left[0], left[1], left[2], left[3]});
    };
    const auto products_at = [&](int m, int h) {
      return shared + Shared::kProducts + (warp * 4 + m) * 128 + (g + 8 * h) * 8;
    };
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      if (t == 0) {
#pragma unroll
        for (int h = 0; h < 2; ++h)
          ptx::store_floats(products_at(m, h), runs.eight[2 * m][h], runs.eight[2 * m + 1][h]);
      }
      if (m == 0) continue;
      uint32_t raw[4];
      float by16[2][4], by32[2][4];
      ptx::load_matrices_transposed(raw, shared + columns_at + 16 * m * (kRows * 2));
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 two = unpack<Element>(raw[j / 2 + 2 * i]);
          const float x = (j % 2 ? two.y : two.x) * gates[2 * m + i].up(j, upper2, upper4);
          by16[i][j] = x * runs.up16(m, i, j / 2);
          by32[i][j] = x * runs.up32(m, i, j / 2);
        }
      if (m % 2) keep_operand(m / 2, by16);
      if (m / 2) keep_operand(m, by32);
    }
    __syncwarp();

    // What every gate of a block separates, of other blocks: by lane, summed over the lanes of a row at the end.
    float shared_terms[4][2];
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int m = 0; m < 4; ++m) shared_terms[m][h] = product[h] * total[h] * (state_unit * grad_factor[h]);

    const EightMasks masks(g, t);
    const uint32_t rows_at = pairs + ptx::swizzled_chunk<kTokens>(lane % 8 + lane / 16 * 8, lane / 8 % 2),
                   transposed_at = pairs + ptx::swizzled_chunk<kTokens>(lane % 16, lane / 16);
    // B of row block r and column block c as a right operand whose columns are its rows; or its columns.
    const auto load_pairs = [&](int r, int c, uint32_t(&to)[4]) {
      ptx::load_matrices(to, steps_right<kTokens>(rows_at, c) + 16 * r * (kTokens * 2));
    };
    const auto load_pairs_transposed = [&](int r, int c, uint32_t(&to)[4]) {
      ptx::load_matrices_transposed(to, steps_right<kTokens>(transposed_at, c) + 16 * r * (kTokens * 2));
    };
    const uint32_t tokens_at =
        shared + Shared::kGradValue + ptx::swizzled_chunk<kColumns>(lane % 8 + lane / 16 * 8, lane / 8 % 2);

#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const bool upper32 = m / 2, upper16 = m % 2;
      uint32_t raw_q[4], raw_k[4];
      load_rows(m, raw_q, raw_k);
      VectorBlock<Element> block(t);
      float(&q)[2][4] = block.q, (&k)[2][4] = block.k, (&dq)[2][4] = block.dq, (&dk)[2][4] = block.dk;
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
#pragma unroll
        for (int c = 0; c < kSteps; ++c) {
          uint32_t left[4], right[4];
          const uint32_t grad[4] = {grads[c].x, grads[c].y, grads[c].z, grads[c].w};
          state_of(c, left);
          const uint32_t at = steps_right<kColumns>(tokens_at, c) + 16 * m * (kColumns * 2);
          ptx::load_matrices(right, at);
          ptx::multiply_add<Element>(dq[0], left, right[0], right[1]);
          ptx::multiply_add<Element>(dq[1], left, right[2], right[3]);
          ptx::load_matrices(right, at + (Shared::kValue - Shared::kGradValue));
          ptx::multiply_add<Element>(dk[0], grad, right[0], right[1]);
          ptx::multiply_add<Element>(dk[1], grad, right[2], right[3]);
        }
      }
      block.multiply();
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          dq[i][j] *= p.scale * state_unit;
          if constexpr (kHalf || !kColumnGate) dk[i][j] *= grad_factor[j / 2];
        }
      const auto unit_of = [&](int r) {
        return r == 0 ? pair_units[0] : r == 1 ? pair_units[1] : r == 2 ? pair_units[2] : pair_units[3];
      };
      // Halves of 32 and 16 tokens: rows of the upper half by the lower one's keys, or keys of the lower one by the upper one's queries.
      const auto add_half = [&](int slot, int r, int c, bool is_upper, float(&gradient)[2][4],
                                const float(&factor)[2]) {
        uint32_t left[4], right[4];
        load_operand(slot, left);
        if (is_upper) load_pairs(r, c, right);
        else load_pairs_transposed(r, c, right);
        const auto unit = [&] { return unit_of(r); };
        block.add_product(gradient[0], factor, left, right[0], right[1], unit);
        block.add_product(gradient[1], factor, left, right[2], right[3], unit);
      };
      // What the tokens give to the gates of the blocks of the other half of their run of 64 or 32, by lane.
      float to_half[2], to_sibling[2];
      constexpr float kOne[2] = {1.0f, 1.0f};
      if (upper32) {
        block.query_sums(to_half);
        add_half(4, m, 0, true, dq, other_half);
        add_half(0, m, 1, true, dq, kOne);
      } else {
        block.key_sums(to_half);
        add_half(2, 2, m, false, dk, other_half);
        add_half(3, 3, m, false, dk, kOne);
      }
      if (upper16) {
        block.query_sums(to_sibling);
        add_half(m / 2, m, m - 1, true, dq, sibling);
      } else {
        block.key_sums(to_sibling);
        add_half(m / 2, m + 1, m, false, dk, sibling);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        to_sibling[h] *= sibling[h];
        to_half[h] *= other_half[h] * (upper16 == upper32 ? sibling[h] : 1.0f);
      }
      // k times the gates up to the end of its run of 16 and 32, for the products of the blocks after it.
      float key[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) key[i][j] = i ? block.key8[i][j] : block.key8[i][j] * block.eights[1][j / 2];
      if (!upper16) keep_operand(m / 2, key);
      if (!upper32) {
        if (!upper16) {
#pragma unroll
          for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) key[i][j] *= sibling[j / 2];
        }
        keep_operand(upper16 ? 0 : 4, key);
      }
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
      const auto unit = [&] { return unit_of(m); };
      block.halve(masks, diagonal, transposed, unit);
      block.neighbours(diagonal, unit, pairs + PairRecord::kDiagonal + kBlock * m * 4);
      // To the places of the gates, q and k, whose 16 rows this warp alone reads.
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
          for (int j = 2 * h; j < 2 * h + 2; ++j)
            ptx::store_word(gate_at(2 * m + i, j), __float_as_uint(block.y[i][j]));
          const uint32_t to = shared + ptx::swizzled_chunk<kRows>(16 * m + 8 * i + g, 2 * warp + h) + 4 * t;
          ptx::store_word(to, ptx::transpose_matrix(pack<Element>(dq[i][2 * h], dq[i][2 * h + 1])));
          ptx::store_word(to + Shared::kKey, ptx::transpose_matrix(pack<Element>(dk[i][2 * h], dk[i][2 * h + 1])));
        }
    }

#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float total = quad_total(shared_terms[m][h]);
        if (t == 0)
          ptx::store_word(shared + Shared::kProducts + (warp * 4 + m) * 128 + (g + 8 * h) * 4, __float_as_uint(total));
      }
  }
};

}  // namespace lethe::matrix_state
