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
  alignas(16) float largest_query[kChunk], largest_gradient[kChunk];  ///< a row's unit is the power of two below
};

/// The same, of the chunk that is prepared alone.
struct DeltaBackUnits {
  alignas(16) float of_row[kChunk];  ///< the key's unit over u
  float of_column[kChunk];           ///< scale, and the units of query and gradient
  float of_read[kChunk];             ///< γ times that, over the unit of the R before
  float of_written[kChunk];          ///< −β, the key's unit and u
};

/// A warp: what a chunk makes of σ, which needs no R. `whole` is the chunk's, `later` that of the tokens after the lane's, whose last two lane 0 has. Of two
/// tokens the later one is number 1.
struct DeltaBackGrowth {
  float gate[2];
  DeltaGrowth whole, later;

  __device__ __forceinline__ DeltaBackGrowth(const DeltaBackTokens& tokens, const DeltaBackRows& rows,
                                             const float* key_norm, float scale, float root, int lane) {
    const int own = 31 - lane;
    const float2 forgets = forget_of(tokens.gates, own), strength = own_pair(tokens.beta, own),
                 norms = own_pair(key_norm, own), queries = own_pair(rows.largest_query, own),
                 gradients = own_pair(rows.largest_gradient, own);
    const float forget[2] = {forgets.x, forgets.y}, beta[2] = {strength.x, strength.y}, norm[2] = {norms.x, norms.y},
                query[2] = {queries.x, queries.y}, gradient[2] = {gradients.x, gradients.y};
    float read[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      read[i] = fabsf(scale) * root * query[i] * gradient[i];
      gate[i] = growth_by(forget[i], beta[i], norm[i]);
    }
    whole = DeltaGrowth{gate[0], gate[0] * read[0]}.behind({gate[1], gate[1] * read[1]});
    later = growth_before(whole, lane);  // lanes have tokens from the last one on
  }
};

/// A warp: a chunk's numbers from `before`, a bound of the columns of the R after it, which is held divided by `unit`. `row_unit` gets u, of two tokens.
/// Returns what R is divided by before the chunk.
template <typename RowUnit>
__device__ __forceinline__ float prepare_back_units(DeltaBackTokens& tokens, const DeltaBackRows& rows,
                                                    DeltaBackUnits& units, const float* key_unit, const float* key_norm,
                                                    const DeltaBackGrowth& growth, float before, float unit,
                                                    float scale, float root, const RowUnit& row_unit, int lane) {
  const int own = 31 - lane;
  const float next = delta_unit(growth.whole.after(before)), next_reciprocal = reciprocal_of_power(next);
  const float2 strengths = own_pair(tokens.beta, own), norms = own_pair(key_norm, own), keys = own_pair(key_unit, own),
               queries = own_pair(rows.largest_query, own), gradients = own_pair(rows.largest_gradient, own),
               reads = own_pair(tokens.gates.read, own), writes = own_pair(tokens.gates.write, own);
  const float beta[2] = {strengths.x, strengths.y}, norm[2] = {norms.x, norms.y}, key[2] = {keys.x, keys.y},
              query[2] = {queries.x, queries.y}, gradient[2] = {gradients.x, gradients.y}, read[2] = {reads.x, reads.y},
              write[2] = {writes.x, writes.y};
  float row[2], of_row[2], of_column[2], of_read[2], of_written[2], read_key[2], weight[2], strength[2];
  float bound = growth.later.after(before);
#pragma unroll
  for (int i = 1; i >= 0; --i) {
    const float most = fmaxf(bound, fabsf(scale) * root * query[i] * gradient[i]);
    row[i] = delta_unit(norm[i] * most);
    const float reciprocal = reciprocal_of_power(row[i]);
    bound = growth.gate[i] * most;
    strength[i] = beta[i] * row[i];
    of_row[i] = key[i] * reciprocal;
    of_column[i] = scale * (power_of_two_below(query[i]) * power_of_two_below(gradient[i]));
    of_read[i] = read[i] * of_column[i] * next_reciprocal;
    of_written[i] = -key[i] * strength[i];
    read_key[i] = write[i] * key[i] * unit * reciprocal;
    weight[i] = -read[i] * key[i] * strength[i] * next_reciprocal;
  }
  store_pair(units.of_row, of_row, own);
  store_pair(units.of_column, of_column, own);
  store_pair(units.of_read, of_read, own);
  store_pair(units.of_written, of_written, own);
  store_pair(tokens.read_key(), read_key, own);
  store_pair(tokens.write(), weight, own);
  store_pair(tokens.strength(), strength, own);
  row_unit(2 * own, float2{row[0], row[1]});
  return next;
}

}  // namespace lethe::matrix_state
