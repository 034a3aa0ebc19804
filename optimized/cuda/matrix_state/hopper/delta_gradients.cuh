#pragma once
// The delta rule's gradients inside one chunk of one head, by wgmma, from what the passes before have left: S before the chunk, R after it, the residual of
// each token and the whole gradient dN̄ of what it wrote. A CTA has 64 columns of dQ and dK. With m = β ∘ dN̄ and n = β ∘ r:
//
//   M_ij = scale · D_ij dO_i·n_j, j ≤ i      Z_ij = −D_ij m_i·n_j, j < i
//   dQ = scale · γ ∘ dO Sᵀ + M K             dK = D_C ∘ n Rᵀ − γ ∘ m Sᵀ + Mᵀ Q + (Z + Zᵀ) K             dβ = r · dN̄
//   d log f_l = Σ_{i ≥ l > j} (M_ij q_i·k_j + Z_ij k_i·k_j) + Σ_{i ≥ l} (what S shares in dQ and dK, times q_i and k_i)
//               + Σ_{j < l} (what R shares in dK) k_j + γ_C ⟨S, R⟩
//
// M and Z are float16 with one unit each; so are the rows of Q and K here, since nothing later than the chunk is in any of these sums. Where keys have more
// than 64 columns, each CTA has its columns' share of d log f, and a kernel adds them.

#include "optimized/cuda/matrix_state/crossings.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_gradients_shared.cuh"

