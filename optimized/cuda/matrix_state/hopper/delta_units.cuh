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
  if (lane == 0) gates.total = 1.0f;
}

/// Of each token of a chunk, what is multiplied with. The units of a row are those of its token.
struct DeltaTokens {
  ChunkGates gates;
  alignas(16) float beta[kChunk];

  // When the chunk is prepared these lie over numbers that are not read again.
  __device__ float* read_key() { return gates.read; }  ///< γ, the units of key and S, over u
  __device__ float& decay() { return gates.total; }    ///< γ_C and the unit of S, over that of the next S
  __device__ float& after() { return gates.entry; }    ///< the unit of the next S
  __device__ float* write() { return gates.write; }    ///< β D_C, the key's unit and u, over that of the next S
  __device__ float* reciprocal() { return beta; }      ///< 1/u
};

/// The same, of what its rows are measured for.
struct DeltaTokenUnits {
  alignas(16) float query_unit[kChunk];
  float largest_value[kChunk];

  // As above.
  __device__ float* of_pair() { return query_unit; }        ///< the key's unit, β and u
  __device__ float* read_state() { return largest_value; }  ///< γ and the unit of S, over σ
};

/// A warp: a chunk's gates, of which each lane has written those that it copies, and its own two strengths.
__device__ __forceinline__ void copy_tokens(DeltaTokens& to, const ChunkGates& gates, float2 beta, int lane) {
  const auto copy = [&](void* numbers, const void* copied) {
    static_cast<uint2*>(numbers)[lane] = static_cast<const uint2*>(copied)[lane];
  };
  copy(to.gates.sum, gates.sum);
  copy(to.gates.read, gates.read);
  copy(to.gates.write, gates.write);
  copy(to.gates.first_seen, gates.first_seen);
  reinterpret_cast<float2*>(to.beta)[lane] = beta;
  static_assert(sizeof(DeltaTokens) == 5 * sizeof to.beta + sizeof(float4));
  if (lane < 2)  // the total, and what fills up 16 bytes
    reinterpret_cast<float2*>(&to.gates.total)[lane] = lane == 0 ? float2{gates.total, 0.0f} : float2{};
}

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

/// A lane's two tokens of a chunk's array.
__device__ __forceinline__ float2 own_pair(const float* numbers, int lane) {
  return *reinterpret_cast<const float2*>(numbers + 2 * lane);
}
__device__ __forceinline__ void store_pair(float* numbers, const float (&pair)[2], int lane) {
  *reinterpret_cast<float2*>(numbers + 2 * lane) = {pair[0], pair[1]};
}

/// The gates of a lane's two tokens.
__device__ __forceinline__ float2 forget_of(const ChunkGates& gates, int lane) {
  const float2 sum = own_pair(gates.sum, lane);
  const int2 first_seen = *reinterpret_cast<const int2*>(&gates.first_seen[2 * lane]);
  const float before = lane > 0 ? exp2_approximate(sum.x - gates.sum[2 * lane - 1]) : gates.read[0];
  return {lane > 0 && first_seen.x == 2 * lane ? 0.0f : before,
          first_seen.y == 2 * lane + 1 ? 0.0f : exp2_approximate(sum.y - sum.x)};
}

/// f g of a token.
__device__ __forceinline__ float growth_by(float forget, float beta, float norm) {
  return forget * fmaxf(1.0f, fabsf(1.0f - beta * norm * norm));
}

/// A warp: what a chunk makes of σ, which needs no state. `whole` is the chunk's, `earlier` that of the tokens before the lane's.
struct DeltaChunkGrowth {
  float forget[2];  ///< gates of the lane's tokens
  DeltaGrowth of_token[2], whole, earlier;

  __device__ __forceinline__ DeltaChunkGrowth(const DeltaTokens& tokens, const DeltaTokenUnits& units,
                                              const float* key_norm, int lane) {
    const float2 forgets = forget_of(tokens.gates, lane), strength = own_pair(tokens.beta, lane),
                 norms = own_pair(key_norm, lane), most = own_pair(units.largest_value, lane);
    const float beta[2] = {strength.x, strength.y}, norm[2] = {norms.x, norms.y}, largest[2] = {most.x, most.y};
    forget[0] = forgets.x, forget[1] = forgets.y;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      of_token[i] = {growth_by(forget[i], beta[i], norm[i]), fabsf(beta[i]) * norm[i] * largest[i]};
    whole = of_token[1].behind(of_token[0]);
    earlier = growth_before(whole, lane);
  }
};

/// A warp: a chunk's numbers from `before`, a bound of the state's columns before it, which are held divided by `unit`. `of_state` gets 1/σ, by
/// bits_of_power, and `out_unit` σ times `scale` and query_units() of the lane's tokens, which comes last; it may be key_norm. Returns what the state is divided
/// by after the chunk.
template <typename QueryUnits>
__device__ __forceinline__ float prepare_units(DeltaTokens& tokens, DeltaTokenUnits& units, const float* key_unit,
                                               const float* key_norm, uint16_t* of_state, float* out_unit,
                                               const DeltaChunkGrowth& growth, float before, float unit, float scale,
                                               const QueryUnits& query_units, int lane) {
  const float next = delta_unit(growth.whole.after(before)), next_reciprocal = reciprocal_of_power(next),
              total = tokens.gates.total;  // here, so that its load is not waited for alone
  const float2 strengths = own_pair(tokens.beta, lane), norms = own_pair(key_norm, lane),
               most = own_pair(units.largest_value, lane), keys = own_pair(key_unit, lane),
               reads = own_pair(tokens.gates.read, lane), writes = own_pair(tokens.gates.write, lane);
  const float beta[2] = {strengths.x, strengths.y}, norm[2] = {norms.x, norms.y}, largest[2] = {most.x, most.y},
              key[2] = {keys.x, keys.y}, read[2] = {reads.x * unit, reads.y * unit},
              write[2] = {writes.x, writes.y};
  float pair[2], read_key[2], weight[2], reciprocal[2], read_state[2], out[2];
  uint32_t bits[2];
  float bound = growth.earlier.after(before);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float row = delta_unit(fmaxf(largest[i], norm[i] * (growth.forget[i] * bound)));
    reciprocal[i] = reciprocal_of_power(row);
    bound = growth.of_token[i].after(bound);
    const float state = delta_unit(bound), state_reciprocal = reciprocal_of_power(state);
    pair[i] = key[i] * beta[i] * row;
    bits[i] = bits_of_power(state_reciprocal);
    read_key[i] = read[i] * key[i] * reciprocal[i];
    weight[i] = write[i] * pair[i] * next_reciprocal;
    read_state[i] = read[i] * state_reciprocal;
    out[i] = state * scale;
  }
  *reinterpret_cast<uint32_t*>(of_state + 2 * lane) = bits[0] | bits[1] << 16;
  store_pair(tokens.read_key(), read_key, lane);
  store_pair(tokens.write(), weight, lane);
  store_pair(tokens.reciprocal(), reciprocal, lane);
  store_pair(units.read_state(), read_state, lane);
  __syncwarp();  // all lanes have read the total
  if (lane == 0) {
    tokens.decay() = total * unit * next_reciprocal;
    tokens.after() = next;
  }
  const float2 queries = query_units();
  out[0] *= queries.x, out[1] *= queries.y;
  store_pair(out_unit, out, lane);
  store_pair(units.of_pair(), pair, lane);
  return next;
}

}  // namespace lethe::matrix_state
