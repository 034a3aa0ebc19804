#pragma once
// The layers' operators on the CPU, after their arguments were checked (optimized/torch/layers.hpp): kernels for each instruction set, threads of
// Torch's pool. Equal calls give equal bits with any number of threads.

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>
#include "optimized/operators/logit_rows.hpp"

namespace lethe::cpu {

/// returns  normed, sum (empty without a branch), rstd [...] in the dtype of the weight
std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm_forward(const at::Tensor& residual,
                                                                    const std::optional<at::Tensor>& branch,
                                                                    const at::Tensor& weight, double epsilon,
                                                                    at::ScalarType dtype);
/// returns  the gradients of residual, branch (empty without one) and weight
std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm_backward(const at::Tensor& grad_normed,
                                                                     const std::optional<at::Tensor>& grad_sum,
                                                                     const at::Tensor& residual,
                                                                     const at::Tensor& weight, const at::Tensor& sum,
                                                                     const at::Tensor& rstd);

at::Tensor gated_output_forward(const at::Tensor& o, const std::optional<at::Tensor>& gate,
                                const std::optional<at::Tensor>& norm, double epsilon);
/// returns  the gradients of o, gate and norm (empty where absent)
std::tuple<at::Tensor, at::Tensor, at::Tensor> gated_output_backward(const at::Tensor& grad_values, const at::Tensor& o,
                                                                     const std::optional<at::Tensor>& gate,
                                                                     const std::optional<at::Tensor>& norm,
                                                                     double epsilon);

at::Tensor swiglu_forward(const at::Tensor& gate_and_up);
at::Tensor swiglu_backward(const at::Tensor& grad_values, const at::Tensor& gate_and_up);

at::Tensor scaled_heads_forward(const at::Tensor& x, const at::Tensor& scale);
/// returns  the gradients of x and scale
std::tuple<at::Tensor, at::Tensor> scaled_heads_backward(const at::Tensor& grad_values, const at::Tensor& x,
                                                         const at::Tensor& scale);

at::Tensor gated_skip_forward(const at::Tensor& o, const at::Tensor& x, const at::Tensor& skip, const at::Tensor& gate);
/// returns  the gradients of o, x, skip and gate
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> gated_skip_backward(const at::Tensor& grad_values,
                                                                               const at::Tensor& o, const at::Tensor& x,
                                                                               const at::Tensor& skip,
                                                                               const at::Tensor& gate);

at::Tensor short_convolution_forward(const at::Tensor& x, const at::Tensor& weight,
                                     const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& state,
                                     bool silu);
/// returns  the gradients of x, weight, bias and state (empty where absent)
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> short_convolution_backward(
    const at::Tensor& grad_values, const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& state, bool silu);

/// returns  the logits' gradient in the dtype of the losses, before it is rounded to 16 bits; of no meaning without a scale
at::Tensor cross_entropy_rows(const LogitRows& rows);

}  // namespace lethe::cpu
