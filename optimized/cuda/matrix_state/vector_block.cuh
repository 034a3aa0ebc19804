#pragma once
// The gradients of 16 tokens by each other: the halvings of vector_gradient.cuh that stay within a block.

#include <type_traits>

#include "optimized/cuda/matrix_state/vector_chunk.cuh"

namespace lethe::matrix_state {

/// Pairs of one halving of an eight, in a right operand: column g, rows 2t and 2t + 1. `lower`: all where the row's token is the earlier one.
struct EightMasks {
  uint32_t one, two, four, lower;

  __device__ __forceinline__ EightMasks(int g, int t) {
    const auto same = [&](int which) {
      const auto of = [&](int i) { return halving_of(max(g, i), min(g, i)) == which; };
      return (of(2 * t) ? 0xffffu : 0u) | (of(2 * t + 1) ? 0xffff0000u : 0u);
    };
    one = same(1), two = same(2), four = same(4);
    lower = (2 * t < g ? 0xffffu : 0u) | (2 * t + 1 < g ? 0xffff0000u : 0u);
  }
};

__device__ __forceinline__ float quad_total(float x) {
  x += __shfl_xor_sync(kEveryLane, x, 1);
  return x + __shfl_xor_sync(kEveryLane, x, 2);
}

/// 16 tokens and a warp's 16 rows: token 8i + 2t + j % 2, row g + 8·(j / 2) at [i][j] of lane 4g + t.
template <typename Element>
struct VectorBlock {
  const int t;
  EightGates run[2];
  float eights[2][2];  ///< products of each eight's gates
  float q[2][4], k[2][4], dq[2][4] = {}, dk[2][4] = {};
  float query_terms[2][4], key_terms[2][4];  ///< what dq and dk so far give to d log f: by q and k with their gates
  float query8[2][4], key8[2][4];  ///< q times the gates since the beginning of its eight, k times those up to the end
  float y[2][4];                   ///< the part of d log f that the block itself has

  __device__ __forceinline__ explicit VectorBlock(int t) : t(t) {}

