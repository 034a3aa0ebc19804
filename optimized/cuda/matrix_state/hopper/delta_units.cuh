#pragma once
// Powers of two by which the sweep of the delta rule divides what it makes float16: bounds from what comes before a token, so that nothing overflows and
// no token's rounding depends on a later one.
//
// Of a state S_i after token i, with f its gate and m_i = β_i |k_i| max|v_i|, no column is longer than 1 + i times
//
//   σ_i = max(f_i g_i σ_{i−1}, m_i),   g_i = max(1, |1 − β_i |k_i|²|)
//
// nor is a number of R_i, what the value differs from what is read, larger than 1 + i times u_i = max(max|v_i|, |k_i| f_i σ_{i−1}). A chunk begins with a
// σ from the largest number of the state one chunk earlier, measured: so i is below 128, and what a state has forgotten by its writes has left σ, too.

#include "optimized/cuda/matrix_state/chunk_gates.cuh"
#include "optimized/cuda/matrix_state/units.cuh"

namespace lethe::matrix_state {

/// A warp: of gates that are open what a chunk before has written over.
__device__ __forceinline__ void open_gates(ChunkGates& gates, int lane) {
  const float2 ones{1.0f, 1.0f};
  *reinterpret_cast<float2*>(&gates.read[2 * lane]) = ones;
  *reinterpret_cast<float2*>(&gates.write[2 * lane]) = ones;
}

/// Of each token of a chunk, what is multiplied with. The units of a row are those of its token.
struct DeltaTokens {
  ChunkGates gates;
  alignas(16) float beta[kChunk];

  // When the chunk is prepared these lie over numbers that are not read again.
  __device__ float* read_key() { return gates.read; }  ///< γ, the units of key and S, over u
  __device__ float* write() { return gates.write; }    ///< β D_C, the key's unit and u, over that of the next S
  __device__ float* reciprocal() { return beta; }      ///< 1/u
};

/// The same, of what its rows are measured for.
struct DeltaTokenUnits {
  float query_unit[kChunk], largest_value[kChunk];

  // As above.
  __device__ float* of_pair() { return query_unit; }        ///< the key's unit, β and u
  __device__ float* read_state() { return largest_value; }  ///< γ and the unit of S, over σ
};

/// A power of two by its upper 16 bits.
__device__ __forceinline__ float power_of(uint16_t bits) { return __uint_as_float(uint32_t{bits} << 16); }
__device__ __forceinline__ uint16_t bits_of_power(float power) {
  return static_cast<uint16_t>(__float_as_uint(power) >> 16);
}

/// σ after a chunk by σ before it: max(product · before, written).
struct DeltaGrowth {
  float product = 1.0f, written = 0.0f;

  __device__ __forceinline__ float after(float before) const { return fmaxf(product * before, written); }
  /// First `earlier`, then this.
  __device__ __forceinline__ DeltaGrowth behind(const DeltaGrowth& earlier) const {
    return {fminf(product * earlier.product, 0x1p100f), after(earlier.written)};
  }
};

/// A warp: of all lanes before this one, in their order; `growth`, this lane's, becomes that of the whole warp.
__device__ __forceinline__ DeltaGrowth growth_before(DeltaGrowth& growth, int lane) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const DeltaGrowth earlier{__shfl_up_sync(kAllLanes, growth.product, step),
                              __shfl_up_sync(kAllLanes, growth.written, step)};
    if (lane >= step) growth = growth.behind(earlier);
  }
  DeltaGrowth earlier{__shfl_up_sync(kAllLanes, growth.product, 1), __shfl_up_sync(kAllLanes, growth.written, 1)};
  if (lane == 0) earlier = {};
  growth = {__shfl_sync(kAllLanes, growth.product, 31), __shfl_sync(kAllLanes, growth.written, 31)};
  return earlier;
}

__device__ __forceinline__ float delta_unit(float bound) {
  return power_of_two_below(fminf(fmaxf(bound, 0x1p-100f), 0x1p100f));
}

/// A warp: a chunk's numbers from `before`, a bound of the state's columns before it, which are held divided by `unit`. `of_state` gets 1/σ, by
/// bits_of_power, and `out_unit` the query's unit and σ, times `scale`; it may be key_norm. Returns what the state is divided by after the chunk, and in
/// `growth` the chunk's.
__device__ __forceinline__ float prepare_units(DeltaTokens& tokens, DeltaTokenUnits& units, const float* key_unit,
                                               const float* key_norm, uint16_t* of_state, float* out_unit, float before,
                                               float unit, float scale, DeltaGrowth& growth, int lane) {
  const ChunkGates& gates = tokens.gates;
  float forget[2], beta[2], norm[2], largest[2], gate[2], written[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int token = 2 * lane + i;
    forget[i] = token == 0                         ? gates.read[0]
                : gates.first_seen[token] == token ? 0.0f
                                                   : exp2_approximate(gates.sum[token] - gates.sum[token - 1]);
    beta[i] = tokens.beta[token];
    norm[i] = key_norm[token];
    largest[i] = units.largest_value[token];
    gate[i] = forget[i] * fmaxf(1.0f, fabsf(1.0f - beta[i] * norm[i] * norm[i]));
    written[i] = fabsf(beta[i]) * norm[i] * largest[i];
  }
  growth = DeltaGrowth{gate[1], written[1]}.behind({gate[0], written[0]});
  const DeltaGrowth earlier = growth_before(growth, lane);
  const float next = delta_unit(growth.after(before)), next_reciprocal = reciprocal_of_power(next);
  float bound = earlier.after(before);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int token = 2 * lane + i;
    const float row = delta_unit(fmaxf(largest[i], norm[i] * (forget[i] * bound))),
                reciprocal = reciprocal_of_power(row);
    bound = fmaxf(gate[i] * bound, written[i]);
    const float state = delta_unit(bound), state_reciprocal = reciprocal_of_power(state),
                read = gates.read[token] * unit, key = key_unit[token], query = units.query_unit[token],
                pair = key * beta[i] * row;
    units.of_pair()[token] = pair;
    of_state[token] = bits_of_power(state_reciprocal);
    tokens.read_key()[token] = read * key * reciprocal;
    tokens.write()[token] = gates.write[token] * pair * next_reciprocal;
    tokens.reciprocal()[token] = reciprocal;
    units.read_state()[token] = read * state_reciprocal;
    out_unit[token] = query * state * scale;
  }
  return next;
}

}  // namespace lethe::matrix_state
