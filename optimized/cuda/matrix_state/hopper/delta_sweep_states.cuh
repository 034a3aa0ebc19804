#pragma once
// A warpgroup of delta_sweep.cuh that carries 64 columns of the state where a backward is to follow: the states before all chunks and R are kept; with queries
// also O. R times its weights lies over the rounded state, O over Q where one warpgroup reads Q, else over V as X and R.

#include "optimized/cuda/matrix_state/delta_state.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_sweep_roles.cuh"

namespace lethe::matrix_state {

template <typename Element, int kBlocks, int kGroups, bool kReads, bool kKeeps>
__device__ __forceinline__ void DeltaSweep<Element, kBlocks, kGroups, kReads, kKeeps>::sweep_states(int group) const {
  using ptx::Major;
  const Place place{block, lane};
  const int i0 = 16 * block + lane / 4, column = 64 * (tile + group), columns = min(64, p.columns - column);
  const auto place_of = [&](int row, int c) { return (int64_t{1} * head * p.rows + row) * p.columns + column + c; };
  char* const rounded = memory + Shared::kState + group * kBlocks * kPanel;
  const auto sync = [&] { ptx::named_barrier_sync(kStateBarrier + group, kComputing); };
  DeltaState<64 * kBlocks> state;  // divided by the units of weigh()
  state.load(p.initial, p.rows, columns, place_of, block, lane);
  const auto sums_of = [&](int m) -> float(&)[32] { return reinterpret_cast<float(&)[32]>(state.x[m]); };
  const auto scale_state = [&](float factor) {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) scale_rows(sums_of(m), factor, factor);
  };
  const auto measure = [&](int n) {  // the state before chunk n
    const float most = largest_of_sums(reinterpret_cast<const float(&)[kBlocks][32]>(state.x));
    if (lane == 0) small().largest[n % 2][group * kWarps + block] = most;
    arrive_warp(&small().measured[n % 2], lane);
  };
  const auto put = [&](char* to, const float(&sums)[32]) {
    uint32_t packed[16];
    pack_sums<__half>(packed, sums, 1.0f);
    store_packed(ptx::shared_address(to), packed, place);
  };
  measure(0);
  constexpr int kBehind = kReads ? 1 : 0;  // products with queries, which are waited for later
  float unit = 1.0f;                       // of the state
  ptx::RingPosition at;
  for (int n = 0; n < p.chunks; ++n, at.advance(Shared::kStages)) {
    DeltaTokens& tokens = small().tokens[at.index];
    SolvedChunk& chunk = solved(at.index);
    char* const query = stage(at.index);
    const char* const key = query + Shared::kKey;
    char* const value = query + Shared::kValue + group * kPanel;
    [[maybe_unused]] char* const result = kGroups == 1 ? query : value;
    if (n == 0) {
      ptx::mbarrier_wait(&small().prepared[0], 0);
      scale_state(small().first_reciprocal);
      unit = reciprocal_of_power(small().first_reciprocal);
    }
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) put(rounded + m * kPanel, sums_of(m));
    ptx::mbarrier_wait(&small().full[at.index], at.parity);
    ptx::mbarrier_wait(&small().prepared[at.index], at.parity);
    ptx::fence_async_shared();
    sync();
    float x[32];
    [[maybe_unused]] float out[32];
    uint32_t left[16];
    ptx::undefined(x);
    ptx::fence_registers(x);
    if constexpr (kReads) {
      ptx::undefined(out);
      ptx::fence_registers(out);
    }
    ptx::wgmma_fence();
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
      issue_product<__half, Major::kK, Major::kMN>(x, key + m * kPanel, rounded + m * kPanel, m > 0);
    ptx::wgmma_commit();
    if constexpr (kReads) {
#pragma unroll
      for (int m = 0; m < kBlocks; ++m)
        issue_product<__half, Major::kK, Major::kMN>(out, query + m * kPanel, rounded + m * kPanel, m > 0);
      ptx::wgmma_commit();
    }
    keep_state(n, group, rounded, unit);  // under the product
    uint32_t values[16];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t four[4];
      load_left(four, ptx::shared_address(value), block, k, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) values[4 * k + i] = four[i];
    }
    const float read[2] = {tokens.read_key()[i0], tokens.read_key()[i0 + 8]},
                reciprocal[2] = {tokens.reciprocal()[i0], tokens.reciprocal()[i0 + 8]};
    ptx::wgmma_wait<kBehind>();
    ptx::fence_registers(x);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float2 v = unpack<Element>(values[i]);
      x[2 * i] = fmaf(v.x, reciprocal[i % 2], -read[i % 2] * x[2 * i]);
      x[2 * i + 1] = fmaf(v.y, reciprocal[i % 2], -read[i % 2] * x[2 * i + 1]);
    }
    put(value, x);
    ptx::fence_async_shared();
    load_blocks(left, chunk.inverse, block, lane);
    ptx::wgmma_wait<0>();
    if constexpr (kReads) ptx::fence_registers(out);
    if (n > 0 && arrives(lane)) {
      ptx::bulk_wait_read<1>();  // the chunk before's rows; this chunk's S may still be read
      ptx::mbarrier_arrive(&small().empty[at.index == 0 ? Shared::kStages - 1 : at.index - 1]);
    }
    sync();
    ptx::fence_registers(x);
    ptx::fence_registers(left);
    ptx::wgmma_fence();
    issue_product<__half, Major::kMN>(x, left, value, true);
    ptx::wgmma_commit();
    if constexpr (kReads) {
      const float* const read_state = small().units[at.index].read_state();
      scale_rows(out, read_state[i0], read_state[i0 + 8]);
    }
    scale_state(tokens.decay());
    unit = tokens.after();
    ptx::wgmma_wait<0>();
    ptx::fence_registers(x);
    ptx::fence_registers(left);
    wait_for_stores(lane);  // the rounded state has left
    {
      float weighted[32];
#pragma unroll
      for (int i = 0; i < 32; ++i) weighted[i] = x[i] * tokens.write()[i0 + i / 2 % 2 * 8];
      put(rounded, weighted);
    }
    ptx::fence_async_shared();
    sync();  // R's weighted rows are there, and X is read
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) ptx::fence_registers(sums_of(m));
    ptx::wgmma_fence();
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
      issue_product<__half, Major::kMN, Major::kMN>(sums_of(m), key + m * kPanel, rounded, true);
    ptx::wgmma_commit();
    put(value, x);
    ptx::fence_async_shared();
    keep_residual(n, group, value, reciprocal);
    if constexpr (kReads) {
      load_blocks(left, pairs(n), block, lane);
      sync();
      ptx::fence_registers(out);
      ptx::fence_registers(left);
      ptx::wgmma_fence();
      issue_product<__half, Major::kMN>(out, left, value, true);
      ptx::wgmma_commit();
    }
    ptx::wgmma_wait<kBehind>();
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) ptx::fence_registers(sums_of(m));
    measure(n + 1);
    ptx::wgmma_wait<0>();
    if constexpr (kReads) ptx::fence_registers(out);
    ptx::fence_registers(left);
    sync();  // all products have ended
    if constexpr (kReads) {
      scale_rows(out, out_unit(chunk)[i0], out_unit(chunk)[i0 + 8]);
      uint32_t packed[16];
      pack_sums<Element>(packed, out, 1.0f);
      if constexpr (kGroups > 1) wait_for_stores(lane);  // the residual has left
      store_rows_by_map(result, packed, p.maps[3], column, first_of(n), b, h, place);
    }
  }
  if (p.last) {
    scale_state(unit);
    state.store(p.last, p.rows, columns, place_of, block, lane);
  }
  if (lane == 0) ptx::bulk_wait<0>();
  if constexpr (!kReads) arrive_warp(&small().stored, lane);
}

}  // namespace lethe::matrix_state
