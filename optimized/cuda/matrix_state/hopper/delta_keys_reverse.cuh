#pragma once
// The gradients of the state and of what each token wrote, as delta_keys_reverse.cuh, by wgmma: see delta_keys_warpgroups.cuh.

#include "optimized/cuda/matrix_state/hopper/delta_keys_warpgroups.cuh"

namespace lethe::matrix_state {

template <typename Element, int kRows>
struct DeltaKeyWarpgroupReverse : DeltaKeyWarpgroups<Element, kRows, false, true> {
  using Base = DeltaKeyWarpgroups<Element, kRows, false, true>;
  using Base::p, Base::lane, Base::fence, Base::each_token;
  using typename Base::Stage;

  /// A lane's words of the residuals of 16 tokens: no other thread's, so that each waits for its own copies alone.
  __device__ __forceinline__ uint32_t residual_at(int k) const {
    return ptx::shared_address(this->memory) + kDeltaKeyWarpgroupBytes<kRows, true> + (this->warp * kWarps + k) * 512 +
           lane * 16;
  }
  /// Begins to bring them, in a group of copies: in registers from here on, they would be loaded where they are used.
  __device__ __forceinline__ void fetch_residual(int64_t kept) const {
#pragma unroll
    for (int k = 0; k < kWarps; ++k)
      ptx::copy_chunk(residual_at(k), p.arrays.residual + (kept * kWarps + k) * 32 + lane);
    ptx::copies_commit();
  }

  __device__ __forceinline__ void reverse(int n) {
    const int chunk = p.chunks - 1 - n;
    const char* const stage = this->stage(n);
    const auto floats = [&](int offset) { return reinterpret_cast<const float*>(stage + offset); };
    const float* const key_units = floats(Stage::kKeyUnits);
    const float* const beta = floats(Stage::kBeta);
    const int64_t kept = this->kept(chunk);
    ColumnSums x, of_pairs = {};
    uint32_t left[kRows / 16][4];
    const float unit = this->round_state(left);
    ptx::undefined(flat(x));
    fence(x, left);
    ptx::wgmma_fence();
    this->issue_read(x, left, stage + Stage::Record::kWriteKey);
    ptx::wgmma_commit();
    // While products run.
    fetch_residual(kept);
    this->copy(n + 1, chunk - 1);
    this->keep(p.arrays.after, p.arrays.after_unit, left, unit, chunk);
    // Read twice: there are no registers to keep it.
    const auto read_gradient = [&](ColumnSums& to) {
      this->each_value(ptx::shared_address(stage + Stage::kValue),
                       [&](int i, int e, float value) { to[i][e] = value; });
    };
    ColumnSums gradient;
    read_gradient(gradient);
    ColumnOperands operands(gradient);
    constexpr bool kTwoParts = std::is_same_v<Element, __half>;  // a number of bfloat16 has no low part
    fence(of_pairs, operands.high);
    if constexpr (kTwoParts) fence(operands.low);
    ptx::wgmma_fence();
    this->template issue_lower_transposed<kTwoParts>(of_pairs, operands, stage + Stage::kPairs);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    fence(x, left, operands.high);
    if constexpr (kTwoParts) fence(operands.low);
    fence(of_pairs);
    each_token(key_units, [&](int i, int e, float factor) { x[i][e] = fmaf(x[i][e], factor * unit, of_pairs[i][e]); });
    {
      ColumnSums weighted;
      each_token(beta, [&](int i, int e, float factor) { weighted[i][e] = x[i][e] * factor; });
      operands = ColumnOperands(weighted);
    }
    fence(x, operands.high, operands.low);
    ptx::wgmma_fence();
    this->template issue_lower_transposed<true>(x, operands, stage + Stage::kInverse);
    ptx::wgmma_commit();
    this->publish(n);  // while products run: it waits for earlier stores
    ptx::wgmma_wait<0>();
    fence(x, operands.high, operands.low);
    // The gradient of β: of the lane's two columns, tokens 8i + 2t and the next.
    const float residual_unit = p.arrays.residual_unit[kept];
    ptx::copies_wait<0>();
    float2 strength[8];
    uint4 four;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i % 2 == 0) four = ptx::load_words(residual_at(i / 2));
      const float2 near = unpack<__half>(i % 2 ? four.z : four.x), far = unpack<__half>(i % 2 ? four.w : four.y);
      strength[i] = {x[i][0] * near.x + x[i][2] * far.x, x[i][1] * near.y + x[i][3] * far.y};
    }
    each_token(beta, [&](int i, int e, float factor) { x[i][e] *= factor; });
    typename Base::PackedColumns packed;
    this->pack_sums(packed, x);
    uint32_t added_left[2][kWarps][4];
    const WarpUnit written(largest_of(x));
    pack_columns(added_left[0], x, written.inverse);
    this->keep(p.arrays.written, p.arrays.written_unit, added_left[0], written.unit, chunk);
    read_gradient(gradient);
    each_token(floats(Stage::kQueryUnits), [&](int i, int e, float factor) { gradient[i][e] *= factor; });
    each_token(key_units, [&](int i, int e, float factor) { x[i][e] *= -factor; });
    const WarpUnit added_unit(fmaxf(largest_of(x), largest_of(gradient)));
    pack_columns(added_left[0], x, added_unit.inverse);
    pack_columns(added_left[1], gradient, added_unit.inverse);
    typename Base::Added added;
    for (ColumnSums& sums : added) {
      ptx::undefined(flat(sums));
      fence(sums, added_left[0], added_left[1]);
    }
    ptx::wgmma_fence();
    this->template issue_added<2>(added, added_left, {stage + Stage::Record::kReadKey, stage + Stage::Record::kQuery});
    ptx::wgmma_commit();
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int step = 4; step < 32; step *= 2) {
        strength[i].x += __shfl_xor_sync(kAllLanes, strength[i].x, step);
        strength[i].y += __shfl_xor_sync(kAllLanes, strength[i].y, step);
      }
    this->store(packed, chunk);
    if (lane < 4)
