#pragma once
// One layer with a state, and the output of the reference's rule for its weights.

#include <torch/nn/module.h>

#include <algorithm>
#include <any>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "experiments/models/config.hpp"
#include "experiments/models/layers.hpp"
#include "experiments/models/mixers/parts/rotations.hpp"
#include "experiments/models/parameters.hpp"
#include "reference/additive_fast_weights.hpp"
#include "reference/decay_fast_weights.hpp"
#include "reference/delta_fast_weights.hpp"
#include "reference/feature_map.hpp"
#include "reference/gated_delta_fast_weights.hpp"
#include "reference/gated_fast_weights.hpp"
#include "reference/gated_linear_attention.hpp"
#include "reference/layers/rms_norm.hpp"
#include "reference/layers/rotary_embedding.hpp"
#include "reference/layers/sigmoid.hpp"

namespace lethe {

inline Matrix<double> matrix_of(const torch::Tensor& tensor) {
  const torch::Tensor wide = tensor.detach().to(torch::kFloat64).contiguous();
  return Eigen::Map<const Matrix<double>>(wide.const_data_ptr<double>(), wide.dim() == 2 ? wide.size(0) : 1,
                                          wide.size(-1));
}

/// A model's mixer by itself, with weights unlike any initialization.
struct Layer {
  explicit Layer(const ModelConfig& model)
      : model(model), options(model.mixer), layer(made(model, Weights(root, torch::kCPU).below("attn"))) {
    const torch::NoGradGuard no_gradient;
    torch::manual_seed(3);
    for (auto& parameter : root.named_parameters()) {
      torch::Tensor& value = parameter.value();
      value.normal_(0, value.dim() == 2 ? 1 / std::sqrt(static_cast<double>(value.size(1))) : 0.3);
      // Every token has a nonzero feature: otherwise the norms would divide by zero.
      if (parameter.key() == "attn.feature.bias") value.abs_().add_(1.5);
    }
    for (auto& buffer : root.named_buffers()) buffer.value().normal_();
  }

  bool has(const std::string& name) const {
    return root.named_parameters().contains("attn." + name) || root.named_buffers().contains("attn." + name);
  }
  Matrix<double> weight(const std::string& name) const {
    const std::string path = "attn." + name;
    return matrix_of(root.named_parameters().contains(path) ? root.named_parameters()[path]
                                                            : root.named_buffers()[path]);
  }
  // Rows of head h of a matrix with `rows` rows a head, or entries of head h of a vector.
  Matrix<double> of_head(const std::string& name, Eigen::Index h, Eigen::Index rows) const {
    const Matrix<double> all = weight(name);
    if (all.rows() == 1) return all.middleCols(h * rows, rows);
    return all.middleRows(h * rows, rows);
  }
  torch::Tensor forward(const torch::Tensor& x, std::any* trace = nullptr) const {
    Rotations rotations;
    return layer(x, rotations, trace);
  }
  torch::Tensor values(const torch::Tensor& x, std::any* trace = nullptr) const { return forward(x, trace).detach(); }

  static MixerLayer made(const ModelConfig& model, const Weights& weights) {
    const MixerConfig& mixer = model.mixer.of(0);
    return mixer.row().make(model, mixer.options(), weights);
  }

