#pragma once
// What both paths of attention_inputs share: the cut into chunks of tokens, the gate, and the sums over tokens. Internal to optimized/cuda/layers.

#include "optimized/cuda/layers/attention_inputs.hpp"
#include "optimized/cuda/layers/row.cuh"
#include "optimized/cuda/workspace.hpp"

namespace lethe::layers::attention_inputs_kernels {

constexpr int kWarps = 4, kThreads = 32 * kWarps;  // of a block: one chunk of tokens a warp, the same columns
constexpr int kGateHeads = 32, kGateAhead = 8;     // of a warp; tokens loaded together

/// Tokens [begin, end) of the sequence whose first row is `first`; begin = end for the warps after the last chunk.
struct Chunk {
  int64_t first;
  int begin, end;
};

/// The work of a launch. A group is a block's chunks; of each group there is a block for each slice of the gate, then for each slice of each part.
struct Plan {
  AttentionInputs call;
  int parts[3];             ///< those that are computed
  int tokens;               ///< of a chunk
  int64_t sequence_chunks;  ///< of a sequence
  int64_t chunks, groups;
  unsigned slices;               ///< of a part: columns that one warp has
  unsigned part_blocks, blocks;  ///< of a group: of the parts, and in all
  void* norm_sums[3];            ///< partial gradients of the norms: a row a group, or a chunk
  void* bias_sums;               ///< [groups, heads]
};

/// reads  tokens  of a chunk; slices of a part
inline Plan plan_of(const AttentionInputs& call, int tokens, int64_t slices) {
  Plan plan{.call = call, .tokens = tokens, .slices = static_cast<unsigned>(slices)};
  int count = 0;
  for (int part = 0; part < 3; ++part) {
    if (call.parts[part].product.data) plan.parts[count++] = part;
  }
  plan.sequence_chunks = (call.length + tokens - 1) / tokens;
  plan.chunks = call.batch * plan.sequence_chunks;
  plan.groups = (plan.chunks + kWarps - 1) / kWarps;
  plan.part_blocks = count * plan.slices;
  plan.blocks = plan.part_blocks + (call.gate_logits.data ? (call.heads + kGateHeads - 1) / kGateHeads : 0);
  return plan;
}

/// The numbers of one part's norm_sums, and its rows.
struct SumsSize {
  int64_t rows, columns;
};

/// Takes the arrays of sums. size_of(part): SumsSize.
template <typename Number, typename SizeOf>
void take_sums(Plan& plan, Workspace& workspace, const SizeOf& size_of) {
  for (int i = 0; i < 3; ++i) {
    const HeadRows& part = plan.call.parts[i];
    if (!part.product.data || !part.norm) continue;
    const SumsSize size = size_of(part);
    plan.norm_sums[i] = workspace.take<Number>(size.rows * size.columns);
  }
  if (plan.call.gate_bias) plan.bias_sums = workspace.take<Number>(plan.groups * plan.call.heads);
}

/// The gradients of norms and bias from the sums that the backward left.
template <typename Number, typename SizeOf>
void add_up(const Plan& plan, const SizeOf& size_of, cudaStream_t stream) {
  const AttentionInputs& call = plan.call;
  Partials<Number> all[kMostPartials];
  for (int i = 0; i < 3; ++i) {
    const HeadRows& part = call.parts[i];
    if (!part.product.data || !part.norm) continue;
    const SumsSize size = size_of(part);
    all[i] = {static_cast<const Number*>(plan.norm_sums[i]), static_cast<int>(size.rows), size.columns,
              static_cast<Number*>(part.grad_norm)};
  }
  if (call.gate_bias)
    all[3] = {static_cast<const Number*>(plan.bias_sums), static_cast<int>(plan.groups), call.heads,
              static_cast<Number*>(call.grad_gate_bias)};
  sum_partials(all, stream);
}

/// kernel<<<…>>>(plan), or nothing where there are no tokens.
template <typename Kernel>
void launch(const Kernel& kernel, const Plan& plan, cudaStream_t stream) {
  const int64_t blocks = plan.groups * plan.blocks;
  if (blocks == 0) return;
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(plan);
  check_launch("attention_inputs");
}

/// The path of single elements, for every dtype and head dim.
void elements_forward(const AttentionInputs& call, cudaStream_t stream);
size_t elements_workspace_bytes(const AttentionInputs& call);
void elements_backward(const AttentionInputs& call, void* workspace, cudaStream_t stream);

// ---- In a kernel

/// The work of this block: a group, and a slice of a part or of the gate.
struct Place {
  unsigned group, slice;
  int part;  ///< 3: the gate
};

__device__ inline Place place_of_block(const Plan& plan) {
  const unsigned group = blockIdx.x / plan.blocks, block = blockIdx.x - group * plan.blocks,
                 gates = plan.blocks - plan.part_blocks;
  if (block < gates) return {group, block, 3};
  const unsigned index = (block - gates) / plan.slices;
  return {group, block - gates - index * plan.slices, plan.parts[index]};
}

__device__ inline Chunk chunk_of_warp(const Plan& plan, unsigned group) {
  const int64_t index = int64_t{group} * kWarps + threadIdx.x / 32;
  if (index >= plan.chunks) return {0, 0, 0};
  const int64_t sequence = index / plan.sequence_chunks;
  const int begin = static_cast<int>(index - sequence * plan.sequence_chunks) * plan.tokens;
  return {sequence * plan.call.length, begin, min(begin + plan.tokens, static_cast<int>(plan.call.length))};
}

template <typename T>
__device__ const T* pointer(const Rows& rows, int64_t row, int64_t column) {
  return static_cast<const T*>(rows.data) + row * rows.pitch + column;
}
template <typename T>
__device__ T* pointer(const MutableRows& rows, int64_t row, int64_t column) {
  return static_cast<T*>(rows.data) + row * rows.pitch + column;
}

__device__ inline float inverse_root(float x) { return rsqrtf(x); }
__device__ inline double inverse_root(double x) { return rsqrt(x); }

// log σ(x), finite and exact to rounding wherever σ itself is 0 or 1.
__device__ inline float log_sigmoid(float x) { return fminf(x, 0.0f) - log1pf(expf(-fabsf(x))); }
__device__ inline double log_sigmoid(double x) { return fmin(x, 0.0) - log1p(exp(-fabs(x))); }

/// The gate of a chunk, one head a lane.
template <typename T>
__device__ void gate_values(const AttentionInputs& call, const Chunk& chunk, unsigned slice) {
  using Number = Wide<T>;
  const int64_t head = slice * kGateHeads + threadIdx.x % 32;
  if (head >= call.heads) return;
  const Number bias = call.gate_bias ? static_cast<const Number*>(call.gate_bias)[head] : Number(0);
  const int64_t end = chunk.first + chunk.end;
  for (int64_t first = chunk.first + chunk.begin; first < end; first += kGateAhead) {
    T logits[kGateAhead];
#pragma unroll
    for (int a = 0; a < kGateAhead; ++a) logits[a] = *pointer<T>(call.gate_logits, min(first + a, end - 1), head);
#pragma unroll
    for (int a = 0; a < kGateAhead; ++a)
      if (first + a < end)
        static_cast<Number*>(call.log_forget)[(first + a) * call.heads + head] = log_sigmoid(widened(logits[a]) + bias);
  }
}

/// The gate's gradients of a chunk; those of the bias are a block's sum.
template <typename T>
__device__ void gate_gradients(const Plan& plan, const Chunk& chunk, const Place& place) {
  using Number = Wide<T>;
  const AttentionInputs& call = plan.call;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t head = place.slice * kGateHeads + lane;
  const bool active = head < call.heads;
  Number sum = 0;
  if (active) {
    const Number bias = call.gate_bias ? static_cast<const Number*>(call.gate_bias)[head] : Number(0);
    const Number* gradients = static_cast<const Number*>(call.grad_log_forget) + head;
    const int64_t end = chunk.first + chunk.end;
    for (int64_t first = chunk.first + chunk.begin; first < end; first += kGateAhead) {
      T logits[kGateAhead];
      Number arriving[kGateAhead];
#pragma unroll
      for (int a = 0; a < kGateAhead; ++a) {
        const int64_t row = min(first + a, end - 1);
        logits[a] = *pointer<T>(call.gate_logits, row, head);
        arriving[a] = gradients[row * call.heads];
      }
#pragma unroll
      for (int a = 0; a < kGateAhead; ++a) {
        if (first + a >= end) break;
        const Number df = arriving[a] * sigmoid(-(widened(logits[a]) + bias));
        *pointer<T>(call.grad_gate_logits, first + a, head) = stored<T>(df);
        sum += df;
      }
    }
  }
  if (!call.gate_bias) return;
  __shared__ Number sums[kWarps][kGateHeads];
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || !active) return;
  Number total = 0;
  for (int w = 0; w < kWarps; ++w) total += sums[w][lane];
  static_cast<Number*>(plan.bias_sums)[place.group * call.heads + head] = total;
}

}  // namespace lethe::layers::attention_inputs_kernels
