#pragma once
// The workspace and its layout, which the kernels of the backward pass share. Internal to optimized/cuda.

#include <cuda.h>

#include "optimized/cuda/hopper/plan.hpp"
#include "optimized/cuda/query_sums.hpp"

namespace lethe {

struct BiasColumn;  // bias_step.cuh

/// Queries in one tile of the main kernel.
template <int kDim>
inline constexpr int kTileQueries = kDim == 64 ? 128 : 64;

/// The workspace, cut up. Tp = Tq rounded up to 128.
struct BackwardWorkspace {
  float* grad_query;  ///< [B·Hq, Tp/64, D/64, kSliceFloats], D the instance's (dimensions.hpp); summed over key tiles
  /// [B·Hq, Tp]  (c_i − c of the tile's frame − log_normalizer) / scale; past Tq the number that makes a weight 0
  BiasColumn* row_bias;
  BiasColumn* zeros;           ///< [128]  for row_bias in steps on the diagonal near strong gates
  double* row_number;          ///< [B·Hq, Tp]  (c_i − log_normalizer_i) / scale; −inf / scale past Tq
  BiasColumn* negative_delta;  ///< [B·Hq, Tp]  −Σ_d dO·O; 0 past Tq
  float* column_sums;          ///< [B·Hq, N·128]  Σ_i dS_ij
  float* row_shares;           ///< by position: r_i / Z_i, then u; numbers of blocks: gate_gradient_floats()
  int32_t*
      turns;  ///< [B·Hq, Tp/tile]  key tiles that have added to a query tile, where the order is fixed; else by blocks of 128 queries
              ///< whether a key tile has set their dQ to zero (blocks_cleared_before())
};

/// The arrays of a backward's workspace, after those of its plan.
BackwardWorkspace backward_workspace_in(Workspace& workspace, const Shape& shape);

/// Blocks of 128 queries of each head, from the first on, whose float dQ prepare sets to zero. With a window the main kernel's key tile k does so for
/// block k + this many, which a key tile after it is the first to add to; in all other calls prepare does for all.
int blocks_cleared_before(const BackwardArguments& arguments, const Plan& plan);

/// The gradients of a backward whose plan has been launched on the same stream, by the four passes below in their order; each throws
/// std::runtime_error for a CUDA error.
void launch_backward_passes(const BackwardArguments& arguments, const BackwardWorkspace& workspace, const Plan& plan);

/// Δ_i = dO_i·o_i, the rows' bias and numbers; sets dQ, the turns, the zeros and the plan's count of tiles to zero. One pass over o, its
/// residual and dO, none of which is read where Δ is given.
void launch_backward_prepare(const BackwardArguments& arguments, const BackwardWorkspace& workspace, const Plan& plan);
/// dK and dV; the float dQ, and the row and column sums of dS. All of the products: backward_kernel.cuh.
void launch_backward_tiles(const BackwardArguments& arguments, const BackwardWorkspace& workspace, const Plan& plan);
/// d log f from the sums: gate/gradient.cuh.
void launch_backward_gate(const BackwardArguments& arguments, const BackwardWorkspace& workspace, const Plan& plan);
/// dQ in 16 bits from the float one. One pass over it.
void launch_backward_finish(const BackwardArguments& arguments, const BackwardWorkspace& workspace);

}  // namespace lethe
