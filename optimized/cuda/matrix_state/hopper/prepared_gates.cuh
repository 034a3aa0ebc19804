#pragma once
// The gates of every chunk, computed once before the kernel of gradients (gradients.cuh), whose warps would otherwise do so twice a chunk, behind loads of
// one number a token.

#include "optimized/cuda/launch.cuh"
#include "optimized/cuda/matrix_state/hopper/arguments.cuh"

namespace lethe::matrix_state {

constexpr int kPreparingWarps = 8;
struct PreparingShared {
  PreparedGates all[kPreparingWarps];
  ChunkGates by_time[kPreparingWarps];
};

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
