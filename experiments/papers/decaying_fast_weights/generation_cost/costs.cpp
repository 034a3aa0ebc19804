#include "experiments/papers/decaying_fast_weights/generation_cost/costs.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace lethe::generation_cost {
namespace {

constexpr double kSteadyBytes = 1;     ///< a token: a growth below it counts as none
constexpr double kCacheMargin = 0.01;  ///< a share of the cache's bytes: the margin for other tensors

/// The first series of a rule in an edition.
const Series& series_of(const std::vector<Series>& all, Edition edition, const std::string& rule) {
  const auto found = std::ranges::find_if(
      all, [&](const Series& series) { return series.edition == edition && series.rival.rule == rule; });
  if (found == all.end()) throw std::invalid_argument("series: expected one of " + rule + ", found none");
  return *found;
}

std::string in_words(Edition edition) {
  return edition == Edition::kScripted ? ", as the paper's script measures it" : "";
}

}  // namespace

std::vector<double> Series::median_seconds() const {
  std::vector<double> medians;
  for (size_t c = 0; c < contexts.size(); ++c) {
    std::vector<double> column;
    for (const auto& repetition : seconds) column.push_back(repetition[c]);
    medians.push_back(median(std::move(column)));
  }
  return medians;
}

double slope(const std::vector<double>& x, const std::vector<double>& y) {
  std::vector<double> slopes;
  for (size_t i = 0; i < x.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (x[i] != x[j]) slopes.push_back((y[i] - y[j]) / (x[i] - x[j]));
  if (slopes.empty()) throw std::invalid_argument("x: expected two different values, found fewer");
  return median(std::move(slopes));
}

Estimate time_growth(const Series& series) {
  const double range = series.contexts.back() - series.contexts.front(), start = series.median_seconds().front();
  std::vector<double> growths;
  for (const auto& repetition : series.seconds) growths.push_back(slope(series.contexts, repetition) * range / start);
  const double centre = median(growths), count = static_cast<double>(growths.size());
  std::vector<double> deviations;
  for (const double growth : growths) deviations.push_back(std::abs(growth - centre));
  // For normal values 1.4826 median deviations are one standard deviation, and a median scatters 1.25 times as much as a mean.
  return {centre, 1.25 * 1.96 * 1.4826 * median(deviations) / std::sqrt(count)};
}

std::optional<double> crossing(const std::vector<double>& contexts, const std::vector<double>& a,
                               const std::vector<double>& b) {
  size_t first = contexts.size();  // a ≥ b from here on
  while (first > 0 && a[first - 1] >= b[first - 1]) --first;
  if (first == contexts.size()) return std::nullopt;
  if (first == 0) return contexts.front();
  const double before = b[first - 1] - a[first - 1], after = a[first] - b[first];
  return contexts[first - 1] + (contexts[first] - contexts[first - 1]) * before / (before + after);
}

std::vector<Comparison> statements(const std::vector<Series>& series, Edition edition, double cache_bytes,
                                   double steady_margin) {
  const bool is_clean = edition == Edition::kClean;
  std::vector<Comparison> all;
  // The script's recurrent rules take one step from a zero state after any context: flat by construction, so not judged.
  using Rules = std::vector<const char*>;
  for (const char* rule : is_clean ? Rules{"decay", "delta"} : Rules{}) {
    const Series& recurrent = series_of(series, edition, rule);
    const std::string subject = "A step of the " + std::string(rule) + " rule ";
    all.push_back({.statement = subject + "takes no more memory after a longer context",
                   .source = "T2FW Fig. 1, Section 3.1",
                   .unit = "B a token",
                   .headline = true,
                   .expectation = Expectation::within(kSteadyBytes),
                   .paper = 0,
                   .measured = slope(recurrent.contexts, recurrent.bytes)});
    const Estimate growth = time_growth(recurrent);
    all.push_back({.statement = subject + "takes no more time after a longer context",
                   .source = "T2FW Fig. 1, Section 3.1",
                   .unit = "of the time at the shortest",
                   .headline = true,
                   .expectation = Expectation::within(steady_margin),
                   .paper = 0,
                   .measured = growth.value,
                   .band = growth.band});
  }
  const Series& attention = series_of(series, edition, "attention");
  // The paper states O(Td) and no constant: that of a cache is ours, and the script keeps more alive.
  if (is_clean)
    all.push_back(
        {.statement = "Attention's memory grows by the bytes of a key and a value a token (as their multiple)",
         .source = "T2FW Section 3.1 (O(Td); the constant is ours)",
         .unit = "1",
         .headline = true,
         .expectation = {.low = 1 - kCacheMargin, .high = 1 + kCacheMargin},
         .measured = slope(attention.contexts, attention.bytes) / cache_bytes});
  const Estimate growth = time_growth(attention);
  all.push_back({.statement = "Attention's step takes more time after a longer context" + in_words(edition),
                 .source = "T2FW Fig. 1",
                 .unit = "of the time at the shortest",
                 .headline = is_clean,
                 .expectation = Expectation::positive(),
                 .measured = growth.value,
                 .band = growth.band});
  return all;
}

}  // namespace lethe::generation_cost
