#pragma once
// A pass of a matrix state over the tokens of one segment of a head (segments.cuh) and one tile of columns (SweepArguments), in chunks of 64 tokens.
//
// Each of the four warps owns 16 of the chunk's rows and 16 of every 64 rows of the state, which stays in float accumulators. The next chunk's tiles
// come while one is in work. A chunk is
//
//   its tiles are there                                  barrier
//   the state, rounded to 16 bits, to shared memory
//   P = A Bᵀ, weighted by D                              barrier
//   O = E ∘ (A S) + P C;   S = E_C S + (b·D_C)ᵀ C
//
// and where the segment is summed first only the last line's second half. float16: the rounded state and each row of P are divided by a power of two,
// so that neither overflows nor becomes subnormal.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "optimized/cuda/arithmetic.cuh"
#include "optimized/cuda/launch.cuh"
#include "optimized/cuda/matrix_state/chunk_gates.cuh"
#include "optimized/cuda/matrix_state/crossings.cuh"
#include "optimized/cuda/matrix_state/fragments.cuh"
#include "optimized/cuda/matrix_state/segments.cuh"
#include "optimized/cuda/matrix_state/sweep_output.cuh"
#include "optimized/cuda/matrix_state/sweep_shared.cuh"
#include "optimized/cuda/matrix_state/tiles.cuh"
#include "optimized/cuda/matrix_state/units.cuh"
#include "optimized/cuda/ptx/mma.cuh"

