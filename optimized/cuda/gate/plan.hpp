#pragma once
// The gate's results that kernels read, by lifetime: the prefix sums and cuts, the pruning boundary, the order of the work.
// Shared by all kernel families. M = ⌈Tq/128⌉ query blocks, N = ⌈Tk/128⌉ key blocks.

#include "optimized/cuda/attention.hpp"
#include "optimized/cuda/gate/visibility.hpp"
#include "optimized/cuda/workspace.hpp"

namespace lethe {

/// A block of the prefix sum is strong where its log f, cuts apart, sum to less than this: there the kernels add c_i − c_j in more than floats.
inline constexpr double kStrongSum = -512;

/// The place of a cut in a block without one.
inline constexpr uint8_t kNoCut = 255;

/// The gate's prefix sums and cuts: read-only once the gate's kernels have run.
///
///   c_t = Σ_{l ≤ t} log f_l, in two levels: base[t / 128] (double) + a local part, rounded once to one float, in strong blocks to two
///
/// A gate below kStrongGate (optimized/gate.hpp) is a cut: it counts as 0 in the sums, and no later query attends across it. So −inf never enters a
/// sum.
struct GatePrefix {
  double* block_sum;  ///< [B, Hq, N]  Σ of log f in block n
  double* base;       ///< [B, Hq, N+1]  Σ of log f before block n
  float* bias;  ///< [B, Hq, N·128]  −log₂e · (c_j − base[j / 128]), key j's term of a logit in log₂; 0 past Tk
  float* bias_rest;     ///< [B, Hq, N·128]  the rounding error of bias; only in strong blocks (strong_gates.cuh)
  uint8_t* cut_before;  ///< [B, Hq, N·128]  the last cut at or before token t in its block: its place there, or kNoCut
  uint8_t* cut_after;   ///< [B, Hq, N·128]  the first cut after token t in its block, in the same way
  int32_t* block_cut_before;  ///< [B, Hq, N+1]  the last cut before block n, or 0
  int32_t* block_cut_after;   ///< [B, Hq, N+1]  the first cut in block n or later, or INT32_MAX
  /// [B, Hq, N+1]  Σ exp(c_last − c_j) over the keys j before block n from the last cut on, `last` the last of them. For a boundary by mass alone
  float* mass;
  uint8_t* separate_rows;  ///< [B, Hq, N+1]  1 where rows of dS in block n keep separate sums (row_groups.cuh); 0 at N
  int window;              ///< of every query; kNoWindow: all of the past
};

/// The blocks of queries × keys to visit: saved by the forward for its backward.
struct Boundary {
  int32_t* first_key_block;   ///< [B, Hq, M]  the first key block that query block m visits; ascends with m
  int32_t* last_query_block;  ///< [B, Hq, N]  the last query block that visits key block n, or −1
  uint8_t* near_strong;       ///< [B, Hq, N]  1 where key block n or the one before it is strong
};

constexpr int64_t kFewestTileRows = 32;  ///< of the kernels' tiles of queries

/// Heads and tiles by the work that the boundary leaves, and the counters of the search for the boundary.
struct WorkOrder {
  int32_t* head_blocks;     ///< [B, Hq]  blocks of 128 queries × 128 keys to visit
  int32_t* head_order;      ///< [B·Hq]  (batch, query head) pairs, those with most blocks first
  int32_t* key_head_order;  ///< [B·H]  (batch, key head) pairs, by the blocks of their groups
  /// [at most ⌈Tq / 32⌉]  tiles of a head's queries: the last first, or where there are cuts the longest sequence's
  int32_t* tile_order;
  /// [1]  Sections::queries; at least four, Sections::short_queries, where cuts leave sequences of at most a quarter of the keys
  int32_t* query_section;
  float* largest_square;  ///< [2, B, Hq]  max ‖q‖², max ‖k‖² where the logits' bound is computed from them
  int32_t* parts_done;    ///< [B·Hq]  of each (batch, key head): CTAs that have done their part of its heads' bounds
  int32_t* heads_done;    ///< [1]  heads whose boundary is found
};

inline GatePrefix gate_prefix_in(Workspace& workspace, const Shape& shape, int window) {
  const int64_t rows = shape.batch * shape.query_heads, blocks = gate_blocks(shape.key_length);
  return {.block_sum = workspace.take<double>(rows * blocks),
          .base = workspace.take<double>(rows * (blocks + 1)),
          .bias = workspace.take<float>(rows * blocks * kGateBlock),
          .bias_rest = workspace.take<float>(rows * blocks * kGateBlock),
          .cut_before = workspace.take<uint8_t>(rows * blocks * kGateBlock),
          .cut_after = workspace.take<uint8_t>(rows * blocks * kGateBlock),
          .block_cut_before = workspace.take<int32_t>(rows * (blocks + 1)),
          .block_cut_after = workspace.take<int32_t>(rows * (blocks + 1)),
          .mass = workspace.take<float>(rows * (blocks + 1)),
          .separate_rows = workspace.take<uint8_t>(rows * (blocks + 1)),
          .window = window};
}

/// reads  first_key_block  [B, Hq, M], which outlives the workspace
inline Boundary boundary_in(Workspace& workspace, const Shape& shape, int32_t* first_key_block) {
  const int64_t rows = shape.batch * shape.query_heads, blocks = gate_blocks(shape.key_length);
  return {first_key_block, workspace.take<int32_t>(rows * blocks), workspace.take<uint8_t>(rows * blocks)};
}

inline WorkOrder work_order_in(Workspace& workspace, const Shape& shape) {
  const int64_t rows = shape.batch * shape.query_heads;
  return {.head_blocks = workspace.take<int32_t>(rows),
          .head_order = workspace.take<int32_t>(rows),
          .key_head_order = workspace.take<int32_t>(shape.batch * shape.heads),
          .tile_order = workspace.take<int32_t>((shape.query_length + kFewestTileRows - 1) / kFewestTileRows),
          .query_section = workspace.take<int32_t>(1),
          .largest_square = workspace.take<float>(2 * rows),
          .parts_done = workspace.take<int32_t>(rows),
          .heads_done = workspace.take<int32_t>(1)};
}

/// `scale` where a bias can be divided by it: 0 and what is nearly 0 become 2⁻⁶⁰, which leaves nothing of a logit either whose q·k is far below 2⁶⁰.
constexpr double divisor_scale(double scale) { return scale > -0x1p-60 && scale < 0x1p-60 ? 0x1p-60 : scale; }

/// The inputs of the gate's kernels (launch.cuh).
struct GateInputs {
  Shape shape;
  Dtype dtype;
  double scale;
  Operand query, key;  ///< read only where pruning is on and logit_bound is null
  Gates gates;
  double log_pruning_tolerance;  ///< log ε ≤ 0; −inf prunes nothing
  const float* logit_bound;      ///< [B, Hq], U ≥ max |scale·q·k|; null: computed from the largest norms
  bool prune_by_mass = false;    ///< whether pruning bounds the sum of weights, not each by the largest
  bool boundary_given;           ///< in a backward: Boundary::first_key_block is filled
  cudaStream_t stream;
};

}  // namespace lethe
