#pragma once
// The converted models of T2FW's Tables 1 and 2, by the names of their rows, and their measurements.

#include <map>
#include <string>
#include <vector>

#include "experiments/claims/runs.hpp"
#include "experiments/claims/seeds.hpp"
#include "experiments/papers/decaying_fast_weights/divergence.hpp"

namespace lethe {

/// The control of both tables: local attention of one token, whose every layer sees nothing but its own token.
inline const std::string kWithoutContext = "Without context";
inline const std::string kWriteGate = "Decay linear with write gate", kNoSigmoid = "Decay linear without sigmoid";

/// The rows of Table 1, all of m = 4, the control, and the configurations that diverge according to the paper's text.
std::vector<Row> table_1();

/// The linear decay rule of m = 4 with a write gate (T2FW Section 3), and without the sigmoid of its gates (footnote 1).
std::vector<Row> decay_variants();

/// The rows of Table 2: attention with further training, a window, and linear features of m = 4 (of Table 1), 16 and 32.
/// Windows are settings["window"] and, where different, a thirty-second of the training's context, the paper's share.
std::vector<Row> table_2(const nlohmann::json& settings);

/// The softmax model that all rows start from: settings["model"], trained by settings["training"] with the members of
/// settings["source"] set over it.
Run source_run(const nlohmann::json& settings, int64_t vocabulary);

/// The source, then each row as a conversion of it, trained by settings["training"], with the same batches for the same seed: seeds_of(settings, row,
/// settings["seeds"]) seeds.
std::vector<Run> conversion_runs(const std::vector<Row>& rows, const nlohmann::json& settings, int64_t vocabulary);

/// The results of the conversions.
struct Conversions {
  explicit Conversions(double confidence = kConfidence) : losses(confidence) {}

  Findings findings;                                    ///< a record of each number, and the curves; no comparisons yet
  Measurements losses;                                  ///< validation losses in nats, NaN where not finite
  std::map<std::string, std::vector<double>> diverged;  ///< of each seed 0 for the outcome converged, else 1
  std::string
      short_of_paper;  ///< why a contradiction doesn't refute: too few steps or another precision; empty: it does

  /// Adds the difference of two rows' losses, `worse` − `better` in nats, and the paper's. It is open where one of the rows is not better than
  /// kWithoutContext: its mixer is dead.
  void add_difference(const Study& study, const std::string& statement, const std::string& worse,
                      const std::string& better, const Expectation& expectation, bool headline);

  /// Adds "it diverges": the share of a row's seeds that diverged, expected above a half.
  void add_divergence(const std::string& statement, const std::string& source, const std::string& row);

  /// Why a row's loss is no test of its rule, and what would decide whether it is one; empty where it is.
  std::string dead(const std::string& row) const;
};

/// Evaluates every model of a claim with the runs of conversion_runs.
Conversions measure_conversions(const Study& study);

}  // namespace lethe
