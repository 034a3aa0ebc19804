#pragma once
// Calls of gated_attention with every switch of a layer, and the three operators in turn.

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/autograd.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "optimized/torch/forgetting_attention.hpp"
#include "optimized/torch/gated_attention.hpp"
#include "optimized/torch/split_columns.hpp"

namespace lethe {

struct LayerSwitches {
  bool shift = true, norm = true, norm_per_head = false, rotation = false;
  bool gate = true;  ///< log f from a product; else a number a head
  bool output_gate = true, output_norm = true;
  int64_t batch = 2, length = 100, heads = 3, head_dim = 64;
  std::optional<double> tolerance = {};
  std::optional<int64_t> window = {};
  bool misaligned = false;  ///< pieces of the product begin at odd addresses

  std::string name() const {
    std::string text = std::to_string(batch) + "x" + std::to_string(length) + "x" + std::to_string(heads) + "x" +
                       std::to_string(head_dim);
    for (const auto& [on, word] : {std::pair(shift, " shift"),
                                   {norm, norm_per_head ? " norm a head" : " norm"},
                                   {rotation, " rotation"},
                                   {gate, " gate"},
                                   {output_gate, " output gate"},
                                   {output_norm, " output norm"},
                                   {tolerance.has_value(), " pruned"},
                                   {window.has_value(), " window"},
                                   {misaligned, " misaligned"}})
      text += on ? word : "";
    return text;
  }
};

/// The rows of FoX's Table 3 and what no row has.
inline std::vector<LayerSwitches> layer_switches() {
  return {{},
          {.rotation = true},
          {.norm = false, .rotation = true},
          {.norm_per_head = true, .heads = 5},
          {.shift = false},
          {.output_norm = false},
          {.output_gate = false},
          {.output_gate = false, .output_norm = false},
          {.norm = false},
          {.shift = false, .norm = false, .rotation = true, .gate = false, .output_gate = false, .output_norm = false},
          {.shift = false, .norm = false, .output_gate = false, .output_norm = false},
          {.gate = false},
          {.length = 301, .tolerance = -10},
          {.length = 301, .window = 70},
          {.rotation = true, .misaligned = true},
          {.norm_per_head = true, .misaligned = true}};
}

/// Named tensors: a call's leaves, or its results.
using Named = std::vector<std::pair<std::string, at::Tensor>>;

inline at::Tensor tensor_of(const Named& all, const std::string& name) {
  for (const auto& [own, tensor] : all)
    if (own == name) return tensor;
  return {};
}

/// Random leaves in float64, on the CPU, whose numbers `dtype` holds exactly.
inline Named random_leaves(const LayerSwitches& s, at::ScalarType dtype) {
  at::manual_seed(3);
  const int64_t width = s.heads * s.head_dim;
  const int64_t columns = (4 * width + 3 * s.heads + 1 + 63) / 64 * 64;
  const auto numbers = [](at::IntArrayRef shape) { return at::randn(shape, at::kDouble); };
  Named leaves{{"product", numbers({s.batch, s.length, columns}).to(dtype).to(at::kDouble)},
               {"output", numbers({s.batch, s.length, width}).to(dtype).to(at::kDouble)}};
  const auto weight = [&](const char* name, bool wanted, int64_t size) {
    if (wanted) leaves.emplace_back(name, (1 + 0.3 * numbers({size})).to(at::kFloat).to(at::kDouble));
  };
  weight("query_norm", s.norm, s.norm_per_head ? width : s.head_dim);
  weight("key_norm", s.norm, s.norm_per_head ? width : s.head_dim);
  weight("gate_bias", s.gate, s.heads);
  weight("output_norm", s.output_norm, width);
  if (!s.gate)
    leaves.emplace_back("log_forget", -numbers({s.batch, s.length, s.heads}).abs().to(at::kFloat).to(at::kDouble));
  return leaves;
}

/// The call on leaves that require gradients.
inline GatedAttention call_on(const LayerSwitches& s, const Named& leaves) {
  const at::Tensor product = tensor_of(leaves, "product");
  const int64_t width = s.heads * s.head_dim, h = s.heads, rest = product.size(2) - 4 * width - 3 * h;
  std::vector<int64_t> sizes{width, width, width, width, h, h, h, rest};
  if (s.misaligned) sizes.insert(sizes.begin(), 1), sizes.back() -= 1;
  std::vector<at::Tensor> pieces = split_columns(product, sizes);
  if (s.misaligned) pieces.erase(pieces.begin());
  const auto optional = [&](const char* name) {
    const at::Tensor leaf = tensor_of(leaves, name);
    return leaf.defined() ? std::optional(leaf) : std::nullopt;
  };
  GatedAttention call{
      .products = {.query = pieces[0], .key = pieces[1], .value = pieces[2], .heads = h, .epsilon = 1e-5},
      .log_pruning_tolerance = s.tolerance,
      .window = s.window,
      .output_epsilon = 1e-6};
  AttentionInputProducts& in = call.products;
  if (s.shift) in.key_shift = pieces[4], in.value_shift = pieces[5];
  in.query_norm = optional("query_norm"), in.key_norm = optional("key_norm");
  if (s.rotation) {
    const auto wide = product.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor angles =
        at::outer(at::arange(s.length, at::kDouble),
                  at::pow(100.0, -at::arange(0, s.head_dim, 2, at::kDouble) / double(s.head_dim)));
    in.cosine = angles.cos().to(at::kFloat).to(product.device(), wide);
    in.sine = angles.sin().to(at::kFloat).to(product.device(), wide);
  }
  if (s.gate) in.gate_logits = pieces[6], in.gate_bias = optional("gate_bias");
  else call.log_forget = optional("log_forget");
  if (s.output_gate) call.output_gate = pieces[3];
  call.output_norm = optional("output_norm");
  return call;
}

inline at::Tensor three_in_turn(const GatedAttention& call) {
  const HeadInputs in = attention_inputs(call.products);
  const at::Tensor o =
      forgetting_attention(in.query, in.key, in.value, call.log_forget ? *call.log_forget : in.log_forget, std::nullopt,
                           call.log_pruning_tolerance, call.logit_bound, call.window, std::nullopt, call.prune_by_mass);
  return gated_output(o, call.output_gate, call.output_norm, call.output_epsilon);
}

/// y, and the gradients of all leaves for ∂y = "output"; of the product by its pieces.
inline Named results_of(const LayerSwitches& s, const Named& given, at::ScalarType dtype, at::Device device,
                        const std::function<at::Tensor(const GatedAttention&)>& layer) {
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  Named leaves;
  for (const auto& [name, leaf] : given)
    leaves.emplace_back(name, leaf.to(device, name == "product" || name == "output" ? dtype : wide)
                                  .clone()
                                  .set_requires_grad(name != "output"));
  const at::Tensor y = layer(call_on(s, leaves));
  torch::autograd::backward({y}, {tensor_of(leaves, "output")});
  Named results{{"y", y.detach()}};
  const int64_t width = s.heads * s.head_dim, h = s.heads;
  for (const auto& [name, leaf] : leaves) {
    if (name == "output") continue;
    if (name != "product") {
      results.emplace_back(name, leaf.grad());
      continue;
    }
    int64_t column = s.misaligned;
    for (const auto& [piece, size] : {std::pair("query", width),
                                      {"key", width},
                                      {"value", width},
                                      {"output_gate", width},
                                      {"key_shift", h},
                                      {"value_shift", h},
                                      {"gate_logits", h}}) {
      results.emplace_back(piece, leaf.grad().narrow(-1, column, size));
      column += size;
    }
  }
  return results;
}

/// ‖found − exact‖ / ‖exact‖, and ‖found‖ where that is 0.
inline double relative_difference(const at::Tensor& found, const at::Tensor& exact) {
  const at::Tensor a = found.to(at::kCPU, at::kDouble), b = exact.to(at::kCPU, at::kDouble);
  const double norm = b.norm().item<double>();
  return (a - b).norm().item<double>() / (norm > 0 ? norm : 1);
}

}  // namespace lethe
