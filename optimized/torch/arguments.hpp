#pragma once
// What every implementation of the operators checks first, whatever its device. Works on symbolic shapes too.

#include <ATen/core/Tensor.h>

#include <optional>

namespace lethe {

/// 1/√D, the scale of a query [B,Tq,Hq,D] whose caller gives none.
///
/// throws  c10::Error where query has not four dimensions or D < 1
double default_scale(const at::Tensor& query);

/// That all are strided: the public operators ask first, for the dispatcher has no implementation to ask for another layout.
///
/// throws  c10::Error "name: expected …, found …"
void check_layouts(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                   const at::Tensor& log_forget, const std::optional<at::Tensor>& logit_bound);

/// Ranks, shapes, dtypes, devices, and the plain numbers, of a forward call (forgetting_attention.hpp tells what
/// they must be). Values inside tensors are not read: a device would have to be waited for.
///
/// throws  c10::Error "name: expected …, found …"
void check_forward_arguments(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                             const at::Tensor& log_forget, double scale, std::optional<double> log_pruning_tolerance,
                             const std::optional<at::Tensor>& logit_bound);

/// The same for a backward call: what the forward returned must fit what it was given.
void check_backward_arguments(const at::Tensor& grad_values, const at::Tensor& query, const at::Tensor& key,
                              const at::Tensor& value, const at::Tensor& log_forget, const at::Tensor& values,
                              const at::Tensor& residual, const at::Tensor& log_normalizer, const at::Tensor& boundary,
                              double scale);

/// Queries that share one entry of `boundary` [B, Hq, ⌈Tq / 128⌉]: as many on every device, so that shapes can be computed without
/// one. What an entry counts (blocks of how many keys) is the implementation's own affair.
inline constexpr int64_t kQueryRows = 128;

/// Has the forward's `residual` elements, where it is asked for? values + residual [B, Tq, Hq, Dv], both of the inputs' dtype, hold
/// what was summed with twice the digits. The backward's delta = Σ_d ∂o·o needs them: where nearly all of a row's weight is on one
/// key, dS = P (dP − delta) is a small difference, and the rounding of values would be all that is left of it.
inline bool has_residual(at::ScalarType dtype) { return dtype == at::kBFloat16 || dtype == at::kHalf; }

/// float64 for float64, else float32: what log_forget is stored in and what sums are kept in.
inline at::ScalarType accumulation_dtype(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace lethe
