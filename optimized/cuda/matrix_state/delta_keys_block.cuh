#pragma once
// The gradients of 16 tokens by each other with the delta rule: the halvings of vector_block.cuh with two readers a token, its query and its key.

#include "optimized/cuda/matrix_state/vector_block.cuh"

namespace lethe::matrix_state {

/// A block's own pairs as a right operand whose columns are its rows, and its columns.
struct BlockPairs {
  uint32_t diagonal[4], transposed[4];
};

/// 16 tokens and a warp's 16 rows: token 8i + 2t + j % 2, row g + 8·(j / 2) at [i][j] of lane 4g + t. Readers: 0 the query, 1 the key.
struct DeltaKeyTokens {
  using Numbers = float[2][4];
  const int t;
  EightGates run[2];
  float eights[2][2];                ///< products of each eight's gates
  Numbers reader[2];                 ///< q and k
  Numbers read[2] = {}, write = {};  ///< the gradients of q, of k as what reads, and of k as what is written
  Numbers read_terms, write_terms;   ///< what these so far give to d log f: by q and k with their gates
  Numbers reader8[2],
      key8;   ///< readers times the gates since the beginning of their eight, k times those up to the end
  Numbers y;  ///< the part of d log f that the block itself has

  __device__ __forceinline__ explicit DeltaKeyTokens(int t) : t(t) {}

  __device__ __forceinline__ static void pack_left(const Numbers& x, uint32_t (&to)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) to[h + 2 * i] = pack<__half>(x[i][2 * h], x[i][2 * h + 1]);
  }

