#pragma once
// A warpgroup of delta_sweep.cuh that carries 64 columns of the state.
//
// It holds the transposes of S, X, R and O: a warp 16 columns of the values, whose numbers no other warp needs. So what a product leaves in registers is,
// rounded, the left operand of the next one, and the warps meet only where O leaves.
//
//   Sᵀ Kᵀ, Sᵀ Qᵀ                  wgmma, from S rounded to float16; of more than 64 rows the second one later, in the first one's registers
//   Xᵀ = Vᵀ − γ Sᵀ Kᵀ
//   Rᵀ = Xᵀ − Xᵀ (W β)ᵀ           mma.sync, with the lower blocks alone
//   Sᵀ = γ_C Sᵀ + (D_C β R)ᵀ K    wgmma
//   Oᵀ = γ Sᵀ Qᵀ + Rᵀ (P β)ᵀ      mma.sync, under the one before; of float16 Xᵀ (A β)ᵀ (delta_folded.cuh)
//
// Tiles of S and R that it keeps for a backward have the state's rows and the tokens as rows: a warp transposes its 16 columns by way of their place in V, which
// it alone reads once V is measured, and stores them itself. So the warps don't meet, and the stage needn't wait for the copy engine.

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

/// A lane's row of 16 bytes of a warp's 16 columns of a tile, in the first 16 rows; those of the others are 2048 bytes after each other.
__device__ __forceinline__ uint32_t own_columns(int block, int lane) {
  return at_piece(columns_address(0, 0, lane), 2 * block);
}

/// A warp's 16 columns of a tile, from its rows of sums of the transpose: `to` is the lane's address.
__device__ __forceinline__ void store_packed_transposed(uint32_t to, const uint32_t (&packed)[16]) {
#pragma unroll
  for (int k = 0; k < kWarps; ++k)
    ptx::store_matrices_transposed(to + 2048 * k, packed[4 * k], packed[4 * k + 1], packed[4 * k + 2],
                                   packed[4 * k + 3]);
}

/// A lane's first of four pieces of a warp's 16 columns of a tile, or of its image; the others are 2048 bytes after each other. Two lanes next to each other have
/// 32 bytes, a sector; eight of them different banks.
__device__ __forceinline__ uint32_t own_piece(int block, int lane) {
  return tile_piece((lane & 6) + lane / 8 % 2 + lane / 16 * 8, 2 * block + lane % 2);
}
/// The pieces, when the warp's lanes have stored its columns.
__device__ __forceinline__ void load_columns(uint4 (&pieces)[kWarps], uint32_t tile, int block, int lane) {
  __syncwarp();
#pragma unroll
  for (int k = 0; k < kWarps; ++k) pieces[k] = ptx::load_words(tile + own_piece(block, lane) + 2048 * k);
}
__device__ __forceinline__ void store_columns(uint4* image, const uint4 (&pieces)[kWarps], int block, int lane) {
  char* const to = reinterpret_cast<char*>(image) + own_piece(block, lane);
#pragma unroll
  for (int k = 0; k < kWarps; ++k) *reinterpret_cast<uint4*>(to + 2048 * k) = pieces[k];
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
  State state;  // divided by the units of weigh()
  each_number(state, column, columns, [&](float& number, int64_t place, bool there) {
    number = p.initial && there ? p.initial[place] : 0.0f;
  });
  const auto scale_state = [&](float factor) { scale(state, factor); };
  const auto measure = [&](int n) { this->measure(state, group, n); };
  measure(0);
  char* const output = memory + Shared::kState + group * kPanel;
  // O of chunk n, which all warps have written, on its way: by each its tokens.
  const auto store_output = [&](int n) {
    ptx::named_barrier_sync(kStateBarrier + group, kComputing);
    if (lane > 0) return;
    ptx::store_tile(&p.maps[3], output + 16 * block * 128, column, h, static_cast<int>(first_of(n)) + 16 * block, b);
    ptx::bulk_commit();
  };
  const uint32_t own = own_columns(block, lane);
  float unit = 1.0f;  // of the state
  ptx::RingPosition at;
  for (int n = 0; n < p.chunks; ++n, at.advance(Shared::kStages)) {
    DeltaTokens& tokens = small().tokens[at.index];
    DeltaTokenUnits& units = small().units[at.index];
    SolvedChunk& chunk = solved(at.index);
    const char* const query = stage(at.index);
    const char* const key = query + Shared::kKey;
    const char* const value = query + Shared::kValue + group * kPanel;
    // Of what is kept: V's of this warp's columns, for further rows of S one that nothing else uses.
    const auto place_of = [&](int m) { return ptx::shared_address(m == 0 ? value : output + m * kGroups * kPanel); };
    if (n == 0) {
      ptx::mbarrier_wait(&small().prepared[0], 0);
      scale_state(small().first_reciprocal);
    }
    uint32_t rounded[kBlocks][16];
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
      pack_sums<__half>(rounded[m], reinterpret_cast<const float(&)[kBlocks][32]>(state)[m], 1.0f);
    if (kReads && n > 0) store_output(n - 1);
    // at.parity is a register more: it spills beside what is kept, and this does without it.
    const uint32_t parity = kKeeps ? static_cast<uint32_t>(n) / Shared::kStages % 2 : at.parity;
    ptx::mbarrier_wait(&small().full[at.index], parity);
    ptx::mbarrier_wait(prepared(n, at.index), prepared_parity(n, parity));
    uint32_t values[kWarps][4];
    const auto load_values = [&] {
#pragma unroll
      for (int k = 0; k < kWarps; ++k)
        ptx::load_matrices_transposed(values[k], ptx::shared_address(value) + own + 2048 * k);
    };
    if constexpr (kKeeps) {  // before a product reads S in its registers
      load_values();
      __syncwarp();
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) store_packed_transposed(place_of(m) + own, rounded[m]);
    }
    float x[32];
    ptx::undefined(x);
    ptx::fence_registers(x);
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) ptx::fence_registers(rounded[m]);
    ptx::wgmma_fence();
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) issue_product<__half, ptx::Major::kK>(x, rounded[m], key + m * kPanel, m > 0);
    ptx::wgmma_commit();
    // Under the product:
    [[maybe_unused]] uint4 pieces[kWarps];
    if constexpr (!kKeeps) load_values();
