#pragma once
// How fast the gates of a trained model forget, head by head.

#include <torch/types.h>

#include <any>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "experiments/data/dataset.hpp"
#include "experiments/models/language_model.hpp"

namespace lethe {

/// The gates of a layer on one text, as natural logs in float64 on the CPU. A head's state or past is multiplied by the product of a gate of
/// each kind: by f_i z_j in row i and column j. An attention head and a scalar rule have one entry.
struct LayerGates {
  std::vector<torch::Tensor> log_gates;  ///< each [T,H,n]; empty: a layer without gates
};

/// The gates in a mixer's trace: of an AttentionTrace or a StateTrace.
LayerGates gates_of(const std::any& trace);

/// Gates of one head over texts, a number a text. i counts from the second token of a text: no query sees the first gate's effect.
struct HeadGates {
  int64_t layer = 0, head = 0;
  std::vector<double> mean_log_gate;  ///< mean over tokens and entries of log f, nats a token
  std::vector<double>
      half_life;  ///< median over entries of ln 2 / −(mean over tokens of log f), tokens; at most kLongestHalfLife
  std::vector<double> sum_log_gate;  ///< [distance]: mean over texts, positions and entries of Σ_{i−d < l ≤ i} log f_l
  std::vector<double>
      retention;  ///< [distance]: mean over the same of exp of that sum, the part of a write that is left

  std::string name() const { return "layer " + std::to_string(layer) + " head " + std::to_string(head); }
};

constexpr double kLongestHalfLife = 1e9;

/// The gates of all heads with gates, layer by layer, on the first `sequences` pieces of `length` tokens of a split.
///
/// source   of a constant gate f: half-life ln ½ / ln f, sum d·log f, retention f^d
/// reads    distances: each below `length`
/// throws   std::invalid_argument for a model without gates, and as Pieces::count
/// memory   one layer's trace of one text
std::vector<HeadGates> head_gates(LanguageModel& model, const Dataset& dataset, const std::string& split,
                                  int64_t length, int64_t sequences, const std::vector<int64_t>& distances,
                                  const std::function<void(double)>& progress = {});

/// 1, 2, 4, … below `length`.
std::vector<int64_t> doubling_distances(int64_t length);

}  // namespace lethe
