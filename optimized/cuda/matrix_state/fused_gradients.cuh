#pragma once
// dq, dk, dv and d log f of a segment of a head, from the states before its chunks: the second of the two kernels (fused.hpp), in reverse time.
//
// A warp owns 16 of a chunk's tokens, as keys and then as queries, and 16 rows of R, in float accumulators. Weights of pairs are computed once, of
// keys by queries: P and dP are left operands of dv and dk from registers, and dP of dq by way of shared memory. A chunk is
//
//   its tiles are there                                          barrier
//   R, rounded to 16 bits, to shared memory
//   P = K Qᵀ, dP = V dOᵀ, weighted by D; dP to shared memory     barrier
//   dk, dv and the next R, dq
//
// float16: R, P and dP of a chunk are each divided by a power of two. P and dP come up to 2^14, so that rows 2^-28 times as large keep all their
// bits.

#include <type_traits>

#include "optimized/cuda/matrix_state/fused_crossings.cuh"
#include "optimized/cuda/matrix_state/fused_states.cuh"

namespace lethe::matrix_state {

struct FusedShared {
  static constexpr int kStateBytes = 64 * 64 * 2;
  using Ring = TileRing<4 * kPanel + kStateBytes>;
  static constexpr int kQuery = 0, kGradValues = kPanel, kKey = 2 * kPanel, kValue = 3 * kPanel, kStates = 4 * kPanel;
  static constexpr int kGradState = Ring::kBytes, kPairs = kGradState + kPanel, kGates = kPairs + kPanel;
  static constexpr int kCrossings = kGates + kSegmentChunks * sizeof(ChunkGates);
  static constexpr int kLargest = kCrossings + 2 * sizeof(FusedCrossings);  // of R, P and dP by warp
  static constexpr int kFull = kLargest + 3 * kWarps * sizeof(float);
  static constexpr int kBytes = kFull + Ring::kStages * sizeof(uint64_t);
};

template <typename Element, bool kGated>
__global__ void __launch_bounds__(kComputing, 2) fused_gradients(const __grid_constant__ FusedArguments p) {
  using Shared = FusedShared;
  constexpr bool kHalf = std::is_same_v<Element, __half>;
  extern __shared__ __align__(1024) char memory[];
  const uint32_t shared = ptx::shared_address(memory);
  let_next_kernel_start();
  ChunkGates* const all_gates = reinterpret_cast<ChunkGates*>(memory + Shared::kGates);
  FusedCrossings* const all_crossings = reinterpret_cast<FusedCrossings*>(memory + Shared::kCrossings);
  float* const largest = reinterpret_cast<float*>(memory + Shared::kLargest);
  const Shared::Ring ring{memory, reinterpret_cast<uint64_t*>(memory + Shared::kFull)};

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const Place place{warp, lane};
  const int64_t all_heads = static_cast<int64_t>(p.batch) * p.heads, head = blockIdx.x % all_heads, b = head / p.heads,
                h = head % p.heads, chunks = (p.length + kChunk - 1) / kChunk;
  const Segment segment(p.length, true, all_heads, 1);
  const float* gate = kGated ? p.gate.log_forget + b * p.gate.batch_stride + h * p.gate.head_stride : nullptr;

  // A step reads a chunk's query and dO to sum the segment, then all tiles and the state, of the kernel before.
  const int summed = segment.last ? 0 : segment.count, steps = summed + segment.count;
  const auto copy = [&](int step) {
    if (step < steps) {
      char* const to = ring.stage(step);
      const bool all = step >= summed;
      const int64_t chunk = segment.chunk(all ? step - summed : step), first = chunk * kChunk;
      uint64_t* const barrier = ring.barrier(step);
      ring.expect(step, all ? Shared::Ring::kStage : 2 * kPanel);
      const auto tile = [&](int offset, int which, const Operand& from, int width) {
        copy_tile<1>(to + offset, p.maps[which], from, barrier, 0, width, first, p.length, b, h);
      };
      tile(Shared::kQuery, 0, p.query, p.rows);
      tile(Shared::kGradValues, 3, p.grad_values, p.columns);
      if (all) {
        tile(Shared::kKey, 1, p.key, p.rows);
        tile(Shared::kValue, 2, p.value, p.columns);
        if (step == summed) wait_for_previous_kernel();
        const uint4* states = p.chunk_states + (head * chunks + chunk) * (4 * kComputing);
#if __CUDA_ARCH__ >= 900
        if (threadIdx.x == 0) ptx::load_run(to + Shared::kStates, states, Shared::kStateBytes, barrier);
#else
        for (int i = threadIdx.x; i < 4 * kComputing; i += kComputing)
          ptx::copy_chunk(ptx::shared_address(to + Shared::kStates) + i * 16, states + i);
#endif
      }
    }
    ring.commit();
  };
  ring.begin();
  copy(0);
  if constexpr (kGated) {
    for (int n = warp; n < segment.count; n += kWarps)
      prepare_gates(
          all_gates[n],
          load_gates(gate, p.gate.token_stride, static_cast<int64_t>(segment.chunk(n)) * kChunk, p.length, true, lane),
          1.0f, p.scale, true, lane);
  }

  float state[8][4] = {};  // R: row 16·warp + g + 8·(e / 2), column 8n + 2t + e % 2
  const auto decay_state = [&](float total) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) state[i][e] *= total;
  };
  float decay = 1.0f;
  for (int step = 0; step < summed; ++step) {
    ring.begin_step();
    copy(step + 1);
    const uint32_t stage = ptx::shared_address(ring.stage(step));
    if constexpr (kGated) {
      decay_state(all_gates[step].total);
      decay *= all_gates[step].total;
    }
    ring.wait(step);
    add_outer_products<Element, kGated>(state, stage + Shared::kQuery, stage + Shared::kGradValues, all_gates[step],
                                        p.scale, place);
  }
  {
    const HandedStates<8> handed(p.after, p.length, segment, head);
    float before[8][4];
    if (segment.first) load_state(before, p.grad_last, head, p.rows, p.columns);
    else handed.receive(before);
    if (!segment.last) handed.hand_on(before, state, decay);
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) state[i][e] = before[i][e];
  }
  wait_for_previous_kernel();
  const auto note_largest = [&](float x, int which) {
    const uint32_t bits = __reduce_max_sync(kAllLanes, __float_as_uint(x));
    if (lane == 0) largest[which * kWarps + warp] = __uint_as_float(bits);
  };
  const auto unit_of = [&](int which) {
    const float* x = largest + which * kWarps;
    return fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
  };
  const auto largest_of = [](const float(&x)[8][4]) {
    float most = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) most = fmaxf(most, fabsf(x[i][e]));
    return most;
  };
  if constexpr (kHalf) note_largest(largest_of(state), 0);
  const auto store_gate_gradient_of = [&](int n) {
    const int64_t first = static_cast<int64_t>(segment.chunk(n)) * kChunk;
    store_gate_gradient(all_crossings[n & 1], p.grad_gate + (b * p.length + first) * p.heads + h, p.heads,
                        p.length - first, lane);
  };

  for (int n = 0; n < segment.count; ++n) {
    const int step = summed + n, i0 = 16 * warp + g;
    ring.begin_step();
    copy(step + 1);
    if constexpr (kGated) {
      if (n > 0 && warp == n % kWarps) store_gate_gradient_of(n - 1);
    }
    const int64_t chunk = segment.chunk(n), first = chunk * kChunk;
    const uint32_t stage = ptx::shared_address(ring.stage(step)), rounded = shared + Shared::kGradState,
                   weighted = shared + Shared::kPairs;
    const ChunkGates& gates = all_gates[n];
    FusedCrossings& crossings = all_crossings[n & 1];
    float4 units{1.0f, 1.0f, 1.0f, 1.0f};  // of S
    float state_unit = 1.0f, unscale = 1.0f;
    if constexpr (kHalf) {
      units = load_global4(p.state_units + (head * chunks + chunk) * kWarps);
      state_unit = power_of_two_below(unit_of(0));
      unscale = reciprocal_of_power(state_unit);
    }
    const auto store_tile_pair = [&](uint32_t tile, int half, int c, float x0, float x1) {
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(tile + tile_piece(i0 + 8 * half, c) + t * 4),
                   "r"(pack<Element>(x0, x1))
                   : "memory");
    };
