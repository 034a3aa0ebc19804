// Launch of the forward kernel: tensor maps, parameters, one instance a type and head dimension, and the second launch for
// what left the range or has strong gates.

#include <algorithm>
#include <cstdlib>
#include <numbers>

#include "optimized/cuda/hopper/dimensions.hpp"
#include "optimized/cuda/hopper/forward.hpp"
#include "optimized/cuda/hopper/forward_launch.cuh"
#include "optimized/cuda/hopper/tensor_map.hpp"
#include "optimized/cuda/launch.cuh"

namespace lethe {

void launch_forward_tiles(const ForwardArguments& arguments, const Plan& plan) {
  using namespace hopper::forward_pass;
  const Shape& s = arguments.shape;
  const auto map = [&](const Operand& operand, int64_t length, int64_t heads, int64_t dim, int rows) {
    return tensor_map(operand, arguments.dtype, s.batch, length, heads, dim, rows);
  };
  const int64_t width = s.query_heads * s.value_dim;
  ForwardParameters p;
  const int64_t dim = hopper::instance_dim(s);
  const int tile_rows = forward_tile_rows(dim), step_keys = dim <= 128 ? kStepKeys<128> : kStepKeys<256>;
  p.query = map(arguments.query, s.query_length, s.query_heads, s.key_dim, tile_rows);
  p.key = map(arguments.key, s.key_length, s.heads, s.key_dim, step_keys);
  p.value = map(arguments.value, s.key_length, s.heads, s.value_dim, step_keys);
  const auto output_map = [&](void* data) {
    return map({data, s.query_length * width, width, s.value_dim}, s.query_length, s.query_heads, s.value_dim, 64);
  };
  p.output = output_map(arguments.values);
  p.residual = output_map(arguments.residual ? arguments.residual : arguments.values);
  p.prefix = plan.prefix;
  p.boundary = plan.boundary;
  p.order = plan.order;
  p.scratch = plan.scratch;
  p.scale_log2 = static_cast<float>(divisor_scale(arguments.scale) * std::numbers::log2e);
  p.query_length = s.query_length;
  p.key_length = s.key_length;
  p.heads = s.heads;
  p.query_heads = s.query_heads;
  p.query_blocks = gate_blocks(s.query_length);
  p.query_tiles = (s.query_length + tile_rows - 1) / tile_rows;
  p.key_blocks = gate_blocks(s.key_length);
  const int rows = s.batch * s.query_heads;
  p.tiles = rows * p.query_tiles;
  p.section = hopper::section_of_query_tiles(s, plan.prefix.window);
  p.log_normalizer = arguments.log_normalizer;
  p.keep_residual = arguments.residual != nullptr;
  p.visited_pairs = arguments.visited_pairs;
  p.trial = [] {
    const char* v = std::getenv("LETHE_TRIAL_FIRST");
    return v ? std::atoi(v) : 0;
  }();
  const int grid = std::min(p.tiles, multiprocessors());
  hopper::for_instance(arguments.dtype, s, [&]<typename Element, int kDim> {
    if constexpr (kHasEdges<kDim>)
      if (plan.prefix.window != kNoWindow) return launch_edges<Element, kDim>(p, grid, arguments.stream);
    launch<Element, kDim, false>(p, grid, arguments.stream);
  });
}

}  // namespace lethe
