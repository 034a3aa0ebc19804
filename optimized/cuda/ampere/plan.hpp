#pragma once
// What the kernels of compute capability 8.0 and above read of the gate: the gate's own arrays, and operands that its kernels write for these
// kernels on the way.

#include <vector_types.h>

#include "optimized/cuda/gate/plan.hpp"
#include "optimized/cuda/gate/sections.hpp"
#include "optimized/cuda/gate/strong_gates.cuh"

namespace lethe::ampere {

/// Operands of one forward or backward.
struct Scratch {
  TwoFloats* base_log2;  ///< [B, Hq, N+1]  log₂e · GatePrefix::base
  /// [B, Hq, N·64]  {b_j, b_j+1, b_j, b_j+1} of keys j, j + 1, b_j = (base[j / 128 + 1] − c_j) / scale, what key j adds to q·k; 0 past Tk: a lane's
  /// part of two rows of a product's initial sum. From the block's end: the keys that later blocks' queries see best have the smallest numbers.
  /// No NaN: base has it
  float4* key_bias;
};

/// All of it, for one forward or one backward.
struct Plan {
  GatePrefix prefix;
  Boundary boundary;
  WorkOrder order;
  Scratch scratch;
};

/// Heads of a section: of tiles of `rows` queries, of tiles of keys, as of 128. Two CTAs a multiprocessor.
inline int section_of_query_tiles(const Shape& shape, int64_t element_bytes, int window, int64_t rows) {
  return section_of_queries(shape, element_bytes, window, 2 * multiprocessors() * rows);
}
inline int section_of_key_tiles(const Shape& shape, int64_t element_bytes, int window) {
  return section_of_keys(shape, (shape.key_dim + shape.value_dim) * element_bytes, window,
                         2 * multiprocessors() * kGateBlock, INT_MAX, 4);
}

/// The plan's arrays; the boundary itself lies at `first_key_block` [B, Hq, M].
Plan plan_in(Workspace& workspace, const Shape& shape, int32_t* first_key_block, int window = kNoWindow);

/// Fills the plan, and `visited_pairs` [B, Hq] with zeros unless it is null.
void launch_plan(const GateInputs& inputs, const Plan& plan, int64_t* visited_pairs);

}  // namespace lethe::ampere
