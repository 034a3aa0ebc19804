#pragma once
// The forward's softmax: one thread's work on its two rows of a block's logits, in the order of mma's accumulators.

#include <type_traits>

#include "optimized/cuda/arithmetic.cuh"
#include "optimized/cuda/gate/strong_gates.cuh"
#include "optimized/cuda/gate/switch.hpp"
#include "optimized/cuda/gate/visibility.hpp"

namespace lethe::tile {

inline constexpr float kRescaleAbove = 8;  // log₂, where the maximum is followed

// The bound of a row's sum of bfloat16 weights: below it they can be multiplied with values below 2²⁸ and summed in float.
inline constexpr float kLargestSum = 0x1p100f;

/// Keys of a forward's step: a block of the gate, or half of one where O leaves registers for no more.
template <int kDim>
inline constexpr int kStepKeys = kDim <= 128 ? 128 : 64;

// A thread's state of its two rows, and its part of S, P and O.
template <int kDim>
struct Rows {
  static constexpr int kLogits = kStepKeys<kDim> / 2;
  float x[kLogits];  // a step's logits in log₂, then their exponentials
  float output[kDim / 2];
  uint32_t weights[kLogits / 2];  // the exponentials, rounded
  float maximum[2], sum[2], shrink[2];
};

// A number for each of a thread's two rows.
struct OfRows {
  float row[2];
};

// S → x without its block's bias.
template <int kDim>
__device__ inline void scale_scores(Rows<kDim>& rows, float scale) {
#pragma unroll
  for (int i = 0; i < Rows<kDim>::kLogits; ++i) rows.x[i] *= scale;
}

// x_ij += log₂e·(c_i − c_j): decay[h] is the decay from before the block to a row, bias and rest are those of the step's keys.
template <int kDim>
__device__ inline void add_decay(Rows<kDim>& rows, const TwoFloats (&decay)[2], const float* bias, const float* rest) {
#pragma unroll
  for (int e = 0; e < Rows<kDim>::kLogits / 2; ++e) {
    const int column = e / 2 * 8 + threadIdx.x % 4 * 2 + e % 2;
    const float high = load_global(bias + column), low = rest ? load_global(rest + column) : 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) rows.x[4 * (e / 2) + 2 * h + e % 2] += (decay[h].high + high) + (decay[h].low + low);
  }
}

// The columns below `column`, as bits, among the columns of a step, at most 32, that a thread holds in one row.
__device__ inline uint32_t columns_below(int column) {
  const int from = column - threadIdx.x % 4 * 2;  // its columns are 0, 1, 8, 9, 16, …
  const int count = from <= 0 ? 0 : from / 8 * 2 + min(from % 8, 2);
  return count >= 32 ? ~0u : (1u << count) - 1;
}

/// Row h is at `position` + 8·h among the keys, `at(h)` its position where rows past the last query count as the last. A block that reaches
/// `across_a_cut` hides keys before a row's first. kPart: of the step's columns the first ones, which so many logits are of.
template <int kDim, int kPart = Rows<kDim>::kLogits, typename Cuts, typename PositionOf>
__device__ inline void mask(Rows<kDim>& rows, int first_column, int position, bool across_a_cut,
                            const Visibility<Cuts>& visibility, PositionOf at) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    uint32_t visible = columns_below(visibility.last_key(position + 8 * h) + 1 - first_column);
    if (kGate && across_a_cut) visible &= ~columns_below(visibility.first_key(at(h)) - first_column);
#pragma unroll
    for (int e = 0; e < kPart / 2; ++e)
      if (!(visible >> e & 1)) rows.x[4 * (e / 2) + 2 * h + e % 2] = -INFINITY;
  }
}

// Over the four lanes that share a row.
__device__ inline float largest_of_four(float value) {
  value = fmaxf(value, __shfl_xor_sync(~0u, value, 1));
  return fmaxf(value, __shfl_xor_sync(~0u, value, 2));
}
__device__ inline float sum_of_four(float value) {
  value += __shfl_xor_sync(~0u, value, 1);
  return value + __shfl_xor_sync(~0u, value, 2);
}

