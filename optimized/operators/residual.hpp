#pragma once
// The rounding error of the forward's values, kept for the backward: has_residual() in attention.hpp has the reason.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <utility>

#include "optimized/operators/attention.hpp"

namespace lethe {

/// values and residual of `dtype`, contiguous, from the sums [B, Tq, Hq, Dv]; the residual is empty where it is not kept or holds nothing.
inline std::pair<at::Tensor, at::Tensor> values_and_residual(const at::Tensor& sums, at::ScalarType dtype,
                                                             bool keep_residual) {
  const at::Tensor values = sums.to(dtype).contiguous();
  return {values, keep_residual && has_residual(dtype) ? sums.sub(values).to(dtype).contiguous()
                                                       : at::empty({0}, values.options())};
}

/// The sums again: values + residual in the dtype of sums.
inline at::Tensor sums_of(const at::Tensor& values, const at::Tensor& residual) {
  const at::Tensor stored = values.to(accumulation_dtype(values.scalar_type()));
  return has_residual(values.scalar_type()) ? stored.add(residual) : stored;
}

}  // namespace lethe