namespace lethe::matrix_state {

template <typename Element, int kTiles>
struct ChunkGradients {
  using Shared = ChunkGradientsShared<kTiles>;
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
    const int padded = p.rows <= 64 ? 1 : 2;
    ptx::mbarrier_arrive_expect(&full[0], (kTiles + 2) * kPanel);
    load_tile_of<1>(tile(Shared::kQuery), p.maps[0], p.query, &full[0], 64 * key_tile, first, b, h);
    load_tile_of<1>(tile(Shared::kKey), p.maps[1], p.key, &full[0], 64 * key_tile, first, b, h);
    load_tile_of<kTiles>(tile(Shared::kGradient), p.maps[2], p.grad_values, &full[0], 0, first, b, h);
    ptx::mbarrier_arrive_expect(&full[1], 4 * kTiles * kPanel);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int64_t tokens = kept(i) * (kPanel / 16), states = (kept(i) * padded + key_tile) * (kPanel / 16);
      ptx::load_run(tile(Shared::kResidual, i), p.arrays.residual + tokens, kPanel, &full[1]);
      ptx::load_run(tile(Shared::kWritten, i), p.arrays.written + tokens, kPanel, &full[1]);
      ptx::load_run(tile(Shared::kBefore, i), p.arrays.before + states, kPanel, &full[1]);
      ptx::load_run(tile(Shared::kAfter, i), p.arrays.after + states, kPanel, &full[1]);
    }
  }

  /// Gates, strengths and units, before a barrier.
  __device__ __forceinline__ void load_small() const {
    auto& to = small();
    if (block == 0) {
      RawChunk raw;
      raw.load(p.gate, p.beta, p.length, b, h, first, lane);
      *reinterpret_cast<float2*>(&to.beta[2 * lane]) = raw.beta;
      if (gated) prepare_gates(to.gates, raw.gates, 1.0f, 1.0f, false, lane);
    }
    const int token = threadIdx.x % kChunk;
    const bool residual = threadIdx.x < kChunk;
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
      (residual ? to.residual_unit : to.written_unit)[i][token] =
          (residual ? p.arrays.residual_unit : p.arrays.written_unit)[kept(i) * kChunk + token];
  }

  /// Of four warps the largest number, as a power of two.
  __device__ __forceinline__ float unit_of(int i) const {
    const float(&x)[kWarps] = small().largest[i];
    return power_of_two_below(fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])));
  }

  __device__ __forceinline__ void store_strength(const float (&products)[32], const float (&factor)[2]) const {
    float diagonal[2] = {0.0f, 0.0f};
    take_diagonal(diagonal, products, block, lane);
    if (key_tile > 0 || lane % 4 != lane / 8) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t token = first + row() + 8 * half;
      if (token < p.length) p.grad_beta[(b * p.length + token) * p.heads + h] = diagonal[half] * factor[half];
    }
  }

  static __device__ __forceinline__ void start(float (&sums)[32]) {
    ptx::undefined(sums);
    ptx::fence_registers(sums);
  }
  /// Two products with the rows of one tile, waited for.
  static __device__ __forceinline__ void multiply(float (&x)[32], const char* x_left, float (&y)[32],
                                                  const char* y_left, const char* right) {
    start(x);
    start(y);
    ptx::wgmma_fence();
    issue_product<__half, Major::kK, Major::kK>(x, x_left, right, false);
    issue_product<__half, Major::kK, Major::kK>(y, y_left, right, false);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::fence_registers(x);
    ptx::fence_registers(y);
  }

  __device__ __forceinline__ void run() const {
    auto& at = small();
    const Place place{block, lane};
    const int i0 = row();
    const float beta[2] = {at.beta[i0], at.beta[i0 + 8]},
                read[2] = {gated ? at.gates.read[i0] : 1.0f, gated ? at.gates.read[i0 + 8] : 1.0f};
    // What has Element's type becomes float16.
    ptx::mbarrier_wait(&at.full[0], 0);
    const uint32_t query = ptx::shared_address(tile(Shared::kQuery)), key = ptx::shared_address(tile(Shared::kKey));
    {
      const RowPart<1> of_query(query, block, lane), of_key(key, block, lane);
      uint4 queries[4], keys[4];
      load_row(queries, of_query);
      load_row(keys, of_key);
      const float most[2] = {largest_of_warp(largest_of_row<Element>(queries)),
                             largest_of_warp(largest_of_row<Element>(keys))};
      if (lane == 0) at.largest[0][block] = most[0], at.largest[1][block] = most[1];
      divide_rows_by_largest<Element, kTiles>(ptx::shared_address(tile(Shared::kGradient)), at.gradient_unit, block,
                                              lane);
      __syncthreads();
      store_row<Element>(queries, of_query, reciprocal_of_power(unit_of(0)));
      store_row<Element>(keys, of_key, reciprocal_of_power(unit_of(1)));
    }
    const float query_unit = unit_of(0), key_unit = unit_of(1);
    ptx::fence_async_shared();
    __syncthreads();
    ptx::mbarrier_wait(&at.full[1], 0);

    const float gradient_unit[2] = {at.gradient_unit[i0], at.gradient_unit[i0 + 8]};
    float grad_key[32], column_shares[2] = {0.0f, 0.0f}, row_shares[2] = {0.0f, 0.0f};
    float reads_unit, corrections_unit;
    char *const of_reads = tile(Shared::kResidual), *const of_corrections = tile(Shared::kAfter);
    {
      if (gated) share_states();
      float reads[32], corrections[32];
      multiply_tokens(reads, corrections, grad_key, gradient_unit, beta);
      if (gated) {
        row_dots<__half>(column_shares, by_tiles(grad_key), key, place);
        column_shares[0] *= key_unit, column_shares[1] *= key_unit;
      }
      float read_factor[2] = {p.scale, p.scale}, correction_factor[2] = {-beta[0], -beta[1]},
            strength[2] = {1.0f, 1.0f};
      if constexpr (kTiles == 1) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float unit = at.written_unit[0][i0 + 8 * half];
          read_factor[half] *= gradient_unit[half];
          correction_factor[half] *= unit;
          strength[half] = unit * at.residual_unit[0][i0 + 8 * half];
        }
      }
      store_strength(corrections, strength);
      weigh_tokens(at, gated, block, lane, reads, corrections, read_factor, correction_factor,
                   kTiles == 1 ? at.residual_unit[0] : nullptr);
      __syncthreads();  // r and R are read, and the largest numbers there
      reads_unit = unit_of(2), corrections_unit = unit_of(3);
      uint32_t packed[16];
      pack_sums<__half>(packed, reads, reciprocal_of_power(reads_unit));
      store_packed(ptx::shared_address(of_reads), packed, place);
      pack_sums<__half>(packed, corrections, reciprocal_of_power(corrections_unit));
      store_packed(ptx::shared_address(of_corrections), packed, place);
      ptx::fence_async_shared();
      __syncthreads();
    }
    float grad_query[32], x[32], y[32];
    multiply_before(grad_query, y, gradient_unit, read, beta);
    if (gated) {
      float others[2];
      row_dots<__half>(row_shares, by_tiles(grad_query), query, place);
      row_dots<__half>(others, by_tiles(y), key, place);
#pragma unroll
      for (int half = 0; half < 2; ++half) row_shares[half] = row_shares[half] * query_unit + others[half] * key_unit;
    }
    const auto add = [](float(&to)[32], const float(&sums)[32], float unit) {
#pragma unroll
      for (int i = 0; i < 32; ++i) to[i] = fmaf(sums[i], unit, to[i]);
    };
    add(grad_key, y, 1.0f);
    const char *const queries = tile(Shared::kQuery), *const keys = tile(Shared::kKey);
    start(x);
    start(y);
    ptx::wgmma_fence();
    issue_product<__half, Major::kK, Major::kMN>(x, of_reads, keys, false);
    issue_product<__half, Major::kK, Major::kMN>(y, of_corrections, keys, false);
    issue_product<__half, Major::kMN, Major::kMN>(y, of_corrections, keys, true);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::fence_registers(x);
    ptx::fence_registers(y);
    add(grad_query, x, reads_unit * key_unit);
    add(grad_key, y, corrections_unit * key_unit);
    start(x);
    ptx::wgmma_fence();
    issue_product<__half, Major::kMN, Major::kMN>(x, of_reads, queries, false);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::fence_registers(x);
    add(grad_key, x, reads_unit * query_unit);
    __syncthreads();  // dO and S are read
    const auto put = [&](char* to, const float(&sums)[32], const CUtensorMap& map) {
      uint32_t packed[16];
      pack_sums<Element>(packed, sums, 1.0f);
      store_rows_by_map(to, packed, map, 64 * key_tile, first, b, h, place);
    };
    put(tile(Shared::kGradient), grad_query, p.maps[3]);
    put(tile(Shared::kBefore), grad_key, p.maps[4]);
    if (gated) share_gates(row_shares, column_shares, query_unit, key_unit, reads_unit, corrections_unit);
    if (lane == 0) ptx::bulk_wait<0>();
  }

  /// dO rᵀ and dN̄ rᵀ, of one tile divided by their units, of several not; and what R shares in dK.
  __device__ __forceinline__ void multiply_tokens(float (&reads)[32], float (&corrections)[32], float (&grad_key)[32],
                                                  const float (&gradient_unit)[2], const float (&beta)[2]) const {
    const auto product = [&](float(&x)[32], float(&y)[32], float(&z)[32], int i) {
      const char* const residual = tile(Shared::kResidual, i);
      start(x);
      start(y);
      start(z);
      ptx::wgmma_fence();
      issue_product<__half, Major::kK, Major::kK>(x, tile(Shared::kGradient, i), residual, false);
      issue_product<__half, Major::kK, Major::kK>(y, tile(Shared::kWritten, i), residual, false);
      issue_product<__half, Major::kK, Major::kK>(z, residual, tile(Shared::kAfter, i), false);
      ptx::wgmma_commit();
      const float *const unit = small().residual_unit[i] + row(), *const write = small().gates.write + row(),
                         after = p.arrays.after_unit[kept(i)];
      ptx::wgmma_wait<0>();
      ptx::fence_registers(x);
      ptx::fence_registers(y);
      ptx::fence_registers(z);
      scale_rows(z, (gated ? write[0] : 1.0f) * beta[0] * (unit[0] * after),
                 (gated ? write[8] : 1.0f) * beta[1] * (unit[8] * after));
      if constexpr (kTiles > 1) {
        const float* const written = small().written_unit[i] + row();
        const float written_unit[2] = {written[0], written[8]};
#pragma unroll
        for (int e = 0; e < 32; ++e) {
          const float2 column = *reinterpret_cast<const float2*>(&small().residual_unit[i][e / 4 * 8 + lane % 4 * 2]);
          const float factor = e % 2 ? column.y : column.x;
          x[e] *= factor * gradient_unit[e / 2 % 2];
          y[e] *= factor * written_unit[e / 2 % 2];
        }
      }
    };
    product(reads, corrections, grad_key, 0);
#pragma unroll
    for (int i = 1; i < kTiles; ++i) {
      float x[32], y[32], z[32];
      product(x, y, z, i);
#pragma unroll
      for (int e = 0; e < 32; ++e) reads[e] += x[e], corrections[e] += y[e], grad_key[e] += z[e];
    }
  }

  /// What S shares in dQ and dK.
  __device__ __forceinline__ void multiply_before(float (&grad_query)[32], float (&grad_key)[32],
                                                  const float (&gradient_unit)[2], const float (&read)[2],
                                                  const float (&beta)[2]) const {
    const auto product = [&](float(&x)[32], float(&y)[32], int i) {
      multiply(x, tile(Shared::kGradient, i), y, tile(Shared::kWritten, i), tile(Shared::kBefore, i));
      const float unit = p.arrays.before_unit[kept(i)], *const written_unit = small().written_unit[i] + row();
      scale_rows(x, p.scale * read[0] * (gradient_unit[0] * unit), p.scale * read[1] * (gradient_unit[1] * unit));
      scale_rows(y, -read[0] * beta[0] * (written_unit[0] * unit), -read[1] * beta[1] * (written_unit[8] * unit));
    };
    product(grad_query, grad_key, 0);
#pragma unroll
    for (int i = 1; i < kTiles; ++i) {
      float x[32], y[32];
      product(x, y, i);
#pragma unroll
      for (int e = 0; e < 32; ++e) grad_query[e] += x[e], grad_key[e] += y[e];
    }
  }

  /// ⟨S, R⟩ of this warp's rows.
  __device__ __forceinline__ void share_states() const {
    float states = 0.0f;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      float x[32];
      ptx::undefined(x);
      ptx::fence_registers(x);
      ptx::wgmma_fence();
      issue_product<__half, Major::kK, Major::kK>(x, tile(Shared::kBefore, i), tile(Shared::kAfter, i), false);
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

  /// d log f.
  __device__ __forceinline__ void share_gates(const float (&row_shares)[2], const float (&column_shares)[2],
                                              float query_unit, float key_unit, float reads_unit,
                                              float corrections_unit) const {
    auto& at = small();
    const char *const queries = tile(Shared::kQuery), *const keys = tile(Shared::kKey);
    float x[32], y[32];
    multiply(x, queries, y, keys, keys);
    const float unit[2] = {reads_unit * query_unit * key_unit, corrections_unit * key_unit * key_unit};
#pragma unroll
    for (int k = 0; k < kWarps; ++k) {
      uint32_t read[4], corrected[4];
      load_left(read, ptx::shared_address(tile(Shared::kResidual)), block, k, lane);
      load_left(corrected, ptx::shared_address(tile(Shared::kAfter)), block, k, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 m = unpack<__half>(read[i]), z = unpack<__half>(corrected[i]);
        const int e = 8 * k + 2 * i;
        x[e] = fmaf(x[e] * m.x, unit[0], y[e] * z.x * unit[1]);
        x[e + 1] = fmaf(x[e + 1] * m.y, unit[0], y[e + 1] * z.y * unit[1]);
      }
    }
    sum_crossing_pairs(by_tiles(x), block, lane, at.pairs[block]);
    if (lane % 4 == 0) {
      const int i0 = row();
      at.rows[i0] = row_shares[0], at.rows[i0 + 8] = row_shares[1];
      at.columns[i0] = column_shares[0], at.columns[i0 + 8] = column_shares[1];
    }
    __syncthreads();
    if (block > 0) return;
    const float2 sums = sum_gate_shares(at, lane);
    float* const to = (key_tile == 0 ? p.grad_gate : p.gate_share) + (b * p.length + first + 2 * lane) * p.heads + h;
    if (first + 2 * lane < p.length) to[0] = sums.x;
    if (first + 2 * lane + 1 < p.length) to[p.heads] = sums.y;
  }
};

