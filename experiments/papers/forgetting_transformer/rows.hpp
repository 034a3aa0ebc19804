#pragma once
// The models of the FoX paper's tables and figures, by the names of its rows.

#include <map>
#include <string>
#include <vector>

#include "experiments/claims/runs.hpp"
#include "experiments/models/mixers/attention.hpp"

namespace lethe {

/// The models of FoX Table 3 from top to bottom. Its row "- KV-shift" is the row "+ output norm" of the upper half.
std::vector<Row> table_3();

/// The row of that name.
///
/// throws  std::invalid_argument for a name that Table 3 doesn't have
Row table_3_row(const std::string& name);

/// The rows that are run with several seeds, to estimate the noise of all others: two with a forget gate, two without.
inline const std::vector<std::string> kNoiseRows = {"FoX (LLaMA)", "Transformer (LLaMA)", "FoX (Pro)",
                                                    "Transformer (Pro)"};

/// Runs of Table 3's rows of these names: settings["seeds"] seeds for the rows of kNoiseRows, one for the others.
std::vector<Run> table_3_runs(const std::vector<std::string>& names, const nlohmann::json& settings,
                              int64_t vocabulary);

/// One number of every run, by row, and its comparisons.
class Measurements {
 public:
  void add(const Run& run, double value);
  double mean_of(const std::string& row) const;

  /// A statement on Σ weight·(mean of row): its value, and its band from the scatter of the rows with several seeds, pooled separately
  /// for models with a forget gate and without: beyond the training length the latter scatter many times as much.
  struct Term {
    std::string row;
    double weight;
  };
  Comparison compare(const std::string& statement, const std::vector<Term>& terms,
                     const Expectation& expectation) const;

 private:
  struct Values {
    bool gated = false;
    std::vector<double> of_seeds = {};
  };
  const Values& of(const std::string& row) const;
  Noise noise(bool gated) const;
  std::map<std::string, Values> values_;
};

}  // namespace lethe
