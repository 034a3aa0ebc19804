#pragma once
// The products of delta_gradients.cuh with S, R, the residual and dN̄, and what is loaded for them.

#include "optimized/cuda/launch.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_gradients_shared.cuh"

namespace lethe::matrix_state {

template <typename Element, int kTiles, bool kOneUnit>
struct ChunkGradientProducts {
  using Shared = ChunkGradientsShared<kTiles, kOneUnit>;
  using Major = ptx::Major;
  const DeltaChunkGradients& p;
  char* const memory;
  const int block, lane, key_tile;
  const int64_t index;  ///< of the chunk
  const int b, h, first;
  const bool gated;

  __device__ typename Shared::Small& small() const {
    return *reinterpret_cast<typename Shared::Small*>(memory + Shared::kSmall);
  }
  __device__ char* tile(int offset, int i = 0) const { return memory + offset + i * kPanel; }
  __device__ int64_t kept(int i) const { return i * p.all_chunks + index; }
  __device__ int row() const { return 16 * block + lane / 4; }

  __device__ __forceinline__ void load() const {
    auto& full = small().full;
    ptx::mbarrier_arrive_expect(&full[0], (kTiles + 2) * kPanel);
    load_tile_of<1>(tile(Shared::kQuery), p.maps[0], p.query, &full[0], 64 * key_tile, first, b, h);
    load_tile_of<1>(tile(Shared::kKey), p.maps[1], p.key, &full[0], 64 * key_tile, first, b, h);
    load_tile_of<kTiles>(tile(Shared::kGradient), p.maps[2], p.grad_values, &full[0], 0, first, b, h);
    ptx::mbarrier_arrive_expect(&full[1], 4 * kTiles * kPanel);
    wait_for_sweep(p.arrays.stored, 1);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      load_run_of(Shared::kResidual, p.arrays.residual, i, &full[1]);
      load_state(Shared::kBefore, p.arrays.before, i, &full[1]);
    }
    wait_for_sweep(p.arrays.swept, p.chunks - first / kChunk);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      load_run_of(Shared::kWritten, p.arrays.written, i, &full[1]);
      load_state(Shared::kAfter, p.arrays.after, i, &full[1]);
    }
  }
  /// One thread: until all CTAs of a sweep of this head have published `mark`.
  __device__ __forceinline__ void wait_for_sweep(const int32_t* marks, int mark) const {
    const int ctas = delta_ctas(p.columns, p.rows <= 64 ? 1 : kTiles);
    const int64_t head = index / p.chunks;
    for (int i = 0; i < ctas; ++i)
      while (ptx::load_acquire(&marks[head * ctas + i]) < mark) __nanosleep(100);
    ptx::fence_async_global();
  }
  __device__ __forceinline__ void load_run_of(int to, const uint4* from, int i, uint64_t* barrier) const {
    ptx::load_run(tile(to, i), from + kept(i) * (kPanel / 16), kPanel, barrier);
  }
  /// This CTA's rows of 64 columns of S or R.
  __device__ __forceinline__ void load_state(int to, const uint4* from, int i, uint64_t* barrier) const {
    const int padded = p.rows <= 64 ? 1 : 2;
    ptx::load_run(tile(to, i), from + (kept(i) * padded + key_tile) * (kPanel / 16), kPanel, barrier);
  }

  /// Gates and strengths, before a barrier; then the units of what the sweeps have left, before another one. By warps that don't load.
  __device__ __forceinline__ void load_small() const {
    auto& to = small();
    if (block == 1) {
      RawChunk raw;
      raw.load(p.gate, p.beta, p.length, b, h, first, lane);
      *reinterpret_cast<float2*>(&to.beta[2 * lane]) = raw.beta;
      if (gated) prepare_gates(to.gates, raw.gates, 1.0f, 1.0f, false, lane);
    }
    __syncthreads();
    load_units(to.residual_unit, p.arrays.residual_unit);
    load_units(to.written_unit, p.arrays.written_unit);
  }
  __device__ __forceinline__ void load_units(float (&to)[Shared::kUnits][kChunk], const float* from) const {
    const int token = threadIdx.x % kChunk;
    if (block < kWarps / 2) return;
#pragma unroll
    for (int i = 0; i < Shared::kUnits; ++i) to[i][token] = from[kept(i) * kChunk + token];
  }

  /// Of four warps the largest number, as a power of two.
  __device__ __forceinline__ float unit_of(int i) const {
    const float(&x)[kWarps] = small().largest[i];
    return power_of_two_below(fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])));
  }

  static __device__ __forceinline__ void start(float (&sums)[32]) {
    ptx::undefined(sums);
    ptx::fence_registers(sums);
  }
  /// Two products with the rows of one tile, or sums of them over tiles [begin, end) of each place, waited for.
  __device__ __forceinline__ void multiply(float (&x)[32], int x_left, float (&y)[32], int y_left, int right,
                                           int begin = 0, int end = 1) const {
    start(x);
    start(y);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = begin; i < end; ++i) {
      issue_product<__half, Major::kK, Major::kK>(x, tile(x_left, i), tile(right, i), i > begin);
      issue_product<__half, Major::kK, Major::kK>(y, tile(y_left, i), tile(right, i), i > begin);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::fence_registers(x);
    ptx::fence_registers(y);
  }

  /// dO rᵀ and dN̄ rᵀ, of tiles with one unit divided by their units, of others not; and what R shares in dK.
  __device__ __forceinline__ void multiply_tokens(float (&reads)[32], float (&corrections)[32], float (&grad_key)[32],
                                                  const float (&gradient_unit)[2], const float (&beta)[2]) const {
    // Of tiles [begin, end).
    const auto product = [&](float(&x)[32], float(&y)[32], float(&z)[32], int begin, int end) {
      start(x);
      start(y);
      start(z);
      ptx::wgmma_fence();
#pragma unroll
      for (int i = begin; i < end; ++i) {
        const char* const residual = tile(Shared::kResidual, i);
        issue_product<__half, Major::kK, Major::kK>(x, tile(Shared::kGradient, i), residual, i > begin);
        issue_product<__half, Major::kK, Major::kK>(y, tile(Shared::kWritten, i), residual, i > begin);
        issue_product<__half, Major::kK, Major::kK>(z, residual, tile(Shared::kAfter, i), i > begin);
      }
      ptx::wgmma_commit();
      const float *const unit = small().residual_unit[begin] + row(), *const write = small().gates.write + row(),
                         after = p.arrays.after_unit[kept(begin)];
      ptx::wgmma_wait<0>();
      ptx::fence_registers(x);
      ptx::fence_registers(y);
      ptx::fence_registers(z);
      scale_rows(z, (gated ? write[0] : 1.0f) * beta[0] * (unit[0] * after),
                 (gated ? write[8] : 1.0f) * beta[1] * (unit[8] * after));
      if constexpr (!kOneUnit) {
        const float* const written = small().written_unit[begin] + row();
        const float written_unit[2] = {written[0], written[8]};
#pragma unroll
        for (int e = 0; e < 32; ++e) {
          const float2 column =
              *reinterpret_cast<const float2*>(&small().residual_unit[begin][e / 4 * 8 + lane % 4 * 2]);
          const float factor = e % 2 ? column.y : column.x;
          x[e] *= factor * gradient_unit[e / 2 % 2];
          y[e] *= factor * written_unit[e / 2 % 2];
        }
      }
    };
    if constexpr (kOneUnit) return product(reads, corrections, grad_key, 0, kTiles);
    product(reads, corrections, grad_key, 0, 1);
#pragma unroll
    for (int i = 1; i < kTiles; ++i) {
      float x[32], y[32], z[32];
      product(x, y, z, i, i + 1);
#pragma unroll
      for (int e = 0; e < 32; ++e) reads[e] += x[e], corrections[e] += y[e], grad_key[e] += z[e];
    }
  }

  /// What S shares in dQ and dK.
  __device__ __forceinline__ void multiply_before(float (&grad_query)[32], float (&grad_key)[32],
                                                  const float (&gradient_unit)[2], const float (&read)[2],
                                                  const float (&beta)[2]) const {
    const auto product = [&](float(&x)[32], float(&y)[32], int begin, int end) {
      multiply(x, Shared::kGradient, y, Shared::kWritten, Shared::kBefore, begin, end);
      const float unit = p.arrays.before_unit[kept(begin)], *const written_unit = small().written_unit[begin] + row();
      scale_rows(x, p.scale * read[0] * (gradient_unit[0] * unit), p.scale * read[1] * (gradient_unit[1] * unit));
      scale_rows(y, -read[0] * beta[0] * (written_unit[0] * unit), -read[1] * beta[1] * (written_unit[8] * unit));
    };
    if constexpr (kOneUnit) return product(grad_query, grad_key, 0, kTiles);
    product(grad_query, grad_key, 0, 1);
#pragma unroll
    for (int i = 1; i < kTiles; ++i) {
      float x[32], y[32];
      product(x, y, i, i + 1);
#pragma unroll
      for (int e = 0; e < 32; ++e) grad_query[e] += x[e], grad_key[e] += y[e];
    }
  }

  /// ⟨S, R⟩ of this warp's rows.
  __device__ __forceinline__ void share_states() const {
    constexpr int kEach = kOneUnit ? kTiles : 1;
    float states = 0.0f;
#pragma unroll
    for (int i = 0; i < kTiles; i += kEach) {
      float x[32];
      ptx::undefined(x);
      ptx::fence_registers(x);
      ptx::wgmma_fence();
#pragma unroll
      for (int j = i; j < i + kEach; ++j)
        issue_product<__half, Major::kK, Major::kK>(x, tile(Shared::kBefore, j), tile(Shared::kAfter, j), j > i);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::fence_registers(x);
      float diagonal[2] = {0.0f, 0.0f};
      take_diagonal(diagonal, x, block, lane);
      if (lane % 4 == lane / 8)
        states += (diagonal[0] + diagonal[1]) * p.arrays.before_unit[kept(i)] * p.arrays.after_unit[kept(i)];
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) states += __shfl_xor_sync(kAllLanes, states, step);
    if (lane == 0) small().states[block] = states;
  }
};

}  // namespace lethe::matrix_state
