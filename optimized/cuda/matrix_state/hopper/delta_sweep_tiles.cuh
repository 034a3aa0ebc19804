#pragma once
// A warpgroup of delta_sweep.cuh that carries 64 columns of the state, of a forward with more than 64 rows and columns: by the scheme of delta_sweep_values.cuh, but W and P
// are tiles, so that all products are wgmma.
//
//   product                      meanwhile
//   Sᵀ Kᵀ                        S is scaled
//   Xᵀ (W β)ᵀ                    –
//   Sᵀ Qᵀ, then (D_C β R)ᵀ K     γ Sᵀ Qᵀ
//   Rᵀ (P β)ᵀ, after these       the stage is empty; S of the next chunk is rounded, and measured
//
// Of float16 the last one is Xᵀ (A β)ᵀ (delta_folded.cuh).
//
// The factors of R, of γ Sᵀ Qᵀ and of O are loaded before their product is waited for: under load shared memory answers after some 300 cycles.

#include "optimized/cuda/hopper/ptx/wgmma_few_columns.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_sweep_values.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_tiles_roles.cuh"

namespace lethe::matrix_state {

/// sums += left · Lᵀ of the lower blocks of a mirrored tile L, the first tokens' first: issued. Products of another shape add to the same sums after a fence.
__device__ __forceinline__ void issue_lower(float (&sums)[32], const uint32_t (&left)[16], const char* tile) {
  const uint64_t rows = ptx::operand_descriptor(tile, kPanel);
  const auto step = [&]<int k>(std::integral_constant<int, k>) {
    ptx::wgmma<ptx::Major::kK>(__half{}, reinterpret_cast<float(&)[8 * (k + 1)]>(sums), left[4 * k], left[4 * k + 1],
                               left[4 * k + 2], left[4 * k + 3], ptx::advance<kStepBytes<ptx::Major::kK>>(rows, k),
                               true);
  };
  step(std::integral_constant<int, 3>{});
  ptx::wgmma_fence();
  step(std::integral_constant<int, 2>{});
  ptx::wgmma_fence();
  step(std::integral_constant<int, 1>{});
  ptx::wgmma_fence();
  step(std::integral_constant<int, 0>{});
}

/// state += left · mirrored keys, of 64 tokens and all rows of the state, the first tokens' first: issued.
template <int kBlocks>
__device__ __forceinline__ void issue_mirrored_update(float (&state)[32 * kBlocks], const uint32_t (&left)[16],
                                                      const char* keys) {
  const uint64_t right = ptx::operand_descriptor(keys, kPanel);
#pragma unroll
  for (int k = kWarps - 1; k >= 0; --k)
    ptx::wgmma<ptx::Major::kMN>(__half{}, state, left[4 * k], left[4 * k + 1], left[4 * k + 2], left[4 * k + 3],
                                ptx::advance<kStepBytes<ptx::Major::kMN>>(right, k), true);
}

/// Visits the tiles of 8 columns with a lane's two of the numbers of their tokens, which are mirrored.
template <typename Use>
__device__ __forceinline__ void each_column(const float* numbers, int lane, const Use& use) {
#pragma unroll
  for (int c = 0; c < 8; ++c) use(c, *reinterpret_cast<const float2*>(&numbers[mirrored_token(c, lane)]));
}
/// The same numbers, asked for here and not where they are used.
__device__ __forceinline__ void load_factors(float2 (&to)[8], const float* numbers, int lane) {
  each_column(numbers, lane, [&](int c, const float2& pair) { to[c] = pair; });
#pragma unroll
  for (float2& pair : to) asm volatile("" : "+f"(pair.x), "+f"(pair.y));
}
__device__ __forceinline__ void scale_mirrored(float (&sums)[32], const float2 (&factors)[8]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) sums[i] *= i % 2 ? factors[i / 4].y : factors[i / 4].x;
}

