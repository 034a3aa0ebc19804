// The gate's kernels with what the Hopper family computes from the prefix on the way.

#include "optimized/cuda/hopper/plan.hpp"

#include "optimized/cuda/gate/launch.cuh"
#include "optimized/cuda/hopper/bias_step.cuh"
#include "optimized/cuda/hopper/dimensions.hpp"
#include "optimized/cuda/hopper/forward.hpp"

namespace lethe {
namespace {

struct HopperOperands {
  Scratch scratch;
  double inverse_scale;
  bool with_start;

  __device__ void clear(int row) const {
    scratch.pairs[row] = 0;
    if (row == 0) *scratch.next_tile = scratch.repeats[0] = 0;
  }

  // As k-steps read them. The block's sum has NaN, too.
  __device__ void store_tokens(int64_t token, const double (&to_end)[4]) const {
    if (!with_start) return;
    float rest[4];
    for (int i = 0; i < 4; ++i) {
      const float number = static_cast<float>(to_end[i] * inverse_scale);
      rest[i] = isnan(number) ? 0 : within_bias_parts(number);
    }
    for (int part = 0; part < 3; ++part) {
      // not by memcpy: nvcc 13.0 makes stores of bytes of it, and converts the lower one as if it were a float16
      struct alignas(8) Four {
        __nv_bfloat162 low, high;
      };
      const Four four = {next_part(rest[0], rest[1]), next_part(rest[2], rest[3])};
      *reinterpret_cast<Four*>(&scratch.start[token / 8].part[part][token % 8]) = four;
    }
  }

  __device__ void store_base(int64_t entry, double base) const {
    scratch.base_log2[entry] = two_floats(base * std::numbers::log2e);
  }
};

}  // namespace

Plan plan_in(Workspace& workspace, const Shape& shape, int32_t* first_key_block, int window) {
  const int64_t rows = shape.batch * shape.query_heads, keys = gate_blocks(shape.key_length),
                queries = gate_blocks(shape.query_length);
  return {.prefix = gate_prefix_in(workspace, shape, window),
          .boundary = boundary_in(workspace, shape, first_key_block),
          .order = work_order_in(workspace, shape),
          .scratch = {.base_log2 = workspace.take<TwoFloats>(rows * (keys + 1)),
                      .start = workspace.take<BiasOfEight>(rows * keys * kGateBlock / 8),
                      .next_tile = workspace.take<int32_t>(1),
                      .pairs = workspace.take<unsigned long long>(rows),
                      .repeats = workspace.take<int32_t>(1 + 2 * rows * queries)}};
}

void launch_plan(const GateInputs& inputs, const Plan& plan) {
  const Sections sections = {hopper::section_of_query_tiles(inputs.shape, plan.prefix.window),
                             hopper::section_of_key_tiles(inputs.shape, plan.prefix.window),
                             int(forward_tile_rows(hopper::instance_dim(inputs.shape))), 4};
  launch_gate(inputs, plan.prefix, plan.boundary, plan.order, sections,
              HopperOperands{plan.scratch, 1 / divisor_scale(inputs.scale), !inputs.boundary_given});
}

}  // namespace lethe
