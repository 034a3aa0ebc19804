#pragma once
// One number of every run, by row and seed, and statements on differences of rows.

#include <map>
#include <string>
#include <vector>

#include "experiments/claims/verdict.hpp"
#include "experiments/training/training.hpp"

namespace lethe {

/// A statement on a row without a value: out of reach, without a number.
Comparison of_absent_row(Comparison comparison, const std::string& row);

class Measurements {
 public:
  explicit Measurements(double confidence = kConfidence) : confidence_(confidence) {}

  /// reads  value: of one run, NaN where it has none; by_sequence: its value on each sequence of the text, the same text in the same order
  ///        for all rows; empty where the text is not sampled
  void add(const Run& run, double value, std::vector<double> by_sequence = {}) {
    add(run.label, run.training.seed, value, std::move(by_sequence));
  }
  void add(const std::string& row, uint64_t seed, double value, std::vector<double> by_sequence = {});

  bool has(const std::string& row) const { return rows_.contains(row); }

  /// The number of one run.
  double value_of(const Run& run) const { return rows_.at(run.label).at(run.training.seed).value; }

  /// throws  std::invalid_argument for a row without a value
  double mean_of(const std::string& row) const;

  struct Term {
    std::string row;
    double weight;
  };

  /// Σ weight·(value of row) of each seed that all of these rows have, in the order of the seeds.
  std::vector<double> by_seed(const std::vector<Term>& terms) const;

  /// A statement on the mean of by_seed(terms). A seed fixes the data's order, and the initial weights where shapes agree: what it does to all
  /// rows alike cancels. The band is that of two noises,
  ///   seeds  from three shared seeds on, the scatter s of by_seed: t·s/√n. Below, the residuals r of the rows with several seeds after the means of
  ///          rows and of seeds are subtracted, pooled: s² = Σ r²/((R − 1)(S − 1)) for R rows of S seeds, t·s·√(Σ weight²/n)
  ///   text   the scatter of Σ weight·(value on a sequence, mean over seeds) from sequence to sequence, where all rows have such values
  /// as √(seeds² + text²).
  ///
  /// Where that band is too wide for a verdict, `would_decide` says what would give one, with this mean and this scatter: so many seeds a row, by
  /// √((t·s/√n)² + text²); where the text's noise is too wide by itself, so many times the text, by √(seeds² + text²/k); and where
  /// each is, so many of both that either takes half of the variance. Empty where the mean lies on the bound itself.
  ///
  /// returns  a comparison that is out of reach where a row is absent
  Comparison compare(const std::string& statement, const std::vector<Term>& terms,
                     const Expectation& expectation) const;

 private:
  struct Value {
    double value;
    std::vector<double> by_sequence;
  };
  using Seeds = std::map<uint64_t, Value>;

  /// What is left of a row after the means of rows and seeds: its standard deviation.
  struct Scatter {
    double deviation;
    int degrees;  ///< of freedom
  };

  std::vector<uint64_t> shared_seeds(const std::vector<Term>& terms) const;
  Scatter pooled_scatter() const;
  struct Noises {
    double of_seeds, of_text;  ///< half widths
    double deviation;          ///< of one seed's difference
  };
  std::string deciding_runs(const Comparison& comparison, const Noises& noises, size_t seeds) const;
  double text_band(const std::vector<Term>& terms, const std::vector<uint64_t>& seeds) const;

  double confidence_;
  std::map<std::string, Seeds> rows_;
};

}  // namespace lethe
