#pragma once
// The workspace of the backward, and its passes. Internal to optimized/cuda.

#include "optimized/cuda/ampere/plan.hpp"
#include "optimized/cuda/ampere/sizes.hpp"

namespace lethe::ampere {

/// The workspace, cut up. Tp = Tq rounded up to 128.
struct BackwardWorkspace {
  /// [B·Hq, Tp/2]  {R_i, R_i+1, R_i, R_i+1} of queries i, i + 1, R_i = (c_i − c before the block of i's 128 queries − log_normalizer_i) / scale;
  /// past Tq the number that makes a weight 0
  float4* row_bias;
  float4* negative_delta;  ///< [B·Hq, Tp/2]  −Σ_d dO·O in the same order; 0 past Tq
  double* row_number;      ///< [B·Hq, Tp]  c_i − log_normalizer_i; −inf past Tq
  float* row_sums;         ///< [B·Hq, Tp]  Σ_j dS_ij
  float* column_sums;      ///< [B·Hq, N·128]  Σ_i dS_ij
  float* row_shares;       ///< scratch of the gate's gradient, gate_gradient_floats()
  float*
      grad_query;  ///< [B·Hq, Tp, dim]  Σ_j dS_ij k_j in tiles of sixteen queries and eight columns (grad_query.cuh); null unless fused
  int64_t grad_query_floats;
};

/// The arrays of a backward's workspace, after those of its plan.
BackwardWorkspace backward_workspace_in(Workspace& workspace, const Shape& shape);

/// The shared memory that a CTA may have, and so what decides between kernels.
int shared_bytes_of_device();

/// The gradients of a backward whose plan has been launched on the same stream, by the passes below: prepare; keys and queries, or wide or fused and
/// finish; gate. A CTA has at most `shared_bytes`, from 99 KB on. Each throws std::runtime_error for a CUDA error.
void launch_backward_passes(const BackwardArguments& arguments, const BackwardWorkspace& workspace, const Plan& plan,
                            int shared_bytes);

/// Δ_i = dO_i·o_i, the rows' bias and numbers; clears what the fused kernel adds to. One pass over o, its residual and dO, or over a given Δ.
void launch_backward_prepare(const BackwardArguments& arguments, const BackwardWorkspace& workspace, const Plan& plan);
/// dK and dV, and the column sums of dS: a CTA owns keys.
void launch_backward_keys(const BackwardArguments& arguments, const BackwardWorkspace& workspace, const Plan& plan);
/// dQ, and the row sums of dS: a CTA owns queries.
void launch_backward_queries(const BackwardArguments& arguments, const BackwardWorkspace& workspace, const Plan& plan);
/// dK and dV, the column sums of dS, and what each tile of keys adds to dQ and the row sums, where is_fused(dim), by the largest tiles that
/// `shared_bytes` have place for: at least bytes_of_wide(dim).least.
void launch_backward_wide(const BackwardArguments& arguments, const BackwardWorkspace& workspace, const Plan& plan,
                          int shared_bytes);
/// The same at head dim 96 by tiles that want less.
void launch_backward_fused(const BackwardArguments& arguments, const BackwardWorkspace& workspace, const Plan& plan);
/// dQ from its sums.
void launch_backward_finish(const BackwardArguments& arguments, const BackwardWorkspace& workspace);
/// d log f from the sums: gate/gradient.cuh.
void launch_backward_gate(const BackwardArguments& arguments, const BackwardWorkspace& workspace, const Plan& plan);

}  // namespace lethe::ampere