namespace lethe::matrix_state {

template <typename Element, int kRows, int kColumns, Role kRole, bool kGated>
__global__ void __launch_bounds__(kComputing, SweepShared<kRows, kColumns, kRole>::kTogether)
    sweep(const __grid_constant__ SweepArguments p) {
  using Shared = SweepShared<kRows, kColumns, kRole>;
  constexpr bool kHalf = std::is_same_v<Element, __half>, kCrosses = kRole != Role::kRead;
  constexpr int kRowTiles = kRows / 64, kColumnTiles = kColumns / 8, kTiles = kRowTiles * kColumnTiles;
  extern __shared__ __align__(1024) char memory[];
  const uint32_t shared = ptx::shared_address(memory);
  let_next_kernel_start();
  ChunkGates* const all_gates = reinterpret_cast<ChunkGates*>(memory + Shared::kGates);
  Crossings* const all_crossings = reinterpret_cast<Crossings*>(memory + Shared::kCrossings);
  float* const largest = reinterpret_cast<float*>(memory + Shared::kLargest);
  const typename Shared::Ring ring{memory, reinterpret_cast<uint64_t*>(memory + Shared::kFull)};

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int tiles = (p.columns + kColumns - 1) / kColumns, tile = blockIdx.x % tiles, column = tile * kColumns;
  const int64_t all_heads = static_cast<int64_t>(p.batch) * p.heads, head = blockIdx.x / tiles % all_heads,
                b = head / p.heads, h = head % p.heads, tile_head = tile * all_heads + head;
  const Segment segment(p.length, p.reverse, all_heads, tiles);
  const int chunks = static_cast<int>((p.length + kChunk - 1) / kChunk), columns = min(kColumns, p.columns - column);
  const float* gate = kGated ? p.gate.log_forget + b * p.gate.batch_stride + h * p.gate.head_stride : nullptr;
  float* crossings_out = kCrosses ? p.crossings + tile_head * chunks * kChunk : nullptr;
  float* chunk_states = kCrosses ? p.chunk_states + tile_head * chunks * (kRows * kColumns) + threadIdx.x * 4 : nullptr;

  // A step reads a chunk's tiles: those of its key and value to sum the segment, then those of all operands.
  const int summed = segment.last ? 0 : segment.count, steps = summed + segment.count;
  const auto copy = [&](int step) {
    if (step < steps) {
      char* const to = ring.stage(step);
      const bool all = step >= summed;
      const int64_t first = static_cast<int64_t>(segment.chunk(all ? step - summed : step)) * kChunk;
      ring.expect(step, all ? Shared::kStage : Shared::kPartner - Shared::kKey);
      const auto tile_of = [&](auto width, int offset, int which, const Operand& from, int at, int end) {
        copy_tile<kPanelsOf<decltype(width)::value>>(to + offset, p.maps[which], from, ring.barrier(step), at, end,
                                                     first, p.length, b, h);
      };
      tile_of(std::integral_constant<int, kRows>(), Shared::kKey, 1, p.key, 0, p.rows);
      tile_of(std::integral_constant<int, kColumns>(), Shared::kValue, 2, p.value, column, p.columns);
      if (all) {
        tile_of(std::integral_constant<int, kRows>(), 0, 0, p.query, 0, p.rows);
        if constexpr (kCrosses)
          tile_of(std::integral_constant<int, kColumns>(), Shared::kPartner, 3, p.partner, column, p.columns);
      }
    }
    ring.commit();
  };
  ring.begin();
  copy(0);
  if constexpr (kGated) {
    for (int n = warp; n < segment.count; n += kWarps)
      prepare_gates(all_gates[n],
                    load_gates(gate, p.gate.token_stride, static_cast<int64_t>(segment.chunk(n)) * kChunk, p.length,
                               p.reverse, lane),
                    p.read_scale, p.write_scale, p.reverse, lane);
  }
  const SweepOutput<Element, kColumns> output{p, b, h, column, columns, warp, lane, memory + Shared::kOut};

  float state[kTiles][4] = {};  // tile m·kColumnTiles + n: row 16·(4m + warp) + g + 8·(e / 2), column 8n + 2t + e % 2
  const auto state_row = [&](int m, int e) { return 64 * m + 16 * warp + g + 8 * (e / 2); };
  const auto each_element = [&](auto&& visit) {  // with its place in a state of global memory, or -1
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = state_row(i / kColumnTiles, e), c = column + 8 * (i % kColumnTiles) + 2 * t + e % 2;
        visit(i, e,
              r < p.rows && c < p.columns ? head * p.rows * p.columns + r * p.row_stride + c * p.column_stride
                                          : int64_t{-1});
      }
  };
  // Keys of 16 tokens, weighted, as left operands.
  const auto weighted_keys = [&](uint32_t(&keys)[kRowTiles][4], uint32_t tile, int k, const ChunkGates& gates) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      ptx::load_matrices_transposed(
          keys[m], tile + tile_piece(16 * k + lane % 8 + lane / 16 * 8, 8 * m + 2 * warp + lane / 8 % 2));
      weigh_keys<Element, kGated>(keys[m], gates.write, p.write_scale, k, lane);
    }
  };
  const auto load_values = [&](uint32_t(&r)[kColumnTiles / 2][4], uint32_t tile, int k) {
#pragma unroll
    for (int c = 0; c < kColumnTiles / 2; ++c)
      ptx::load_matrices_transposed(r[c], tile + tile_piece(16 * k + lane % 16, 2 * c + lane / 16));
  };
  const auto decay_state = [&](float total) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) state[i][e] *= total;
  };

  float decay = 1.0f;
  for (int step = 0; step < summed; ++step) {
    ring.begin_step();
    copy(step + 1);
    const uint32_t stage = ptx::shared_address(ring.stage(step));
    const ChunkGates& gates = all_gates[step];
    if constexpr (kGated) {
      decay_state(gates.total);
      decay *= gates.total;
    }
    ring.wait(step);
#pragma unroll
    for (int k = 0; k < kChunk / 16; ++k) {
      uint32_t keys[kRowTiles][4], r[kColumnTiles / 2][4];
      weighted_keys(keys, stage + Shared::kKey, k, gates);
      load_values(r, stage + Shared::kValue, k);
#pragma unroll
      for (int c = 0; c < kColumnTiles / 2; ++c)
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          ptx::multiply_add<Element>(state[m * kColumnTiles + 2 * c], keys[m], r[c][0], r[c][1]);
          ptx::multiply_add<Element>(state[m * kColumnTiles + 2 * c + 1], keys[m], r[c][2], r[c][3]);
        }
    }
  }
  {
    float before[kTiles][4];
    const HandedStates<kTiles> handed(p.segments, p.length, segment, tile_head);
    if (segment.first) {
      each_element(
          [&](int i, int e, int64_t place) { before[i][e] = p.initial && place >= 0 ? p.initial[place] : 0.0f; });
    } else {
      handed.receive(before);
    }
    if (!segment.last) handed.hand_on(before, state, decay);
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) state[i][e] = before[i][e];
  }
  const auto note_largest = [&] {
    float x = 0.0f;
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) x = fmaxf(x, fabsf(state[i][e]));
    const uint32_t bits = __reduce_max_sync(kAllLanes, __float_as_uint(x));
    if (lane == 0) largest[warp] = __uint_as_float(bits);
  };
  if constexpr (kHalf) note_largest();
  const auto store_crossings_of = [&](int n) {
    store_crossings<kRole>(all_crossings[n & 1], crossings_out + static_cast<int64_t>(segment.chunk(n)) * kChunk, lane);
  };

  for (int n = 0; n < segment.count; ++n) {
    const int step = summed + n;
    ring.begin_step();
    copy(step + 1);
    const int64_t first = static_cast<int64_t>(segment.chunk(n)) * kChunk;
    if constexpr (kCrosses) {
      if (n > 0 && warp == n % kWarps) store_crossings_of(n - 1);
    }
    const int block = warp;  // of rows
    const uint32_t stage = ptx::shared_address(ring.stage(step)), rounded_state = shared + Shared::kState;
    const ChunkGates& gates = all_gates[n];
    Crossings& crossings = all_crossings[n & 1];

    // The state to shared memory, and to or from the other pass.
    float state_unit = 1.0f, unscale = 1.0f;
    if constexpr (kHalf) {
      state_unit = power_of_two_below(fmaxf(fmaxf(largest[0], largest[1]), fmaxf(largest[2], largest[3])));
      unscale = reciprocal_of_power(state_unit);
    }
    // The other pass's states come while this chunk's products run, where there are registers for them.
    constexpr bool kEarly = kRole == Role::kKeyGradient && kRowTiles == 1;
    float4 others[kEarly ? kColumnTiles : 1];
    float states_product = 0.0f;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int c = 0; c < kColumnTiles; ++c) {
        const float(&s)[4] = state[m * kColumnTiles + c];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t packed = pack<Element>(s[2 * half] * unscale, s[2 * half + 1] * unscale);
          const uint32_t to = rounded_state + ptx::swizzled_chunk<kColumns>(state_row(m, 2 * half), c) + t * 4;
          asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(packed) : "memory");
        }
        if constexpr (kCrosses) {
          float* other = chunk_states + static_cast<int64_t>(segment.chunk(n)) * (kRows * kColumns) +
                         (m * kColumnTiles + c) * kComputing * 4;
          if constexpr (kRole == Role::kQueryGradient) {
            *reinterpret_cast<float4*>(other) = {s[0], s[1], s[2], s[3]};
          } else {
            const float4 o = load_global4(other);
            if constexpr (kEarly) others[c] = o;
            else states_product += (s[0] * o.x + s[1] * o.y) + (s[2] * o.z + s[3] * o.w);
          }
        }
      }
    ring.wait(step);

    // P = A Bᵀ, keys after the row included: their weight is zero.
    const auto left_rows = [&](uint32_t tile, int k, uint32_t(&a)[4]) {
      ptx::load_matrices(a, tile + tile_piece(16 * block + lane % 16, 2 * k + lane / 16));
    };
    const auto product = [&](float(&sum)[8][4], uint32_t left, uint32_t right, auto width) {
      constexpr int kWidth = decltype(width)::value;
#pragma unroll
      for (int k = 0; k < kWidth / 16; ++k) {
        uint32_t a[4], r[4][4];
        left_rows(left, k, a);
#pragma unroll
        for (int j = 0; j < 4; ++j)
          ptx::load_matrices(r[j], right + tile_piece(16 * j + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          ptx::multiply_add<Element>(sum[2 * j], a, r[j][0], r[j][1]);
          ptx::multiply_add<Element>(sum[2 * j + 1], a, r[j][2], r[j][3]);
        }
      }
    };
    float scores[8][4] = {};
    product(scores, stage, stage + Shared::kKey, std::integral_constant<int, kRows>());
    const int i0 = 16 * block + g;
    {
      const float pair_scale = p.read_scale * p.write_scale;
      const int flip = p.reverse ? kChunk - 1 : 0;
      const int first_seen[2] = {kGated ? gates.first_seen[i0] : 0, kGated ? gates.first_seen[i0 + 8] : 0};
      const float sum[2] = {kGated ? gates.sum[i0] : 0.0f, kGated ? gates.sum[i0 + 8] : 0.0f};
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        const int j = 8 * c + 2 * t;
        const float2 sum_j = kGated ? *reinterpret_cast<const float2*>(&gates.sum[j]) : float2{0.0f, 0.0f};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int half = e / 2;
          const int key = (j + e % 2) ^ flip, row = (i0 + 8 * half) ^ flip;  // in the pass's order
          const bool seen =
              static_cast<unsigned>(key - first_seen[half]) <= static_cast<unsigned>(row - first_seen[half]);
          const float weight =
              kGated ? pair_scale * exp2_approximate(sum[half] - (e % 2 ? sum_j.y : sum_j.x)) : pair_scale;
          scores[c][e] = seen ? scores[c][e] * weight : 0.0f;
        }
      }
    }
    if constexpr (kRole == Role::kQueryGradient) {
      float pairs[8][4] = {};
      product(pairs, stage + Shared::kPartner, stage + Shared::kValue, std::integral_constant<int, kColumns>());
#pragma unroll
      for (int c = 0; c < 8; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e) pairs[c][e] *= scores[c][e];
      sum_crossing_pairs(pairs, block, lane, crossings.pairs[block]);
    }
    float row_unit[2] = {1.0f, 1.0f};
    if constexpr (kHalf) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float x = 0.0f;
