#pragma once
// The CUDA kernels behind the operators: argument structs and launchers. Raw device pointers, no Torch.
//
// Shapes: batch B, query_length Tq, key_length Tk, query_heads Hq, heads H (Hq a multiple of H), key_dim = value_dim = D. Query i
// stands at position i + Tk − Tq. Everything below runs on the given stream, allocates nothing and never synchronises.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "optimized/coverage.hpp"
#include "reference/problem.hpp"

namespace lethe {

/// Tokens in a block of the gate's prefix sum, and both sides of the blocks that pruning skips.
inline constexpr int64_t kGateBlock = 128;

/// A block of the gate's prefix sum is strong where its log f, cuts apart, sum to less than this: there the kernels use more than floats.
inline constexpr double kStrongSum = -512;

/// Stands for a cut's place in such a block where there is no cut.
inline constexpr uint8_t kNoCut = 255;

/// A tensor [B, T, H, D] whose last dimension is contiguous: base and strides multiples of 16 bytes, strides in elements.
struct Operand {
  const void* data;
  int64_t batch_stride, token_stride, head_stride;
};

struct BiasOfEight;  // cuda/hopper/bias_step.cuh

/// A number of twice a float's digits, high + low. As long as the copy engine's shortest copy, and so with room for something else.
struct alignas(16) TwoFloats {
  float high, low;
  uint32_t decays, rows_apart;
};

/// What the kernels need to know of the gate, made by launch_gate_plan for one forward or one backward, which reads it and counts in
/// it. M = ⌈Tq/128⌉ query blocks, N = ⌈Tk/128⌉ key blocks.
///
///   c_t = Σ_{l ≤ t} log f_l, in two levels: base[t / 128] (double) + a local part, rounded once to float, in strong
///   blocks to two
///
/// A gate below e^−10000 is a cut: it counts as 0 in the sums, and nobody behind it sees anything before it. So −inf never
/// enters a sum, and no finite gate is drowned by a cut's magnitude.
struct GatePlan {
  double* block_sum;     ///< [B, Hq, N]  Σ of log f in block n
  double* base;          ///< [B, Hq, N+1]  Σ of log f before block n
  TwoFloats* base_log2;  ///< [B, Hq, N+1]  log₂e · base; what cuda/gate/row_groups.cuh says of block n, 0 or 1
  float* bias;  ///< [B, Hq, N·128]  −log₂e · (c_j − base[j / 128]), what key j adds to a logit in log₂; 0 past Tk
  float* bias_rest;  ///< [B, Hq, N·128]  what rounding took from it; only in strong blocks (cuda/gate/strong_gates.cuh)
  /// [B, Hq, N·16]  (base[j / 128 + 1] − c_j) / scale, what key j adds to q·k; 0 past Tk. From the block's end: the keys that later
  /// blocks' queries see best have the smallest numbers. No NaN: base has it
  BiasOfEight* start;
  uint8_t* cut_before;  ///< [B, Hq, N·128]  the last cut at or before token t in its block: its place there, or kNoCut
  uint8_t* cut_after;   ///< [B, Hq, N·128]  the first cut after token t in its block, in the same way
  int32_t* block_cut_before;  ///< [B, Hq, N+1]  the last cut before block n, or 0
  int32_t* block_cut_after;   ///< [B, Hq, N+1]  the first cut in block n or later, or INT32_MAX
  int32_t* first_key_block;   ///< [B, Hq, M]  the first key block that query block m visits; ascends with m
  /// [B, Hq, N]  the last query block that visits key block n, or −1; marked near strong gates (cuda/gate/strong_gates.cuh)
  int32_t* last_query_block;
  float* largest_square;    ///< [2, B, Hq]  max ‖q‖², max ‖k‖² where the logits' bound is found from them
  int32_t* head_blocks;     ///< [B, Hq]  blocks of 128 queries × 128 keys to visit
  int32_t* head_order;      ///< [B·Hq]  (batch, query head) pairs, those with most blocks first
  int32_t* key_head_order;  ///< [B·H]  (batch, key head) pairs, by the blocks of their groups
  /// [1]  tiles that a forward's CTAs have asked for, each beyond its first, or a backward's; a plan serves one forward, or backwards
  int32_t* next_tile;
  int32_t* parts_done;  ///< [B·Hq]  of each (batch, key head): CTAs that have done their part of its heads' bounds
  int32_t* heads_done;  ///< [1]  heads whose boundary is found
  unsigned long long* pairs;  ///< [B, Hq]  causal pairs inside the blocks that the forward has computed
  int32_t* repeats;  ///< [1 + B·Hq·M]  tiles that the forward's second launch computes, their count first: again what
                     ///< overflowed, for the first time what has strong gates
  char* end;         ///< where the plan's memory ends
};

/// `scale` where a bias can be divided by it: 0 and what is nearly 0 become 2⁻⁶⁰, which leaves nothing of a logit either whose q·k is far below 2⁶⁰.
constexpr double divisor_scale(double scale) { return scale > -0x1p-60 && scale < 0x1p-60 ? 0x1p-60 : scale; }

/// Bytes of one plan, a multiple of 256.
size_t gate_plan_bytes(const Shape& shape);

/// The plan's arrays inside `memory` (device, 256-byte aligned, gate_plan_bytes(shape) long).
GatePlan gate_plan_in(void* memory, const Shape& shape);

/// What launch_gate_plan reads, and where it writes. N = ⌈Tk / 128⌉, M = ⌈Tq / 128⌉.
struct GatePlanArguments {
  Shape shape;
  Dtype dtype;
  double scale;
  Operand query, key;       ///< read only where pruning is on and logit_bound is null
  const float* log_forget;  ///< [B, Tk, Hq] by strides in elements
  int64_t gate_batch_stride, gate_token_stride, gate_head_stride;
  double log_pruning_tolerance;  ///< log ε ≤ 0; −inf prunes nothing
  const float* logit_bound;      ///< [B, Hq], U ≥ max |scale·q·k|; null: from the largest norms
  bool boundary_given;           ///< for a backward: plan.first_key_block is filled, and plan.start is not wanted
  GatePlan plan;
  cudaStream_t stream;
};

/// Prefix sums, cuts, the pruning boundary (a block of queries × keys is left out where every D_ij < −2U − log Tk + log ε), and the
/// order of heads by what is left of them.
///
/// source   Adaptive Computation Pruning, Eq. 3 and Algorithm 1, by binary search: D falls along a row of blocks
/// domain   log f ≤ 0; below −10⁴ it is a cut: nobody at or behind it sees what lies before
/// cost     one read of log_forget. Where the bound comes from norms, one of query and key too, of those heads whose gates forget more
///          than ε / Tk from first to last (no others can be pruned, whatever their norms). O(M log N) a head
void launch_gate_plan(const GatePlanArguments& arguments);

/// Queries of one tile of the forward kernel. A tile visits the key blocks of the query block that its first query is in.
constexpr int64_t forward_tile_rows(int64_t head_dim) { return head_dim == 64 ? 192 : 128; }

/// What launch_forward reads, and where it writes. `plan` is launch_gate_plan's of the same inputs.
struct ForwardArguments {
  Shape shape;
  Dtype dtype;
  double scale;
  Operand query, key, value;
  GatePlan plan;
  void* values;    ///< [B, Tq, Hq, D] contiguous
  void* residual;  ///< [B, Tq, Hq, D] contiguous, what rounding took from values, rounded itself; null: not wanted
  float* log_normalizer;   ///< [B, Tq, Hq] contiguous, natural log, D_ii = 0
  int64_t* visited_pairs;  ///< [B, Hq]: causal pairs inside the blocks of the tiles, counted once a tile
  cudaStream_t stream;
};

/// o_i = Σ_{j ≤ i} softmax_j(scale·q_i·k_j + c_i − c_j) v_j over the plan's blocks.
///
/// source    Forgetting Transformer, Eq. 11–13
/// throws    std::invalid_argument with unsupported()'s reason; std::runtime_error for a CUDA error
/// numerics  products of 16-bit operands summed in float; weights rounded to 16 bits before they meet `value`. log_normalizer is
///           off by some 2⁻²³ of what log f sums up to over the blocks of 128 tokens that a tile's queries stand in, none of
///           which is strong: tiles whose queries stand in a strong one are computed by a second launch, with prefixes in two floats
/// cost      4·D flops a visited pair on the tensor cores
void launch_forward(const ForwardArguments& arguments);

/// What launch_backward reads, and where it writes. `plan` is launch_gate_plan's with the forward's boundary given, put on the same stream
/// behind whatever wrote the rest, and behind whatever last wrote to the workspace or read it.
struct BackwardArguments {
  Shape shape;
  Dtype dtype;
  double scale;
  Operand query, key, value;
  Operand values, residual,
      grad_values;              ///< what launch_forward returned (o = values + residual), and the gradient that arrives
  const float* log_normalizer;  ///< [B, Tq, Hq] contiguous, as launch_forward left it
  GatePlan plan;
  void *grad_query, *grad_key, *grad_value;  ///< [B, T, heads, D] contiguous, of `dtype`
  float* grad_log_forget;                    ///< [B, Tk, Hq] contiguous
  void* workspace;                           ///< device, 256-byte aligned, backward_workspace_bytes(shape) long
  bool deterministic;                        ///< dq is summed in one fixed order
  bool float_sums;  ///< sums of dS behind grad_log_forget: of floats, 64 rows in one where the gate hardly decays; not of 16 bits
  cudaStream_t stream;
};

/// Bytes of a backward's workspace: 4.125·D + 40 a query and head, and 8 a key and head.
size_t backward_workspace_bytes(const Shape& shape);

/// The gradients of launch_forward's values with respect to everything it read.
///
///   P_ij = exp(scale·q_i·k_j + c_i − c_j − log_normalizer_i),  dP_ij = dO_i·v_j,  dS_ij = P_ij (dP_ij − dO_i·o_i)
///   dq_i = scale Σ_j dS_ij k_j,  dk_j = scale Σ_i dS_ij q_i,  dv_j = Σ_i P_ij dO_i
///   d log f_l = Σ_{t ≥ l} ( Σ_j dS_tj − Σ_i dS_it )
///
/// source    FlashAttention-2, Algorithm 2, with Forgetting Transformer, Eq. 11–13
/// throws    as launch_forward
/// numerics  P and dS rounded to 16 bits before they are multiplied: in float16 what is below 2⁻²⁵ is lost, so a loss wants scaling
///           there. P has log_normalizer's error as a factor. dO_i·o_i in float, of values + residual. The row and column
///           sums behind the gate's gradient are both of the same rounded dS, or with `float_sums` of the same dS in float; a row's
///           sum, 0 in exact arithmetic, is taken back from the row's keys (gate/gradient.cu). With `float_sums` 64 rows share one, and
///           each has the mean, unless log f sum to −1 or less in a block of 128 tokens that their tile has queries in, or in the one before,
///           or there is a cut (cuda/gate/row_groups.cuh). The suffix sum is in double. dq is summed in float over key tiles: in any order, or
///           with `deterministic` in one fixed order
/// cost      10·D flops a visited pair on the tensor cores
void launch_backward(const BackwardArguments& arguments);

/// Compute capability of a device, major·10 + minor, asked for once per device.
int compute_capability(int device);

}  // namespace lethe
