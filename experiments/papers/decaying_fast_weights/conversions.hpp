#pragma once
// The converted models of T2FW's Tables 1 and 2, by the names of their rows, and what is measured of each.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "experiments/claims/runs.hpp"
#include "experiments/papers/decaying_fast_weights/divergence.hpp"

namespace lethe {

/// The rows of Table 1, all of m = 4, and the configurations that the paper's text says diverge.
std::vector<Row> table_1();

/// The rows of Table 2: attention that is trained on, a window, and linear features of m = 4 (of Table 1), 16 and 32.
/// Windows are settings["window"] and, where that is another, a thirty-second of the training's context: the paper's share.
std::vector<Row> table_2(const nlohmann::json& settings);

/// The rows that are run with several seeds: gated and decay rule, linear, m = 4, which both tables have; with them the gated rule
/// with ReLU features and without norm in Table 1, and the decay rule with m = 16 in Table 2.
bool measures_noise(const Row& row);

/// The softmax model that all rows start from: settings["model"], trained as settings["training"] with the members of
/// settings["source"] over it.
Run source_run(const nlohmann::json& settings, int64_t vocabulary);

/// The source, then each row as a conversion of it, trained as settings["training"] says, with the same batches for the same
/// seed: settings["seeds"] seeds of the rows that measure the noise, one of the others.
std::vector<Run> conversion_runs(const std::vector<Row>& rows, const nlohmann::json& settings, int64_t vocabulary);

/// What the conversions came to.
struct Conversions {
  using Seeds = std::vector<double>;
  Findings findings;                      ///< a record of each number, and the curves; no comparisons yet
  std::map<std::string, Seeds> losses;    ///< validation losses by row; NaN where nothing finite came out
  std::map<std::string, Seeds> diverged;  ///< 1 where the outcome is other than converged, else 0

  /// Of how many of a row's seeds the training diverged, as a share.
  double share_diverged(const std::string& row) const { return mean(diverged.at(row)); }

  /// Σ weight·(mean loss of row) in nats, over the seeds that all of them have. A seed means the same batches in every row, and in
  /// rows of one m the same W_φ: what it does to all rows cancels in differences. So the band rests on what is left of the rows with
  /// several seeds once row and seed means are taken away: s² = Σ r²/((R − 1)(S − 1)) for R rows of S seeds, and
  /// t(0.975)·s·√(Σ weight²/seeds).
  ///
  /// reads   terms whose weights add up to 0
  Comparison compare(const std::string& statement, const std::vector<std::pair<std::string, double>>& terms,
                     const Expectation& expectation) const;

  /// Adds a difference of two rows' losses, `worse` − `better` in nats, beside the paper's.
  void add_difference(const Study& study, const std::string& statement, const std::string& worse,
                      const std::string& better, const Expectation& expectation, bool headline);
};

/// Evaluates every model of a claim whose runs are those of conversion_runs.
Conversions measure_conversions(const Study& study);

}  // namespace lethe
