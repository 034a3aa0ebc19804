#pragma once
// Log-likelihoods of continuations: the short-context tasks of FoX Table 2.

#include <cstdint>
#include <functional>
#include <vector>

#include "experiments/data/dataset.hpp"
#include "experiments/evaluation/predictor.hpp"
#include "experiments/evaluation/request_file.hpp"

namespace lethe {

/// The answer to a request.
struct Likelihood {
  double log_likelihood = 0;  ///< Σ log p of the continuation's tokens, nats
  bool greedy = true;         ///< whether each of them is the most probable one
  int64_t tokens = 0;         ///< of the continuation
};

/// The answers to requests, in their order.
///
/// The tokens of the continuation are those of context and continuation together after as many as the context alone has; spaces at
/// the end of the context belong to the continuation. The model reads the begin token, then both; where that is longer than `length`
/// tokens, its last `length`. A continuation without a context that is longer than that is cut into pieces of `length`, and the last
/// of them is preceded by as much text as fits.
///
/// source   lm-evaluation-harness, HFLM: loglikelihood and loglikelihood_rolling with a begin token
/// throws   std::invalid_argument "continuation: expected …, found …" where one with a context is longer than `length`
/// memory   kEvaluationTokens tokens at once, or one request: the longest requests are batched first
std::vector<Likelihood> likelihoods(const Predictor& predict, const Dataset& dataset, const RequestFile& file,
                                    const std::vector<Request>& requests, int64_t length);

/// The length by which length-normalised accuracy divides: the continuation's characters, without one space at its begin.
int64_t characters(const std::string& continuation);

}  // namespace lethe
