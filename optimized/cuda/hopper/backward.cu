// The launch of the main backward kernel: tensor maps, parameters, one instance a type, head dimension and kind of sums.

#include <algorithm>
#include <cstdlib>
#include <numbers>

#include "optimized/cuda/hopper/backward_launch.cuh"
#include "optimized/cuda/hopper/dimensions.hpp"
#include "optimized/cuda/hopper/forward.hpp"
#include "optimized/cuda/hopper/tensor_map.hpp"
#include "optimized/cuda/launch.cuh"

namespace lethe {
namespace hopper::backward_pass {

namespace {

template <typename Element, int kDim>
void launch(const BackwardArguments& arguments, const BackwardWorkspace& workspace, const Plan& plan) {
  using Shared = BackwardShared<kDim>;
  const Shape& shape = arguments.shape;
  const auto map = [&](const Operand& operand, int64_t length, int64_t heads, int64_t dim, int rows) {
    return tensor_map(operand, arguments.dtype, shape.batch, length, heads, dim, rows);
  };
  const auto written = [&](const MutableOperand& operand, int64_t dim) {
    return map({operand.data, operand.batch_stride, operand.token_stride, operand.head_stride}, shape.key_length,
               shape.heads, dim, 64);
  };
  const int key_blocks = int(gate_blocks(shape.key_length)), key_tiles = key_blocks * (kBlock / Shared::kKeys);
  const int rows = int(shape.batch * shape.heads);
  const float logit_scale = float(divisor_scale(arguments.scale) * std::numbers::log2e);
  const BackwardParameters parameters{
      .query = map(arguments.query, shape.query_length, shape.query_heads, shape.key_dim, Shared::kQueries),
      .key = map(arguments.key, shape.key_length, shape.heads, shape.key_dim, Shared::kKeys),
      .value = map(arguments.value, shape.key_length, shape.heads, shape.value_dim, Shared::kKeys),
      .grad_output =
          map(arguments.grad_values, shape.query_length, shape.query_heads, shape.value_dim, Shared::kQueries),
      .grad_key = written(arguments.grad_key, shape.key_dim),
      .grad_value = written(arguments.grad_value, shape.value_dim),
      .plan = plan,
      .workspace = workspace,
      .query_length = int(shape.query_length),
      .query_offset = int(shape.key_length - shape.query_length),
      .heads = int(shape.heads),
      .group = int(shape.query_heads / shape.heads),
      .rows = rows,
      .section = section_of_key_tiles(shape, plan.prefix.window),
      .query_tiles = int((shape.query_length + Shared::kQueries - 1) / Shared::kQueries),
      .key_tiles = key_tiles,
      .padded_queries = int(whole_blocks(shape.query_length)),
      .scale = float(arguments.scale),
      .logit_scale = logit_scale,
      .inverse_scale = 1 / divisor_scale(arguments.scale),
      .deterministic = arguments.deterministic,
      .key_blocks = key_blocks,
      .short_tiles = arguments.deterministic || plan.prefix.window >= kLargestWindow
                         ? 0
                         : std::min(key_tiles, (plan.prefix.window + Shared::kKeys - 1) / Shared::kKeys),
      .cleared_blocks = blocks_cleared_before(arguments, plan),
      .trial_late = [] {
        const char* v = std::getenv("LETHE_TRIAL_LATE");
        return v ? std::atoi(v) : 0;
      }()};

  const auto start = [&]<bool kFloatSums> {
    if constexpr (kHasEdges<kDim, kFloatSums>)
      if (plan.prefix.window != kNoWindow) return launch_edges<Element, kDim>(parameters, arguments.stream);
    launch_tiles<Element, kDim, kFloatSums, false>(parameters, arguments.stream);
  };
  if constexpr (!hopper::has_16_bit_sums(kDim)) start.template operator()<kGate>();
  else arguments.float_sums ? start.template operator()<kGate>() : start.template operator()<false>();
}

}  // namespace
}  // namespace hopper::backward_pass

int blocks_cleared_before(const BackwardArguments& arguments, const Plan& plan) {
  using namespace hopper::backward_pass;
  const Shape& shape = arguments.shape;
  const int blocks = int(gate_blocks(shape.query_length));
  if (!kGate || !arguments.float_sums || hopper::instance_dim(shape) > 128 || arguments.deterministic ||
      plan.prefix.window >= kLargestWindow || shape.query_length != shape.key_length)
    return blocks;
  // The first tile that adds to a block comes so many tiles of its head after the one that clears it: half of what runs at a time, of eight heads.
  const int kTilesAhead = [] {
    const char* v = std::getenv("LETHE_TRIAL_CLEAR");
    return v ? std::atoi(v) : 8;
  }();
  if (kTilesAhead == 0) return blocks;
  return std::min(blocks, (plan.prefix.window + int(kGateBlock) - 2) / int(kGateBlock) + kTilesAhead);
}

void launch_backward_tiles(const BackwardArguments& arguments, const BackwardWorkspace& workspace, const Plan& plan) {
  using namespace hopper::backward_pass;
  hopper::for_instance(arguments.dtype, arguments.shape,
                       [&]<typename Element, int kDim> { launch<Element, kDim>(arguments, workspace, plan); });
}

}  // namespace lethe
