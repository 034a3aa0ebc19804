// The gate's gradient from the sums of dS, behind the main backward kernel.
//
//   d log f_l = Σ_{t ≥ l} (u_t − Σ_i dS_it),   u_j = Σ_{i ≥ j} r_i e^{c_i − c_j} / Z_i,   Z_i = Σ_{j ≤ i} e^{c_i − c_j},   r_i = Σ_j dS_ij
//
// A row of dS sums to 0 in exact arithmetic: r_i is what the rounding of P and o, and of dS where it is summed in 16 bits, has left in that
// row's keys. It is taken from them again in the proportions of a row whose logits are all equal, of which the gate alone decides. Taken
// from the diagonal instead (d log f_l = Σ r_t − column sums), the errors of all rows behind l add up in d log f_l. Z and u are first-order
// recurrences, Z_i = 1 + f_i Z_{i−1} and u_j = r_j / Z_j + f_{j+1} u_{j+1}: scans of affine maps. Of rows that share a float sum
// (gate/row_groups.cuh) each has the mean: first a warp a group adds up the parts that the main kernel's threads had of it.
//
// One CTA a head, O(Tk): forwards for Z, then backwards for u and the sum. Bound by latency, some microseconds for 4096 tokens.

#include "optimized/cuda/hopper/backward.hpp"
#include "optimized/cuda/check.hpp"
#include "optimized/cuda/hopper/ptx/barrier.cuh"
#include "optimized/cuda/gate/row_groups.cuh"

namespace lethe {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32, kTokensAThread = 4, kChunk = kThreads * kTokensAThread;
constexpr int kRows = 64;  // of a slice

struct GateParameters {
  float* slices;
  const float* column_sums;
  float* row_shares;
  const double* base;  // GatePlan's arrays
  const float* bias;
  const uint8_t* cut_before;
  float* grad_log_forget;
  const TwoFloats* base_log2;
  bool float_sums;
  int query_length, query_offset, query_heads, key_blocks, slices_a_head, tile_rows;
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

// The maps of all lower threads applied to `carry`, which becomes what all maps make of it.
__device__ float scan(Affine own, float& carry, Affine (&of_warps)[kWarps]) {
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

// Adds up `value` over all lower threads; `total` grows by the sum over all.
__device__ double scan(double value, double& total, double (&of_warps)[kWarps]) {
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

// Entry 0 is in no logit, and a cut's own gate moves nothing: their gradients are exactly 0.
__global__ void __launch_bounds__(kThreads) finish_gate(const __grid_constant__ GateParameters p) {
  ptx::let_next_kernel_start();
  __shared__ Affine maps_of_warps[kWarps];
  __shared__ double sums_of_warps[kWarps];
  const int64_t row_of_heads = blockIdx.x;
  const int batch = row_of_heads / p.query_heads, head = row_of_heads % p.query_heads;
  const int key_length = p.query_offset + p.query_length;
  const int64_t row = row_of_heads * p.key_blocks * kGateBlock;
  const double* base = p.base + row_of_heads * (p.key_blocks + 1);
  const auto is_cut = [&](int token) { return p.cut_before[row + token] == token % kGateBlock; };
  // f_t, the share of what t − 1 sees that t still sees.
  const auto forget = [&](int token) {
    if (token <= 0 || token >= key_length || is_cut(token)) return 0.0f;
    const int block = token / kGateBlock, block_before = (token - 1) / kGateBlock;
    const float between = block == block_before ? 0 : float((base[block] - base[block_before]) * 1.4426950408889634);
    return exp2f(fminf(0, between + p.bias[row + token - 1] - p.bias[row + token]));
  };

  // A group's parts make one mean over its rows, which goes where the first part was.
  float* slices = p.slices + row_of_heads * p.slices_a_head * kSliceFloats;
  const int lane = threadIdx.x % 32, lanes_of_group = p.tile_rows == kGroupRows ? 32 : 16;
  const auto is_apart = [&](int query) {
    return !p.float_sums ||
           rows_are_apart(p.base_log2 + row_of_heads * (p.key_blocks + 1),
                          p.query_offset + query / p.tile_rows * p.tile_rows, p.tile_rows, p.query_offset);
  };
  const auto sum_of = [&](int query) {  // of a row, or the first part of its group
    float* of_tile = slices + int64_t{query / p.tile_rows} * 2 * kSliceFloats + kRows * 64;
    const int row = query % p.tile_rows;
    return is_apart(query) ? of_tile + row / kRows * kSliceFloats + row % kRows
                           : of_tile + row / kGroupRows * lanes_of_group;
  };
  for (int query = threadIdx.x / 32 * kGroupRows; query < p.query_length; query += kWarps * kGroupRows) {
    if (is_apart(query)) continue;
    float* parts = sum_of(query);
    float sum = 0;
    if (lane < lanes_of_group)
      for (int warp = 0; warp < 8; ++warp) sum += parts[warp / 4 * kSliceFloats + warp % 4 * 32 + lane];
    for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    if (lane == 0) *parts = sum / min(kGroupRows, p.query_length - query);
  }
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
      if (query >= 0 && query < p.query_length) p.row_shares[row + first + i] = *sum_of(query) / sum;
    }
  }
  __syncthreads();

  float taken = 0;    // u of the first token behind the chunk
  double behind = 0;  // the sum over all later chunks
  for (int chunk = chunks - 1; chunk >= 0; --chunk) {
    // Lower threads hold later tokens, so that a scan upwards is a suffix sum; a thread's own four run backwards.
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

}  // namespace

void launch_backward_gate(const BackwardArguments& arguments, const BackwardWorkspace& workspace) {
  const Shape& shape = arguments.shape;
  const int panels = int(shape.key_dim / 64);
  const GateParameters parameters{
      .slices = workspace.grad_query,
      .column_sums = workspace.column_sums,
      .row_shares = workspace.row_shares,
      .base = arguments.plan.base,
      .bias = arguments.plan.bias,
      .cut_before = arguments.plan.cut_before,
      .grad_log_forget = arguments.grad_log_forget,
      .base_log2 = arguments.plan.base_log2,
      .float_sums = arguments.float_sums,
      .query_length = int(shape.query_length),
      .query_offset = int(shape.key_length - shape.query_length),
      .query_heads = int(shape.query_heads),
      .key_blocks = int((shape.key_length + kGateBlock - 1) / kGateBlock),
      .slices_a_head = int((shape.query_length + kGateBlock - 1) / kGateBlock * kGateBlock / kRows) * panels,
      .tile_rows = shape.key_dim == 64 ? kTileQueries<64> : kTileQueries<128>};
  finish_gate<<<shape.batch * shape.query_heads, kThreads, 0, arguments.stream>>>(parameters);
  cuda_check(cudaGetLastError(), "backward: gate");
}

}  // namespace lethe
