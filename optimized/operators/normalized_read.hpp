#pragma once
// The division by the normaliser, which is the state's last column: read = [Sᵀq, z·q] in float64.

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

namespace lethe {

/// y = Sᵀq / z·q.
///
/// reads    read [B,T,H,V+1]
/// returns  [B,T,H,V], float64
inline at::Tensor divide_by_normalizer(const at::Tensor& read) {
  const int64_t value_dim = read.size(3) - 1;
  return read.narrow(3, 0, value_dim).div(read.narrow(3, value_dim, 1));
}

/// ∂loss/∂read from ∂loss/∂y: of Sᵀq, ∂y / z·q; of z·q, −∂y·y / z·q.
///
/// reads    read [B,T,H,V+1]; grad_values [B,T,H,V]
/// returns  [B,T,H,V+1], float64
inline at::Tensor gradient_before_division(const at::Tensor& read, const at::Tensor& grad_values) {
  const int64_t value_dim = read.size(3) - 1;
  const at::Tensor denominator = read.narrow(3, value_dim, 1),
                   d_numerator = grad_values.to(at::kDouble).div(denominator);
  return at::cat({d_numerator, d_numerator.mul(read.narrow(3, 0, value_dim)).sum(3, true).div(denominator).neg()}, 3);
}

}  // namespace lethe
