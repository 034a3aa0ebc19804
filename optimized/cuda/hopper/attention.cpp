// The Hopper family's forward and backward: workspace, plan, kernels.
#include "optimized/cuda/hopper/attention.hpp"

#include <limits>

#include "optimized/cuda/gate/switch.hpp"
#include "optimized/cuda/hopper/backward.hpp"
#include "optimized/cuda/hopper/forward.hpp"

namespace lethe::hopper {

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

const float* query_sums(const Shape& shape, void* memory) {
  Workspace workspace(memory);
  plan_in(workspace, shape, nullptr);
  return backward_workspace_in(workspace, shape).grad_query;
}

namespace {

Plan plan_of(const ForwardArguments& a) {
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
              plan);
  return plan;
}

}  // namespace

void forward(const ForwardArguments& a) { launch_forward_tiles(a, plan_of(a)); }

void forward_gate_alone(const ForwardArguments& a) { plan_of(a); }

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
              plan);
  launch_backward_passes(a, workspace, plan);
}

}  // namespace lethe::hopper

namespace lethe {

// Again on one plan only where finish_query ends each: it alone ends after all others, so that the next prepare clears no sums that are being read.
void launch_backward_passes(const BackwardArguments& arguments, const BackwardWorkspace& workspace, const Plan& plan) {
  launch_backward_prepare(arguments, workspace, plan);
  launch_backward_tiles(arguments, workspace, plan);
  if constexpr (kGate) launch_backward_gate(arguments, workspace, plan);
  if (arguments.finish_query) launch_backward_finish(arguments, workspace);
}

}  // namespace lethe