#pragma unroll
      for (int i = 0; i < 8; ++i)
        *reinterpret_cast<float2*>(p.arrays.strength + kept * kChunk + 8 * i + 2 * lane) = {
            strength[i].x * residual_unit, strength[i].y * residual_unit};
    this->decay(floats(Stage::kTotals));
    ptx::wgmma_wait<0>();
    for (ColumnSums& sums : added) fence(sums, added_left[0], added_left[1]);
    this->add(added, added_unit.unit);
  }
};

/// Bytes of its shared memory: the sweep's, and residuals of 128 columns by 64 tokens.
template <int kRows>
inline constexpr int kDeltaKeyReverseBytes = kDeltaKeyWarpgroupBytes<kRows, true> + 2 * kPanel;

/// As reverse_delta_keys of 128 columns.
template <typename Element, int kRows>
__global__ void __launch_bounds__(256, 1) reverse_delta_keys_by_warpgroups(const __grid_constant__ DeltaKeyArguments p,
                                                                           const __grid_constant__ CUtensorMap values) {
  extern __shared__ __align__(1024) char memory[];
  DeltaKeyWarpgroupReverse<Element, kRows> call{
      {delta_key_sweep_of<DeltaKeySweep<Element, kRows, 128, false, true>>(p, memory, 128), values}};
  call.begin();
  wait_for_previous_kernel();
  let_next_kernel_start();
  call.copy(0, p.chunks - 1);
  call.each_of_state(
      [&](float& number, bool inside, int64_t at) { number = p.initial && inside ? p.initial[at] : 0.0f; });
  for (int n = 0; n < p.chunks; ++n) {
    call.meet(n);
    call.reverse(n);
  }
  __syncthreads();
  call.publish(p.chunks);
  if (!p.last) return;
  call.each_of_state([&](float& number, bool inside, int64_t at) {
    if (inside) p.last[at] = number;
  });
}

}  // namespace lethe::matrix_state
