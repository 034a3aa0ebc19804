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
  const int group, block, lane, key_tile;  ///< group: the warpgroup, of M and dQ or of Z and dK
  const int64_t index;                     ///< of the chunk
  const int b, h, first;
  const bool gated;

  __device__ typename Shared::Small& small() const {
    return *reinterpret_cast<typename Shared::Small*>(memory + Shared::kSmall);
  }
  __device__ char* tile(int offset, int i = 0) const { return memory + offset + i * kPanel; }
  __device__ int64_t kept(int i) const { return i * p.all_chunks + index; }
  __device__ int row() const { return 16 * block + lane / 4; }

  /// One thread: full[i] has one phase, of so many bytes.
  __device__ __forceinline__ uint64_t* expect(int i, int bytes) const {
    uint64_t* const full = &small().full[i];
    ptx::mbarrier_init(full, 1);
    ptx::mbarrier_init_fence();
    ptx::mbarrier_arrive_expect(full, bytes);
    return full;
  }
  // Each by one thread, of another warp: none waits for what another one waits for.
  __device__ __forceinline__ void load_given() const {
    uint64_t* const full = expect(0, (kTiles + 2) * kPanel);
    load_tile_of<1>(tile(Shared::kQuery), p.maps[0], p.query, full, 64 * key_tile, first, b, h);
    load_tile_of<1>(tile(Shared::kKey), p.maps[1], p.key, full, 64 * key_tile, first, b, h);
    load_tile_of<kTiles>(tile(Shared::kGradient), p.maps[2], p.grad_values, full, 0, first, b, h);
  }
  /// What the states' sweep has left: the residual and S.
  __device__ __forceinline__ void load_before() const {
    uint64_t* const full = expect(1, kLeftBytes);
    if (p.arrays.stored) wait_for_sweep(p.arrays.stored, 1);
    load_rows(Shared::kResidual, p.arrays.residual, small().residual_unit, p.arrays.residual_unit, full);
    load_state(Shared::kBefore, p.arrays.before, full);
  }
  /// What the sweep back has left: dN̄ and R.
  __device__ __forceinline__ void load_after() const {
    uint64_t* const full = expect(2, kLeftBytes);
    wait_for_sweep(p.arrays.swept, p.chunks - first / kChunk);
    load_rows(Shared::kWritten, p.arrays.written, small().written_unit, p.arrays.written_unit, full);
    load_state(Shared::kAfter, p.arrays.after, full);
  }
  static constexpr int kLeftBytes = 2 * kTiles * kPanel + Shared::kUnits * kChunk * int{sizeof(float)};

  /// One thread: until all CTAs of a sweep of this head have published `mark`.
  __device__ __forceinline__ void wait_for_sweep(const int32_t* marks, int mark) const {
    const int ctas = delta_ctas(p.columns, p.rows <= 64 ? 1 : kTiles);
    const int64_t head = int64_t{1} * b * p.heads + h;
    for (int i = 0; i < ctas; ++i)
      while (ptx::load_acquire(&marks[head * ctas + i]) < mark) __nanosleep(100);
    ptx::fence_async_global();
  }
  __device__ __forceinline__ void load_rows(int to, const uint4* from, float (&to_units)[Shared::kUnits][kChunk],
                                            const float* units, uint64_t* full) const {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      ptx::load_run(tile(to, i), from + kept(i) * (kPanel / 16), kPanel, full);
      if (i < Shared::kUnits) ptx::load_run(to_units[i], units + kept(i) * kChunk, sizeof(to_units[i]), full);
    }
  }
  /// This CTA's rows of 64 columns of S or R.
  __device__ __forceinline__ void load_state(int to, const uint4* from, uint64_t* full) const {
    const int padded = p.rows <= 64 ? 1 : 2;
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
      ptx::load_run(tile(to, i), from + (kept(i) * padded + key_tile) * (kPanel / 16), kPanel, full);
  }

  /// The CTA: begins to copy, and has gates and strengths; after the next barrier also the units of S and R.
  __device__ __forceinline__ void load() const {
    auto& to = small();
    const bool has_state = group > 0 && block >= 2 && lane == 0;
    float of_state[Shared::kUnits];
    if (group == 0) {
      if (block == 0 && lane == 0) load_given();
      if (block == 1) {
        RawChunk raw;
        raw.load(p.gate, p.beta, p.length, b, h, first, lane);
        *reinterpret_cast<float2*>(&to.beta[2 * lane]) = raw.beta;
        if (gated) prepare_gates(to.gates, raw.gates, 1.0f, 1.0f, false, lane);
      }
    } else if (has_state) {
      block == 2 ? load_before() : load_after();
      const float* const from = block == 2 ? p.arrays.before_unit : p.arrays.after_unit;
#pragma unroll
      for (int i = 0; i < Shared::kUnits; ++i) of_state[i] = from[kept(i)];
    }
    __syncwarp();
    __syncthreads();
    if (has_state)
#pragma unroll
      for (int i = 0; i < Shared::kUnits; ++i) to.state_unit[block - 2][i] = of_state[i];
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
  /// The product with the rows of a tile, or the sum of them over tiles [begin, end) of each place, waited for.
  __device__ __forceinline__ void multiply(float (&x)[32], int left, int right, int begin = 0, int end = 1) const {
    start(x);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = begin; i < end; ++i)
      issue_product<__half, Major::kK, Major::kK>(x, tile(left, i), tile(right, i), i > begin);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::fence_registers(x);
  }

  /// Products over all tiles: scale(sums, i) gives those of tile i their units, or those of all tiles where they have one.
  template <typename Scale>
  __device__ __forceinline__ void sum_tiles(float (&sums)[32], int left, int right, const Scale& scale) const {
    constexpr int kEach = kOneUnit ? kTiles : 1;
    multiply(sums, left, right, 0, kEach);
    scale(sums, 0);
#pragma unroll
    for (int i = kEach; i < kTiles; i += kEach) {
      float x[32];
      multiply(x, left, right, i, i + kEach);
      scale(x, i);
#pragma unroll
      for (int e = 0; e < 32; ++e) sums[e] += x[e];
    }
  }

  /// What this warpgroup multiplies with the residual and with S: dO or dN̄; and its units, of tile i.
  __device__ int own_tile() const { return group == 0 ? Shared::kGradient : Shared::kWritten; }
  __device__ const float* own_unit(int i) const {
    return (group == 0 ? small().gradient_unit : small().written_unit[i]) + row();
  }

  /// dO rᵀ or dN̄ rᵀ, of tiles with one unit divided by their units, of others not.
  __device__ __forceinline__ void multiply_tokens(float (&pairs)[32]) const {
    sum_tiles(pairs, own_tile(), Shared::kResidual, [&](float(&x)[32], int i) {
      if constexpr (!kOneUnit) {
        const float unit[2] = {own_unit(i)[0], own_unit(i)[8]};
#pragma unroll
        for (int e = 0; e < 32; ++e) {
          const float2 column = *reinterpret_cast<const float2*>(&small().residual_unit[i][e / 4 * 8 + lane % 4 * 2]);
          x[e] *= (e % 2 ? column.y : column.x) * unit[e / 2 % 2];
        }
      }
    });
  }

  /// What R shares in dK.
  __device__ __forceinline__ void multiply_after(float (&grad_key)[32], const float (&beta)[2]) const {
    const float* const write = small().gates.write + row();
    const float factor[2] = {(gated ? write[0] : 1.0f) * beta[0], (gated ? write[8] : 1.0f) * beta[1]};
    sum_tiles(grad_key, Shared::kResidual, Shared::kAfter, [&](float(&x)[32], int i) {
      const float *const unit = small().residual_unit[i] + row(), after = small().state_unit[1][i];
      scale_rows(x, factor[0] * (unit[0] * after), factor[1] * (unit[8] * after));
    });
  }

  /// What S shares in dQ or dK, whose factors of rows g and g + 8 are given.
  __device__ __forceinline__ void multiply_before(float (&sums)[32], const float (&factor)[2]) const {
    sum_tiles(sums, own_tile(), Shared::kBefore, [&](float(&x)[32], int i) {
      const float before = small().state_unit[0][i];
      scale_rows(x, factor[0] * (own_unit(i)[0] * before), factor[1] * (own_unit(i)[8] * before));
    });
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
        states += (diagonal[0] + diagonal[1]) * small().state_unit[0][i] * small().state_unit[1][i];
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) states += __shfl_xor_sync(kAllLanes, states, step);
    if (lane == 0) small().states[block] = states;
  }
};

}  // namespace lethe::matrix_state
