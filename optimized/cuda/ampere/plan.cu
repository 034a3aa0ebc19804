// The gate's kernels with what these kernels' operands are computed from on the way.

#include "optimized/cuda/ampere/plan.hpp"

#include "optimized/cuda/ampere/backward_warp.cuh"
#include "optimized/cuda/ampere/dimensions.hpp"
#include "optimized/cuda/ampere/forward_shared.cuh"
#include "optimized/cuda/gate/launch.cuh"

namespace lethe::ampere {
namespace {

struct Operands {
  Scratch scratch;
  double inverse_scale;
  int64_t* visited_pairs;

  __device__ void clear(int row) const {
    if (visited_pairs) visited_pairs[row] = 0;
  }

  // The block's sum has NaN, too.
  __device__ void store_tokens(int64_t token, const double (&to_end)[4]) const {
    float bias[4];
    for (int i = 0; i < 4; ++i) {
      const float number = static_cast<float>(to_end[i] * inverse_scale);
      bias[i] = isnan(number) ? 0 : number;
    }
    scratch.key_bias[token / 2] = make_float4(bias[0], bias[1], bias[0], bias[1]);
    scratch.key_bias[token / 2 + 1] = make_float4(bias[2], bias[3], bias[2], bias[3]);
  }

  __device__ void store_base(int64_t entry, double base) const {
    scratch.base_log2[entry] = two_floats(base * std::numbers::log2e);
  }
};

// Queries of a tile of the forward, or of the backward's kernel of queries.
int tile_rows(Dtype dtype, const Shape& shape, bool backward) {
  int rows = 0;
  for_dimension(dtype, shape, [&]<typename Element, int kDim> {
    static_assert(SweepSizesOf<Element, kDim>::kRows >= kFewestTileRows &&
                  ForwardSizesOf<Element, kDim>::kRows >= kFewestTileRows);
    rows = backward ? SweepSizesOf<Element, kDim>::kRows : ForwardSizesOf<Element, kDim>::kRows;
  });
  return rows;
}

}  // namespace

Plan plan_in(Workspace& workspace, const Shape& shape, int32_t* first_key_block, int window) {
  const int64_t rows = shape.batch * shape.query_heads, keys = gate_blocks(shape.key_length);
  return {.prefix = gate_prefix_in(workspace, shape, window),
          .boundary = boundary_in(workspace, shape, first_key_block),
          .order = work_order_in(workspace, shape),
          .scratch = {.base_log2 = workspace.take<TwoFloats>(rows * (keys + 1)),
                      .key_bias = workspace.take<float4>(rows * keys * kGateBlock / 2)}};
}

void launch_plan(const GateInputs& inputs, const Plan& plan, int64_t* visited_pairs) {
  const int64_t element_bytes = inputs.dtype == Dtype::kFloat32 ? 4 : 2;
  const Shape& s = inputs.shape;
  const int window = plan.prefix.window, rows = tile_rows(inputs.dtype, s, inputs.boundary_given);
  const Sections sections = {section_of_query_tiles(s, element_bytes, window, rows),
                             section_of_key_tiles(s, element_bytes, window), rows, 4};
  launch_gate(inputs, plan.prefix, plan.boundary, plan.order, sections,
              Operands{plan.scratch, 1 / divisor_scale(inputs.scale), visited_pairs});
}

}  // namespace lethe::ampere
