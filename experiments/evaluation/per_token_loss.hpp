#pragma once
// FoX §4.2: how well a model uses its context, position by position.

#include <vector>

#include "experiments/data/dataset.hpp"
#include "experiments/models/language_model.hpp"

namespace lethe {

/// L(i), the mean loss of position i over sequences, and what is derived from it.
struct PerTokenLoss {
  std::vector<double> loss;           ///< [length], nats: L(i), i counted from 1 in the paper, loss[i-1] here
  std::vector<double> standard_error; ///< [length] of each mean, over sequences
  int64_t sequences = 0;

  /// P(l) = exp( (1/l) Σ_{i ≤ l} L(i) )
  double perplexity(int64_t length) const;
  /// Moving average of L over a window centred at i, cut at the ends (FoX: window 101).
  std::vector<double> smoothed(int64_t window) const;
};

/// Evaluates `model` on the first `sequences` pieces of `length` tokens of a split (fewer where the split is shorter), sums in
/// double; length may exceed the training length.
PerTokenLoss per_token_loss(LanguageModel& model, const Dataset& dataset, const std::string& split, int64_t length,
                            int64_t sequences);

}  // namespace lethe
