#pragma once
// The gradients of 16 tokens by each other: the halvings of vector_gradient.cuh that stay within a block.
//
// At each halving a token has a gradient so far, relative to the beginning or end of its run, and an operand relative to the run's middle. Their
// product times the gates of the run's other half, a factor of all its tokens, is what the token gives to each of these gates: it needs no sum of its
// own.

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
  /// Operands to the beginning of a run of 2, or its end: q times the gates since, k times those up to it; and to those of the eight.
  float query2[2][4], key2[2][4], query8[2][4], key8[2][4];
  float y[2][4];       ///< the part of d log f that the block itself has
  float common[2][2];  ///< of y, what a lane's two tokens have alike

  __device__ __forceinline__ explicit VectorBlock(int t) : t(t) {}

  /// The operands.
  __device__ __forceinline__ void multiply() {
    const bool upper2 = t & 1, upper4 = t & 2;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float two = run[i].other_two[h], four = run[i].other_four[h];
        const float up = (upper2 ? two : 1.0f) * (upper4 ? four : 1.0f),
                    down = (upper2 ? 1.0f : two) * (upper4 ? 1.0f : four);
        const int even = 2 * h, odd = 2 * h + 1;
        multiply_two(i, h);
#pragma unroll
        for (int j = even; j <= odd; ++j) {
          query8[i][j] = query2[i][j] * up;
          key8[i][j] = key2[i][j] * down;
        }
      }
  }

  /// Those of runs of 2 alone.
  __device__ __forceinline__ void multiply_two() {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) multiply_two(i, h);
  }

  /// Of each row, by lane, the sum of dq times q with the gates since the block began, or of dk times k with those up to its end.
  __device__ __forceinline__ void query_sums(float (&to)[2]) const { sums(dq, query8, 0, to); }
  __device__ __forceinline__ void key_sums(float (&to)[2]) const { sums(dk, key8, 1, to); }

  /// gradient ← gradient · factor + left · right, times the unit.
  template <typename Unit>
  __device__ __forceinline__ static void add_product(float (&gradient)[4], const float (&factor)[2],
                                                     const uint32_t (&left)[4], uint32_t right0, uint32_t right1,
                                                     const Unit& unit) {
    if constexpr (std::is_same_v<Element, __half>) {
      float sum[4] = {};
      ptx::multiply_add<Element>(sum, left, right0, right1);
#pragma unroll
      for (int j = 0; j < 4; ++j) gradient[j] = gradient[j] * factor[j / 2] + sum[j] * unit();
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) gradient[j] *= factor[j / 2];
      ptx::multiply_add<Element>(gradient, left, right0, right1);
    }
  }

  /// Adds to dq, dk and y what the block's tokens have from each other, but for a lane's two tokens: neighbours() must follow.
  ///
  /// reads  diagonal, transposed: the block's own pairs as a right operand whose columns are its rows, and its columns
  ///        unit(): what these are divided by
  template <typename Unit>
  __device__ __forceinline__ void halve(const EightMasks& masks, const uint32_t (&diagonal)[4],
                                        const uint32_t (&transposed)[4], const Unit& unit) {
    const bool upper2 = t & 1, upper4 = t & 2;
    // Halves of 8: the block's second eight is the upper one.
    {
      float operand[2][4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        operand[0][j] = key8[0][j];
        operand[1][j] = query8[1][j];
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        common[0][h] = quad_total(pair_sum(dq[1], operand[1], h)) * eights[0][h];
        common[1][h] = quad_total(pair_sum(dk[0], operand[0], h)) * eights[1][h];
      }
      uint32_t left[4];
      pack_left(operand, left);
      add_product(dk[0], eights[1], left, 0, transposed[1], unit);
      add_product(dq[1], eights[0], left, diagonal[2], 0, unit);
    }
    const uint32_t first_pairs = (diagonal[0] & masks.lower) | (transposed[0] & ~masks.lower),
                   second_pairs = (diagonal[3] & masks.lower) | (transposed[3] & ~masks.lower);
    // Halves of 4 and 2 tokens: of a lane's tokens one of both gradients, dq in an upper half and dk in a lower one.
    float own[2][4], other[2][4];
    const auto halves = [&](bool upper, bool whole, uint32_t mask, auto gates_of, int neighbour) {
      float operand[2][4];
      uint32_t left[4];
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int even = 2 * h, odd = 2 * h + 1;
#pragma unroll
          for (int j = even; j <= odd; ++j) {
            operand[i][j] = upper ? query2[i][j] : key2[i][j];
            if (neighbour == 2) operand[i][j] *= whole ? run[i].other_two[h] : 1.0f;
          }
          float sent = pair_sum(own[i], operand[i], h) * gates_of(run[i])[h];
          if (neighbour == 2) sent += __shfl_xor_sync(kEveryLane, sent, 1);
          common[i][h] += __shfl_xor_sync(kEveryLane, sent, neighbour);
        }
      pack_left(operand, left);
      add_product(own[0], gates_of(run[0]), left, first_pairs & mask, 0, unit);
      add_product(own[1], gates_of(run[1]), left, 0, second_pairs & mask, unit);
    };
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        own[i][j] = upper4 ? dq[i][j] : dk[i][j];
        other[i][j] = upper4 ? dk[i][j] : dq[i][j];
      }
    halves(
        upper4, upper2 == upper4, masks.four, [](const EightGates& r) -> const float(&)[2] { return r.other_four; }, 2);
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float x = own[i][j], z = other[i][j];
        own[i][j] = upper2 == upper4 ? x : z;
        other[i][j] = upper2 == upper4 ? z : x;
      }
    halves(
        upper2, false, masks.two, [](const EightGates& r) -> const float(&)[2] { return r.other_two; }, 1);
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        dq[i][j] = upper2 ? own[i][j] : other[i][j];
        dk[i][j] = upper2 ? other[i][j] : own[i][j];
      }
  }

  /// The rest of it: pairs of neighbours, which are a lane's, and tokens with themselves. Reads q, k and f, and after halve() nothing else of the
  /// operands.
  ///
  /// with_itself_at: where the block's pairs of tokens with themselves are, in float
  template <typename Unit>
  __device__ __forceinline__ void neighbours(const uint32_t (&diagonal)[4], const Unit& unit, uint32_t with_itself_at) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 with_itself = ptx::load_floats(with_itself_at + (8 * i + 2 * t) * 4);
      const uint32_t of_row =
          __shfl_sync(kEveryLane, diagonal[3 * i], 9 * t + 4);  // row 2t + 1, columns 2t and the next
      const float pair = unpack<Element>(of_row).x * unit();
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int even = 2 * h, odd = 2 * h + 1;
        const float f0 = run[i].f[even], f1 = run[i].f[odd];
        const float query = q[i][odd] * f1, key = pair * k[i][even];
        const float of_odd = dq[i][odd] * query2[i][odd] + common[i][h];
        y[i][even] = dq[i][even] * query2[i][even] + of_odd;
        y[i][odd] = dk[i][even] * key2[i][even] + of_odd + key * query;
        dk[i][even] = dk[i][even] * f1 + pair * query + with_itself.x * q[i][even];
        dk[i][odd] += with_itself.y * q[i][odd];
        dq[i][odd] = (dq[i][odd] * f0 + key) * f1 + with_itself.y * k[i][odd];
        dq[i][even] = dq[i][even] * f0 + with_itself.x * k[i][even];
      }
    }
  }

  __device__ __forceinline__ static void pack_left(const float (&x)[2][4], uint32_t (&to)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) to[h + 2 * i] = pack<Element>(x[i][2 * h], x[i][2 * h + 1]);
  }

 private:
  __device__ __forceinline__ void multiply_two(int i, int h) {
    const int even = 2 * h, odd = 2 * h + 1;
    query2[i][even] = q[i][even] * run[i].f[even];
    query2[i][odd] = q[i][odd] * run[i].f[odd] * run[i].f[even];
    key2[i][even] = k[i][even] * run[i].f[odd];
    key2[i][odd] = k[i][odd];
  }
  __device__ __forceinline__ static float pair_sum(const float (&x)[4], const float (&y)[4], int h) {
    return x[2 * h] * y[2 * h] + x[2 * h + 1] * y[2 * h + 1];
  }
  /// The eight `far` is the one next to the beginning, or end, to which the other one has its gates as well.
  __device__ __forceinline__ void sums(const float (&gradient)[2][4], const float (&operand)[2][4], int near,
                                       float (&to)[2]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h)
      to[h] = pair_sum(gradient[near], operand[near], h) +
              pair_sum(gradient[1 - near], operand[1 - near], h) * eights[near][h];
  }
};

}  // namespace lethe::matrix_state
