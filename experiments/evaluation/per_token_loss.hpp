#pragma once
// FoX §4.2: a model's use of its context, position by position.

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "experiments/data/dataset.hpp"
#include "experiments/models/language_model.hpp"

namespace lethe {

/// L(i), the mean loss of position i over sequences, and quantities derived from it.
struct PerTokenLoss {
  std::vector<double> loss;            ///< [length], nats: L(i), i counted from 1 in the paper, loss[i-1] here
  std::vector<double> standard_error;  ///< [length] of each mean, over sequences; NaN for a single sequence
  int64_t sequences = 0;
  std::vector<int64_t> octaves = {};  ///< the last position of each: 1, 2, 4, … and the length
  std::vector<std::vector<double>> by_octave =
      {};  ///< [sequences][octaves]: the mean loss of the positions after the octave before

  /// The mean of L over all positions, nats.
  double mean() const { return std::log(perplexity(static_cast<int64_t>(loss.size()))); }
  /// P(l) = exp( (1/l) Σ_{i ≤ l} L(i) )
  ///
  /// throws  std::invalid_argument for an l outside 1 … length
  double perplexity(int64_t length) const;
  /// Moving average of L over a window centred at i, cut at the ends (FoX: window 101).
  ///
  /// reads    window, odd
  std::vector<double> smoothed(int64_t window) const;
};

/// Evaluates `model` on the first `sequences` pieces of `length` tokens of a split (fewer where the split is shorter),
/// sums in double; length may exceed the training length. Without gradients, in evaluation mode; the mode is restored.
///
/// reads   packs_documents: whether each document of a piece is a sequence of its own
/// throws  std::invalid_argument where the split is shorter than one piece
/// memory  at most kEvaluationTokens tokens in a forward call, or one sequence where that is longer
PerTokenLoss per_token_loss(LanguageModel& model, const Dataset& dataset, const std::string& split, int64_t length,
                            int64_t sequences, const std::function<void(double)>& progress = {},
                            bool packs_documents = false);

constexpr int64_t kEvaluationTokens = 8192;

/// Bytes of text in the first `sequences` pieces of `length` tokens of a split; a begin token has none. With it a loss in nats per token
/// is loss · tokens / (bytes · ln 2) bits per byte, which compares models with different tokenizers.
///
/// throws  std::invalid_argument where the split has fewer pieces
int64_t text_bytes(const Dataset& dataset, const std::string& split, int64_t length, int64_t sequences);

}  // namespace lethe
