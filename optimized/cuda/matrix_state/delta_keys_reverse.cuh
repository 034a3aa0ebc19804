#pragma once
// From the last chunk back, the gradients of the state and of what each token wrote, by 16 columns a warp as in delta_keys_sweep.cuh. With R the
// gradient of the state after a chunk, and dN̄ that of N where later tokens of the chunk have taken their share:
//
//   dN = scale · Pᵀ dO + (D_C ∘ K) R       dN̄ = dN − Wᵀ (β ∘ dN)       dV = β ∘ dN̄
//   R ← γ_C ∘ R + scale · (γ ∘ Q)ᵀ dO − (γ ∘ K)ᵀ dV                    dβ = Σ over columns of dN̄ times the residual

#include <type_traits>

#include "optimized/cuda/matrix_state/delta_keys_sweep.cuh"

namespace lethe::matrix_state {

template <typename Element, int kRows, int kWidth>
struct DeltaKeyReverse : DeltaKeySweep<Element, kRows, kWidth, false, true> {
  using Sweep = DeltaKeySweep<Element, kRows, kWidth, false, true>;
  using Sweep::p, Sweep::memory, Sweep::lane;
  using typename Sweep::Memory, typename Sweep::Record;

  __device__ __forceinline__ void reverse(int n) {
    const int chunk = p.chunks - 1 - n;
    const char* const stage = memory + n % 2 * Memory::kStage;
    const uint32_t tiles = ptx::shared_address(stage);
    const auto floats = [&](int offset) { return reinterpret_cast<const float*>(stage + offset); };
    const float* const key_units = floats(Record::kKeyUnits);
    const float* const beta = floats(Record::kBeta);
    uint4 residual[kWarps];
    const int64_t kept = this->kept(chunk);
#pragma unroll
    for (int k = 0; k < kWarps; ++k) residual[k] = p.arrays.residual[(kept * kWarps + k) * 32 + lane];
    const float residual_unit = p.arrays.residual_unit[kept];

    ColumnSums x = {}, gradient;
    {
      uint32_t left[kRows / 16][4];
      const float unit = this->round_state(left);
      this->keep(p.arrays.after, p.arrays.after_unit, left, unit, chunk);
      this->read_state(x, left, tiles + Record::kWriteKey);
      this->each_token(key_units, [&](int i, int e, float factor) { x[i][e] *= factor * unit; });
    }
    this->each_value(tiles + Memory::kValue, [&](int i, int e, float value) { gradient[i][e] = value; });
    ColumnOperands(gradient).template multiply_transposed<std::is_same_v<Element, __half>>(x, tiles + Record::kPairs,
                                                                                           lane);
    {
      ColumnSums weighted;
      this->each_token(beta, [&](int i, int e, float factor) { weighted[i][e] = x[i][e] * factor; });
      ColumnOperands(weighted).template multiply_transposed<true>(x, tiles + Record::kInverse, lane);
    }
    // The gradient of β: lane g of t has token 8i + 2t + e of its tile in the sums over its columns, and those of the other lanes of t.
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint4& four = residual[i / 2];
      const float2 near = unpack<__half>(i % 2 ? four.z : four.x), far = unpack<__half>(i % 2 ? four.w : four.y);
      float first = x[i][0] * near.x + x[i][2] * far.x, second = x[i][1] * near.y + x[i][3] * far.y;
#pragma unroll
      for (int step = 4; step < 32; step *= 2) {
        first += __shfl_xor_sync(kAllLanes, first, step);
        second += __shfl_xor_sync(kAllLanes, second, step);
      }
      if (lane < 4)
        *reinterpret_cast<float2*>(p.arrays.strength + kept * kChunk + 8 * i + 2 * lane) = {first * residual_unit,
                                                                                            second * residual_unit};
    }
    this->each_token(beta, [&](int i, int e, float factor) { x[i][e] *= factor; });
    this->store(x, chunk);
    uint32_t left[2][kWarps][4];
    const WarpUnit written(largest_of(x));
    pack_columns(left[0], x, written.inverse);
    this->keep(p.arrays.written, p.arrays.written_unit, left[0], written.unit, chunk);
    this->each_token(key_units, [&](int i, int e, float factor) { x[i][e] *= -factor; });
    this->each_token(floats(Record::kQueryUnits), [&](int i, int e, float factor) { gradient[i][e] *= factor; });
    const WarpUnit added(fmaxf(largest_of(x), largest_of(gradient)));
    pack_columns(left[0], x, added.inverse);
    pack_columns(left[1], gradient, added.inverse);
    this->template update_state<2>(left, {tiles + Record::kReadKey, tiles + Record::kQuery}, floats(Record::kTotals),
                                   added.unit);
  }
};

/// `value`, `out`, `initial` and `last` are the gradient of the values, that of the value, of the last state and of the initial one.
template <typename Element, int kRows, int kWidth>
__global__ void __launch_bounds__(2 * kWidth, kRows + kWidth == 128 ? 2 : 1)
    reverse_delta_keys(const __grid_constant__ DeltaKeyArguments p) {
  extern __shared__ __align__(1024) char memory[];
  using Reverse = DeltaKeyReverse<Element, kRows, kWidth>;
  Reverse call{delta_key_sweep_of<typename Reverse::Sweep>(p, memory, kWidth)};
  wait_for_previous_kernel();
  let_next_kernel_start();
  call.copy(0, p.chunks - 1);
  call.each_of_state(
      [&](float& number, bool inside, int64_t at) { number = p.initial && inside ? p.initial[at] : 0.0f; });
  for (int n = 0; n < p.chunks; ++n) {
    ptx::copies_wait<0>();
    __syncthreads();  // this chunk is there, and no warp reads the one before
    call.copy(n + 1, p.chunks - 2 - n);
    call.publish(n);
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
