#pragma once
// The small layers of the model, in their Torch form. Statistics and mixtures are computed in float32 (float64 for float64
// inputs) whatever the compute dtype, and rounded once at the end.

#include <torch/types.h>

#include "optimized/torch/layers.hpp"

namespace lethe {

constexpr double kNormEpsilon = 1e-6;    ///< of the block's norms, the final norm and the output norm
constexpr double kQkNormEpsilon = 1e-5;  ///< of the norm of queries and keys

/// y = x / √(mean_n x² + ε) · w, over the last dimension.
///
/// source   FoX Eq. 16, 18 and 24
/// reads    x [..., n]; weight, broadcastable to x: [n], or [H, n] for an x of [..., H, n]
/// returns  like x, in `dtype`
torch::Tensor rms_norm(const torch::Tensor& x, const torch::Tensor& weight, double epsilon, torch::Dtype dtype);

/// y_t = α_t u_{t−1} + (1 − α_t) u_t with u_{−1} = 0 and α = σ(logit): a head's keys or values mix with the previous token's.
///
/// source   FoX Eq. 17–20
/// reads    u [B,T,H,D]; logit [B,T,H]
/// returns  like u
torch::Tensor shift_by_one(const torch::Tensor& u, const torch::Tensor& logit);

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

/// The dtype of sums over `dtype`: float64 for float64, float32 for all others.
inline torch::Dtype accumulation_dtype(torch::Dtype dtype) {
  return dtype == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
}

}  // namespace lethe
