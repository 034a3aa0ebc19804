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

#include "optimized/cuda/matrix_state/hopper/delta_gradients_products.cuh"

namespace lethe::matrix_state {

template <typename Element, int kTiles, bool kOneUnit>
struct ChunkGradients : ChunkGradientProducts<Element, kTiles, kOneUnit> {
  using Products = ChunkGradientProducts<Element, kTiles, kOneUnit>;
  using Products::p, Products::block, Products::lane, Products::key_tile, Products::b, Products::h, Products::first,
      Products::gated;
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

  /// Q and K by units of their largest numbers, stored after `meanwhile`; they are to be fenced.
  template <typename Meanwhile>
  __device__ __forceinline__ void divide_tokens(uint32_t query, uint32_t key, const Meanwhile& meanwhile) const {
    auto& at = small();
    const RowPart<1> of_query(query, block, lane), of_key(key, block, lane);
    uint4 queries[4], keys[4];
    load_row(queries, of_query);
    load_row(keys, of_key);
    const float most_of_query = largest_of_warp(largest_of_row<Element>(queries));
    const float most_of_key = largest_of_warp(largest_of_row<Element>(keys));
    if (lane == 0) at.largest[0][block] = most_of_query, at.largest[1][block] = most_of_key;
    meanwhile();
    __syncthreads();
    store_row<Element>(queries, of_query, reciprocal_of_power(unit_of(0)));
    store_row<Element>(keys, of_key, reciprocal_of_power(unit_of(1)));
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
    const auto divide_gradients = [&] {
      divide_rows_by_largest<Element, kTiles>(ptx::shared_address(tile(Shared::kGradient)), at.gradient_unit, block,
                                              lane);
    };
    divide_tokens(query, key, divide_gradients);
    const float query_unit = unit_of(0), key_unit = unit_of(1);
    ptx::fence_async_shared();
    __syncthreads();
    ptx::mbarrier_wait(&at.full[1], 0);

    const float gradient_unit[2] = {at.gradient_unit[i0], at.gradient_unit[i0 + 8]};
    float grad_key[32], column_shares[2] = {0.0f, 0.0f}, row_shares[2] = {0.0f, 0.0f};
    float reads_unit, corrections_unit;
    char *const of_reads = tile(Shared::kReads), *const of_corrections = tile(Shared::kCorrections);
    {
      if (gated) this->share_states();
      float reads[32], corrections[32];
      this->multiply_tokens(reads, corrections, grad_key, gradient_unit, beta);
      if (gated) {
        row_dots<__half>(column_shares, by_tiles(grad_key), key, place);
        column_shares[0] *= key_unit, column_shares[1] *= key_unit;
      }
      float read_factor[2] = {p.scale, p.scale}, correction_factor[2] = {-beta[0], -beta[1]},
            strength[2] = {1.0f, 1.0f};
      if constexpr (kOneUnit) {
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
                   kOneUnit ? at.residual_unit[0] : nullptr);
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
    this->multiply_before(grad_query, y, gradient_unit, read, beta);
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
    put(tile(Shared::kGradQuery), grad_query, p.maps[3]);
    put(tile(Shared::kGradKey), grad_key, p.maps[4]);
    if (gated) share_gates(row_shares, column_shares, query_unit, key_unit, reads_unit, corrections_unit);
    if (lane == 0) ptx::bulk_wait<0>();
  }

  /// d log f.
  __device__ __forceinline__ void share_gates(const float (&row_shares)[2], const float (&column_shares)[2],
                                              float query_unit, float key_unit, float reads_unit,
                                              float corrections_unit) const {
    auto& at = small();
    float x[32], y[32];
    multiply(x, Shared::kQuery, y, Shared::kKey, Shared::kKey);
    const float unit[2] = {reads_unit * query_unit * key_unit, corrections_unit * key_unit * key_unit};
#pragma unroll
    for (int k = 0; k < kWarps; ++k) {
      uint32_t read[4], corrected[4];
      load_left(read, ptx::shared_address(tile(Shared::kReads)), block, k, lane);
      load_left(corrected, ptx::shared_address(tile(Shared::kCorrections)), block, k, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 m = unpack<__half>(read[i]), z = unpack<__half>(corrected[i]);
        const int e = 8 * k + 2 * i;
        x[e] = fmaf(x[e] * m.x, unit[0], y[e] * z.x * unit[1]);
        x[e + 1] = fmaf(x[e + 1] * m.y, unit[0], y[e + 1] * z.y * unit[1]);
      }
    }
    sum_pairs_across_gates(x, block, lane, at.pairs[block]);
    if (lane % 4 == 0) {
      const int i0 = row();
      at.rows[i0] = row_shares[0], at.rows[i0 + 8] = row_shares[1];
      at.columns[i0] = column_shares[0], at.columns[i0 + 8] = column_shares[1];
    }
    __syncthreads();
    if (block > 0) return;
    const float2 sums = sum_gate_shares(at, lane);
    float* const to =
        (key_tile == 0 ? p.grad_gate : p.arrays.gate_share) + (b * p.length + first + 2 * lane) * p.heads + h;
    if (first + 2 * lane < p.length) to[0] = sums.x;
    if (first + 2 * lane + 1 < p.length) to[p.heads] = sums.y;
  }
};

template <typename Element, int kTiles, bool kOneUnit>
__global__ void __launch_bounds__(kComputing, ChunkGradientsShared<kTiles, kOneUnit>::kTogether)
    delta_chunk_gradients(const __grid_constant__ DeltaChunkGradients p) {
  extern __shared__ __align__(1024) char memory[];
  // In the order in which chunks are swept from the last token back, all heads' together: the sweep may still run.
  const int key_tiles = (p.rows + 63) / 64, order = static_cast<int>(blockIdx.x) / key_tiles,
            all_heads = static_cast<int>(p.all_chunks / p.chunks), head = order % all_heads,
            chunk = p.chunks - 1 - order / all_heads;
  const ChunkGradients<Element, kTiles, kOneUnit> call{
      {p, memory, ptx::in_uniform_register(threadIdx.x / 32), static_cast<int>(threadIdx.x % 32),
       static_cast<int>(blockIdx.x) % key_tiles, int64_t{1} * head * p.chunks + chunk, head / p.heads, head % p.heads,
       chunk * kChunk, p.gate.log_forget != nullptr}};
  if (threadIdx.x == 0) {
    for (uint64_t& full : call.small().full) ptx::mbarrier_init(&full, 1);
    ptx::mbarrier_init_fence();
    call.load();
  }
  __syncwarp();
  call.load_small();
  __syncthreads();
  call.run();
  if (blockIdx.x + 1 == gridDim.x) wait_for_previous_kernel();  // the next one waits for this one alone
}

/// to += share, of `size` numbers.
__global__ void __launch_bounds__(256) add_gate_shares(float* to, const float* share, int64_t size) {
  const int64_t at = int64_t{1} * blockIdx.x * 256 + threadIdx.x;
  if (at < size) to[at] += share[at];
}

}  // namespace lethe::matrix_state
