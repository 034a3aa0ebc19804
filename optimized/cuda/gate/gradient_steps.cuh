#pragma once
// The steps of the gate's gradient (gradient.cuh): a thread has four tokens, a warp a block. Shared by the kernel with one CTA a head and the passes
// with many: both combine the maps of blocks in the same order, so their bits are equal.

#include <numbers>

#include "optimized/cuda/gate/gradient.hpp"
#include "optimized/cuda/launch.cuh"

namespace lethe::gate_gradient {

inline constexpr int kTokensAThread = 4;
static_assert(32 * kTokensAThread == kGateBlock);

// x → factor·x + offset
struct Affine {
  float factor = 1, offset = 0;
  __device__ float operator()(float x) const { return factor * x + offset; }
  __device__ void then(const Affine& next) {
    offset = next(offset);
    factor *= next.factor;
  }
};

struct Parameters {
  const float* column_sums;
  float* row_shares;
  // Of the passes, [B·Hq, blocks of all pieces]: the maps of Z by block; those of u and the sums of u − Σ dS, the last block first.
  Affine *weight_maps, *taken_maps;
  double* sums;
  GatePrefix prefix;
  float* grad_log_forget;
  int query_length, query_offset, query_heads, key_blocks, pieces;  // the last: of a head
};

__device__ inline Affine below(const Affine& map, int lanes) {
  return {__shfl_up_sync(~0u, map.factor, lanes), __shfl_up_sync(~0u, map.offset, lanes)};
}

// Inclusive over the lanes up to this one.
__device__ inline Affine scan_warp(Affine own) {
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    Affine sum = below(own, lanes);
    sum.then(own);
    if (threadIdx.x % 32 >= lanes) own = sum;
  }
  return own;
}

__device__ inline double scan_warp(double sum) {
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const double lower = __shfl_up_sync(~0u, sum, lanes);
    if (threadIdx.x % 32 >= lanes) sum += lower;
  }
  return sum;
}

// Returns the maps of all lower threads applied to `carry`; `carry` becomes the result of all maps.
template <int kWarps>
__device__ float scan(Affine own, float& carry, Affine (&of_warps)[kWarps]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  own = scan_warp(own);
  if (lane == 31) of_warps[warp] = own;
  __syncthreads();
  float x = carry;
  for (int w = 0; w < kWarps; ++w) {
    if (w == warp) x = carry;
    carry = of_warps[w](carry);
  }
  const Affine before = below(own, 1);
  __syncthreads();
  return lane == 0 ? x : before(x);
}

// A thread's `value` belongs to `inclusive` of its warp, which follows `warps` others after `total`: the sum of all that is before the thread.
__device__ inline double sum_before(double inclusive, double value, double total, const double* of_warps, int warps) {
  double sum = inclusive + (total - value);
#pragma unroll 4
  for (int w = 0; w < warps; ++w) sum += of_warps[w];
  return sum;
}

// The gates of a thread's four tokens and of the one after, as they lie in memory.
struct Gates {
  float before = 0,
        bias[kTokensAThread + 1] = {};  // local parts of the prefix: of the token before the first, and theirs
  uint8_t cuts[kTokensAThread + 1] = {};
  double base[2] = {};  // of the blocks on both sides of the one boundary that is asked about
};

// One head's gates.
struct HeadOfGates {
  const GatePrefix& prefix;
  int64_t row;  // of its first token
  const double* base;
  int key_length;

  __device__ HeadOfGates(const Parameters& p, int64_t row_of_heads)
      : prefix(p.prefix), row(row_of_heads * p.key_blocks * kGateBlock),
        base(p.prefix.base + row_of_heads * (p.key_blocks + 1)), key_length(p.query_offset + p.query_length) {}

  // at_end: whether the boundary between blocks is after the tokens, not before them. first: a multiple of four.
  __device__ Gates load(int first, bool at_end) const {
    Gates gates;
    if (first >= key_length) return gates;
    const float4 bias = *reinterpret_cast<const float4*>(prefix.bias + row + first);
    const uchar4 cuts = *reinterpret_cast<const uchar4*>(prefix.cut_before + row + first);
    gates.bias[0] = bias.x, gates.bias[1] = bias.y, gates.bias[2] = bias.z, gates.bias[3] = bias.w;
    gates.cuts[0] = cuts.x, gates.cuts[1] = cuts.y, gates.cuts[2] = cuts.z, gates.cuts[3] = cuts.w;
    if (first > 0) gates.before = prefix.bias[row + first - 1];
    if (first + kTokensAThread < key_length) {
      gates.bias[kTokensAThread] = prefix.bias[row + first + kTokensAThread];
      gates.cuts[kTokensAThread] = prefix.cut_before[row + first + kTokensAThread];
    }
    const int boundary = at_end ? first + kTokensAThread : first;
    if (boundary % kGateBlock == 0 && boundary > 0 && boundary < key_length) {
      gates.base[0] = base[boundary / kGateBlock - 1];
      gates.base[1] = base[boundary / kGateBlock];
    }
    return gates;
  }

