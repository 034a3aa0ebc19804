#pragma once
// What the committed measurements of the GPU's kernels say of the goals in a claim's paper.csv.

#include <string>
#include <vector>

#include "experiments/claims/claim.hpp"

namespace lethe {

/// "T=16384 D=64": the variant of a length and head dim.
std::string case_name(int64_t length, int64_t dim);

/// A number that a claim takes from measured data.
struct Measured {
  Record record;
  double band;        ///< half width of what noise explains at 95 %
  std::string words;  ///< its statement, to which the variant is added
};

/// The records of `all`, and a statement for every goal of the study's paper.csv: about the number of its variant and metric, expected as
/// `expected` says of the goal's value.
///
/// throws  std::invalid_argument for a goal that no number belongs to
Findings judge(const Study& study, const std::vector<Measured>& all, Expectation (*expected)(double goal));

/// Our speed over the fastest rival's, in one direction and with one kind of gate.
struct SpeedRatio {
  std::string metric;               ///< "forward_beside_cudnn"
  std::string words;                ///< as Measured has them
  std::string gate;                 ///< "open" or "bimodal"
  std::string direction;            ///< "forward" or "backward"
  std::string ours;                 ///< "lethe", "lethe_pruned"
  std::vector<std::string> rivals;  ///< those that were timed count
  bool times_kept_share = false;    ///< the ratio is multiplied by 1 − p, p the pruned share
};

/// The ratios that the study's data, a file of tools/compare_attention.py, gives at each length and head dim.
///
/// A speed is a median of n rounds, so that one of v with standard deviation s is known to δv = 1.25·1.96·s/√n, and the ratio
/// r = v/w to r·√((δv/v)² + (δw/w)²).
///
/// throws  std::runtime_error naming the file, line and column
std::vector<Measured> speed_ratios(const Study& study, const std::vector<SpeedRatio>& ratios);

}  // namespace lethe