template <typename Element, int kBlocks, int kGroups, bool kReads, bool kKeeps>
__device__ __forceinline__ void DeltaSweep<Element, kBlocks, kGroups, kReads, kKeeps>::sweep_tiles(int group) const {
  const int column = 64 * (tile + group), columns = min(64, p.columns - column);
  State state;  // divided by the units of weigh()
  each_number(state, column, columns, [&](float& number, int64_t place, bool there) {
    number = p.initial && there ? p.initial[place] : 0.0f;
  });
  const auto scale_state = [&](float factor) { scale(state, factor); };
  uint32_t rounded[kBlocks][16], most = 0;  // most: of their magnitudes, in pairs
  const auto round_state = [&] {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
      pack_sums<__half>(rounded[m], reinterpret_cast<const float(&)[kBlocks][32]>(state)[m], 1.0f);
    uint32_t of[2] = {};
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
#pragma unroll
      for (int i = 0; i < 16; ++i) of[i % 2] = ptx::larger_magnitudes<__half>(of[i % 2], rounded[m][i]);
    most = ptx::larger_magnitudes<__half>(of[0], of[1]);
  };
  const auto fence_rounded = [&] {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) ptx::fence_registers(rounded[m]);
  };
  const auto issue_rows = [&](float(&sums)[32], const char* rows) {  // what the state gives to rows of a tile
    ptx::fence_registers(sums);
    fence_rounded();
    ptx::wgmma_fence();
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) issue_product<__half, ptx::Major::kK>(sums, rounded[m], rows + m * kPanel, m > 0);
    ptx::wgmma_commit();
  };
  char* const output = memory + Shared::kState + group * kPanel;
  const uint32_t place = at_piece(columns_address(0, 0, lane), 2 * block);  // the warp's columns of a tile, transposed
  // O of chunk n to its place, from which the loading warp sends it.
  const auto store_output = [&](float(&out)[32], const float2(&units)[8], int n) {
    uint32_t words[16];
    scale_mirrored(out, units);
    pack_sums<Element>(words, out, 1.0f);
    if (n > 0) ptx::mbarrier_wait(sent(), (n - 1) % 2);
#pragma unroll
    for (int k = 0; k < kWarps; ++k)
      ptx::store_matrices_transposed(ptx::shared_address(output) + place + 2048 * mirrored(k), words[4 * k],
                                     words[4 * k + 1], words[4 * k + 2], words[4 * k + 3]);
    arrive_warp(&small().stored, lane);
  };
  float x[32];
  ptx::undefined(x);
  float unit = 1.0f;  // of the state
  // X of chunk n; then the state is scaled to the next one's unit.
  const auto read_keys = [&](int n, const ptx::RingPosition& at) {
    DeltaTokens& tokens = small().tokens[at.index];
    const char* const query = stage(at.index);
    const char* const value = query + Shared::kValue + group * kPanel;
    ptx::mbarrier_wait(&small().full[at.index], at.parity);
    ptx::mbarrier_wait(&small().prepared[at.index], at.parity);
    issue_rows(x, query + Shared::kKey);
    uint32_t values[kWarps][4];
#pragma unroll
    for (int k = 0; k < kWarps; ++k)
      ptx::load_matrices_transposed(values[k], ptx::shared_address(value) + place + 2048 * mirrored(k));
    scale_state(tokens.decay());
    unit = tokens.after();
    ptx::fence_registers(state);
#pragma unroll
    for (int k = 0; k < kWarps; ++k) ptx::fence_registers(values[k]);
    ptx::wgmma_wait<0>();
    ptx::fence_registers(x);
    fence_rounded();
    each_column(tokens.read_key(), lane, [&](int c, const float2& read) {
      const float2 over = *reinterpret_cast<const float2*>(&tokens.reciprocal()[mirrored_token(c, lane)]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 v = unpack<Element>(values[c / 2][c % 2 * 2 + i]);
        float &first = x[4 * c + 2 * i], &second = x[4 * c + 2 * i + 1];
        first = fmaf(v.x, over.x, -read.x * first);
        second = fmaf(v.y, over.y, -read.y * second);
      }
    });
  };
  measure(state, group, 0);
  ptx::mbarrier_wait(&small().prepared[0], 0);
  scale_state(small().first_reciprocal);
  round_state();
  ptx::RingPosition at;
  read_keys(0, at);
  for (int n = 0;;) {
    uint32_t left[16], residual[16];
    pack_sums<__half>(left, x, 1.0f);  // X; it becomes R
    ptx::fence_registers(x);
    ptx::fence_registers(left);
    ptx::wgmma_fence();
    issue_lower(x, left, inverse_tile(n));
    ptx::wgmma_commit();
    float2 factors[8];
    load_factors(factors, small().tokens[at.index].write(), lane);
    ptx::wgmma_wait<0>();
    ptx::fence_registers(x);
    ptx::fence_registers(left);
    if constexpr (kFolded) {
#pragma unroll
      for (int i = 0; i < 16; ++i) residual[i] = left[i];  // X is what O is read from
    }
#pragma unroll
    for (int c = 0; c < 8; ++c)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        left[2 * c + i] = pack<__half>(x[4 * c + 2 * i] * factors[c].x, x[4 * c + 2 * i + 1] * factors[c].y);
    if constexpr (!kFolded) pack_sums<__half>(residual, x, 1.0f);
    ptx::fence_registers(residual);
    ptx::fence_registers(left);
    float(&out)[32] = x;  // no registers are left for others
    issue_rows(out, stage(at.index));
    ptx::fence_registers(left);
    ptx::fence_registers(state);
    ptx::wgmma_fence();
    issue_mirrored_update<kBlocks>(state, left, stage(at.index) + Shared::kKey);
    ptx::wgmma_commit();
    float2 reads[8];
    load_factors(reads, small().units[at.index].read_state(), lane);
    ptx::wgmma_wait<1>();
    ptx::fence_registers(out);
    fence_rounded();
    scale_mirrored(out, reads);
    if constexpr (kFolded) ptx::mbarrier_wait(folded(n), turn(n));
    ptx::fence_registers(out);
    ptx::fence_registers(residual);
    ptx::wgmma_fence();
    issue_lower(out, residual, pairs_tile(n));
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    ptx::fence_registers(state);
    ptx::fence_registers(left);
    arrive_warp(&small().empty[at.index], lane);  // what O still needs is not in the stage
    round_state();
    fence_rounded();
    const float2 pair = unpack<__half>(most & 0x7fff7fffu);
    const float largest = largest_of_warp(fmaxf(pair.x, pair.y)) + kLostByRounding;
    float2 units[8];
    load_factors(units, out_unit(at.index), lane);
    ptx::wgmma_wait<0>();
    ptx::fence_registers(out);
    ptx::fence_registers(residual);
    publish_largest(largest, group, n + 1);  // after R's product: chunk n + 2 overwrites its P
    store_output(out, units, n);
    if (++n == p.chunks) break;
    at.advance(Shared::kStages);
    read_keys(n, at);
  }
  if (p.last) {
    scale_state(unit);
    each_number(state, column, columns, [&](float& number, int64_t place, bool there) {
      if (there) p.last[place] = number;
    });
  }
}

}  // namespace lethe::matrix_state
