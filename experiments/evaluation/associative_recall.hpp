#pragma once
// Multi-query associative recall: an architecture, trained on the task and tested on it.

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "experiments/evaluation/predictor.hpp"
#include "experiments/models/config.hpp"
#include "experiments/models/json_members.hpp"

namespace lethe {

/// The task. Half of the vocabulary are keys, half are values. A sequence is
///
///   k_1 v_1 … k_D v_D   k_i v'_i of `updates` keys   then queries: each key once, in random order, and tokens between them
///
/// with distinct keys and values. At a query the last value of its key is asked for. A query stands at an even place of its part; the places
/// are drawn without replacement with p(g) ∝ g^{power − 1}, g = 1, 2, …; the tokens at other places are drawn uniformly.
///
/// source   Arora et al. 2023, "Zoology: Measuring and Improving Recall in Efficient Language Models", Section 3 and Appendix E: updates = 0;
///          with updates the task forgetting_mqar of that paper's repository
struct RecallTask {
  int64_t pairs = 8;        ///< D
  int64_t updates = 0;      ///< keys that are assigned a second value, ≤ D
  int64_t vocabulary = 64;  ///< even
  int64_t length = 0;       ///< tokens of a sequence; 0: least_length()
  double power = 0.01;

  /// The task with fewer pairs and the same share of updates; its length is the least where this one's is.
  RecallTask with_pairs(int64_t fewer) const;

  int64_t least_length() const { return 4 * pairs + 2 * updates; }
  int64_t tokens() const { return length > 0 ? length : least_length(); }

  /// throws  std::invalid_argument "name: expected …, found …" for a task without sequences
  void check() const;
};

/// Sequences of a task.
struct RecallBatch {
  torch::Tensor tokens;    ///< [n,T] int64
  torch::Tensor answers;   ///< [n,T]: the value at a query, −1 elsewhere
  torch::Tensor outdated;  ///< [n,T]: the first value of a key with two, −1 elsewhere
};

/// Sequences first … first + count − 1 of a stream: a pure function of seed and number.
RecallBatch recall_batch(const RecallTask& task, uint64_t seed, int64_t first, int64_t count);

/// The training of a model on a task, from a seed, with AdamW and a cosine.
struct RecallTraining {
  int64_t steps = 400;
  int64_t batch = 64;  ///< sequences a step
  double learning_rate = 1e-2;
  /// Pairs of the steps' sequences in turn, each ≤ the task's, as Zoology trains on few and many pairs; empty: the task's
  std::vector<int64_t> pairs = {};
  int64_t tested = 512;  ///< sequences
};

/// What a trained model answers on sequences that it was not trained on.
struct RecallScore {
  double accuracy = 0;          ///< share of the queries answered with the last value
  double updated_accuracy = 0;  ///< of the keys with two values; NaN without updates
  double outdated = 0;          ///< share of those that are answered with the first value; NaN without updates
  double loss = 0;              ///< mean over the queries, nats
};

/// Trains `config`, with the task's vocabulary, and tests it. A training that diverged has a loss that is NaN and answers no query.
///
/// cost    steps · batch · T tokens forward and backward
RecallScore trained_recall(ModelConfig config, const RecallTask& task, const RecallTraining& training, uint64_t seed,
                           torch::Device device, const std::function<void(double)>& progress = {});

/// The score of a predictor on `sequences` test sequences of a seed, which no training reads.
RecallScore recall_score(const Predictor& predict, const RecallTask& task, uint64_t seed, int64_t sequences);

}  // namespace lethe