#pragma unroll
    for (int m = 0; kKeeps && m < kBlocks; ++m) {
      load_columns(pieces, place_of(m), block, lane);
      store_columns(p.arrays.before + (kept_tile(n, group) * kBlocks + m) * (kPanel / 16), pieces, block, lane);
    }
    const float decay = tokens.decay();
    if constexpr (kKeeps) __syncwarp();  // all is read before R lies there; and what follows doesn't delay the stores
    scale_state(decay);
    ptx::wgmma_wait<0>();
    ptx::fence_registers(x);
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) ptx::fence_registers(rounded[m]);
    subtract_from_values<Element>(x, values, tokens.reciprocal(), tokens.read_key(), lane);
    uint32_t left[16], residual[16];
    pack_sums<__half>(left, x, 1.0f);
    add_triangle(x, left, chunk.inverse, lane);
    if constexpr (kFolded) {
#pragma unroll
      for (int i = 0; i < 16; ++i) residual[i] = left[i];  // X is what O is read from
    }
    pack_weighted(left, x, tokens.write(), lane);
    ptx::fence_registers(left);
    ptx::fence_registers(state);
    ptx::wgmma_fence();
    issue_update<kBlocks>(state, left, key);
    ptx::wgmma_commit();
    if constexpr (!kFolded) pack_sums<__half>(residual, x, 1.0f);
    if constexpr (kFolded && kKeeps) {
      uint32_t kept[16];
      pack_sums<__half>(kept, x, 1.0f);
      store_packed_transposed(place_of(0) + own, kept);
    }
    [[maybe_unused]] float out[32];
    if constexpr (kReads) {
      ptx::undefined(out);
      ptx::fence_registers(out);
      ptx::wgmma_fence();
#pragma unroll
      for (int m = 0; m < kBlocks; ++m)
        issue_product<__half, ptx::Major::kK>(out, rounded[m], query + m * kPanel, m > 0);
      ptx::wgmma_commit();
    }
    if constexpr (kKeeps && !kFolded) store_packed_transposed(place_of(0) + own, residual);
    if constexpr (kReads) {
      if (lane == 0) ptx::bulk_wait_read<0>();
      ptx::named_barrier_sync(kStateBarrier + group, kComputing);  // the chunk before's O has left its place
    }
    ptx::wgmma_wait<0>();
    ptx::fence_registers(state);
    ptx::fence_registers(left);
    if constexpr (kReads) {
      ptx::fence_registers(out);
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) ptx::fence_registers(rounded[m]);
    }
    if constexpr (kKeeps) load_columns(pieces, place_of(0), block, lane);
    unit = tokens.after();
    if constexpr (kReads) {
      scale_columns(by_tiles(out), units.read_state(), lane);
      if constexpr (kFolded) ptx::mbarrier_wait(folded(n), turn(n));
      add_triangle(out, residual, pairs(n), lane);
      scale_columns(by_tiles(out), out_unit(at.index), lane);
      if constexpr (!kKeeps) arrive_warp(&small().empty[at.index], lane);
      pack_sums<Element>(residual, out, 1.0f);
      store_packed_transposed(ptx::shared_address(output) + own, residual);
    }
    ptx::fence_async_shared();  // O, and that the copy engine writes over what this warp has stored
    if constexpr (kKeeps) {
      __syncwarp();  // R is stored after the fence, which may wait for stores
      store_columns(p.arrays.residual + kept_tile(n, group) * (kPanel / 16), pieces, block, lane);
      arrive_warp(&small().empty[at.index], lane);
    }
    measure(n + 1);
  }
  if constexpr (kReads) store_output(p.chunks - 1);
  if (p.last) {
    scale_state(unit);
    each_number(state, column, columns, [&](float& number, int64_t place, bool there) {
      if (there) p.last[place] = number;
    });
  }
  if (kReads && lane == 0) ptx::bulk_wait<0>();
  if constexpr (!kReads) arrive_warp(&small().stored, lane);
}

}  // namespace lethe::matrix_state
