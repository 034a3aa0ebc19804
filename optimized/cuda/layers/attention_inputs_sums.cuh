#pragma once
// The query's gradient from the float sums that attention's backward leaves in the order of its tiles. Internal to optimized/cuda/layers.

#include "optimized/cuda/layers/attention_inputs_pieces.cuh"
#include "optimized/cuda/query_sums.hpp"

namespace lethe::layers::attention_inputs_kernels {

constexpr int kSumTokens = 32;  // of a warp's chunk: the plan's chunks have fewer, so that its groups hold these too
constexpr int kPairTokens = 8;  // between the two tokens that share 16 bytes

// A thread's columns of the tokens t and t + 8, as they arrive: 64 bytes of sums.
template <typename T>
struct TokenPair {
  float4 sums[2][2];          // of each half of the head: two of its columns, of both tokens
  Piece<T, kHalf> x[2][2];    // of each token, each half
  float4 cosine[2], sine[2];  // of each token

  template <int kLanes, bool kNormed, bool kRotated>
  __device__ void load(const AttentionInputs& call, const HeadRows& part, const Chunk& chunk, const Columns<kLanes>& at,
                       const float* head_sums, int t) {
    constexpr int kPanels = kLanes / 8,
                  kHalfLanes = 8 / kPanels;  // lanes of a half: eight of one panel, or four of both halves' panel
    const float* slice = head_sums + int64_t{t / 64} * kPanels * kSliceFloats;
    const int of_token = t % 64 / 16 * 128 + t % 8 * 16 + at.lane % 2 * 8;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float* eight =
          slice + (kPanels == 2 ? half * kSliceFloats : half * kHalfLanes / 2 * 512) + at.lane / 2 * 512;
#pragma unroll
      for (int i = 0; i < 2; ++i)
        sums[half][i] = at.active ? reinterpret_cast<const float4*>(eight + of_token)[i] : float4{};
    }
#pragma unroll
    for (int token = 0; token < 2; ++token) {
      const int own = t + token * kPairTokens;
      const bool inside = own < chunk.end;
      if (kNormed)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          x[token][half] = load_if<kHalf>(
              inside && at.active, pointer<T>(part.product, chunk.first + own, at.column) + half * (kLanes * kHalf));
      if (kRotated) {
        const int64_t angle = int64_t{own} * kLanes + at.lane;
        cosine[token] = inside ? static_cast<const float4*>(call.cosine)[angle] : float4{};
        sine[token] = inside ? static_cast<const float4*>(call.sine)[angle] : float4{};
      }
    }
  }
};

template <typename T, int kLanes, bool kNormed, bool kRotated>
__device__ void gradients_of_token_pairs(const AttentionInputs& call, const HeadRows& part, const Chunk& chunk,
                                         unsigned slice, float (&grad_norm)[kColumns]) {
  const Columns<kLanes> at(call, slice);
  const QuerySums& sums = part.grad_sums;
  const float* head_sums = sums.data + (chunk.first / call.length * call.heads + at.head) * sums.slices * kSliceFloats;
  float weights[kColumns];
  if (kNormed) load_weights(part, at, weights);
  const auto token_of = [&](int pair) {
    return chunk.begin + pair / kPairTokens * 2 * kPairTokens + pair % kPairTokens;
  };
  TokenPair<T> next;
  next.template load<kLanes, kNormed, kRotated>(call, part, chunk, at, head_sums, chunk.begin);
#pragma unroll 1
  for (int pair = 0; token_of(pair) < chunk.end; ++pair) {
    const TokenPair<T> now = next;
    const int t = token_of(pair), after = token_of(pair + 1);
    if (after < chunk.end) next.template load<kLanes, kNormed, kRotated>(call, part, chunk, at, head_sums, after);
#pragma unroll
    for (int token = 0; token < 2; ++token) {
      const int own = t + token * kPairTokens;
      const bool inside = own < chunk.end;
      float dx[kColumns], x[kColumns];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float4 both = now.sums[half][i];
          dx[half * kHalf + 2 * i] = sums.scale * (token ? both.z : both.x);
          dx[half * kHalf + 2 * i + 1] = sums.scale * (token ? both.w : both.y);
        }
        float numbers[kHalf];
        if (kNormed) widen(now.x[token][half], numbers);
#pragma unroll
        for (int i = 0; kNormed && i < kHalf; ++i) x[half * kHalf + i] = numbers[i];
      }
      if (kRotated) rotate_by(now.cosine[token], now.sine[token], true, dx);
      if (kNormed) through_norm<kLanes>(call, x, weights, inside, dx, grad_norm);
      if (inside && at.active) store_columns<kLanes>(dx, pointer<T>(part.grad_product, chunk.first + own, at.column));
    }
  }
}

// The gradients of the query's product, and of its norm's weights.
template <typename T, int kLanes>
__device__ void gradients_of_sums(const Plan& plan, const HeadRows& part, const Place& place,
                                  float (&grad_norm)[kColumns]) {
  const AttentionInputs& call = plan.call;
  const int64_t of_sequence = (call.length + kSumTokens - 1) / kSumTokens;
  const int64_t index = int64_t{place.group} * kWarps + threadIdx.x / 32, sequence = index / of_sequence;
  if (sequence >= call.batch) return;
  const int begin = static_cast<int>(index - sequence * of_sequence) * kSumTokens;
  const Chunk chunk{sequence * call.length, begin, min(begin + kSumTokens, static_cast<int>(call.length))};
  const auto with_norm = [&]<bool kNormed> {
    if (part.rotated) gradients_of_token_pairs<T, kLanes, kNormed, true>(call, part, chunk, place.slice, grad_norm);
    else gradients_of_token_pairs<T, kLanes, kNormed, false>(call, part, chunk, place.slice, grad_norm);
  };
  if (part.norm) with_norm.template operator()<true>();
  else with_norm.template operator()<false>();
}

}  // namespace lethe::layers::attention_inputs_kernels
