#pragma once
// What the Hopper kernels read of the gate: the gate's own arrays, and operands that its kernels write for these kernels on the way.

#include "optimized/cuda/gate/plan.hpp"
#include "optimized/cuda/gate/strong_gates.cuh"

namespace lethe {

struct BiasOfEight;  // bias_step.cuh

/// Operands and counters of one forward, or of one backward after the other.
struct Scratch {
  TwoFloats* base_log2;  ///< [B, Hq, N+1]  log₂e · GatePrefix::base
  /// [B, Hq, N·16]  (base[j / 128 + 1] − c_j) / scale, what key j adds to q·k; 0 past Tk. From the block's end: the keys that later
  /// blocks' queries see best have the smallest numbers. No NaN: base has it
  BiasOfEight* start;
  int32_t* next_tile;  ///< [1]  tiles that a forward's CTAs have asked for, each beyond its first, or a backward's
  unsigned long long* pairs;  ///< [B, Hq]  causal pairs inside the blocks that the forward has computed
  /// [1 + 2·B·Hq·M]  tiles that the forward's second launch computes, their count first: after an overflow, and those with strong gates. Then what it
  /// stores of each tile (repeated_groups, forward_tiles.cuh)
  int32_t* repeats;
};

/// All of it, for one forward or one backward.
struct Plan {
  GatePrefix prefix;
  Boundary boundary;
  WorkOrder order;
  Scratch scratch;
};

/// The plan's arrays; the boundary itself lies at `first_key_block` [B, Hq, M].
Plan plan_in(Workspace& workspace, const Shape& shape, int32_t* first_key_block, int window = kNoWindow);

/// Fills the plan. In a backward, Scratch::start is not needed and not written.
void launch_plan(const GateInputs& inputs, const Plan& plan);

}  // namespace lethe
