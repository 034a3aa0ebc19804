#pragma once
// The delta rule's gradients from the last token back by wgmma, for a state of at most 128 rows: a CTA sweeps a head and kGroups times 64 columns of the
// gradient R of the state, in chunks of 64 tokens.
//
//   dN = scale · Pᵀ dO + (D_C ∘ K) R      dN̄ = dN − Wᵀ (β ∘ dN)      dV = β ∘ dN̄
//   R ← γ_C R + scale · (γ ∘ Q)ᵀ dO − (γ ∘ K)ᵀ dV
//
// dN is the gradient of what is written where later tokens of the chunk keep theirs, dN̄ the whole one, which delta_gradients.cuh reads.
//
//   warp 0         tiles of a chunk, its Wᵀ, its gates and strengths                                     → full
//   warps 2, 3     make the rows of Q and dO float16                                                     → rows
//   warp 1         units                                                                                 → weighed
//   warpgroup 1    makes the rows of K float16; Pᵀ = K Qᵀ; weights Pᵀ, Wᵀ and Q by units                 → prepared
//   warpgroup 2…   R, rounded, to shared memory; the equations                                           → measured, empty
//
// Of float16 P is Q Kᵀ, and warpgroup 1 makes A of it and both parts of W when Wᵀ and Q are prepared, → folded (delta_folded.cuh). Aᵀ dO is what dN̄ has of later
// tokens, so Wᵀ is multiplied with (D_C ∘ K) R alone.
//
// All that becomes float16 is divided by the units of delta_back_units.cuh. What dV's rows are multiplied with lies over the rounded R, and dV where that has
// two blocks over dO: a stage is empty there when dV has left, during the next chunk.

#include "optimized/cuda/launch.cuh"
#include "optimized/cuda/matrix_state/delta_state.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_back_roles.cuh"

