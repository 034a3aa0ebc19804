#pragma once
// The parts of each kernel family that tests launch one by one, under the same names.

#include <optional>
#include <vector>

#include "optimized/cuda/ampere/attention.hpp"
#include "optimized/cuda/ampere/backward.hpp"
#include "optimized/cuda/ampere/forward.hpp"
#include "optimized/cuda/hopper/attention.hpp"
#include "optimized/cuda/hopper/backward.hpp"
#include "optimized/cuda/hopper/dimensions.hpp"
#include "optimized/cuda/hopper/forward.hpp"
#include "tests/cuda/device.hpp"

namespace lethe::testing {

/// The window of the calls: by kLargestWindow, which hides nothing, the Hopper family runs its instances for windows.
inline int window_under_test = kNoWindow;

/// The shared memory of a CTA for kAmpere's backward; null: the device's.
inline std::optional<int> shared_bytes_under_test;

/// After a head's columns of an operand and of a gradient: NaN, which no kernel may read or overwrite. A multiple of 8.
inline int64_t columns_between_heads = 0;

struct HopperKernels {
  using Plan = lethe::Plan;

  static size_t plan_bytes(const Shape& shape) { return hopper::forward_workspace_bytes(shape); }
  static size_t backward_passes_bytes(const Shape& shape) {
    Workspace workspace(nullptr);
    backward_workspace_in(workspace, shape);
    return workspace.bytes();
  }
  static Plan plan_in(Workspace& workspace, const Shape& shape, int32_t* first_key_block) {
    return lethe::plan_in(workspace, shape, first_key_block, window_under_test);
  }
  static void launch_plan(const GateInputs& inputs, const Plan& plan) { lethe::launch_plan(inputs, plan); }
  static void launch_forward(const ForwardArguments& arguments, const Plan& plan) {
    launch_forward_tiles(arguments, plan);
  }
  static void launch_backward(const BackwardArguments& arguments, Workspace& workspace, const Plan& plan) {
    launch_backward_passes(arguments, backward_workspace_in(workspace, arguments.shape), plan);
  }
  static std::optional<int32_t> repeated_tiles(const Plan& plan) { return download(plan.scratch.repeats, 1).front(); }
};

struct AmpereKernels {
  using Plan = ampere::Plan;

  static size_t plan_bytes(const Shape& shape) { return ampere::forward_workspace_bytes(shape); }
  static size_t backward_passes_bytes(const Shape& shape) {
    Workspace workspace(nullptr);
    ampere::backward_workspace_in(workspace, shape);
    return workspace.bytes();
  }
  static Plan plan_in(Workspace& workspace, const Shape& shape, int32_t* first_key_block) {
    return ampere::plan_in(workspace, shape, first_key_block, window_under_test);
  }
  static void launch_plan(const GateInputs& inputs, const Plan& plan) { ampere::launch_plan(inputs, plan, nullptr); }
  static void launch_forward(const ForwardArguments& arguments, const Plan& plan) {
    const Shape& s = arguments.shape;
    require(cudaMemset(arguments.visited_pairs, 0, s.batch * s.query_heads * sizeof(int64_t)));
    ampere::launch_forward_tiles(arguments, plan);
  }
  static void launch_backward(const BackwardArguments& arguments, Workspace& workspace, const Plan& plan) {
    ampere::launch_backward_passes(arguments, ampere::backward_workspace_in(workspace, arguments.shape), plan,
                                   shared_bytes_under_test.value_or(ampere::shared_bytes_of_device()));
  }
  static std::optional<int32_t> repeated_tiles(const Plan&) { return std::nullopt; }  // each CTA repeats its own
};

// kHopperWindows: kHopper, with kLargestWindow. kAmpereOfLess: kAmpere, where the backward's largest tiles find too little shared memory.
enum class Family { kHopper, kHopperWindows, kAmpere, kAmpereOfLess };

/// The family that run_forward and run_backward run: set for each test of EveryKernel.
inline Family family_under_test = Family::kHopper;

/// The family that the device has, for as long as it lives: of a test that is none of EveryKernel.
class FamilyOfDevice {
 public:
  FamilyOfDevice() { family_under_test = have_gpu() ? Family::kHopper : Family::kAmpere; }
  ~FamilyOfDevice() { family_under_test = Family::kHopper; }
  FamilyOfDevice(const FamilyOfDevice&) = delete;
  FamilyOfDevice& operator=(const FamilyOfDevice&) = delete;
};

/// The kinds of sums of dS that differ, by BackwardArguments::float_sums: one family and one instance have them in float alone.
inline std::vector<bool> kinds_of_sums(const Shape& shape) {
  const bool both = family_under_test == Family::kHopper && hopper::has_16_bit_sums(hopper::instance_dim(shape));
  return both ? std::vector{false, true} : std::vector{true};
}

/// Calls `call.operator()<Kernels, Element>()` of the family under test.
template <typename Call>
auto with_kernels(Dtype dtype, Call call) {
  const bool bfloat16 = dtype == Dtype::kBFloat16;
  if (family_under_test == Family::kHopper)
    return bfloat16 ? call.template operator()<HopperKernels, __nv_bfloat16>()
                    : call.template operator()<HopperKernels, __half>();
  if (dtype == Dtype::kFloat32) return call.template operator()<AmpereKernels, float>();
  return bfloat16 ? call.template operator()<AmpereKernels, __nv_bfloat16>()
                  : call.template operator()<AmpereKernels, __half>();
}

}  // namespace lethe::testing
