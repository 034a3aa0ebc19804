#include "tests/operator/state_calls.hpp"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>

#include "optimized/torch/matrix_state.hpp"

namespace lethe {
namespace {

using reference::Input;

bool is_stored_wide(Input input) { return input != Input::kQuery && input != Input::kKey && input != Input::kValue; }

Dtype stored_dtype(Input input, Dtype dtype) {
  return is_stored_wide(input) && dtype != Dtype::kFloat64 ? Dtype::kFloat32 : dtype;
}

// [columns] of an input's rows; none where it is a vector.
std::vector<int64_t> columns_of(const Head& head, Input input) {
  switch (input) {
    case Input::kQuery:
    case Input::kKey:
    case Input::kLogKeyGate: return {head.key.cols()};
    case Input::kValue:
    case Input::kLogValueGate:
    case Input::kInitialState: return {head.value.cols()};
    default: return {};
  }
}

at::Tensor positive_features(const at::Tensor& features) { return at::elu(features) + 1; }
at::Tensor shares(const at::Tensor& features) {
  return positive_features(features) / positive_features(features).sum(-1, true);
}

// 1 − g with all digits where g is nearly one, and −g as its derivative: Torch's own for expm1 has no digits left where g is nearly zero.
at::Tensor closing(const at::Tensor& log_gate) {
  const at::Tensor difference = 1 - log_gate.exp();
  return difference + (-log_gate.expm1() - difference).detach();
}

StateResult split_normalizer(const std::tuple<at::Tensor, at::Tensor>& result) {
  const auto& [values, state] = result;
  const int64_t value_dim = values.size(3);
  return {values, state.narrow(3, 0, value_dim), state.select(3, value_dim)};
}

// q and k as the mechanism's features, log f scalar or none.
StateResult normalized(const StateTensors& in, const at::Tensor& query, const at::Tensor& key,
                       const std::optional<at::Tensor>& log_gate) {
  const at::Tensor state = at::cat({in.at(Input::kInitialState), in.at(Input::kInitialNormalizer).unsqueeze(3)}, 3);
  return split_normalizer(
      gated_state(query, key, in.at(Input::kValue), log_gate, std::nullopt, state, std::nullopt, true));
}

StateResult unnormalized(const StateTensors& in, const at::Tensor& key, const std::optional<at::Tensor>& log_key_gate,
                         const std::optional<at::Tensor>& log_value_gate, double scale) {
  const auto [values, state] = gated_state(in.at(Input::kQuery), key, in.at(Input::kValue), log_key_gate,
                                           log_value_gate, in.at(Input::kInitialState), scale);
  return {values, state, {}};
}

StateResult delta(const StateTensors& in, const std::optional<at::Tensor>& log_key_gate, double scale) {
  const auto [values, state] =
      delta_state(in.at(Input::kQuery), in.at(Input::kKey), in.at(Input::kValue), in.at(Input::kWriteStrength),
                  log_key_gate, in.at(Input::kInitialState), scale);
  return {values, state, {}};
}

// The delta rule's state, divided by the state of linear attention for values of one.
StateResult normalized_delta(const StateTensors& in) {
  const at::Tensor query = shares(in.at(Input::kQuery)), key = shares(in.at(Input::kKey));
  const auto [values, state] = delta_state(query, key, in.at(Input::kValue), in.at(Input::kWriteStrength), std::nullopt,
                                           in.at(Input::kInitialState), 1.0);
  const auto [sum, normalizer] =
      gated_state(query, key, at::ones_like(in.at(Input::kValue).narrow(3, 0, 1)), std::nullopt, std::nullopt,
                  in.at(Input::kInitialNormalizer).unsqueeze(3), 1.0);
  return {values / sum, state, normalizer.squeeze(3)};
}

}  // namespace

std::vector<GateChoice> every_gate_choice() {
  std::vector<GateChoice> choices;
  for (const Gate gate : kEveryGate) choices.push_back({gate_name(gate), gate});
  const double nearly_zero = std::log(1e-12), small = std::log(1e-4), nearly_one = std::log1p(-1e-7);
  choices.push_back({"1e-12", Gate::kInitial, {nearly_zero}});
  choices.push_back({"1e-4", Gate::kInitial, {small}});
  choices.push_back({"1 - 1e-7", Gate::kInitial, {nearly_one}});
  choices.push_back(
      {"mixed",
       Gate::kInitial,
       {nearly_zero, small, nearly_one, nearly_one, 0.0, -0.5, -std::numeric_limits<double>::infinity()}});
  return choices;
}

std::vector<Head> state_heads(const StateShape& shape, Dtype dtype, const GateChoice& gate, uint64_t seed) {
  const Shape whole{.batch = shape.batch,
                    .query_length = shape.length,
                    .key_length = shape.length,
                    .heads = shape.heads,
                    .query_heads = shape.heads,
                    .key_dim = shape.key_dim,
                    .value_dim = shape.value_dim};
  const Problem problem = random_problem(whole, Dtype::kFloat64, gate.gate, seed);
  std::mt19937_64 generator(seed);
  std::vector<Head> heads;
  for (int64_t i = 0; i < shape.batch * shape.heads; ++i) {
    Head head = head_of(problem, i / shape.heads, i % shape.heads);
    fill_linear_inputs(head, gate.gate, seed + 10 * i);
    head.key.rowwise().normalize();
    for (const Input input : kEveryInput) {
      for (double& entry : entries(head, input)) {
        if (is_log_gate(input) && !gate.log_gates.empty()) entry = gate.log_gates[generator() % gate.log_gates.size()];
        entry = round_to(stored_dtype(input, dtype), entry);
      }
    }
    heads.push_back(head);
  }
  return heads;
}

StateTensors state_tensors(const std::vector<Head>& heads, int64_t batch, Dtype dtype) {
  StateTensors tensors;
  for (const Input input : kEveryInput) {
    const std::vector<int64_t> columns = columns_of(heads.front(), input);
    std::vector<double> data;
    for (const Head& head : heads) {
      const std::span<const double> of_head = entries(head, input);
      data.insert(data.end(), of_head.begin(), of_head.end());
    }
    const Head& head = heads.front();
    std::vector<int64_t> shape{batch, static_cast<int64_t>(heads.size()) / batch,
                               has_positions(input) ? head.key.rows() : head.key.cols()};
    shape.insert(shape.end(), columns.begin(), columns.end());
    const at::Tensor by_head = tensor_of(data, shape, torch_dtype(stored_dtype(input, dtype)));
    tensors[input] = has_positions(input) ? by_head.transpose(1, 2).contiguous() : by_head;
  }
  return tensors;
}

std::vector<double> state_head_of(const at::Tensor& tensor, bool has_positions, int64_t batch, int64_t head) {
  return head_of(has_positions ? tensor : tensor.transpose(1, 2), batch, head);
}

const std::vector<StateCall>& state_calls() {
  static const std::vector<StateCall> calls{
      {"linear_attention_unnormalized", true,
       [](const StateTensors& in, double scale) {
         return unnormalized(in, in.at(Input::kKey), std::nullopt, std::nullopt, scale);
       }},
      {"linear_attention", false,
       [](const StateTensors& in, double) {
         return normalized(in, positive_features(in.at(Input::kQuery)), positive_features(in.at(Input::kKey)),
                           std::nullopt);
       }},
      {"gated_linear_attention_unnormalized", true,
       [](const StateTensors& in, double scale) {
         return unnormalized(in, in.at(Input::kKey), in.at(Input::kLogForget), std::nullopt, scale);
       }},
      {"gated_linear_attention", false,
       [](const StateTensors& in, double) {
         return normalized(in, positive_features(in.at(Input::kQuery)), positive_features(in.at(Input::kKey)),
                           in.at(Input::kLogForget));
       }},
      {"decay_fast_weights", true,
       [](const StateTensors& in, double scale) {
         return unnormalized(in, in.at(Input::kKey), in.at(Input::kLogKeyGate), in.at(Input::kLogValueGate), scale);
       }},
      {"gated_fast_weights", false,
       [](const StateTensors& in, double scale) {
         const at::Tensor& log_gate = in.at(Input::kLogForget);
         return unnormalized(in, closing(log_gate).unsqueeze(3) * in.at(Input::kKey), log_gate, std::nullopt, scale);
       }},
      {"gated_fast_weights_normalized", false,
       [](const StateTensors& in, double) {
         const at::Tensor& log_gate = in.at(Input::kLogForget);
         const at::Tensor key = closing(log_gate).unsqueeze(3) * positive_features(in.at(Input::kKey));
         return normalized(in, positive_features(in.at(Input::kQuery)), key, log_gate);
       }},
      {"delta_fast_weights", true, [](const StateTensors& in, double scale) { return delta(in, std::nullopt, scale); }},
      {"delta_fast_weights_normalized", false, [](const StateTensors& in, double) { return normalized_delta(in); }},
      {"gated_delta_fast_weights", true,
       [](const StateTensors& in, double scale) {
         return delta(in, in.at(Input::kLogForget).unsqueeze(3) + in.at(Input::kLogKeyGate), scale);
       }},
  };
  return calls;
}

const reference::Variant& variant_named(const char* name) {
  for (const reference::Variant& variant : reference::variants()) {
    if (variant.name == name) return variant;
  }
  throw std::out_of_range("variant: expected a row of the reference's table, found " + std::string(name));
}

}  // namespace lethe
