#include "reference/layers/language_model.hpp"

#include <optional>
#include <stdexcept>
#include <utility>

#include "reference/expect.hpp"
#include "reference/layers/rms_norm.hpp"
#include "reference/layers/swiglu.hpp"

namespace lethe::reference::layers {
namespace {

// Each weight is removed where it is used; a weight that remains has no place in the model.
template <typename Scalar>
std::optional<Matrix<Scalar>> take_if_there(NamedWeights<Scalar>& weights, const std::string& name) {
  auto node = weights.extract(name);
  if (node.empty()) return std::nullopt;
  return std::move(node.mapped());
}

template <typename Scalar>
Matrix<Scalar> take(NamedWeights<Scalar>& weights, const std::string& name) {
  auto found = take_if_there(weights, name);
  if (!found) throw std::invalid_argument("weights: expected \"" + name + "\", found no such name");
  return *std::move(found);
}

template <typename Scalar>
std::optional<Vector<Scalar>> take_row_if_there(NamedWeights<Scalar>& weights, const std::string& name) {
  const auto found = take_if_there(weights, name);
  if (!found) return std::nullopt;
  expect_size(name, "row", 1, found->rows());
  return Vector<Scalar>(found->row(0).transpose());
}

template <typename Scalar>
ForgettingLayerWeights<Scalar> take_attention(NamedWeights<Scalar>& weights, const std::string& prefix) {
  ForgettingLayerWeights<Scalar> layer;
  const auto take_shifted = [&](const std::string& name, Matrix<Scalar>& projection,
                                std::optional<Matrix<Scalar>>& shift) {
    shift = take_if_there(weights, prefix + name + ".shift_proj.weight");
    projection = take(weights, prefix + name + (shift ? ".linear.weight" : ".weight"));
  };
  layer.query = take(weights, prefix + "q_proj.weight");
  take_shifted("k_proj", layer.key, layer.key_shift);
  take_shifted("v_proj", layer.value, layer.value_shift);
  layer.output = take(weights, prefix + "o_proj.weight");
  layer.query_norm = take_row_if_there(weights, prefix + "q_norm.weight");
  layer.key_norm = take_row_if_there(weights, prefix + "k_norm.weight");
  layer.forget = take_if_there(weights, prefix + "fgate_proj.weight");
  layer.forget_bias = take_row_if_there(weights, prefix + (layer.forget ? "fgate_proj.bias" : "fgate_bias"));
  layer.output_norm = take_row_if_there(weights, prefix + "output_norm.weight");
  layer.output_gate = take_if_there(weights, prefix + "ogate_proj.weight");
  return layer;
}

template <typename Scalar>
Matrix<Scalar> embed(const std::vector<int64_t>& tokens, const Matrix<Scalar>& embeddings) {
  Matrix<Scalar> rows(static_cast<Eigen::Index>(tokens.size()), embeddings.cols());
  for (Eigen::Index t = 0; t < rows.rows(); ++t) {
    const int64_t token = tokens[t];
    if (token < 0 || token >= embeddings.rows()) {
      throw std::invalid_argument("tokens: expected values in [0, " + std::to_string(embeddings.rows()) + "), found " +
                                  std::to_string(token));
    }
    rows.row(t) = embeddings.row(token);
  }
  return rows;
}

}  // namespace

template <typename Scalar>
Matrix<Scalar> language_model(const std::vector<int64_t>& tokens, NamedWeights<Scalar> weights,
                              const ForgettingLayerShape& shape) {
  Matrix<Scalar> hidden = embed(tokens, take(weights, "model.embeddings.weight"));
  const auto take_norm = [&](const std::string& name) -> Matrix<Scalar> {
    const auto weight = take_row_if_there(weights, name);
    if (!weight) throw std::invalid_argument("weights: expected \"" + name + "\", found no such name");
    return rms_norm(hidden, *weight, 1, static_cast<Scalar>(kNormEpsilon));
  };
  const auto project = [&](const std::string& name, const Matrix<Scalar>& rows) -> Matrix<Scalar> {
    const Matrix<Scalar> weight = take(weights, name);
    expect_size(name, "columns", rows.cols(), weight.cols());
    return rows * weight.transpose();
  };

  for (int64_t i = 0; weights.contains("model.layers." + std::to_string(i) + ".attn_norm.weight"); ++i) {
    const std::string block = "model.layers." + std::to_string(i) + ".";
    const auto attention = take_attention(weights, block + "attn.");
    hidden += forgetting_layer(take_norm(block + "attn_norm.weight"), attention, shape);
    const Matrix<Scalar> gate_and_up = project(block + "mlp.gate_proj.weight", take_norm(block + "mlp_norm.weight"));
    const Matrix<Scalar> update = project(block + "mlp.down_proj.weight", swiglu(gate_and_up));
    expect_size(block + "mlp.down_proj.weight", "rows", hidden.cols(), update.cols());
    hidden += update;
  }
  const Matrix<Scalar> logits = project("lm_head.weight", take_norm("model.norm.weight"));
  if (!weights.empty()) {
    throw std::invalid_argument("weights: expected only names of the model, found \"" + weights.begin()->first + "\"");
  }
  return logits;
}

template Matrix<double> language_model(const std::vector<int64_t>&, NamedWeights<double>, const ForgettingLayerShape&);
template Matrix<float> language_model(const std::vector<int64_t>&, NamedWeights<float>, const ForgettingLayerShape&);

}  // namespace lethe::reference::layers