#pragma unroll
    for (int c = 0; c < 8; ++c)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        store_tile_pair(rounded, half, c, state[c][2 * half] * unscale, state[c][2 * half + 1] * unscale);
    ring.wait(step);

    // Weighted pairs of keys by queries; queries before the key included: their weight is zero.
    float scores[8][4] = {}, grads[8][4] = {};
    add_product_transposed<Element>(scores, stage + Shared::kKey, stage + Shared::kQuery, place);
    add_product_transposed<Element>(grads, stage + Shared::kValue, stage + Shared::kGradValues, place);
    {
      float pairs[8][4];
      constexpr int kFlip = kChunk - 1;
      const int first_seen[2] = {kGated ? gates.first_seen[i0] : 0, kGated ? gates.first_seen[i0 + 8] : 0};
      const float sum[2] = {kGated ? gates.sum[i0] : 0.0f, kGated ? gates.sum[i0 + 8] : 0.0f};
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        const int i = 8 * c + 2 * t;
        const float2 sum_i = kGated ? *reinterpret_cast<const float2*>(&gates.sum[i]) : float2{0.0f, 0.0f};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int half = e / 2, query = (i + e % 2) ^ kFlip, key = (i0 + 8 * half) ^ kFlip;  // in the pass's order
          const bool seen =
              static_cast<unsigned>(query - first_seen[half]) <= static_cast<unsigned>(key - first_seen[half]);
          const float weight = kGated ? p.scale * exp2_approximate(sum[half] - (e % 2 ? sum_i.y : sum_i.x)) : p.scale;
          scores[c][e] = seen ? scores[c][e] * weight : 0.0f;
          if constexpr (kGated) pairs[c][e] = seen ? scores[c][e] * grads[c][e] : 0.0f;
          grads[c][e] = seen ? grads[c][e] * weight : 0.0f;
        }
      }
      if constexpr (kGated) sum_key_crossings(pairs, place, crossings.pairs[warp]);
    }
    const auto store_grads = [&](float inverse) {
#pragma unroll
      for (int c = 0; c < 8; ++c)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          store_tile_pair(weighted, half, c, grads[c][2 * half] * inverse, grads[c][2 * half + 1] * inverse);
    };
    if constexpr (kHalf) {
      note_largest(largest_of(scores), 1);
      note_largest(largest_of(grads), 2);
    } else {
      store_grads(1.0f);
    }
    __syncthreads();  // R, and dP or the units
    float score_unit = 1.0f, grad_unit = 1.0f, score_inverse = 1.0f, grad_inverse = 1.0f;
    if constexpr (kHalf) {
      // Not below 2^-40, by which sums are divided: a chunk may have no weight but that of the state.
      score_unit = power_of_two_below(fmaxf(unit_of(1), 0x1p-40f)) * 0x1p-14f;
      grad_unit = power_of_two_below(fmaxf(unit_of(2), 0x1p-40f)) * 0x1p-14f;
      score_inverse = reciprocal_of_power(score_unit);
      grad_inverse = reciprocal_of_power(grad_unit);
      store_grads(grad_inverse);
      __syncthreads();
    }
    const auto scale_rows = [](float(&sum)[8][4], float near, float far) {
#pragma unroll
      for (int c = 0; c < 8; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[c][e] *= e < 2 ? near : far;
    };
    const float near_read = state_unit * (kGated ? gates.read[i0] : 1.0f),
                far_read = state_unit * (kGated ? gates.read[i0 + 8] : 1.0f);
    const int64_t own = first + 16 * warp;
    const auto store_dots = [&](float* to, const float(&rows)[8][4], int tile) {  // of rows and a tile's
      float dot[2];
      row_dots<Element>(dot, rows, stage + tile, place);
      if (t == 0) {
        to[i0] = dot[0];
        to[i0 + 8] = dot[1];
      }
    };

    {  // dk
      float out[8][4] = {};
      add_product_transposed<Element>(out, stage + Shared::kValue, rounded, place);
      scale_rows(out, near_read, far_read);
      if constexpr (kGated) store_dots(crossings.keys, out, Shared::kKey);
      if constexpr (kHalf) scale_rows(out, grad_inverse, grad_inverse);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        uint32_t left[4];
        pack_left<Element>(left, grads, k, grad_inverse);
        add_rows_product<Element>(out, left, stage + Shared::kQuery, k, place);
      }
      if constexpr (kHalf) scale_rows(out, grad_unit, grad_unit);
      store_rows<Element>(out, p.grad_key, own, p.length, b, h, p.heads, p.rows, lane);
    }
    // S as right operands: of 16 columns and its rows 16s + g and those + 8.
    const auto states_of = [&](int k, int s) {
      uint4 x;
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                   : "r"(stage + Shared::kStates + (k * kComputing + s * 32 + lane) * 16));
      return x;
    };
    const auto unit_of_rows = [&](int s) { return s == 0 ? units.x : s == 1 ? units.y : s == 2 ? units.z : units.w; };
    if constexpr (kGated) {
      float sum = 0.0f;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const uint4 x = states_of(k, warp);
        const auto add = [&](uint32_t packed, float r0, float r1) {
          const float2 s = unpack<Element>(packed);
          sum += s.x * r0 + s.y * r1;
        };
        add(x.x, state[2 * k][0], state[2 * k][1]);
        add(x.y, state[2 * k][2], state[2 * k][3]);
        add(x.z, state[2 * k + 1][0], state[2 * k + 1][1]);
        add(x.w, state[2 * k + 1][2], state[2 * k + 1][3]);
      }
      sum *= gates.total * gates.entry * unit_of_rows(warp);
      for (int offset = 1; offset < 32; offset *= 2) sum += __shfl_xor_sync(kAllLanes, sum, offset);
      if (lane == 0) crossings.states[warp] = sum;
      decay_state(gates.total);
    }
    {  // dv, and R of the chunk before
      float out[8][4] = {};
      add_product<Element>(out, stage + Shared::kKey, rounded, place);
      scale_rows(out, near_read * score_inverse, far_read * score_inverse);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        uint32_t left[4], keys[4], r[4][4];
        pack_left<Element>(left, scores, k, score_inverse);
        load_left_transposed(keys, stage + Shared::kQuery, k, place);
        weigh_keys<Element, kGated>(keys, gates.write, p.scale, k, lane);
        load_rows(r, stage + Shared::kGradValues, k, lane);
        multiply_rows<Element>(out, left, r);
        multiply_rows<Element>(state, keys, r);
      }
      if constexpr (kHalf) scale_rows(out, score_unit, score_unit);
      store_rows<Element>(out, p.grad_value, own, p.length, b, h, p.heads, p.columns, lane);
    }
    {  // dq
      float out[8][4] = {};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        uint32_t a[4];
        load_left(a, stage + Shared::kGradValues, k, place);
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          const uint4 x = states_of(k, s);
          ptx::multiply_add<Element>(out[2 * s], a, x.x, x.z);
          ptx::multiply_add<Element>(out[2 * s + 1], a, x.y, x.w);
        }
      }
      // E: the gates after the chunk's first token, which R's update has with the scale, and that one.
      const float near_of = kGated ? gates.write[i0] * gates.entry : p.scale,
                  far_of = kGated ? gates.write[i0 + 8] * gates.entry : p.scale;
