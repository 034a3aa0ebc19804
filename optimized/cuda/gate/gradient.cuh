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
// One CTA a head, O(Tk): forwards for Z, then backwards for u and the sum. Bound by latency.

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

// The gates of a thread's four tokens and of the one after, as they lie in memory. A chunk's are loaded before the chunk before it is computed: the
// kernel would wait for memory longer than it computes.
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

  __device__ static bool is_cut(const Gates& gates, int first, int i) {
    return gates.cuts[i] == (first + i) % kGateBlock;
  }

  // f_t of the i-th token, the share of the weight seen by t − 1 that t still sees.
  __device__ float forget(const Gates& gates, int first, int i) const {
    const int token = first + i;
    if (token <= 0 || token >= key_length || is_cut(gates, first, i)) return 0;
    const float between = token % kGateBlock == 0 ? float((gates.base[1] - gates.base[0]) * std::numbers::log2e) : 0.0f;
    return exp2f(fminf(0, between + (i == 0 ? gates.before : gates.bias[i - 1]) - gates.bias[i]));
  }
};

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
  const HeadOfGates gates_of{p.prefix, row, p.prefix.base + row_of_heads * (p.key_blocks + 1), key_length};

  row_sums.join_groups(row_of_heads, p.query_length);
  __syncthreads();

  const int chunks = (key_length + kChunk - 1) / kChunk;
  struct Forwards {
    Gates gates;
    float sums[kTokensAThread];
  };
  const auto first_of = [](int chunk) { return chunk * kChunk + int(threadIdx.x) * kTokensAThread; };
  const auto load_forwards = [&](int chunk) {
    const int first = first_of(chunk);
    Forwards loaded{gates_of.load(first, false), {}};
#pragma unroll
    for (int i = 0; i < kTokensAThread; ++i) {
      const int query = first + i - p.query_offset;
      if (query >= 0 && query < p.query_length) loaded.sums[i] = row_sums.at(row_of_heads, query);
    }
    return loaded;
  };
  float seen = 0;  // Z of the last token before the chunk
  Forwards forwards = load_forwards(0);
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int first = first_of(chunk);
    Affine step[kTokensAThread], own;
#pragma unroll
    for (int i = 0; i < kTokensAThread; ++i) {
      if (first + i < key_length) step[i] = {gates_of.forget(forwards.gates, first, i), 1};
      own.then(step[i]);
    }
    float sums[kTokensAThread];
#pragma unroll
    for (int i = 0; i < kTokensAThread; ++i) sums[i] = forwards.sums[i];
    if (chunk + 1 < chunks) forwards = load_forwards(chunk + 1);
    float sum = scan(own, seen, maps_of_warps);
#pragma unroll
    for (int i = 0; i < kTokensAThread; ++i) {
      sum = step[i](sum);
      const int query = first + i - p.query_offset;
      if (query >= 0 && query < p.query_length) p.row_shares[row + first + i] = sums[i] / sum;
    }
  }
  __syncthreads();

  // Lower threads hold later tokens, so an upward scan is a suffix sum; a thread's own four run backwards.
  struct Backwards {
    Gates gates;
    float4 shares = {}, columns = {};
  };
  const auto first_behind = [](int chunk) {
    return chunk * kChunk + (kThreads - int(threadIdx.x) - 1) * kTokensAThread;
  };
  const auto load_backwards = [&](int chunk) {
    const int first = first_behind(chunk);
    Backwards loaded{gates_of.load(first, true)};
    if (first < key_length) {
      loaded.shares = *reinterpret_cast<const float4*>(p.row_shares + row + first);
      loaded.columns = *reinterpret_cast<const float4*>(p.column_sums + row + first);
    }
    return loaded;
  };
  float taken = 0;    // u of the first token after the chunk
  double behind = 0;  // the sum over all later chunks
  Backwards backwards = load_backwards(chunks - 1);
#pragma unroll 1
  for (int chunk = chunks - 1; chunk >= 0; --chunk) {
    const int first = first_behind(chunk);
    const float shares[] = {backwards.shares.x, backwards.shares.y, backwards.shares.z, backwards.shares.w};
    const float columns[] = {backwards.columns.x, backwards.columns.y, backwards.columns.z, backwards.columns.w};
    Affine step[kTokensAThread], own;
    uint32_t nothing = 0;  // tokens without a gradient, as bits
#pragma unroll
    for (int i = kTokensAThread - 1; i >= 0; --i) {
      const int token = first + i;
      if (token < key_length)
        step[i] = {gates_of.forget(backwards.gates, first, i + 1), token >= p.query_offset ? shares[i] : 0};
      if (token == 0 || HeadOfGates::is_cut(backwards.gates, first, i)) nothing |= 1u << i;
      own.then(step[i]);
    }
    if (chunk > 0) backwards = load_backwards(chunk - 1);
    float share = scan(own, taken, maps_of_warps);
    double sums[kTokensAThread], sum = 0;
#pragma unroll
    for (int i = kTokensAThread - 1; i >= 0; --i) {
      share = step[i](share);
      if (first + i < key_length) sum += double{share} - columns[i];
      sums[i] = sum;
    }
    const double before = scan(sum, behind, sums_of_warps);
#pragma unroll
    for (int i = 0; i < kTokensAThread; ++i) {
      const int token = first + i;
      if (token >= key_length) continue;
      p.grad_log_forget[(int64_t{batch} * key_length + token) * p.query_heads + head] =
          nothing >> i & 1 ? 0.0f : static_cast<float>(before + sums[i]);
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
