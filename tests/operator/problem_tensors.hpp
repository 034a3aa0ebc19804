#pragma once
// A problem as Torch tensors, a head of a tensor in the reference's layout, and calls of one implementation.

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include <optional>
#include <tuple>
#include <vector>

#include "optimized/operators/attention.hpp"
#include "optimized/torch/implementations.hpp"
#include "reference/head.hpp"
#include "reference/problem.hpp"

namespace lethe {

struct ProblemTensors {
  at::Tensor query, key, value, log_forget;
};

inline at::ScalarType torch_dtype(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat64: return at::kDouble;
    case Dtype::kFloat32: return at::kFloat;
    case Dtype::kBFloat16: return at::kBFloat16;
    case Dtype::kFloat16: return at::kHalf;
  }
  TORCH_CHECK(false, "dtype: expected one of the enumeration");
}

inline at::Tensor tensor_of(const std::vector<double>& data, at::IntArrayRef shape, at::ScalarType dtype) {
  return at::tensor(data, at::kDouble).view(shape).to(dtype);
}

/// Exact: a problem is rounded to its dtype already.
inline ProblemTensors tensors_of(const Problem& problem) {
  const Shape& s = problem.shape;
  const at::ScalarType dtype = torch_dtype(problem.dtype);
  return {tensor_of(problem.query, {s.batch, s.query_length, s.query_heads, s.key_dim}, dtype),
          tensor_of(problem.key, {s.batch, s.key_length, s.heads, s.key_dim}, dtype),
          tensor_of(problem.value, {s.batch, s.key_length, s.heads, s.value_dim}, dtype),
          tensor_of(problem.log_forget, {s.batch, s.key_length, s.query_heads},
                    dtype == at::kDouble ? at::kDouble : at::kFloat)};
}

/// One head of a tensor [B, T, H, D] or [B, T, H], flat.
inline std::vector<double> head_of(const at::Tensor& tensor, int64_t batch, int64_t head) {
  const at::Tensor slice = tensor.detach().select(0, batch).select(1, head).to(at::kDouble).contiguous();
  return {slice.const_data_ptr<double>(), slice.const_data_ptr<double>() + slice.numel()};
}

/// values, log_normalizer, visited_pairs and boundary, the first key block that each block of queries visits, of one implementation.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> forward_with_boundary(
    const ProblemTensors& inputs, double scale, std::optional<double> log_pruning_tolerance,
    const std::optional<at::Tensor>& logit_bound, bool prune_by_mass = false) {
  const AttentionImplementation& implementation = attention_implementations().front();
  const AttentionOutputs out =
      implementation.forward({inputs.query, inputs.key, inputs.value, inputs.log_forget, scale, log_pruning_tolerance,
                              logit_bound, false, std::nullopt, prune_by_mass});
  return {out.values, out.log_normalizer, out.visited_pairs, out.boundary};
}

}  // namespace lethe
