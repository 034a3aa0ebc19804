#pragma once
// One measured number with its key columns, and one point of a curve.

#include <cstdint>
#include <limits>
#include <string>

namespace lethe {

/// A row of results/<machine>/<claim>.csv.
struct Record {
  std::string experiment = {}, claim = {}, variant = {}, implementation = {}, device = {}, dtype = {};
  int64_t batch = 0, length = 0, heads = 0, key_dim = 0, value_dim = 0;
  uint64_t seed = 0;
  std::string metric = {}, unit = {};
  double value = 0, stddev = 0;
  int64_t samples = 1;
  /// Origin: commit and machine that trained the artefact, or measured where there is none
  std::string commit = {}, machine = {}, artefact = {};
};

/// A point of a curve or an entry of a matrix: plots read it, tables don't.
struct Point {
  std::string quantity = {};  ///< "loss_at_position", "training_loss", "decay", …
  std::string variant = {};
  uint64_t seed = 0;
  double x = 0;
  double y = std::numeric_limits<double>::quiet_NaN();  ///< empty in the file for a curve
  double value = 0;
};

}  // namespace lethe