  __device__ static bool is_cut(uint8_t cut, int token) { return cut == token % kGateBlock; }

  // f_t of the i-th token, the share of the weight seen by t − 1 that t still sees.
  __device__ float forget(const Gates& gates, int first, int i) const {
    const int token = first + i;
    if (token <= 0 || token >= key_length || is_cut(gates.cuts[i], token)) return 0;
    const float between = token % kGateBlock == 0 ? float((gates.base[1] - gates.base[0]) * std::numbers::log2e) : 0.0f;
    return exp2f(fminf(0, between + (i == 0 ? gates.before : gates.bias[i - 1]) - gates.bias[i]));
  }
};

struct OfTokens {
  float of[kTokensAThread] = {};

  // Of a head's array, which is padded to whole blocks.
  __device__ static OfTokens load(const float* array, int first, int length) {
    if (first >= length) return {};
    const float4 four = *reinterpret_cast<const float4*>(array + first);
    return {{four.x, four.y, four.z, four.w}};
  }
  __device__ void store(float* array, int first, int length) const {
    if (first < length) *reinterpret_cast<float4*>(array + first) = {of[0], of[1], of[2], of[3]};
  }
};

// The maps of a thread's tokens, and all of them in one.
struct Steps {
  Affine of[kTokensAThread], all;
};

// Z_i = f_i Z_{i−1} + 1
__device__ inline Steps weight_steps(const HeadOfGates& head, const Gates& gates, int first) {
  Steps steps;
#pragma unroll
  for (int i = 0; i < kTokensAThread; ++i) {
    if (first + i < head.key_length) steps.of[i] = {head.forget(gates, first, i), 1};
    steps.all.then(steps.of[i]);
  }
  return steps;
}

// u_j = f_{j+1} u_{j+1} + r_j / Z_j, from the last token to the first.
__device__ inline Steps taken_steps(const HeadOfGates& head, const Gates& gates, int first, const OfTokens& shares) {
  Steps steps;
#pragma unroll
  for (int i = kTokensAThread - 1; i >= 0; --i) {
    if (first + i < head.key_length) steps.of[i] = {head.forget(gates, first, i + 1), shares.of[i]};
    steps.all.then(steps.of[i]);
  }
  return steps;
}

// r of a thread's tokens; 0 where no query is.
template <typename RowSums>
__device__ OfTokens load_row_sums(const Parameters& p, const RowSums& row_sums, int64_t row_of_heads, int first) {
  OfTokens sums;
#pragma unroll
  for (int i = 0; i < kTokensAThread; ++i) {
    const int query = first + i - p.query_offset;
    if (query >= 0 && query < p.query_length) sums.of[i] = row_sums.at(row_of_heads, query);
  }
  return sums;
}

// r_i / Z_i. weight: Z of the token before the first.
__device__ inline OfTokens shares_of(const Steps& steps, float weight, const OfTokens& sums, int first,
                                     int query_offset) {
  OfTokens shares;
#pragma unroll
  for (int i = 0; i < kTokensAThread; ++i) {
    weight = steps.of[i](weight);
    if (first + i >= query_offset) shares.of[i] = sums.of[i] / weight;
  }
  return shares;
}

// u. taken: that of the token after the last.
__device__ inline OfTokens taken_of(const Steps& steps, float taken) {
  OfTokens all;
#pragma unroll
  for (int i = kTokensAThread - 1; i >= 0; --i) all.of[i] = taken = steps.of[i](taken);
  return all;
}

// Σ (u_t − columns_t) over a thread's tokens from each one on. Entry 0 is that of all.
struct SuffixSums {
  double from[kTokensAThread], sum = 0;

  __device__ SuffixSums(const OfTokens& taken, const OfTokens& columns, int first, int length) {
#pragma unroll
    for (int i = kTokensAThread - 1; i >= 0; --i) {
      if (first + i < length) sum += double{taken.of[i]} - columns.of[i];
      from[i] = sum;
    }
  }
};

// The tokens without a gradient, as bits: entry 0 is in no logit, and a cut's own gate changes nothing.
__device__ inline uint32_t without_gradient(const uint8_t* cuts, int first) {
  uint32_t nothing = 0;
#pragma unroll
  for (int i = 0; i < kTokensAThread; ++i)
    if (first + i == 0 || HeadOfGates::is_cut(cuts[i], first + i)) nothing |= 1u << i;
  return nothing;
}

__device__ inline void store_gradient(const Parameters& p, int64_t row_of_heads, int first, double after,
                                      const SuffixSums& sums, uint32_t nothing) {
  const int batch = row_of_heads / p.query_heads, head = row_of_heads % p.query_heads;
  const int key_length = p.query_offset + p.query_length;
#pragma unroll
  for (int i = 0; i < kTokensAThread; ++i) {
    const int token = first + i;
    if (token >= key_length) continue;
    p.grad_log_forget[(int64_t{batch} * key_length + token) * p.query_heads + head] =
        nothing >> i & 1 ? 0.0f : static_cast<float>(after + sums.from[i]);
  }
}

}  // namespace lethe::gate_gradient
