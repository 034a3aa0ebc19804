#pragma once
// The gate's gradient from the sums of dS, after the main backward kernel.
//
//   d log f_l = Σ_{t ≥ l} (u_t − Σ_i dS_it),   u_j = Σ_{i ≥ j} r_i e^{c_i − c_j} / Z_i,   Z_i = Σ_{j ≤ i} e^{c_i − c_j},   r_i = Σ_j dS_ij
//
// A row of dS sums to 0 in exact arithmetic: r_i is the rounding error of P and o, and of dS where it is summed in 16 bits, in that row's
// keys. It is subtracted from them in the proportions of a row whose logits are all equal, which the gate alone decides. Subtracted from
// the diagonal instead (d log f_l = Σ r_t − column sums), the errors of all rows after l would add up in d log f_l. Z and u are first-order
// recurrences, Z_i = 1 + f_i Z_{i−1} and u_j = r_j / Z_j + f_{j+1} u_{j+1}: scans of affine maps. Rows that share a float sum
// (row_groups.cuh) get its mean.
//
// `RowSums` is a kernel family's storage of r, a device functor with
//   join_groups(row, queries)   by a whole CTA: replaces the parts of each shared sum by one mean
//   at(row, query)              r of (batch, query head) `row` after that
//
// One CTA a head, O(Tk): forwards for Z, then backwards for u and the sum. Bound by latency, some microseconds for 4096 tokens.

#include <numbers>

#include "optimized/cuda/gate/plan.hpp"
#include "optimized/cuda/launch.cuh"

namespace lethe {
namespace gate_gradient {

inline constexpr int kThreads = 1024, kWarps = kThreads / 32, kTokensAThread = 4, kChunk = kThreads * kTokensAThread;

struct Parameters {
  const float* column_sums;
  float* row_shares;
  GatePrefix prefix;
  float* grad_log_forget;
  int query_length, query_offset, query_heads, key_blocks;
};

// x → factor·x + offset
struct Affine {
  float factor = 1, offset = 0;
  __device__ float operator()(float x) const { return factor * x + offset; }
  __device__ void then(const Affine& next) {
    offset = next(offset);
    factor *= next.factor;
  }
};

// Returns the maps of all lower threads applied to `carry`; `carry` becomes the result of all maps.
__device__ inline float scan(Affine own, float& carry, Affine (&of_warps)[kWarps]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto below = [](const Affine& map, int lanes) {
    return Affine{__shfl_up_sync(~0u, map.factor, lanes), __shfl_up_sync(~0u, map.offset, lanes)};
  };
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    Affine sum = below(own, lanes);
    sum.then(own);
    if (lane >= lanes) own = sum;
  }
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

// The sum of `value` over all lower threads; `total` grows by the sum over all.
__device__ inline double scan(double value, double& total, double (&of_warps)[kWarps]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  double sum = value;  // inclusive over the lanes up to this one
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const double below = __shfl_up_sync(~0u, sum, lanes);
    if (lane >= lanes) sum += below;
  }
  if (lane == 31) of_warps[warp] = sum;
  __syncthreads();
  sum += total - value;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) sum += of_warps[w];
    total += of_warps[w];
  }
  __syncthreads();
  return sum;
}

