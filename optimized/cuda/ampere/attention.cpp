// The family's forward and backward: workspace, plan, kernels.
#include "optimized/cuda/ampere/attention.hpp"

#include <limits>

#include "optimized/cuda/ampere/backward.hpp"
#include "optimized/cuda/ampere/forward.hpp"
#include "optimized/cuda/check.hpp"

namespace lethe::ampere {

size_t forward_workspace_bytes(const Shape& shape) {
  Workspace workspace(nullptr);
  plan_in(workspace, shape, nullptr);
  return workspace.bytes();
}

size_t backward_workspace_bytes(const Shape& shape) {
  Workspace workspace(nullptr);
  plan_in(workspace, shape, nullptr);
  backward_workspace_in(workspace, shape);
  return workspace.bytes();
}

void forward(const ForwardArguments& a) {
  Workspace workspace(a.workspace);
  const Plan plan = plan_in(workspace, a.shape, a.first_key_block, a.window);
  launch_plan({.shape = a.shape,
               .dtype = a.dtype,
               .scale = a.scale,
               .query = a.query,
               .key = a.key,
               .gates = a.gates,
               .log_pruning_tolerance = a.log_pruning_tolerance,
               .logit_bound = a.logit_bound,
               .prune_by_mass = a.prune_by_mass,
               .boundary_given = false,
               .stream = a.stream},
              plan, a.visited_pairs);
  launch_forward_tiles(a, plan);
}

void backward(const BackwardArguments& a) {
  Workspace memory(a.workspace);
  // The boundary is given: the gate's kernels only read it.
  const Plan plan = plan_in(memory, a.shape, const_cast<int32_t*>(a.first_key_block), a.window);
  const BackwardWorkspace workspace = backward_workspace_in(memory, a.shape);
  launch_plan({.shape = a.shape,
               .dtype = a.dtype,
               .scale = a.scale,
               .query = a.query,
               .key = a.key,
               .gates = a.gates,
               .log_pruning_tolerance = -std::numeric_limits<double>::infinity(),
               .logit_bound = nullptr,
               .boundary_given = true,
               .stream = a.stream},
              plan, nullptr);
  launch_backward_passes(a, workspace, plan, shared_bytes_of_device());
}

int shared_bytes_of_device() {
  int device, bytes;
  cuda_check(cudaGetDevice(&device), "backward");
  cuda_check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "backward");
#ifdef LETHE_SHARED_BYTES  // a build that runs what a smaller GPU would, to time it: 166912 of an A100, 101376 of an L40S
  bytes = bytes < LETHE_SHARED_BYTES ? bytes : LETHE_SHARED_BYTES;
#endif
  return bytes;
}

void launch_backward_passes(const BackwardArguments& arguments, const BackwardWorkspace& workspace, const Plan& plan,
                            int shared_bytes) {
  launch_backward_prepare(arguments, workspace, plan);
  const BackwardKernels kernels =
      backward_kernels(arguments.shape, arguments.dtype, arguments.deterministic, shared_bytes);
  if (kernels == BackwardKernels::kKeysAndQueries) {
    launch_backward_keys(arguments, workspace, plan);
    launch_backward_queries(arguments, workspace, plan);
  } else {
    if (kernels == BackwardKernels::kWide) launch_backward_wide(arguments, workspace, plan, shared_bytes);
    else launch_backward_fused(arguments, workspace, plan);
    launch_backward_finish(arguments, workspace);
  }
  launch_backward_gate(arguments, workspace, plan);
}

}  // namespace lethe::ampere
