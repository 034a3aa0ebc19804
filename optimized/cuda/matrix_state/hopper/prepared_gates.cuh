#pragma once
// The gates of every chunk, computed once before the kernel of gradients (gradients.cuh), whose warps would otherwise do so twice a chunk, behind
// loads of one number a token.

#include "optimized/cuda/launch.cuh"
#include "optimized/cuda/matrix_state/hopper/arguments.cuh"
#include "optimized/cuda/matrix_state/hopper/products.cuh"

namespace lethe::matrix_state {

constexpr int kPreparingWarps = 8;
struct PreparingShared {
  PreparedGates all[kPreparingWarps];
  ChunkGates by_time[kPreparingWarps];
};
struct DividedShared {
  DividedGates all[kPreparingWarps];
};

/// What a warp prepares: that of a chunk and head.
struct PreparedChunk {
  int64_t b, h, chunk;
  int chunks;
};

/// A warp's; none past the last one. Heads side by side, whose gates are.
__device__ __forceinline__ PreparedChunk prepared_chunk(const PreparedGatesArguments& p, int warp) {
  PreparedChunk of{};
  of.chunks = static_cast<int>((p.length + kChunk - 1) / kChunk);
  const unsigned index = blockIdx.x * kPreparingWarps + warp,
                 of_heads = index / p.heads;  // their gates would be terabytes from 2³² on
  of.h = index - of_heads * p.heads;
  of.b = of_heads / of.chunks;
  of.chunk = of_heads - static_cast<unsigned>(of.b) * of.chunks;
  return of;
}

/// A warp: the same times 1 / z·q, in the largest weight's unit.
__device__ __forceinline__ void divide_gates(DividedGates& to, float2 by, float scale, bool in_units, int lane) {
  __syncwarp();
  const float2 write = *reinterpret_cast<const float2*>(&to.write[2 * lane]);
  const float2 divided{write.x * by.x, write.y * by.y};
  // No further than 2^±60, so that R over it is a number.
  const float largest = largest_of_warp(fmaxf(fabsf(divided.x), fabsf(divided.y)));
  const float unit = in_units ? power_of_two_below(fminf(fmaxf(largest, 0x1p-60f), 0x1p60f)) : 1.0f,
              inverse = reciprocal_of_power(unit);
  *reinterpret_cast<float2*>(&to.divisors[2 * lane]) = {scale * by.x, scale * by.y};
  *reinterpret_cast<float2*>(&to.read_state[2 * lane]) = {divided.x * to.entry, divided.y * to.entry};
  *reinterpret_cast<float2*>(&to.write[2 * lane]) = {divided.x * inverse, divided.y * inverse};
  if (lane == 0) to.unit = unit;
}

/// A warp: that of a chunk, to [B·H, chunks].
__global__ void __launch_bounds__(32 * kPreparingWarps)
    divide_all_gates(const __grid_constant__ PreparedGatesArguments p) {
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<DividedShared*>(memory);
  let_next_kernel_start();
  if (!p.beside_previous) wait_for_previous_kernel();
  const int64_t mark = int64_t{1} * blockIdx.x * blockDim.x + threadIdx.x;
  if (mark < p.mark_count) p.marks[mark] = 0;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const PreparedChunk of = prepared_chunk(p, warp);
  if (of.b >= p.batch) return;
  const float* gate = p.gate.log_forget + of.b * p.gate.batch_stride + of.h * p.gate.head_stride;
  DividedGates& own = shared.all[warp];
  const RawGates raw = load_gates(gate, p.gate.token_stride, of.chunk * kChunk, p.length, true, lane);
  const int64_t token = of.chunk * kChunk + 2 * lane;
  const float2 divisor =
      *reinterpret_cast<const float2*>(p.divisors + (of.b * p.heads + of.h) * p.divisor_stride + token);
  prepare_gates(own, raw, 1.0f, p.scale, true, lane);
  const float2 inverse{token < p.length ? 1.0f / divisor.x : 0.0f, token + 1 < p.length ? 1.0f / divisor.y : 0.0f};
  divide_gates(own, inverse, p.scale, p.in_units, lane);
  __syncwarp();
  constexpr int kPieces = sizeof(DividedGates) / sizeof(float4);
  float4* const to = reinterpret_cast<float4*>(p.divided + (of.b * p.heads + of.h) * of.chunks + of.chunk);
  for (int i = lane; i < kPieces; i += 32) to[i] = reinterpret_cast<const float4*>(&own)[i];
  end_after_previous_kernel();
}

/// A warp: the gates of a chunk [B, T, H], to [B·H, chunks].
__global__ void __launch_bounds__(32 * kPreparingWarps)
    prepare_all_gates(const __grid_constant__ PreparedGatesArguments p) {
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<PreparingShared*>(memory);
  let_next_kernel_start();
  if (!p.beside_previous) wait_for_previous_kernel();
  const int64_t mark = int64_t{1} * blockIdx.x * blockDim.x + threadIdx.x;
  if (mark < p.mark_count) p.marks[mark] = 0;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32,
            chunks = static_cast<int>((p.length + kChunk - 1) / kChunk);
  // Heads side by side, whose gates are.
  const unsigned index = blockIdx.x * kPreparingWarps + warp,
                 of_heads = index / p.heads;  // their gates would be terabytes from 2³² on
  const int64_t h = index - of_heads * p.heads, b = of_heads / chunks,
                chunk = of_heads - static_cast<unsigned>(b) * chunks;
  if (b >= p.batch) return;  // not of the last CTA's warp 0
  const float* gate = p.gate.log_forget + b * p.gate.batch_stride + h * p.gate.head_stride;
  PreparedGates& own = shared.all[warp];
  ChunkGates& by_time = shared.by_time[warp];
  const auto load = [&](bool reverse) {
    return load_gates(gate, p.gate.token_stride, chunk * kChunk, p.length, reverse, lane);
  };
  const RawGates reverse = load(true), forwards = p.by_time ? load(false) : RawGates{};
  prepare_gates(own.in_reverse, reverse, 1.0f, p.scale, true, lane);
  if (p.by_time) {
    prepare_gates(by_time, forwards, 1.0f, 1.0f, false, lane);
    __syncwarp();
    *reinterpret_cast<float2*>(&own.by_time.write[2 * lane]) =
        *reinterpret_cast<const float2*>(&by_time.write[2 * lane]);
    if (lane == 0) own.by_time.total = by_time.total;
  }
  __syncwarp();
  const int pieces = (p.by_time ? sizeof(PreparedGates) : sizeof(GatesInReverse)) / sizeof(float4);
  float4* const to = reinterpret_cast<float4*>(p.to + (b * p.heads + h) * chunks + chunk);
  for (int i = lane; i < pieces; i += 32) to[i] = reinterpret_cast<const float4*>(&own)[i];
  end_after_previous_kernel();
}

}  // namespace lethe::matrix_state
