#pragma once
// The units of delta_units.cuh for the sweep from the last token back. Of a gradient R_i of the state after token i from later ones, with f its gate and
// m_i = scale · |q_i| max|dO_i|, no column is longer than one more than the number of later tokens times
//
//   σ_{i−1} = f_i g_i max(σ_i, m_i),   g_i = max(1, |1 − β_i |k_i|²|)
//
// nor is a number of dN_i or dN̄_i larger than that times u_i = |k_i| max(σ_i, m_i).

#include "optimized/cuda/matrix_state/hopper/delta_units.cuh"

namespace lethe::matrix_state {

/// Of each token of a chunk, what is multiplied with. The units of a row are those of its token.
struct DeltaBackTokens {
  ChunkGates gates;
  alignas(16) float beta[kChunk];

  // When the chunk is prepared these lie over numbers that are not read again.
  __device__ float* read_key() { return gates.write; }  ///< D_C, the units of key and R, over u
  __device__ float* write() { return gates.read; }      ///< −γ β, the key's unit and u, over that of the R before
  __device__ float* strength() { return beta; }         ///< β u
};

/// The same, of what its rows are measured for.
struct DeltaBackRows {
  float largest_query[kChunk], largest_gradient[kChunk];  ///< a row's unit is the power of two below
};

/// The same, of the chunk that is prepared alone.
struct DeltaBackUnits {
  float of_row[kChunk];      ///< the key's unit over u
  float of_column[kChunk];   ///< scale, and the units of query and gradient
  float of_read[kChunk];     ///< γ times that, over the unit of the R before
  float of_written[kChunk];  ///< −β, the key's unit and u
};

/// A warp: a chunk's numbers from `before`, a bound of the columns of the R after it, which is held divided by `unit`. `row_unit` gets u. Returns what R is
/// divided by before the chunk, and in `growth` the chunk's.
template <typename RowUnit>
__device__ __forceinline__ float prepare_back_units(DeltaBackTokens& tokens, const DeltaBackRows& rows,
                                                    DeltaBackUnits& units, const float* key_unit, const float* key_norm,
                                                    float before, float unit, float scale, float root,
                                                    const RowUnit& row_unit, DeltaGrowth& growth, int lane) {
  const ChunkGates& gates = tokens.gates;
  float beta[2], norm[2], read[2], gate[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int token = kChunk - 1 - 2 * lane - i;
    const float forget = token == 0                         ? gates.read[0]
                         : gates.first_seen[token] == token ? 0.0f
                                                            : exp2_approximate(gates.sum[token] - gates.sum[token - 1]);
    beta[i] = tokens.beta[token];
    norm[i] = key_norm[token];
    read[i] = fabsf(scale) * root * rows.largest_query[token] * rows.largest_gradient[token];
    gate[i] = forget * fmaxf(1.0f, fabsf(1.0f - beta[i] * norm[i] * norm[i]));
  }
  growth = DeltaGrowth{gate[1], gate[1] * read[1]}.behind({gate[0], gate[0] * read[0]});
  const DeltaGrowth later = growth_before(growth, lane);  // lanes have tokens from the last one on
  const float next = delta_unit(growth.after(before)), next_reciprocal = reciprocal_of_power(next);
  float bound = later.after(before);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int token = kChunk - 1 - 2 * lane - i;
    const float most = fmaxf(bound, read[i]), row = delta_unit(norm[i] * most), reciprocal = reciprocal_of_power(row),
                key = key_unit[token],
                column = scale * (power_of_two_below(rows.largest_query[token]) *
                                  power_of_two_below(rows.largest_gradient[token])),
                strength = beta[i] * row;
    bound = gate[i] * most;
    row_unit(token, row);
    units.of_row[token] = key * reciprocal;
    units.of_column[token] = column;
    units.of_read[token] = gates.read[token] * column * next_reciprocal;
    units.of_written[token] = -key * strength;
    tokens.read_key()[token] = gates.write[token] * key * unit * reciprocal;
    tokens.write()[token] = -gates.read[token] * key * strength * next_reciprocal;
    tokens.strength()[token] = strength;
  }
  return next;
}

}  // namespace lethe::matrix_state