// Moves m where the block's maximum is above it by more than kRescaleAbove, and the sum with it. Returns whether a row of the warp moved. The first
// kPart logits are x times a scale above 0.
template <int kDim, int kPart = Rows<kDim>::kLogits>
__device__ inline bool follow_maximum(Rows<kDim>& rows, const OfRows& block_bias, float scale = 1) {
  bool moved = false;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float largest = fmaxf(rows.x[2 * h], rows.x[2 * h + 1]);
#pragma unroll
    for (int j = 1; j < kPart / 4; ++j)
      largest = fmaxf(largest, fmaxf(rows.x[4 * j + 2 * h], rows.x[4 * j + 2 * h + 1]));
    largest = largest_of_four(largest);
    // A NaN gate, which is in the block's number, must reach m, except in a row that is masked in the whole block.
    if (largest != -INFINITY) largest = largest * scale + block_bias.row[h];
    const float maximum = !(largest <= rows.maximum[h] + kRescaleAbove) ? largest : rows.maximum[h];
    moved |= maximum != rows.maximum[h];
    // a row may see nothing yet
    rows.shrink[h] = maximum == -INFINITY ? 1 : exp2_approximate(rows.maximum[h] - maximum);
    rows.sum[h] *= rows.shrink[h];
    rows.maximum[h] = maximum;
  }
  return __any_sync(~0u, moved);
}

// The offset of a row's logits in a block: its bias less m.
template <int kDim>
__device__ inline float offset_of(const Rows<kDim>& rows, int h, const OfRows& block_bias) {
  return rows.maximum[h] == -INFINITY ? 0 : block_bias.row[h] - rows.maximum[h];
}

// x → 2^(scale · x + offset). At head dim 64 one row after the other, above in register order: ptxas then lets most of them read the shared operand
// from the reuse cache (4 and 2 % faster than the opposite orders).
template <int kDim, int kPart = Rows<kDim>::kLogits>
__device__ inline void exponentiate(Rows<kDim>& rows, const float (&offset)[2], float scale = 1) {
  constexpr int kRow = kPart / 2;
#pragma unroll
  for (int i = 0; i < kPart; ++i) {
    const int e = kDim == 64 ? i % kRow / 2 * 4 + i / kRow * 2 + i % 2 : i, h = e / 2 % 2;
    rows.x[e] = exp2_approximate(fmaf(rows.x[e], scale, offset[h]));
    rows.sum[h] += rows.x[e];
  }
}

/// The same where row h sees of a step's columns those of `visible[h]`, as bits: x = 0 elsewhere, whatever its logit and offset.
template <int kDim>
__device__ inline void exponentiate_visible(Rows<kDim>& rows, const float (&offset)[2], float scale,
                                            const uint32_t (&visible)[2]) {
#pragma unroll
  for (int i = 0; i < Rows<kDim>::kLogits; ++i) {
    const int e = kDim == 64 ? i % 32 / 2 * 4 + i / 32 * 2 + i % 2 : i, h = e / 2 % 2, column = e / 4 * 2 + e % 2;
    const float weight = exp2_approximate(fmaf(rows.x[e], scale, offset[h]));  // in any case: a branch serialises wgmma
    rows.x[e] = visible[h] >> column & 1 ? weight : 0;
    rows.sum[h] += rows.x[e];
  }
}

template <typename Element, int kDim>
__device__ inline void pack_weights(Rows<kDim>& rows) {
#pragma unroll
  for (int i = 0; i < Rows<kDim>::kLogits / 2; ++i) rows.weights[i] = pack<Element>(rows.x[2 * i], rows.x[2 * i + 1]);
}

// Whether a row's weights are within their format, and the sums of their products within float's. Before the last block's are multiplied;
// `multiplied`: some are. A float16 that overflowed is infinite, and every column of O is then infinite or NaN: one is tested.
template <typename Element, int kDim>
__device__ inline bool weights_fit(const Rows<kDim>& rows, bool multiplied) {
  if constexpr (std::is_same_v<Element, __half>) {
    __half2 largest = __float2half2_rn(0);
#pragma unroll
    for (const uint32_t pair : rows.weights) largest = __hmax2(largest, halves(pair));
    const float2 both = __half22float2(largest);
    return both.x < INFINITY && both.y < INFINITY &&
           (!multiplied || (isfinite(rows.output[0]) && isfinite(rows.output[2])));
  } else {
    return rows.sum[0] < kLargestSum && rows.sum[1] < kLargestSum;
  }
}

}  // namespace lethe::tile
