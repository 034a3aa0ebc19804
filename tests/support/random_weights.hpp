#pragma once
// Weights of small random models by their checkpoint names.

#include <cmath>

#include "reference/layers/language_model.hpp"
#include "tests/support/matrices.hpp"

namespace lethe {

/// A layer with every component, N(0, 1/width) matrices, norm weights around 1.
inline reference::layers::ForgettingLayerWeights<double> random_layer(Eigen::Index width, Eigen::Index heads,
                                                                      uint64_t seed) {
  const auto matrix = [&](Eigen::Index rows) -> Matrix<double> {
    return random_matrix(rows, width, ++seed) / std::sqrt(static_cast<double>(width));
  };
  const auto norm = [&](Eigen::Index size) -> Vector<double> {
    return 1.0 + 0.1 * random_matrix(size, 1, ++seed).array();
  };
  reference::layers::ForgettingLayerWeights<double> layer;
  layer.query = matrix(width);
  layer.key = matrix(width);
  layer.value = matrix(width);
  layer.output = matrix(width);
  layer.key_shift = matrix(heads);
  layer.value_shift = matrix(heads);
  layer.query_norm = norm(width / heads);
  layer.key_norm = norm(width / heads);
  layer.forget = matrix(heads);
  layer.forget_bias = Vector<double>(random_matrix(heads, 1, ++seed));
  layer.output_norm = norm(width);
  layer.output_gate = matrix(width);
  return layer;
}

/// A FoX (Pro) model of `blocks` blocks with every component.
inline reference::layers::NamedWeights<double> random_model(int64_t vocabulary, int64_t blocks, Eigen::Index width,
                                                            Eigen::Index heads, Eigen::Index mlp_width, uint64_t seed) {
  const auto matrix = [&](Eigen::Index rows, Eigen::Index columns) -> Matrix<double> {
    return random_matrix(rows, columns, ++seed) / std::sqrt(static_cast<double>(columns));
  };
  const auto norm = [&]() -> Matrix<double> { return 1.0 + 0.1 * random_matrix(1, width, ++seed).array(); };
  reference::layers::NamedWeights<double> weights;
  weights["model.embeddings.weight"] = random_matrix(vocabulary, width, ++seed);
  for (int64_t i = 0; i < blocks; ++i) {
    const std::string block = "model.layers." + std::to_string(i) + ".";
    const auto layer = random_layer(width, heads, seed += 100);
    weights[block + "attn_norm.weight"] = norm();
    weights[block + "attn.q_proj.weight"] = layer.query;
    weights[block + "attn.k_proj.linear.weight"] = layer.key;
    weights[block + "attn.k_proj.shift_proj.weight"] = *layer.key_shift;
    weights[block + "attn.v_proj.linear.weight"] = layer.value;
    weights[block + "attn.v_proj.shift_proj.weight"] = *layer.value_shift;
    weights[block + "attn.o_proj.weight"] = layer.output;
    weights[block + "attn.q_norm.weight"] = layer.query_norm->transpose();
    weights[block + "attn.k_norm.weight"] = layer.key_norm->transpose();
    weights[block + "attn.fgate_proj.weight"] = *layer.forget;
    weights[block + "attn.fgate_proj.bias"] = layer.forget_bias->transpose();
    weights[block + "attn.ogate_proj.weight"] = *layer.output_gate;
    weights[block + "attn.output_norm.weight"] = layer.output_norm->transpose();
    weights[block + "mlp_norm.weight"] = norm();
    weights[block + "mlp.gate_proj.weight"] = matrix(2 * mlp_width, width);
    weights[block + "mlp.down_proj.weight"] = matrix(width, mlp_width);
  }
  weights["model.norm.weight"] = norm();
  weights["lm_head.weight"] = matrix(vocabulary, width);
  return weights;
}

}  // namespace lethe
