#pragma once
// What the claims on forgetting curves share: the curves of their models, and the bands of what is read from them.

#include <map>
#include <string>
#include <vector>

#include "experiments/claims/runs.hpp"
#include "experiments/evaluation/forgetting_curve.hpp"

namespace lethe {

/// The forgetting curves of a claim's models, and its findings.
class Curves {
 public:
  explicit Curves(const Study& study) : study_(study) {}

  /// Measures a model with study.settings["curve"] and `changes` over it, one file of measurements a length, so that an interrupted claim
  /// goes on after the last. Adds to the findings: fine_length, coarse_length, certain_coarse_length and longest_length; copy_accuracy and
  /// lm_accuracy of each length; the points of the evaluation, those of single repeats among them.
  ///
  /// reads  variant: of records and points; a variant's models differ in their seeds
  void add(const Artefact& model, const std::string& variant, const nlohmann::json& changes = nlohmann::json::object());

  /// The same of all lengths by one measurement, as the claims on memory ask for it; the variant is the row.
  void add_at_once(const Artefact& model);

  bool has(const std::string& variant) const { return of_.contains(variant); }
  const std::vector<ForgettingCurve>& of(const std::string& variant) const { return of_.at(variant); }

  struct Term {
    std::string variant;
    double weight;
  };
  /// A statement on Σ weight·(copy − LM accuracy of a variant at a length). Its band is that of ten repeats, which read the same text for all
  /// models, and of the seeds: t(0.975)·s·√(Σ weight²/seeds) with s pooled over the variants that have several, where one has.
  ///
  /// throws  std::invalid_argument for a length that was not asked for
  Comparison gap(const std::string& statement, const std::vector<Term>& terms, int64_t length,
                 const Expectation& expectation) const;

  /// The same of a model that can't see the copy, whatever its seed: its band is that of the repeats alone.
  Comparison control(const std::string& statement, const std::string& variant, int64_t length,
                     const Expectation& expectation) const;

  /// A statement on a length of memory over `unit` tokens, the mean over seeds; its band is half of their range.
  Comparison memory(const std::string& statement, const std::string& variant,
                    MemoryLength (*rule)(const ForgettingCurve& curve), int64_t unit,
                    const Expectation& expectation) const;

  Findings findings;

 private:
  void keep(const Artefact& model, const std::string& variant, const CurveSettings& settings, ForgettingCurve curve,
            const Record& of_model);
  std::vector<double> gaps(const std::string& variant, int64_t length) const;  // a repeat each, the mean over seeds
  double seed_band(const std::vector<Term>& terms, int64_t length) const;

  const Study& study_;
  std::map<std::string, std::vector<ForgettingCurve>> of_;
};

inline MemoryLength fine_memory(const ForgettingCurve& curve) { return curve.fine(); }
inline MemoryLength coarse_memory(const ForgettingCurve& curve) { return curve.coarse(); }

/// The seeds of a row: settings["row_seeds"][row], else 1.
int64_t curve_seeds(const nlohmann::json& settings, const std::string& row);

/// The model of a row before its training: one step with a learning rate of 0.
Run untrained(const Run& run);

/// The headline form of a comparison with its source.
Comparison stated(Comparison comparison, const std::string& source, bool headline);

}  // namespace lethe