  ModelConfig model;
  nlohmann::json options;  // the mixer's
  torch::nn::Module root;
  MixerLayer layer;
};

inline Matrix<double> log_gate(const Layer& layer, const std::string& name, Eigen::Index h, Eigen::Index rows,
                               const Matrix<double>& x) {
  const Matrix<double> logits = x * layer.of_head(name + ".weight", h, rows).transpose();
  return reference::layers::log_sigmoid<double>(logits.rowwise() + layer.of_head(name + ".bias", h, rows).row(0));
}

/// The rules of the reference, by the names of their mixers; a rule without an attention norm ignores `attention_norm`.
using Rule = Output (*)(const Head&, reference::Normalized);
inline const std::map<std::string, Rule>& reference_rules() {
  using reference::Normalized;
  namespace r = reference;
  static const std::map<std::string, Rule> rules = {
      {"additive", [](const Head& head, Normalized norm) { return r::additive_fast_weights::recurrent(head, norm); }},
      {"gated", [](const Head& head, Normalized norm) { return r::gated_fast_weights::recurrent(head, norm); }},
      {"delta", [](const Head& head, Normalized norm) { return r::delta_fast_weights::recurrent(head, norm); }},
      {"decay", [](const Head& head, Normalized) { return r::decay_fast_weights::recurrent(head); }},
      {"gated_linear",
       [](const Head& head, Normalized norm) { return r::gated_linear_attention::recurrent(head, norm); }},
      {"gated_delta", [](const Head& head, Normalized) { return r::gated_delta_fast_weights::recurrent(head); }},
  };
  return rules;
}

inline Output rule(const Layer& layer, const Head& head) {
  using reference::Normalized;
  const bool normalized = layer.options.value("attention_norm", false);
  return reference_rules().at(layer.options.at("name"))(head, normalized ? Normalized::kYes : Normalized::kNo);
}

inline Vector<double> log_forget(const Layer& layer, Eigen::Index h, const Matrix<double>& x) {
  if (layer.has("fgate_proj.weight")) return log_gate(layer, "fgate_proj", h, 1, x).col(0);
  const Matrix<double> bias = Matrix<double>::Constant(x.rows(), 1, layer.weight("fgate_bias")(0, h));
  return reference::layers::log_sigmoid<double>(bias).col(0);
}

// `head` with the features of the layer's head h in place of its queries and keys.
inline Head with_reference_features(const Layer& layer, Head head, Eigen::Index h) {
  namespace maps = reference::feature_map;
  const std::string name = layer.options.at("feature_map");
  reference::FeatureMap map = maps::identity();
  if (name == "relu") {
    const int64_t rows = layer.options.at("state_size");
    map = maps::relu(layer.of_head("feature.weight", h, rows), layer.of_head("feature.bias", h, rows).transpose());
  } else if (name == "elu_plus_one") {
    map = maps::elu_plus_one();
  } else if (name == "dpfp") {
    map = maps::dpfp(layer.options.at("dpfp_nu"));
  } else if (name == "positive_random") {
    map = maps::positive_random(layer.weight("feature.directions"));
    const double root = std::pow(static_cast<double>(layer.model.head_dim()), 0.25);
    head.query /= root, head.key /= root;
  } else if (name == "random_fourier") {
    map = maps::random_fourier(layer.weight("feature.directions"));
    head.query.rowwise().normalize(), head.key.rowwise().normalize();
  }
  if (layer.options.value("sum_norm", false)) map = maps::sum_normalized(map);
  return reference::with_features(head, map);
}

/// The decay rule with its options, token by token: S ← G ⊙ S + W ⊙ k vᵀ, o = Sᵀ q, G = f zᵀ, W = 1 − G with a write gate, else 1.
inline Matrix<double> decay_by_hand(const Layer& layer, const Head& head, Eigen::Index h, const Matrix<double>& x) {
  const auto gates = [&](const std::string& name, Eigen::Index size) {
    Matrix<double> all = x * layer.of_head(name + ".weight", h, size).transpose();
    all.rowwise() += layer.weight(name + ".bias").middleCols(h * size, size).row(0);
    return layer.options.at("sigmoid") ? reference::layers::sigmoid<double>(all) : all;
  };
  const Matrix<double> keys = gates("key_gate_proj", head.key.cols()),
                       values = gates("value_gate_proj", head.value.cols());
  Matrix<double> state = Matrix<double>::Zero(head.key.cols(), head.value.cols()),
                 outputs(head.value.rows(), head.value.cols());
  for (Eigen::Index t = 0; t < x.rows(); ++t) {
    const Matrix<double> gate = keys.row(t).transpose() * values.row(t);
    Matrix<double> write = head.key.row(t).transpose() * head.value.row(t);
    if (layer.options.at("write_gate")) write.array() *= 1 - gate.array();
    state = gate.cwiseProduct(state) + write;
    outputs.row(t) = head.query.row(t) * state;
  }
  return outputs;
}

// The expected output of the layer, and its states.
inline Matrix<double> expected_values(const Layer& layer, const Matrix<double>& x, double* largest_state = nullptr) {
  const ModelConfig& model = layer.model;
  const Eigen::Index d = model.head_dim();
  Matrix<double> all(x.rows(), model.width);
  for (Eigen::Index h = 0; h < model.heads; ++h) {
    Head head;
    const Eigen::Index queries = layer.weight("q_proj.weight").rows() / model.heads;
    head.query = x * layer.of_head("q_proj.weight", h, queries).transpose();
    head.key = x * layer.of_head("k_proj.weight", h, queries).transpose();
    head.value = x * layer.of_head("v_proj.weight", h, d).transpose();
    if (layer.options.at("rope")) {
      const double base = layer.options.at("rope_base");
      head.query = reference::layers::rotary_embedding<double>(head.query, 1, base);
      head.key = reference::layers::rotary_embedding<double>(head.key, 1, base);
    }
    head = with_reference_features(layer, head, h);
    const auto one_a_head = [&](const Matrix<double>& logits) { return Vector<double>(logits.col(0)); };
    if (layer.has("gate_proj.weight") && !layer.has("gate_proj.bias"))
      head.log_forget =
          one_a_head(reference::layers::log_sigmoid<double>(x * layer.of_head("gate_proj.weight", h, 1).transpose()));
    if (layer.options.contains("forget_gate")) head.log_forget = log_forget(layer, h, x);
    if (layer.has("gate_proj.bias")) {
      const Matrix<double> logits = x * layer.of_head("gate_proj.weight", h, 1).transpose();
      head.write_strength = one_a_head(
          reference::layers::sigmoid<double>((logits.array() + layer.weight("gate_proj.bias")(0, h)).matrix()));
    }
    if (layer.has("key_gate_proj.weight")) {
      head.log_key_gate = log_gate(layer, "key_gate_proj", h, head.key.cols(), x);
      head.log_value_gate = log_gate(layer, "value_gate_proj", h, d, x);
    }
    if (layer.options.value("write_gate", false) || !layer.options.value("sigmoid", true)) {
      all.middleCols(h * d, d) = decay_by_hand(layer, head, h, x);
      continue;
    }
    all.middleCols(h * d, d) = rule(layer, head).values;
    if (!largest_state) continue;
    for (Eigen::Index t = 1; t <= x.rows(); ++t) {
      Head shorter = head;
      for (Matrix<double>* rows :
           {&shorter.query, &shorter.key, &shorter.value, &shorter.log_key_gate, &shorter.log_value_gate})
        if (rows->size() > 0) *rows = Matrix<double>(rows->topRows(t));
      for (Vector<double>* entries : {&shorter.log_forget, &shorter.write_strength})
        if (entries->size() > 0) *entries = Vector<double>(entries->head(t));
      *largest_state = std::max(*largest_state, rule(layer, shorter).state.cwiseAbs().maxCoeff());
    }
  }
  if (model.output_norm) {
    const Matrix<double> weight = layer.weight("output_norm.weight");
    for (Eigen::Index h = 0; h < model.heads; ++h)
      all.middleCols(h * d, d) =
          reference::layers::rms_norm<double>(Matrix<double>(all.middleCols(h * d, d)),
                                              Vector<double>(weight.middleCols(h * d, d).transpose()), 1, kNormEpsilon);
  }
  if (model.output_gate)
    all.array() *= reference::layers::sigmoid<double>(x * layer.weight("ogate_proj.weight").transpose()).array();
  return all * layer.weight("o_proj.weight").transpose();
}

}  // namespace lethe
