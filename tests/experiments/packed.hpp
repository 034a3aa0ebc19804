#pragma once
// Rows of several documents, and the losses and gradients of a model on them.

#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "experiments/models/language_model.hpp"
#include "experiments/models/mixers/mixer.hpp"
#include "tests/experiments/tiny.hpp"

namespace lethe {

struct LossesAndGradient {
  torch::Tensor losses, gradient;
};

inline LossesAndGradient gradients_of(LanguageModel& model, const torch::Tensor& tokens, const torch::Tensor& labels,
                                      const torch::Tensor& cu_seqlens = {}) {
  model->flat().gradient.zero_();
  const torch::Tensor losses = model->accumulate_gradients(tokens, labels, 1.0, cu_seqlens);
  return {losses.flatten(), model->flat().gradient.clone()};
}

/// The documents [starts[n], starts[n + 1]) of the rows, each by itself: their losses in a row, and the sum of their gradients.
inline LossesAndGradient of_each_alone(LanguageModel& model, const torch::Tensor& tokens, const torch::Tensor& labels,
                                       const std::vector<int64_t>& starts) {
  std::vector<torch::Tensor> losses;
  torch::Tensor gradient = torch::zeros_like(model->flat().gradient);
  for (size_t n = 0; n + 1 < starts.size(); ++n) {
    const auto alone = [&](const torch::Tensor& x) {
      return x.flatten().narrow(0, starts[n], starts[n + 1] - starts[n]).unsqueeze(0);
    };
    const LossesAndGradient one = gradients_of(model, alone(tokens), alone(labels));
    losses.push_back(one.losses);
    gradient += one.gradient;
  }
  return {torch::cat(losses), gradient};
}

}  // namespace lethe
