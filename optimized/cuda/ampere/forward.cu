// Launch of the forward kernel: parameters, one instance a type and head dimension.
#include "optimized/cuda/ampere/forward.hpp"

#include <numbers>

#include "optimized/cuda/ampere/dimensions.hpp"
#include "optimized/cuda/ampere/forward_launch.cuh"

namespace lethe::ampere {

void launch_forward_tiles(const ForwardArguments& arguments, const Plan& plan) {
  const Shape& s = arguments.shape;
  const int rows = int(s.batch * s.query_heads);
  for_dimension(arguments.dtype, s, [&]<typename Element, int kDim> {
    using Sizes = ForwardSizesOf<Element, kDim>;
    ForwardParameters p;
    p.prefix = plan.prefix;
    p.boundary = plan.boundary;
    p.order = plan.order;
    p.query_length = int(s.query_length);
    p.key_length = int(s.key_length);
    p.heads = int(s.heads);
    p.query_heads = int(s.query_heads);
    p.query_blocks = int(gate_blocks(s.query_length));
    p.query_tiles = int((s.query_length + Sizes::kRows - 1) / Sizes::kRows);
    p.key_blocks = int(gate_blocks(s.key_length));
    p.tiles = rows * p.query_tiles;
    p.query = in_halves<Element>(arguments.query);
    p.key = in_halves<Element>(arguments.key);
    p.value = in_halves<Element>(arguments.value);
    p.scratch = plan.scratch;
    p.key_dim = int(s.key_dim);
    p.value_dim = int(s.value_dim);
    p.scale_log2 = static_cast<float>(divisor_scale(arguments.scale) * std::numbers::log2e);
    p.inverse_scale = 1 / divisor_scale(arguments.scale);
    p.inverse_scale_log2 = static_cast<float>(p.inverse_scale / std::numbers::log2e);
    p.values = arguments.values;
    p.residual = arguments.residual;
    p.log_normalizer = arguments.log_normalizer;
    p.visited_pairs = arguments.visited_pairs;
    p.key_block_bytes = p.key.token_stride * 2 * Sizes::kKeys;
    p.value_block_bytes = p.value.token_stride * 2 * Sizes::kKeys;
    if constexpr (kHasEdges<Element, kDim>) {
      if (plan.prefix.window < kLargestWindow) return launch_edges<Element, kDim>(p, arguments.stream);
    }
    launch_forward<Element, Sizes, false>(p, arguments.stream);
  });
}

}  // namespace lethe::ampere