  /// Adds what the block's tokens have from each other.
  ///
  /// reads  pairs: of each reader; unit: what their products with operands are to be multiplied with; own: of each token dO·n with itself
  __device__ __forceinline__ void halve(const EightMasks& masks, const BlockPairs (&pairs)[2], float unit,
                                        const float2 (&own)[2]) {
    const bool upper2 = t & 1, upper4 = t & 2;
    const Numbers& k = reader[1];
    // Halves of 8: the block's second eight is the upper one.
    {
      const float of_second[2] = {quad_total(read_terms[1][0] + read_terms[1][1]),
                                  quad_total(read_terms[1][2] + read_terms[1][3])},
                  of_first[2] = {quad_total(write_terms[0][0] + write_terms[0][1]),
                                 quad_total(write_terms[0][2] + write_terms[0][3])};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        y[0][j] = of_second[j / 2];
        y[1][j] = of_first[j / 2];
        write[0][j] *= eights[1][j / 2];
        read[0][1][j] *= eights[0][j / 2];
        read[1][1][j] *= eights[0][j / 2];
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        Numbers operand;
#pragma unroll
        for (int j = 0; j < 4; ++j) operand[0][j] = key8[0][j], operand[1][j] = reader8[r][1][j];
        uint32_t left[4];
        pack_left(operand, left);
        Numbers sum = {};
        ptx::multiply_add<__half>(sum[0], left, 0, pairs[r].transposed[1]);
        ptx::multiply_add<__half>(sum[1], left, pairs[r].diagonal[2], 0);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float low = sum[0][j] * unit, high = sum[1][j] * unit;
          write[0][j] += low;
          write_terms[0][j] += low * operand[0][j];
          read[r][1][j] += high;
          read_terms[1][j] += high * operand[1][j];
        }
      }
    }
    uint32_t first_pairs[2], second_pairs[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      first_pairs[r] = (pairs[r].diagonal[0] & masks.lower) | (pairs[r].transposed[0] & ~masks.lower);
      second_pairs[r] = (pairs[r].diagonal[3] & masks.lower) | (pairs[r].transposed[3] & ~masks.lower);
    }
    const auto multiply = [&](Numbers& sum, const Numbers& operand, int r, uint32_t mask) {
      uint32_t left[4];
      pack_left(operand, left);
      ptx::multiply_add<__half>(sum[0], left, first_pairs[r] & mask, 0);
      ptx::multiply_add<__half>(sum[1], left, 0, second_pairs[r] & mask);
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[i][j] *= unit;
    };
    // Halves of 4 and 2 tokens: those of the lanes with upper4, or upper2.
    const auto halves = [&](bool upper, int neighbour, uint32_t mask, auto up_of, auto down_of, auto other_of) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float sent = upper ? read_terms[i][2 * h] + read_terms[i][2 * h + 1]
                             : write_terms[i][2 * h] + write_terms[i][2 * h + 1];
          if (neighbour == 2) sent += __shfl_xor_sync(kEveryLane, sent, 1);
          const float got = __shfl_xor_sync(kEveryLane, sent, neighbour);
          y[i][2 * h] += got;
          y[i][2 * h + 1] += got;
        }
      // A lane's tokens are of one half: to the other half's sums it adds zeros, by a unit of 0.
      const float to_read = upper ? unit : 0.0f, to_write = upper ? 0.0f : unit;
      Numbers gates;
      float read_factor[2][2], write_factor[2][2];
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          gates[i][j] = upper ? up_of(run[i], j) : down_of(run[i], j);
          read_factor[i][j / 2] = upper ? other_of(run[i], j / 2) : 1.0f;
          write_factor[i][j / 2] = upper ? 1.0f : other_of(run[i], j / 2);
        }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        Numbers operand, sum = {};
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j)
            operand[i][j] = (r == 0 ? (upper ? reader[0][i][j] : k[i][j]) : k[i][j]) * gates[i][j];
        uint32_t left[4];
        pack_left(operand, left);
        ptx::multiply_add<__half>(sum[0], left, first_pairs[r] & mask, 0);
        ptx::multiply_add<__half>(sum[1], left, 0, second_pairs[r] & mask);
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const float of_read = sum[i][j] * to_read, of_write = sum[i][j] * to_write;
            read[r][i][j] = fmaf(read[r][i][j], read_factor[i][j / 2], of_read);
            write[i][j] = r == 0 ? fmaf(write[i][j], write_factor[i][j / 2], of_write) : write[i][j] + of_write;
            read_terms[i][j] = fmaf(of_read, operand[i][j], read_terms[i][j]);
            write_terms[i][j] = fmaf(of_write, operand[i][j], write_terms[i][j]);
          }
      }
    };
    halves(
        upper4, 2, masks.four, [&](const EightGates& r, int j) { return r.up_four(j, upper2); },
        [&](const EightGates& r, int j) { return r.down_four(j, upper2); },
        [](const EightGates& r, int h) { return r.other_four[h]; });
    halves(
        upper2, 1, masks.two, [](const EightGates& r, int j) { return r.up_two(j); },
        [](const EightGates& r, int j) { return r.down_two(j); },
        [](const EightGates& r, int h) { return r.other_two[h]; });
    // Pairs of neighbours, and queries with their tokens' own keys.
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int even = 2 * h, odd = 2 * h + 1;
        y[i][even] += read_terms[i][odd] + read_terms[i][even];
        y[i][odd] += write_terms[i][even] + read_terms[i][odd];
        write[i][even] = write[i][even] * run[i].f[odd] + own[i].x * reader[0][i][even];
        write[i][odd] += own[i].y * reader[0][i][odd];
      }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      Numbers operand, sum = {};
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) operand[i][j] = j % 2 ? reader[r][i][j] * run[i].f[j] : k[i][j];
      multiply(sum, operand, r, masks.one);
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int even = 2 * h, odd = 2 * h + 1;
          y[i][odd] += sum[i][odd] * operand[i][odd];
          write[i][even] += sum[i][even];
          read[r][i][odd] = (read[r][i][odd] * run[i].f[even] + sum[i][odd]) * run[i].f[odd];
          read[r][i][even] *= run[i].f[even];
          if (r == 0) {
            read[0][i][odd] += own[i].y * k[i][odd];
            read[0][i][even] += own[i].x * k[i][even];
          }
        }
    }
  }
};

}  // namespace lethe::matrix_state
