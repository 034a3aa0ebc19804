#pragma once
// Forgetting Attention in a few ATen calls a tile of queries: for what no kernel of ours covers, on any device.

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace lethe::portable {

/// lethe::_forgetting_attention_forward for every dtype, head dimension and device, without waiting for the device.
///
/// returns   values, log_normalizer, visited_pairs, boundary (in blocks of 128 keys), residual. What pruning leaves out is masked, not skipped
/// numerics  float32 (float64 for float64) products; prefix sums and D in float64
/// cost      4·B·Hq·Tq·Tk·D flops, O(B·Hq·128·Tk) memory
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> forward(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& log_forget, double scale,
    std::optional<double> log_pruning_tolerance, const std::optional<at::Tensor>& logit_bound, bool keep_residual);

/// lethe::_forgetting_attention_backward likewise: ∂query, ∂key, ∂value, ∂log_forget.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> backward(
    const at::Tensor& grad_values, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& log_forget, const at::Tensor& values, const at::Tensor& residual,
    const at::Tensor& log_normalizer, const at::Tensor& boundary, double scale);

}  // namespace lethe::portable