#pragma unroll
        for (int c = 0; c < 8; ++c) x = fmaxf(x, fmaxf(fabsf(scores[c][2 * half]), fabsf(scores[c][2 * half + 1])));
        x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
        // Not below 2^-40, by which sums are divided: a row may have no weight but that of the state.
        row_unit[half] = power_of_two_below(fmaxf(fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2)), 0x1p-40f));
      }
    }
    const float unit_inverse[2] = {reciprocal_of_power(row_unit[0]), reciprocal_of_power(row_unit[1])};
    uint32_t weights[8][2];
#pragma unroll
    for (int c = 0; c < 8; ++c)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        weights[c][half] =
            pack<Element>(scores[c][2 * half] * unit_inverse[half], scores[c][2 * half + 1] * unit_inverse[half]);

    __syncthreads();  // the rounded state

    float out[kColumnTiles][4] = {};
#pragma unroll
    for (int k = 0; k < kRows / 16; ++k) {
      uint32_t a[4], r[kColumnTiles / 2][4];
      left_rows(stage, k, a);
#pragma unroll
      for (int c = 0; c < kColumnTiles / 2; ++c)
        ptx::load_matrices_transposed(
            r[c], rounded_state + ptx::swizzled_chunk<kColumns>(16 * k + lane % 16, 2 * c + lane / 16));
#pragma unroll
      for (int c = 0; c < kColumnTiles / 2; ++c) {
        ptx::multiply_add<Element>(out[2 * c], a, r[c][0], r[c][1]);
        ptx::multiply_add<Element>(out[2 * c + 1], a, r[c][2], r[c][3]);
      }
    }
    if constexpr (kEarly) {
#pragma unroll
      for (int c = 0; c < kColumnTiles; ++c)
        states_product += (state[c][0] * others[c].x + state[c][1] * others[c].y) +
                          (state[c][2] * others[c].z + state[c][3] * others[c].w);
    }
    const float read[2] = {state_unit * (kGated ? gates.read[i0] : p.read_scale),
                           state_unit * (kGated ? gates.read[i0 + 8] : p.read_scale)};
    const auto scale_out = [&](const float(&by)[2]) {
#pragma unroll
      for (int c = 0; c < kColumnTiles; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e) out[c][e] *= by[e / 2];
    };
    scale_out(read);
    if constexpr (kCrosses) {
      float dot[2] = {0.0f, 0.0f};
#pragma unroll
      for (int c = 0; c < kColumnTiles / 2; ++c) {
        uint32_t a[4];
        ptx::load_matrices(a, stage + Shared::kPartner + tile_piece(16 * block + lane % 16, 2 * c + lane / 16));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 x = unpack<Element>(a[i]);
          dot[i % 2] += out[2 * c + i / 2][i % 2 * 2] * x.x + out[2 * c + i / 2][i % 2 * 2 + 1] * x.y;
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float sum = quad_sum(dot[half]);
        const int row = i0 + 8 * half;
        if (t == 0) crossings.rows[row] = sum;
      }
      if constexpr (kRole == Role::kKeyGradient) {
        float sum = states_product * gates.total * gates.entry;
        for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
        if (lane == 0) crossings.states[warp] = sum;
      }
    }
    if constexpr (kHalf) scale_out(unit_inverse);
    if constexpr (kGated) decay_state(gates.total);
      // O += P C and S += (b·D_C)ᵀ C.
