#pragma once
// A warpgroup of delta_sweep.cuh that carries 64 columns of the state, of a forward.
//
// It holds the transposes of S, X, R and O: a warp 16 columns of the values, whose numbers no other warp needs. So what a product leaves in registers is,
// rounded, the left operand of the next one, and the warps meet only where O leaves.
//
//   Sᵀ Kᵀ, Sᵀ Qᵀ                  wgmma, from S rounded to float16; of more than 64 rows the second one later, in the first one's registers
//   Xᵀ = Vᵀ − γ Sᵀ Kᵀ
//   Rᵀ = Xᵀ − Xᵀ (W β)ᵀ           mma.sync, with the lower blocks alone
//   Sᵀ = γ_C Sᵀ + (D_C β R)ᵀ K    wgmma
//   Oᵀ = γ Sᵀ Qᵀ + Rᵀ (P β)ᵀ      mma.sync, under the one before

#include "optimized/cuda/matrix_state/hopper/delta_sweep_roles.cuh"

namespace lethe::matrix_state {

/// sums += left · Lᵀ, of a lower triangle L by blocks of 16 × 16: each of 32 lanes, two right operands side by side.
__device__ __forceinline__ void add_triangle(float (&sums)[32], const uint32_t (&left)[16], const uint4* blocks,
                                             int lane) {
#pragma unroll
  for (int k = 0; k < kWarps; ++k) {
    const uint32_t a[4] = {left[4 * k], left[4 * k + 1], left[4 * k + 2], left[4 * k + 3]};
#pragma unroll
    for (int i = k; i < kWarps; ++i) {
      const uint4 words = blocks[32 * lower_block(i, k) + lane];
      ptx::multiply_add<__half>(by_tiles(sums)[2 * i], a, words.x, words.y);
      ptx::multiply_add<__half>(by_tiles(sums)[2 * i + 1], a, words.z, words.w);
    }
  }
}

/// Sums as a left operand, their columns times `factors`.
__device__ __forceinline__ void pack_weighted(uint32_t (&left)[16], const float (&sums)[32], const float* factors,
                                              int lane) {
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    const float2 factor = *reinterpret_cast<const float2*>(&factors[8 * c + lane % 4 * 2]);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      left[2 * c + half] = pack<__half>(sums[4 * c + 2 * half] * factor.x, sums[4 * c + 2 * half + 1] * factor.y);
  }
}

/// sums become Vᵀ over the tokens' units, less their columns times `read`: 16 columns of V from `tile`.
template <typename Element>
__device__ __forceinline__ void subtract_from_values(float (&sums)[32], const uint32_t (&all)[kWarps][4],
                                                     const float* reciprocal, const float* read, int lane) {
#pragma unroll
  for (int k = 0; k < kWarps; ++k) {
    const uint32_t(&values)[4] = all[k];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int c = 2 * k + half, token = 8 * c + lane % 4 * 2;
      const float2 over = *reinterpret_cast<const float2*>(&reciprocal[token]),
                   factor = *reinterpret_cast<const float2*>(&read[token]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 v = unpack<Element>(values[2 * half + i]);
        float &x = sums[4 * c + 2 * i], &y = sums[4 * c + 2 * i + 1];
        x = fmaf(v.x, over.x, -factor.x * x);
        y = fmaf(v.y, over.y, -factor.y * y);
      }
    }
  }
}

/// A warp's 16 columns of a tile, from its rows of sums of the transpose.
__device__ __forceinline__ void store_packed_transposed(uint32_t tile, const uint32_t (&packed)[16], int block,
                                                        int lane) {
#pragma unroll
  for (int k = 0; k < kWarps; ++k)
    ptx::store_matrices_transposed(at_piece(columns_address(tile, k, lane), 2 * block), packed[4 * k],
                                   packed[4 * k + 1], packed[4 * k + 2], packed[4 * k + 3]);
}

/// state += left · keys, of 64 tokens and all rows of the state: issued.
template <int kBlocks>
__device__ __forceinline__ void issue_update(float (&state)[32 * kBlocks], const uint32_t (&left)[16],
                                             const char* keys) {
  const uint64_t right = ptx::operand_descriptor(keys, kPanel);
#pragma unroll
  for (int k = 0; k < 4; ++k)
    ptx::wgmma<ptx::Major::kMN>(__half{}, state, left[4 * k], left[4 * k + 1], left[4 * k + 2], left[4 * k + 3],
                                ptx::advance<kStepBytes<ptx::Major::kMN>>(right, k), true);
}

