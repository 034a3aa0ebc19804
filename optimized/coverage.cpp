#include "optimized/coverage.hpp"

#include <climits>

#include "optimized/gate.hpp"

namespace lethe {

std::string unsupported_by_hopper(const Shape& shape, Dtype dtype, int capability) {
  const std::string dim = std::to_string(shape.key_dim);
  if (capability != 90)
    return "device: expected compute capability 9.0, found " + std::to_string(capability / 10) + "." +
           std::to_string(capability % 10);
  if (dtype == Dtype::kFloat32 || dtype == Dtype::kFloat64)
    return std::string("dtype: expected bfloat16 or float16, found ") +
           (dtype == Dtype::kFloat32 ? "float32" : "float64");
  if (shape.key_dim != 64 && shape.key_dim != 128) return "head dim: expected 64 or 128, found " + dim;
  if (shape.value_dim != shape.key_dim)
    return "value dim: expected the head dim (" + dim + "), found " + std::to_string(shape.value_dim);
  // Positions and tile numbers are 32-bit integers; batch and heads are dimensions of a grid.
  constexpr int64_t kLongest = int64_t{1} << 30, kGrid = 65535;
  if (shape.key_length > kLongest || shape.batch > kGrid || shape.query_heads > kGrid ||
      shape.batch * shape.query_heads > INT_MAX / gate_blocks(shape.key_length))
    return "size: expected a length up to 2^30, batch and heads below 2^16 and fewer than 2^31 tiles, found more";
  return "";
}

}  // namespace lethe
