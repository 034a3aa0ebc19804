#pragma once
// The committed measurements of the GPU's kernels against the goals in a claim's paper.csv.

#include <string>
#include <vector>

#include "experiments/claims/claim.hpp"

namespace lethe {

/// "T=16384 D=64": the variant of a length and head dim.
std::string case_name(int64_t length, int64_t dim);

/// A number that a claim computes from measured data.
struct Measured {
  Record record;
  double band;        ///< half width of the 95 % interval
  std::string words;  ///< its statement, to which the variant is added
};

/// The records of `all`, and a statement for every goal of the study's paper.csv: on the number of its variant and metric, with the
/// expectation that `expected` returns for the goal's value.
///
/// throws  std::invalid_argument for a goal without a number
Findings judge(const Study& study, const std::vector<Measured>& all, Expectation (*expected)(double goal));

/// Our speed over the fastest rival's, in one direction and with one kind of gate.
struct SpeedRatio {
  std::string metric;               ///< "forward_beside_cudnn"
  std::string words;                ///< as in Measured
  std::string gate;                 ///< "open" or "bimodal"
  std::string direction;            ///< "forward" or "backward"
  std::string ours;                 ///< "lethe", "lethe_pruned"
  std::vector<std::string> rivals;  ///< rivals without a time are skipped
  bool times_kept_share = false;    ///< the ratio is multiplied by 1 − p, p the pruned share
};

/// The ratios that the study's data, a file of tools/compare_attention.py, gives at each length and head dim.
///
/// A speed v is a median of n rounds with standard deviation s; its half width is δv = 1.25·1.96·s/√n, and that of the ratio r = v/w
/// is r·√((δv/v)² + (δw/w)²).
///
/// throws  std::runtime_error naming the file, line and column
std::vector<Measured> speed_ratios(const Study& study, const std::vector<SpeedRatio>& ratios);

}  // namespace lethe