#pragma unroll
      for (int s = 0; s < 4; ++s)
#pragma unroll
        for (int c = 2 * s; c < 2 * s + 2; ++c)
#pragma unroll
          for (int e = 0; e < 4; ++e) out[c][e] *= (e < 2 ? near_of : far_of) * unit_of_rows(s);
      if constexpr (kGated) store_dots(crossings.queries, out, Shared::kQuery);
      if constexpr (kHalf) scale_rows(out, grad_inverse, grad_inverse);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        uint32_t left[4];
        load_left_transposed(left, weighted, k, place);
        add_rows_product<Element>(out, left, stage + Shared::kKey, k, place);
      }
      if constexpr (kHalf) scale_rows(out, grad_unit, grad_unit);
      store_rows<Element>(out, p.grad_query, own, p.length, b, h, p.heads, p.rows, lane);
    }
    if constexpr (kHalf) note_largest(largest_of(state), 0);
  }
  if constexpr (kGated) {
    __syncthreads();
    if (warp == 0) store_gate_gradient_of(segment.count - 1);
  }
  if (!p.grad_initial || !segment.last) return;
  const float factor = !kGated ? 1.0f : gate[0] < -104.0f ? 0.0f : expf(gate[0]);
#pragma unroll
  for (int c = 0; c < 8; ++c)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = 16 * warp + g + 8 * (e / 2), column = 8 * c + 2 * t + e % 2;
      if (row < p.rows && column < p.columns)
        p.grad_initial[(head * p.rows + row) * p.columns + column] = state[c][e] * factor;
    }
}

}  // namespace lethe::matrix_state
