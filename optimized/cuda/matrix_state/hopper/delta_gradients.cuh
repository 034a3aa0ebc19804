#pragma once
// The delta rule's gradients inside one chunk of one head, by wgmma, from what the passes before have left: S before the chunk, R after it, the residual of
// each token and the whole gradient dN̄ of what it wrote. A CTA has 64 columns of dQ and dK, a warpgroup M and dQ, another Z and dK. With m = β ∘ dN̄ and n = β ∘ r:
//
//   M_ij = scale · D_ij dO_i·n_j, j ≤ i      Z_ij = −D_ij m_i·n_j, j < i
//   dQ = scale · γ ∘ dO Sᵀ + M K             dK = D_C ∘ n Rᵀ − γ ∘ m Sᵀ + Mᵀ Q + (Z + Zᵀ) K             dβ = r · dN̄
//   d log f_l = Σ_{i ≥ l > j} (M_ij q_i·k_j + Z_ij k_i·k_j) + Σ_{i ≥ l} (what S shares in dQ and dK, times q_i and k_i)
//               + Σ_{j < l} (what R shares in dK) k_j + γ_C ⟨S, R⟩
//
// M and Z are float16 with one unit each; so are the rows of Q and K here, since nothing later than the chunk is in any of these sums. Where keys have more
// than 64 columns, each CTA has its columns' share of d log f, and a kernel adds them.

#include "optimized/cuda/matrix_state/hopper/delta_gradients_products.cuh"

namespace lethe::matrix_state {

template <typename Element, int kTiles, bool kOneUnit>
struct ChunkGradients : ChunkGradientProducts<Element, kTiles, kOneUnit> {
  using Products = ChunkGradientProducts<Element, kTiles, kOneUnit>;
  using Products::p, Products::group, Products::block, Products::lane, Products::key_tile, Products::b, Products::h,
      Products::first, Products::gated;
  using Products::small, Products::tile, Products::row, Products::unit_of, Products::start, Products::multiply;
  using typename Products::Major, typename Products::Shared;

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

  /// What has Element's type becomes float16: Q and K by units of their largest numbers, and the rows of dO, a warpgroup's each.
  __device__ __forceinline__ void divide_tiles() const {
    auto& at = small();
    uint4 queries[4], keys[4];
    const RowPart<1> of_query(ptx::shared_address(tile(Shared::kQuery)), block, lane),
        of_key(ptx::shared_address(tile(Shared::kKey)), block, lane);
    if (group == 0) {
      load_row(queries, of_query);
      load_row(keys, of_key);
      const float most_of_query = largest_of_warp(largest_of_row<Element>(queries));
      const float most_of_key = largest_of_warp(largest_of_row<Element>(keys));
      if (lane == 0) at.largest[0][block] = most_of_query, at.largest[1][block] = most_of_key;
      ptx::named_barrier_sync(kPrepareBarrier, kComputing);
      store_row<Element>(queries, of_query, reciprocal_of_power(unit_of(0)));
      store_row<Element>(keys, of_key, reciprocal_of_power(unit_of(1)));
    } else {
      divide_rows_by_largest<Element, kTiles>(ptx::shared_address(tile(Shared::kGradient)), at.gradient_unit, block,
                                              lane);
    }
    ptx::fence_async_shared();
    __syncthreads();
  }