// Entry 0 is in no logit, and a cut's own gate changes nothing: their gradients are exactly 0.
template <typename RowSums>
__global__ void __launch_bounds__(kThreads) finish_gate(const __grid_constant__ Parameters p, RowSums row_sums) {
  let_next_kernel_start();
  __shared__ Affine maps_of_warps[kWarps];
  __shared__ double sums_of_warps[kWarps];
  const int64_t row_of_heads = blockIdx.x;
  const int batch = row_of_heads / p.query_heads, head = row_of_heads % p.query_heads;
  const int key_length = p.query_offset + p.query_length;
  const int64_t row = row_of_heads * p.key_blocks * kGateBlock;
  const double* base = p.prefix.base + row_of_heads * (p.key_blocks + 1);
  const auto is_cut = [&](int token) { return p.prefix.cut_before[row + token] == token % kGateBlock; };
  // f_t, the share of the weight seen by t − 1 that t still sees.
  const auto forget = [&](int token) {
    if (token <= 0 || token >= key_length || is_cut(token)) return 0.0f;
    const int block = token / kGateBlock, block_before = (token - 1) / kGateBlock;
    const float between = block == block_before ? 0 : float((base[block] - base[block_before]) * std::numbers::log2e);
    return exp2f(fminf(0, between + p.prefix.bias[row + token - 1] - p.prefix.bias[row + token]));
  };

  row_sums.join_groups(row_of_heads, p.query_length);
  __syncthreads();

  const int chunks = (key_length + kChunk - 1) / kChunk;
  float seen = 0;  // Z of the last token before the chunk
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int first = chunk * kChunk + threadIdx.x * kTokensAThread;
    Affine step[kTokensAThread], own;
#pragma unroll
    for (int i = 0; i < kTokensAThread; ++i) {
      if (first + i < key_length) step[i] = {forget(first + i), 1};
      own.then(step[i]);
    }
    float sum = scan(own, seen, maps_of_warps);
#pragma unroll
    for (int i = 0; i < kTokensAThread; ++i) {
      sum = step[i](sum);
      const int query = first + i - p.query_offset;
      if (query >= 0 && query < p.query_length) p.row_shares[row + first + i] = row_sums.at(row_of_heads, query) / sum;
    }
  }
  __syncthreads();

  float taken = 0;    // u of the first token after the chunk
  double behind = 0;  // the sum over all later chunks
  for (int chunk = chunks - 1; chunk >= 0; --chunk) {
    // Lower threads hold later tokens, so an upward scan is a suffix sum; a thread's own four run backwards.
    const int last = chunk * kChunk + (kThreads - threadIdx.x) * kTokensAThread - 1;
    Affine step[kTokensAThread], own;
#pragma unroll
    for (int i = 0; i < kTokensAThread; ++i) {
      const int token = last - i;
      if (token < key_length) step[i] = {forget(token + 1), token >= p.query_offset ? p.row_shares[row + token] : 0};
      own.then(step[i]);
    }
    float share = scan(own, taken, maps_of_warps);
    double sums[kTokensAThread], sum = 0;
#pragma unroll
    for (int i = 0; i < kTokensAThread; ++i) {
      share = step[i](share);
      if (last - i < key_length) sum += double{share} - p.column_sums[row + last - i];
      sums[i] = sum;
    }
    const double before = scan(sum, behind, sums_of_warps);
#pragma unroll
    for (int i = 0; i < kTokensAThread; ++i) {
      const int token = last - i;
      if (token >= key_length) continue;
      const bool nothing = token == 0 || is_cut(token);
      p.grad_log_forget[(int64_t{batch} * key_length + token) * p.query_heads + head] =
          nothing ? 0.0f : static_cast<float>(before + sums[i]);
    }
  }
}

}  // namespace gate_gradient

/// The arrays that launch_gate_gradient reads and writes.
struct GateGradientArguments {
  Shape shape;
  GatePrefix prefix;
  const float* column_sums;  ///< [B·Hq, N·128]  Σ_i dS_ij
  float* row_shares;         ///< [B·Hq, N·128]  scratch, by position: r_i / Z_i
  float* grad_log_forget;    ///< [B, Tk, Hq] contiguous
  cudaStream_t stream;
};

/// d log f from the row and column sums of dS.
template <typename RowSums>
void launch_gate_gradient(const GateGradientArguments& a, const RowSums& row_sums) {
  const Shape& s = a.shape;
  gate_gradient::finish_gate<<<s.batch * s.query_heads, gate_gradient::kThreads, 0, a.stream>>>(
      {.column_sums = a.column_sums,
       .row_shares = a.row_shares,
       .prefix = a.prefix,
       .grad_log_forget = a.grad_log_forget,
       .query_length = int(s.query_length),
       .query_offset = int(s.key_length - s.query_length),
       .query_heads = int(s.query_heads),
       .key_blocks = int(gate_blocks(s.key_length))},
      row_sums);
  cuda_check(cudaGetLastError(), "backward: gate");
}

}  // namespace lethe