  /// Adds to dq, dk and y what the block's tokens have from each other.
  ///
  /// reads  diagonal, transposed: the block's own pairs as a right operand whose columns are its rows, and its columns
  ///        unit(): what these are divided by; pairs: the chunk's PairRecord; m: the block's number in it
  template <typename Unit>
  __device__ __forceinline__ void halve(const EightMasks& masks, const uint32_t (&diagonal)[4],
                                        const uint32_t (&transposed)[4], const Unit& unit, uint32_t pairs, int m) {
    const bool upper2 = t & 1, upper4 = t & 2;
    // Halves of 8: the block's second eight is the upper one.
    {
      const float of_second[2] = {quad_total(query_terms[1][0] + query_terms[1][1]),
                                  quad_total(query_terms[1][2] + query_terms[1][3])},
                  of_first[2] = {quad_total(key_terms[0][0] + key_terms[0][1]),
                                 quad_total(key_terms[0][2] + key_terms[0][3])};
      float operand[2][4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        operand[0][j] = key8[0][j];
        operand[1][j] = query8[1][j];
        y[0][j] = of_second[j / 2];
        y[1][j] = of_first[j / 2];
      }
      uint32_t left[4];
      pack_left(operand, left);
      float sum[2][4] = {};
      ptx::multiply_add<Element>(sum[0], left, 0, transposed[1]);
      ptx::multiply_add<Element>(sum[1], left, diagonal[2], 0);
      scale(sum, unit());
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        dk[0][j] = dk[0][j] * eights[1][j / 2] + sum[0][j];
        key_terms[0][j] += sum[0][j] * operand[0][j];
        dq[1][j] = dq[1][j] * eights[0][j / 2] + sum[1][j];
        query_terms[1][j] += sum[1][j] * operand[1][j];
      }
    }
    const uint32_t first_pairs = (diagonal[0] & masks.lower) | (transposed[0] & ~masks.lower),
                   second_pairs = (diagonal[3] & masks.lower) | (transposed[3] & ~masks.lower);
    // Halves of 4 and 2 tokens: those of the lanes with upper4, or upper2.
    const auto halves = [&](bool upper, int neighbour, uint32_t mask, auto up_of, auto down_of, auto other_of) {
      float operand[2][4], sum[2][4] = {};
      uint32_t left[4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float sent =
              upper ? query_terms[i][2 * h] + query_terms[i][2 * h + 1] : key_terms[i][2 * h] + key_terms[i][2 * h + 1];
          if (neighbour == 2) sent += __shfl_xor_sync(kEveryLane, sent, 1);
          const float got = __shfl_xor_sync(kEveryLane, sent, neighbour);
          y[i][2 * h] += got;
          y[i][2 * h + 1] += got;
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) operand[i][j] = upper ? q[i][j] * up_of(run[i], j) : k[i][j] * down_of(run[i], j);
      }
      pack_left(operand, left);
      ptx::multiply_add<Element>(sum[0], left, first_pairs & mask, 0);
      ptx::multiply_add<Element>(sum[1], left, 0, second_pairs & mask);
      scale(sum, unit());
      const auto add = [&](float(&gradient)[2][4], float(&terms)[2][4]) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            gradient[i][j] = gradient[i][j] * other_of(run[i], j / 2) + sum[i][j];
            terms[i][j] += sum[i][j] * operand[i][j];
          }
      };
      if (upper) add(dq, query_terms);
      else add(dk, key_terms);
    };
    halves(
        upper4, 2, masks.four, [&](const EightGates& r, int j) { return r.up_four(j, upper2); },
        [&](const EightGates& r, int j) { return r.down_four(j, upper2); },
        [](const EightGates& r, int h) { return r.other_four[h]; });
    halves(
        upper2, 1, masks.two, [](const EightGates& r, int j) { return r.up_two(j); },
        [](const EightGates& r, int j) { return r.down_two(j); },
        [](const EightGates& r, int h) { return r.other_two[h]; });
    // Pairs of neighbours, and tokens with themselves.
    {
      float operand[2][4], sum[2][4] = {};
      uint32_t left[4];
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) operand[i][j] = j % 2 ? q[i][j] * run[i].f[j] : k[i][j];
      pack_left(operand, left);
      ptx::multiply_add<Element>(sum[0], left, first_pairs & masks.one, 0);
      ptx::multiply_add<Element>(sum[1], left, 0, second_pairs & masks.one);
      scale(sum, unit());
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 own = ptx::load_floats(pairs + PairRecord::kDiagonal + (16 * m + 8 * i + 2 * t) * 4);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int even = 2 * h, odd = 2 * h + 1;
          y[i][even] += query_terms[i][odd] + query_terms[i][even];
          y[i][odd] += key_terms[i][even] + query_terms[i][odd];
          const float term = sum[i][odd] * operand[i][odd];
          y[i][odd] += term;
          dk[i][even] = dk[i][even] * run[i].f[odd] + sum[i][even] + own.x * q[i][even];
          dk[i][odd] += own.y * q[i][odd];
          dq[i][odd] = (dq[i][odd] * run[i].f[even] + sum[i][odd]) * run[i].f[odd] + own.y * k[i][odd];
          dq[i][even] = dq[i][even] * run[i].f[even] + own.x * k[i][even];
        }
      }
    }
  }

  /// In float16, times the unit.
  __device__ __forceinline__ static void scale(float (&sum)[2][4], float unit) {
    if constexpr (std::is_same_v<Element, __half>) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[i][j] *= unit;
    }
  }

  __device__ __forceinline__ static void pack_left(const float (&x)[2][4], uint32_t (&to)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) to[h + 2 * i] = pack<Element>(x[i][2 * h], x[i][2 * h + 1]);
  }
};

}  // namespace lethe::matrix_state
