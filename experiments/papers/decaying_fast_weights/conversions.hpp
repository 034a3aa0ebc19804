#pragma once
// The converted models of T2FW's Tables 1 and 2, by the names of their rows, and their measurements.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "experiments/claims/runs.hpp"
#include "experiments/papers/decaying_fast_weights/divergence.hpp"

namespace lethe {

/// The rows of Table 1, all of m = 4, and the configurations that diverge according to the paper's text.
std::vector<Row> table_1();

/// The rows of Table 2: attention with further training, a window, and linear features of m = 4 (of Table 1), 16 and 32.
/// Windows are settings["window"] and, where different, a thirty-second of the training's context, the paper's share.
std::vector<Row> table_2(const nlohmann::json& settings);

/// The rows that are run with several seeds: gated and decay rule, linear, m = 4, in both tables; the gated rule with ReLU features
/// and without norm in Table 1; the decay rule with m = 16 in Table 2.
bool measures_noise(const Row& row);

/// The softmax model that all rows start from: settings["model"], trained by settings["training"] with the members of
/// settings["source"] set over it.
Run source_run(const nlohmann::json& settings, int64_t vocabulary);

/// The source, then each row as a conversion of it, trained by settings["training"], with the same batches for the same seed:
/// settings["seeds"] seeds for the rows that measure the noise, one seed for the others.
std::vector<Run> conversion_runs(const std::vector<Row>& rows, const nlohmann::json& settings, int64_t vocabulary);

/// The results of the conversions.
struct Conversions {
  using Seeds = std::vector<double>;
  Findings findings;                      ///< a record of each number, and the curves; no comparisons yet
  std::map<std::string, Seeds> losses;    ///< validation losses by row; NaN where not finite
  std::map<std::string, Seeds> diverged;  ///< 0 for the outcome converged, else 1

  /// The share of a row's seeds whose training diverged.
  double share_diverged(const std::string& row) const { return mean(diverged.at(row)); }

  /// Σ weight·(mean loss of row) in nats, over the seeds that all of these rows have. A seed fixes the batches of every row, and W_φ
  /// of rows with the same m: its common effect cancels in differences. So the band is computed from the residuals r of the rows with
  /// several seeds after subtraction of row and seed means: s² = Σ r²/((R − 1)(S − 1)) for R rows of S seeds, band
  /// t(0.975)·s·√(Σ weight²/seeds).
  ///
  /// reads   terms whose weights add up to 0
  Comparison compare(const std::string& statement, const std::vector<std::pair<std::string, double>>& terms,
                     const Expectation& expectation) const;

  /// Adds the difference of two rows' losses, `worse` − `better` in nats, and the paper's.
  void add_difference(const Study& study, const std::string& statement, const std::string& worse,
                      const std::string& better, const Expectation& expectation, bool headline);
};

/// Evaluates every model of a claim with the runs of conversion_runs.
Conversions measure_conversions(const Study& study);

}  // namespace lethe