  /// The warpgroup of M and dQ, or that of Z and dK.
  __device__ __forceinline__ void run() const {
    auto& at = small();
    const Place place{block, lane};
    const bool corrects = group > 0;
    const int i0 = row();
    const float beta[2] = {at.beta[i0], at.beta[i0 + 8]},
                read[2] = {gated ? at.gates.read[i0] : 1.0f, gated ? at.gates.read[i0 + 8] : 1.0f};
    ptx::mbarrier_wait(&at.full[0], 0);
    divide_tiles();
    ptx::mbarrier_wait(&at.full[1], 0);
    ptx::mbarrier_wait(&at.full[2], 0);

    const uint32_t own = ptx::shared_address(tile(corrects ? Shared::kKey : Shared::kQuery));
    const float query_unit = unit_of(0), key_unit = unit_of(1),
                factor[2] = {corrects ? -beta[0] : p.scale, corrects ? -beta[1] : p.scale};
    char* const of_pairs = tile(corrects ? Shared::kCorrections : Shared::kReads);
    float gradient[32];
    {
      float pairs[32];
      if (corrects) {
        this->multiply_after(gradient, beta);
        if (gated) share_rows(at.columns, gradient, own, key_unit);
      } else if (gated) {
        this->share_states();
      }
      this->multiply_tokens(pairs);
      float row_factor[2] = {factor[0], factor[1]}, strength[2] = {1.0f, 1.0f};
      if constexpr (kOneUnit) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float unit = this->own_unit(0)[8 * half];
          row_factor[half] *= unit;
          strength[half] = unit * at.residual_unit[0][i0 + 8 * half];
        }
      }
      if (corrects) store_strength(pairs, strength);
      weigh_tokens(at, gated, corrects, block, lane, pairs, row_factor, kOneUnit ? at.residual_unit[0] : nullptr);
      __syncthreads();  // r and R are read, and the largest numbers there
      uint32_t packed[16];
      pack_sums<__half>(packed, pairs, reciprocal_of_power(unit_of(2 + group)));
      store_packed(ptx::shared_address(of_pairs), packed, place);
      ptx::fence_async_shared();
      __syncthreads();
    }
    const float reads_unit = unit_of(2), corrections_unit = unit_of(3);
    {
      float x[32];
      const float before_factor[2] = {factor[0] * read[0], factor[1] * read[1]};
      this->multiply_before(x, before_factor);
      if (gated) share_rows(at.rows[group], x, own, corrects ? key_unit : query_unit);
#pragma unroll
      for (int i = 0; i < 32; ++i) gradient[i] = corrects ? gradient[i] + x[i] : x[i];
    }
    const auto add = [&](const float(&sums)[32], float unit) {
#pragma unroll
      for (int i = 0; i < 32; ++i) gradient[i] = fmaf(sums[i], unit, gradient[i]);
    };
    const char *const queries = tile(Shared::kQuery), *const keys = tile(Shared::kKey);
    float x[32];
    start(x);
    if (corrects) {
      float y[32];
      start(y);
      ptx::wgmma_fence();
      issue_product<__half, Major::kK, Major::kMN>(x, of_pairs, keys, false);
      issue_product<__half, Major::kMN, Major::kMN>(x, of_pairs, keys, true);
      issue_product<__half, Major::kMN, Major::kMN>(y, tile(Shared::kReads), queries, false);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::fence_registers(x);
      ptx::fence_registers(y);
      add(x, corrections_unit * key_unit);
      add(y, reads_unit * query_unit);
    } else {
      ptx::wgmma_fence();
      issue_product<__half, Major::kK, Major::kMN>(x, of_pairs, keys, false);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::fence_registers(x);
      add(x, reads_unit * key_unit);
    }
    __syncthreads();  // dO and S are read
    uint32_t packed[16];
    pack_sums<Element>(packed, gradient, 1.0f);
    store_rows_by_map(tile(corrects ? Shared::kGradKey : Shared::kGradQuery), packed, p.maps[3 + group], 64 * key_tile,
                      first, b, h, place);
    if (gated)
      share_gates(of_pairs, corrects ? corrections_unit * key_unit * key_unit : reads_unit * query_unit * key_unit);
    if (lane == 0) ptx::bulk_wait_read<0>();  // the kernel's end waits for the writes
  }

  /// The sums' rows times those of a tile, whose numbers are divided by `unit`.
  __device__ __forceinline__ void share_rows(float (&to)[kChunk], float (&sums)[32], uint32_t rows, float unit) const {
    float dots[2];
    row_dots<__half>(dots, by_tiles(sums), rows, Place{block, lane});
    if (lane % 4 == 0) to[row()] = dots[0] * unit, to[row() + 8] = dots[1] * unit;
  }

  /// d log f, of M and Q Kᵀ or of Z and K Kᵀ by the warpgroup.
  __device__ __forceinline__ void share_gates(const char* of_pairs, float unit) const {
    auto& at = small();
    float x[32];
    multiply(x, group == 0 ? Shared::kQuery : Shared::kKey, Shared::kKey);
#pragma unroll
    for (int k = 0; k < kWarps; ++k) {
      uint32_t pairs[4];
      load_left(pairs, ptx::shared_address(of_pairs), block, k, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 m = unpack<__half>(pairs[i]);
        const int e = 8 * k + 2 * i;
        x[e] *= m.x * unit;
        x[e + 1] *= m.y * unit;
      }
    }
    sum_pairs_across_gates(x, block, lane, at.pairs[group][block]);
    __syncthreads();
    if (group > 0 || block > 0) return;
    const float2 sums = sum_gate_shares(at, lane);
    float* const to =
        (key_tile == 0 ? p.grad_gate : p.arrays.gate_share) + (b * p.length + first + 2 * lane) * p.heads + h;
    if (first + 2 * lane < p.length) to[0] = sums.x;
    if (first + 2 * lane + 1 < p.length) to[p.heads] = sums.y;
  }
};

template <typename Element, int kTiles, bool kOneUnit>
__global__ void __launch_bounds__(ChunkGradientsShared<kTiles, kOneUnit>::kThreads,
                                  ChunkGradientsShared<kTiles, kOneUnit>::kTogether)
    delta_chunk_gradients(const __grid_constant__ DeltaChunkGradients p) {
  extern __shared__ __align__(1024) char memory[];
  // In the order in which chunks are swept from the last token back, all heads' together: the sweep may still run.
  const unsigned several = p.rows > 64, order = blockIdx.x >> several, all_heads = p.all_heads,
                 head = order % all_heads, heads = p.heads;
  const int chunk = p.chunks - 1 - static_cast<int>(order / all_heads);
  const int warp = ptx::in_uniform_register(threadIdx.x / 32);
  const ChunkGradients<Element, kTiles, kOneUnit> call{
      {p, memory, warp / kWarps, warp % kWarps, static_cast<int>(threadIdx.x % 32),
       static_cast<int>(blockIdx.x & several), int64_t{head} * p.chunks + chunk, static_cast<int>(head / heads),
       static_cast<int>(head % heads), chunk * kChunk, p.gate.log_forget != nullptr}};
  call.load();
  call.run();
  if (blockIdx.x + 1 == gridDim.x) wait_for_previous_kernel();  // the next one waits for this one alone
}

/// to += share, of `size` numbers.
__global__ void __launch_bounds__(256) add_gate_shares(float* to, const float* share, int64_t size) {
  const int64_t at = int64_t{1} * blockIdx.x * 256 + threadIdx.x;
  if (at < size) to[at] += share[at];
}

}  // namespace lethe::matrix_state
