#pragma once
// Figures of times and bytes over the context: slopes, crossings and the statements of T2FW Fig. 1.

#include <optional>
#include <vector>

#include "experiments/claims/verdict.hpp"
#include "experiments/papers/decaying_fast_weights/generation_cost/steps.hpp"

namespace lethe::generation_cost {

/// A rival over the contexts of an edition.
struct Series {
  Edition edition;
  Rival rival;
  std::vector<double> contexts = {};              ///< tokens, rising
  std::vector<double> bytes = {};                 ///< at the peak of a step, one per context
  std::vector<std::vector<double>> seconds = {};  ///< [repetition][context]

  std::vector<double> median_seconds() const;  ///< one per context
};

/// A number and the half width of its 95 % interval.
struct Estimate {
  double value, band;
};

/// Slope of y over x as the median of the slopes of all pairs (Theil and Sen): a few slow calls don't move it.
///
/// throws  std::invalid_argument for fewer than two different x
double slope(const std::vector<double>& x, const std::vector<double>& y);

/// The slowdown of a step from the shortest context to the longest, as a share of its time at the shortest: the median of the slopes
/// of all repetitions, with the half width 1.25 · 1.96 · 1.4826 · (median deviation) / √repetitions.
Estimate time_growth(const Series& series);

/// The shortest context from which on `a` is never below `b`, linear between the measured contexts; nullopt where there is none.
std::optional<double> crossing(const std::vector<double>& contexts, const std::vector<double>& a,
                               const std::vector<double>& b);

/// The statements of one edition; those of the clean edition are headlines. The scripted edition has none on the recurrent rules, which it makes
/// flat by construction.
///
/// reads    the edition's series: attention by Torch, and the first existing implementation of decay and of delta; cache_bytes of
///          one token; steady_margin: a growth in time below it counts as none
std::vector<Comparison> statements(const std::vector<Series>& series, Edition edition, double cache_bytes,
                                   double steady_margin);

}  // namespace lethe::generation_cost