#pragma unroll
    for (int k = 0; k < kChunk / 16; ++k) {
      uint32_t keys[kRowTiles][4], r[kColumnTiles / 2][4];
      weighted_keys(keys, stage + Shared::kKey, k, gates);
      const uint32_t left[4] = {weights[2 * k][0], weights[2 * k][1], weights[2 * k + 1][0], weights[2 * k + 1][1]};
      load_values(r, stage + Shared::kValue, k);
#pragma unroll
      for (int c = 0; c < kColumnTiles / 2; ++c) {
        ptx::multiply_add<Element>(out[2 * c], left, r[c][0], r[c][1]);
        ptx::multiply_add<Element>(out[2 * c + 1], left, r[c][2], r[c][3]);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          ptx::multiply_add<Element>(state[m * kColumnTiles + 2 * c], keys[m], r[c][0], r[c][1]);
          ptx::multiply_add<Element>(state[m * kColumnTiles + 2 * c + 1], keys[m], r[c][2], r[c][3]);
        }
      }
    }
    if constexpr (kHalf) scale_out(row_unit);

    output.write(out, first);
    if constexpr (kHalf) note_largest();
  }
  output.finish();
  wait_for_previous_kernel();
  if constexpr (kCrosses) {
    __syncthreads();
    if (warp == 0) store_crossings_of(segment.count - 1);
  }
  if (!p.last || !segment.last) return;
  const float factor = kGated && p.reverse ? (gate[0] < -104.0f ? 0.0f : expf(gate[0])) : 1.0f;
  each_element([&](int i, int e, int64_t place) {
    if (place >= 0) p.last[place] = state[i][e] * factor;
  });
}

}  // namespace lethe::matrix_state
