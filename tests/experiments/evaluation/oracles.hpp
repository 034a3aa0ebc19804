#pragma once
// Models whose answers are known.

#include <cmath>
#include <vector>

#include "experiments/evaluation/predictor.hpp"
#include "tests/experiments/tiny.hpp"

namespace lethe {

/// A model that gives every token the probability p_v, whatever came before.
inline LanguageModel unigram_model(const std::vector<double>& log_probabilities) {
  ModelConfig config = tiny_model();
  config.vocabulary = std::ssize(log_probabilities);
  LanguageModel model(config);
  const torch::NoGradGuard no_gradient;
  auto weights = model->named_parameters();
  weights["model.embeddings.weight"].fill_(1);
  for (auto& parameter : weights)
    if (parameter.key().ends_with("o_proj.weight") || parameter.key().ends_with("down_proj.weight"))
      parameter.value().zero_();
  auto& head = weights["lm_head.weight"].zero_();
  head.select(1, 0).copy_(torch::tensor(log_probabilities));
  return model;
}

/// A predictor that gives all its probability to the token that followed the last `match` tokens where they stood before, at most
/// `window` tokens ago; to the begin token 256 where they did not.
inline Predictor copier(int64_t match, int64_t window = 1 << 30) {
  return [=](const torch::Tensor& tokens, const torch::Tensor& labels) {
    torch::Tensor losses = torch::zeros(labels.sizes(), torch::kFloat64),
                  correct = torch::ones_like(labels, torch::kBool);
    for (int64_t row = 0; row < tokens.size(0); ++row) {
      const torch::Tensor text = tokens[row].contiguous();
      const auto* token = text.const_data_ptr<int64_t>();
      for (int64_t t = 0; t < text.numel(); ++t) {
        const auto label = labels[row][t].item<int64_t>();
        if (label < 0) continue;
        int64_t guess = 256;
        for (int64_t j = t - 1; j >= match - 1 && t - j <= window && guess == 256; --j)
          if (std::equal(token + j + 1 - match, token + j + 1, token + t + 1 - match)) guess = token[j + 1];
        correct[row][t] = guess == label;
        losses[row][t] = guess == label ? 0.0 : 20.0;
      }
    }
    return LanguageModelImpl::Predictions{losses, correct};
  };
}

}  // namespace lethe