template <typename Element, int kTiles>
__global__ void __launch_bounds__(kComputing, ChunkGradientsShared<kTiles>::kTogether)
    delta_chunk_gradients(const __grid_constant__ DeltaChunkGradients p) {
  extern __shared__ __align__(1024) char memory[];
  const int key_tiles = (p.rows + 63) / 64, chunk = static_cast<int>(blockIdx.x) / key_tiles, head = chunk / p.chunks;
  const ChunkGradients<Element, kTiles> call{p,
                                             memory,
                                             ptx::in_uniform_register(threadIdx.x / 32),
                                             static_cast<int>(threadIdx.x % 32),
                                             static_cast<int>(blockIdx.x) % key_tiles,
                                             chunk,
                                             head / p.heads,
                                             head % p.heads,
                                             chunk % p.chunks * kChunk,
                                             p.gate.log_forget != nullptr};
  if (threadIdx.x == 0) {
    for (uint64_t& full : call.small().full) ptx::mbarrier_init(&full, 1);
    ptx::mbarrier_init_fence();
    call.load();
  }
  call.load_small();
  __syncthreads();
  call.run();
}

/// to += share, of `size` numbers.
__global__ void __launch_bounds__(256) add_gate_shares(float* to, const float* share, int64_t size) {
  const int64_t at = int64_t{1} * blockIdx.x * 256 + threadIdx.x;
  if (at < size) to[at] += share[at];
}

}  // namespace lethe::matrix_state
