// The gate's gradient: each row of dS has its own sum.

#include "optimized/cuda/gate/gradient.cuh"

#include "optimized/cuda/ampere/backward.hpp"

namespace lethe::ampere {
namespace {

struct RowSums {
  const float* sums;
  int padded_queries;

  __device__ void join_groups(int64_t, int, int, int) const {}
  __device__ float at(int64_t row, int query) const { return sums[row * padded_queries + query]; }
};

}  // namespace

void launch_backward_gate(const BackwardArguments& arguments, const BackwardWorkspace& workspace, const Plan& plan) {
  launch_gate_gradient({.shape = arguments.shape,
                        .prefix = plan.prefix,
                        .column_sums = workspace.column_sums,
                        .row_shares = workspace.row_shares,
                        .grad_log_forget = arguments.grad_log_forget,
                        .stream = arguments.stream},
                       RowSums{workspace.row_sums, int(whole_blocks(arguments.shape.query_length))});
}

}  // namespace lethe::ampere