template <typename Element, int kBlocks, int kGroups, bool kReads, bool kKeeps>
__device__ __forceinline__ void DeltaSweep<Element, kBlocks, kGroups, kReads, kKeeps>::sweep_values(int group) const {
  const int column = 64 * (tile + group), columns = min(64, p.columns - column);
  float state[32 * kBlocks];                // divided by the units of weigh()
  const auto each = [&](const auto& use) {  // a number of the state, where it is in memory, and whether it is there
#pragma unroll
    for (int i = 0; i < 32 * kBlocks; ++i) {
      const int row = i / 4 * 8 + lane % 4 * 2 + i % 2, c = 16 * block + lane / 4 + i / 2 % 2 * 8;
      use(state[i], (int64_t{1} * head * p.rows + row) * p.columns + column + c, row < p.rows && c < columns);
    }
  };
  each([&](float& number, int64_t place, bool there) { number = p.initial && there ? p.initial[place] : 0.0f; });
  const auto scale_state = [&](float factor) {
#pragma unroll
    for (int i = 0; i < 32 * kBlocks; ++i) state[i] *= factor;
  };
  const auto measure = [&](int n) {  // the state before chunk n
    const float most = largest_of_sums(reinterpret_cast<const float(&)[kBlocks][32]>(state));
    if (lane == 0) small().largest[n % 2][group * kWarps + block] = most;
    arrive_warp(&small().measured[n % 2], lane);
  };
  measure(0);
  char* const output = memory + Shared::kState + group * kPanel;
  // O of chunk n, which all warps have written, on its way: by each its tokens.
  const auto store_output = [&](int n) {
    ptx::named_barrier_sync(kStateBarrier + group, kComputing);
    if (lane > 0) return;
    ptx::store_tile(&p.maps[3], output + 16 * block * 128, column, h, static_cast<int>(first_of(n)) + 16 * block, b);
    ptx::bulk_commit();
  };
  float unit = 1.0f;  // of the state
  ptx::RingPosition at;
  for (int n = 0; n < p.chunks; ++n, at.advance(Shared::kStages)) {
    DeltaTokens& tokens = small().tokens[at.index];
    DeltaTokenUnits& units = small().units[at.index];
    SolvedChunk& chunk = solved(at.index);
    const char* const query = stage(at.index);
    const char* const key = query + Shared::kKey;
    const char* const value = query + Shared::kValue + group * kPanel;
    if (n == 0) {
      ptx::mbarrier_wait(&small().prepared[0], 0);
      scale_state(small().first_reciprocal);
    }
    uint32_t rounded[kBlocks][16];
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
      pack_sums<__half>(rounded[m], reinterpret_cast<const float(&)[kBlocks][32]>(state)[m], 1.0f);
    if (n > 0) store_output(n - 1);
    ptx::mbarrier_wait(&small().full[at.index], at.parity);
    ptx::mbarrier_wait(&small().prepared[at.index], at.parity);
    float x[32];
    ptx::undefined(x);
    ptx::fence_registers(x);
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) ptx::fence_registers(rounded[m]);
    ptx::wgmma_fence();
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) issue_product<__half, ptx::Major::kK>(x, rounded[m], key + m * kPanel, m > 0);
    ptx::wgmma_commit();
    uint32_t values[kWarps][4];  // read under the product, as the state is scaled
#pragma unroll
    for (int k = 0; k < kWarps; ++k)
      load_transposed_left(values[k], ptx::shared_address(value), k, block, lane);
    scale_state(tokens.decay());
    ptx::wgmma_wait<0>();
    ptx::fence_registers(x);
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) ptx::fence_registers(rounded[m]);
    subtract_from_values<Element>(x, values, tokens.reciprocal(), tokens.read_key(), lane);
    uint32_t left[16], residual[16];
    pack_sums<__half>(left, x, 1.0f);
    add_triangle(x, left, chunk.inverse, lane);
    pack_weighted(left, x, tokens.write(), lane);
    ptx::fence_registers(left);
    ptx::fence_registers(state);
    ptx::wgmma_fence();
    issue_update<kBlocks>(state, left, key);
    ptx::wgmma_commit();
    pack_sums<__half>(residual, x, 1.0f);
    float out[32];
    ptx::undefined(out);
    ptx::fence_registers(out);
    ptx::wgmma_fence();
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) issue_product<__half, ptx::Major::kK>(out, rounded[m], query + m * kPanel, m > 0);
    ptx::wgmma_commit();
    if (lane == 0) ptx::bulk_wait_read<0>();
    ptx::named_barrier_sync(kStateBarrier + group, kComputing);  // what the chunk before has left in O's place is read
    ptx::wgmma_wait<0>();
    ptx::fence_registers(state);
    ptx::fence_registers(left);
    ptx::fence_registers(out);
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) ptx::fence_registers(rounded[m]);
    scale_columns(by_tiles(out), units.read_state(), lane);
    add_triangle(out, residual, pairs(n), lane);
    scale_columns(by_tiles(out), out_unit(chunk), lane);
    unit = tokens.after();
    arrive_warp(&small().empty[at.index], lane);
    pack_sums<Element>(residual, out, 1.0f);
    store_packed_transposed(ptx::shared_address(output), residual, block, lane);
    ptx::fence_async_shared();
    measure(n + 1);
  }
  store_output(p.chunks - 1);
  if (p.last) {
    scale_state(unit);
    each([&](float& number, int64_t place, bool there) {
      if (there) p.last[place] = number;
    });
  }
  if (lane == 0) ptx::bulk_wait<0>();
}

}  // namespace lethe::matrix_state
