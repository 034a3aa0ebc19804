#pragma once
// The numbers that layers share, and rotations in their Torch form: computed in float32 (float64 for float64 inputs)
// whatever the compute dtype, and rounded once at the end.

#include <torch/types.h>

#include "optimized/operators/checks.hpp"  // accumulation_dtype
#include "optimized/torch/layers.hpp"

namespace lethe {

constexpr double kNormEpsilon = 1e-6;    ///< of the block's norms, the final norm and the output norm
constexpr double kQkNormEpsilon = 1e-5;  ///< of the norm of queries and keys

/// Cosine and sine of the angles t·base^(−2i/D), [T,1,D/2] each in the dtype and on the device of `options`; the angles
/// are float64.
///
/// source   RoPE, in the NeoX layout: entry i of a head is paired with entry i + D/2
struct Rotation {
  torch::Tensor cosine, sine;
};
Rotation rotation(int64_t length, int64_t head_dim, double base, const torch::TensorOptions& options);

/// Rotates (x_i, x_{i+D/2}) by the angle of position and i.
///
/// reads    x [B,T,H,D], D even
/// returns  like x
torch::Tensor rotate(const torch::Tensor& x, const Rotation& rotation);

}  // namespace lethe
