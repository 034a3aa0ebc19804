#pragma once
// delta_state's values from prepared chunks, as delta_keys_sweep.cuh, by wgmma: see delta_keys_warpgroups.cuh.

#include "optimized/cuda/matrix_state/hopper/delta_keys_warpgroups.cuh"

namespace lethe::matrix_state {

template <typename Element, int kRows, bool kKeeps>
struct DeltaKeyWarpgroupSweep : DeltaKeyWarpgroups<Element, kRows, kKeeps, false> {
  using Base = DeltaKeyWarpgroups<Element, kRows, kKeeps, false>;
  using Base::p, Base::lane, Base::fence, Base::each_token;
  using typename Base::Stage;

  __device__ __forceinline__ static void reverse(ColumnSums& to, const ColumnSums& from) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) to[i][e] = from[7 - i][e];
  }

  /// A number each of tokens 8i + 2t and the next, for all of a chunk.
  using TokenFactors = float2[8];
  __device__ __forceinline__ void load_factors(TokenFactors& to, const float* factors) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) to[i] = *reinterpret_cast<const float2*>(&factors[8 * i + lane % 4 * 2]);
  }
  template <typename Use>
  __device__ __forceinline__ static void each_factor(const TokenFactors& factors, const Use& use) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) use(i, e, e % 2 ? factors[i].y : factors[i].x);
  }

  /// Begins to bring chunk n, when it is prepared and its stage has been read: the warps that copy. The others need not wait for either.
  __device__ __forceinline__ void bring(int& prepared, int n) const {
    if (n >= p.chunks || (!kKeeps && this->warp > 0)) return;
    this->await(prepared, n);
    if (n >= 2)
      ptx::mbarrier_wait(this->empty(n), n / 2 % 2 ^ 1);  // of chunk n − 2; the next phase is ended by this warp too
    this->copy(n, n);
  }

  /// Chunk n; while its products run, the next one is brought.
  __device__ __forceinline__ void sweep(int n, int& prepared) {
    const char* const stage = this->stage(n);
    const auto floats = [&](int offset) { return reinterpret_cast<const float*>(stage + offset); };
    ColumnSums last_first, out_last_first;  // of the last tokens first
    uint32_t left[kRows / 16][4];
    const float unit = this->round_state(left);
    ptx::undefined(flat(last_first));
    fence(last_first, left);
    if constexpr (!kKeeps) {
      ptx::undefined(flat(out_last_first));
      fence(out_last_first);
    }
    ptx::wgmma_fence();
    this->issue_read(last_first, left, stage + Stage::Record::kReadKey);
    ptx::wgmma_commit();
    if constexpr (!kKeeps) {
      this->issue_read(out_last_first, left, stage + Stage::Record::kQuery);
      ptx::wgmma_commit();
    }
    bring(prepared, n + 1);
    if constexpr (kKeeps) this->keep(p.arrays.before, p.arrays.before_unit, left, unit, p.first_chunk + n);
    // What the products meet is read while they run.
    TokenFactors key_units, beta;
    load_factors(key_units, floats(Stage::kKeyUnits));
    load_factors(beta, floats(Stage::kBeta));
    ColumnSums x;
    this->each_value(ptx::shared_address(stage + Stage::kValue), [&](int i, int e, float value) { x[i][e] = value; });
    ptx::wgmma_wait<kKeeps ? 0 : 1>();
    fence(last_first);
    each_factor(key_units, [&](int i, int e, float factor) {
      last_first[7 - i][e] = fmaf(last_first[7 - i][e], -factor * unit, x[i][e]);
    });
    each_factor(beta, [&](int i, int e, float factor) { x[i][e] = last_first[7 - i][e] * factor; });
    ColumnOperands operands(x);
    fence(last_first, operands.high, operands.low);
    ptx::wgmma_fence();
    this->issue_lower(last_first, operands, stage + Stage::kInverse);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    fence(last_first, left, operands.high, operands.low);
    reverse(x, last_first);
    uint32_t written[1][kWarps][4];
    if constexpr (kKeeps) {
      const WarpUnit of_residual(largest_of(x));
      pack_columns(written[0], x, of_residual.inverse);
      this->keep(p.arrays.residual, p.arrays.residual_unit, written[0], of_residual.unit, p.first_chunk + n);
    }
    each_factor(beta, [&](int i, int e, float factor) { x[i][e] *= factor; });
    if constexpr (!kKeeps) {
      fence(out_last_first);
      each_token(floats(Stage::kQueryUnits),
                 [&](int i, int e, float factor) { out_last_first[7 - i][e] *= factor * unit; });
      operands = ColumnOperands(x);
      fence(out_last_first, operands.high, operands.low);
      ptx::wgmma_fence();
      this->issue_lower(out_last_first, operands, stage + Stage::kPairs);
      ptx::wgmma_commit();
    }
    each_factor(key_units, [&](int i, int e, float factor) { x[i][e] *= factor; });
    const WarpUnit written_unit(largest_of(x));
    pack_columns(written[0], x, written_unit.inverse);
    typename Base::Added added;
    for (ColumnSums& sums : added) {
      ptx::undefined(flat(sums));
      fence(sums, written[0]);
    }
    ptx::wgmma_fence();
    this->template issue_added<1>(added, written, {stage + Stage::Record::kWriteKey});
    ptx::wgmma_commit();
    this->decay(floats(Stage::kTotals));
    if constexpr (!kKeeps) {
      ptx::wgmma_wait<1>();
      fence(out_last_first, operands.high, operands.low);
      ColumnSums out;
      reverse(out, out_last_first);
      this->store(out, n);
    }
    ptx::wgmma_wait<0>();
    for (ColumnSums& sums : added) fence(sums, written[0]);
    this->add(added, written_unit.unit);
    arrive_warp(this->empty(n), lane);  // what it has read is in use
  }
};

/// As sweep_delta_keys of 128 columns.
template <typename Element, int kRows, bool kKeeps>
__global__ void __launch_bounds__(256, 1) sweep_delta_keys_by_warpgroups(const __grid_constant__ DeltaKeyArguments p,
                                                                         const __grid_constant__ CUtensorMap values) {
  extern __shared__ __align__(1024) char memory[];
  DeltaKeyWarpgroupSweep<Element, kRows, kKeeps> call{
      {delta_key_sweep_of<DeltaKeySweep<Element, kRows, 128, kKeeps>>(p, memory, 128), values}};
  call.begin();
  if (!p.prepared) wait_for_previous_kernel();
  let_next_kernel_start();
  if constexpr (kKeeps) call.publish(0);
  int prepared = 0;  // by what the warp has seen
  call.bring(prepared, 0);
  call.each_of_state(
      [&](float& number, bool inside, int64_t at) { number = p.initial && inside ? p.initial[at] : 0.0f; });
  for (int n = 0; n < p.chunks; ++n) {
    ptx::mbarrier_wait(call.full(n), n / 2 % 2);
    call.sweep(n, prepared);
  }
  if (p.last)
    call.each_of_state([&](float& number, bool inside, int64_t at) {
      if (inside) p.last[at] = number;
    });
  if (p.prepared) end_after_previous_kernel();
}

}  // namespace lethe::matrix_state