namespace lethe::matrix_state {

/// This warp's rows of R after a chunk, and what it is divided by.
template <typename Element, int kBlocks, int kGroups>
__device__ __forceinline__ void DeltaBackSweep<Element, kBlocks, kGroups>::keep_state(int n, int group,
                                                                                      const char* rounded,
                                                                                      float unit) const {
  const int64_t to = kept_tile(n, group);
  store_images<kBlocks>(p.arrays.after + to * (kBlocks * kPanel / 16), rounded, block, lane);
  if (threadIdx.x % kComputing == 0) p.arrays.after_unit[to] = unit;
}

/// A warpgroup: all rows of 64 columns of R.
template <typename Element, int kBlocks, int kGroups>
__device__ __forceinline__ void DeltaBackSweep<Element, kBlocks, kGroups>::sweep(int group) const {
  using ptx::Major;
  const Place place{block, lane};
  const int i0 = 16 * block + lane / 4, column = 64 * (tile + group), columns = min(64, p.columns - column);
  const auto place_of = [&](int row, int c) { return (int64_t{1} * head * p.rows + row) * p.columns + column + c; };
  char* const rounded = memory + Shared::kState + group * kBlocks * kPanel;
  char* const rows = memory + Shared::kRows + group * kPanel;
  const auto sync = [&] { ptx::named_barrier_sync(kStateBarrier + group, kComputing); };

  DeltaState<64 * kBlocks> state;  // divided by units that prepare() knows
  state.load(p.initial, p.rows, columns, place_of, block, lane);
  const auto sums_of = [&](int m) -> float(&)[32] { return reinterpret_cast<float(&)[32]>(state.x[m]); };
  const auto fence_state = [&] {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) ptx::fence_registers(sums_of(m));
  };
  const auto scale_state = [&](float factor) {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) scale_rows(sums_of(m), factor, factor);
  };
  // Of R after the n-th chunk.
  const auto measure = [&](int n) {
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
  float unit = 1.0f;  // of R
  ptx::RingPosition at;
  for (int n = 0; n < p.chunks; ++n, at.advance(Shared::kStages)) {
    DeltaBackTokens& tokens = small().tokens[at.index];
    char* const query = stage(at.index);
    const char* const key = keys(n);
    char* const gradient = query + Shared::kGradient + group * kPanel;
    char* const result = Shared::kEarly ? memory + Shared::kResult + group * kPanel : gradient;
    if (n == 0) {
      ptx::mbarrier_wait(&small().prepared[0], 0);
      scale_state(small().first_reciprocal);
      unit = reciprocal_of_power(small().first_reciprocal);
    }
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) put(rounded + m * kPanel, sums_of(m));
    ptx::mbarrier_wait(&small().full[at.index], at.parity);
    ptx::mbarrier_wait(&small().prepared[at.index], at.parity);
    uint32_t left[16];
    if constexpr (!kFolds<Element>) load_blocks(left, pairs(n), block, lane);
    scale_state(small().decay[at.index]);
    ptx::fence_async_shared();
    sync();
    // K R, Pᵀ dO where P is not folded, and what the queries add to R.
    float x[32];
    [[maybe_unused]] float y[32];
    ptx::undefined(x);
    ptx::fence_registers(x);
    if constexpr (!kFolds<Element>) {
      ptx::undefined(y);
      ptx::fence_registers(y);
      ptx::fence_registers(left);
    }
    fence_state();
    ptx::wgmma_fence();
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
      issue_product<__half, Major::kK, Major::kMN>(x, key + m * kPanel, rounded + m * kPanel, m > 0);
    if constexpr (!kFolds<Element>) issue_product<__half, Major::kMN>(y, left, gradient, false);
    ptx::wgmma_commit();
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
      issue_product<__half, Major::kMN, Major::kMN>(sums_of(m), query + m * kPanel, gradient, true);
    ptx::wgmma_commit();
    keep_state(n, group, rounded, unit);
    unit = small().next[at.index];
    const float read[2] = {tokens.read_key()[i0], tokens.read_key()[i0 + 8]};
    ptx::wgmma_wait<1>();
    ptx::fence_registers(x);
    if constexpr (kFolds<Element>) {
      scale_rows(x, read[0], read[1]);
    } else {
      ptx::fence_registers(y);
      ptx::fence_registers(left);
#pragma unroll
      for (int i = 0; i < 32; ++i) x[i] = fmaf(read[i / 2 % 2], x[i], y[i]);
    }
    if (arrives(lane)) {
      ptx::bulk_wait_read<1>();  // dN̄ and dV of the chunk before have left; this chunk's R may still be read
      if (!Shared::kEarly && n > 0)
        ptx::mbarrier_arrive(&small().empty[at.index == 0 ? Shared::kStages - 1 : at.index - 1]);
    }
    __syncwarp();
    put(rows, x);
    load_blocks(left, solved(at.index).inverse, block, lane);
    [[maybe_unused]] uint32_t of_later[16];
    if constexpr (kFolds<Element>) {
      ptx::mbarrier_wait(folded(n), static_cast<uint32_t>(n) / 2 % 2);
      load_blocks(of_later, pairs(n), block, lane);
    }
    ptx::fence_async_shared();
    sync();
    ptx::fence_registers(x);
    ptx::fence_registers(left);
    if constexpr (kFolds<Element>) ptx::fence_registers(of_later);
    ptx::wgmma_fence();
    issue_product<__half, Major::kMN>(x, left, rows, true);
    if constexpr (kFolds<Element>) issue_product<__half, Major::kMN>(x, of_later, gradient, true);
    ptx::wgmma_commit();
    const float write[2] = {tokens.write()[i0], tokens.write()[i0 + 8]},
                strength[2] = {tokens.strength()[i0], tokens.strength()[i0 + 8]};
    ptx::wgmma_wait<0>();
    ptx::fence_registers(x);
    ptx::fence_registers(left);
    if constexpr (kFolds<Element>) ptx::fence_registers(of_later);
    fence_state();
    if constexpr (Shared::kEarly) arrive_warp(&small().empty[at.index], lane);
    wait_for_stores(lane);  // the rounded R has left
    {
      float weighted[32];
#pragma unroll
      for (int i = 0; i < 32; ++i) weighted[i] = x[i] * write[i / 2 % 2];
      put(rounded, weighted);
    }
    ptx::fence_async_shared();
    sync();  // dV's weighted rows are there, and dN's are read
    fence_state();
    ptx::wgmma_fence();
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
      issue_product<__half, Major::kMN, Major::kMN>(sums_of(m), key + m * kPanel, rounded, true);
    ptx::wgmma_commit();
    put(rows, x);
    scale_rows(x, strength[0], strength[1]);
    uint32_t packed[16];
    pack_sums<Element>(packed, x, 1.0f);
    store_rows_by_map(result, packed, p.maps[3], column, first_of(n), b, h, place);
    store_images<1>(p.arrays.written + kept_tile(n, group) * (kPanel / 16), rows, block, lane);
    ptx::wgmma_wait<0>();
    fence_state();
    if (lane == 0) ptx::bulk_wait<3>();  // what the chunk before has stored is there
    measure(n + 1);
    sync();  // all products have ended
  }
  if (lane == 0) ptx::bulk_wait<0>();
  arrive_warp(&small().stored, lane);
  if (p.last) {
    scale_state(unit);
    state.store(p.last, p.rows, columns, place_of, block, lane);
  }
}

template <typename Element, int kBlocks, int kGroups>
__global__ void __launch_bounds__(DeltaBackShared<kBlocks, kGroups>::kThreads,
                                  DeltaBackShared<kBlocks, kGroups>::kTogether)
    delta_back_sweep(const __grid_constant__ DeltaSweepArguments p) {
  using Shared = DeltaBackShared<kBlocks, kGroups>;
  extern __shared__ __align__(1024) char memory[];
  const int warp = ptx::in_uniform_register(threadIdx.x / 32), ctas = delta_ctas(p.columns, kGroups),
            head = static_cast<int>(blockIdx.x) / ctas;
  const DeltaBackSweep<Element, kBlocks, kGroups> call{p,
                                                       memory,
                                                       warp % kWarps,
                                                       static_cast<int>(threadIdx.x % 32),
                                                       head / p.heads,
                                                       head % p.heads,
                                                       head,
                                                       static_cast<int>(blockIdx.x) % ctas * kGroups};
  run_roles<Shared>(call, warp / kWarps);
}

}  // namespace lethe::matrix_state
