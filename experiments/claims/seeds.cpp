#include "experiments/claims/seeds.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <stdexcept>

#include "experiments/claims/deciding.hpp"

namespace lethe {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr size_t kOwnScatter = 3;    // shared seeds from which a difference has a scatter of its own
constexpr size_t kMostSeeds = 1000;  // that anybody would train

}  // namespace

void Measurements::add(const std::string& row, uint64_t seed, double value, std::vector<double> by_sequence) {
  rows_[row][seed] = {value, std::move(by_sequence)};
}

double Measurements::mean_of(const std::string& row) const {
  if (!has(row)) throw std::invalid_argument("row: expected a measured one, found " + row);
  return mean(by_seed({{row, 1}}));
}

std::vector<uint64_t> Measurements::shared_seeds(const std::vector<Term>& terms) const {
  std::vector<uint64_t> shared;
  for (const auto& [seed, _] : rows_.at(terms.front().row))
    if (std::ranges::all_of(terms, [&, seed = seed](const Term& term) { return rows_.at(term.row).contains(seed); }))
      shared.push_back(seed);
  return shared;
}

std::vector<double> Measurements::by_seed(const std::vector<Term>& terms) const {
  std::vector<double> sums;
  for (const uint64_t seed : shared_seeds(terms)) {
    sums.push_back(0);
    for (const auto& [row, weight] : terms) sums.back() += weight * rows_.at(row).at(seed).value;
  }
  return sums;
}

Measurements::Scatter Measurements::pooled_scatter() const {
  std::vector<std::vector<double>> rows;
  size_t seeds = std::numeric_limits<size_t>::max();
  for (const auto& [_, values] : rows_) {
    rows.emplace_back();
    for (const auto& [seed, value] : values) rows.back().push_back(value.value);
    if (rows.back().size() < 2 || std::ranges::any_of(rows.back(), [](double value) { return std::isnan(value); }))
      rows.pop_back();
    else seeds = std::min(seeds, rows.back().size());
  }
  if (rows.size() < 2) return {kInfinity, 1};
  std::vector<double> of_seed(seeds, 0.0), of_row;
  for (auto& row : rows) {
    row.resize(seeds);
    of_row.push_back(mean(row));
    for (size_t s = 0; s < seeds; ++s) of_seed[s] += row[s] / static_cast<double>(rows.size());
  }
  double squares = 0;
  for (size_t r = 0; r < rows.size(); ++r)
    for (size_t s = 0; s < seeds; ++s) squares += std::pow(rows[r][s] - of_row[r] - of_seed[s] + mean(of_row), 2);
  const auto degrees = static_cast<int>((rows.size() - 1) * (seeds - 1));
  return {std::sqrt(squares / degrees), degrees};
}

double Measurements::text_band(const std::vector<Term>& terms, const std::vector<uint64_t>& seeds) const {
  std::vector<double> sums;
  for (const auto& [row, weight] : terms)
    for (const uint64_t seed : seeds) {
      const std::vector<double>& values = rows_.at(row).at(seed).by_sequence;
      if (sums.empty()) sums.resize(values.size());
      if (values.empty() || values.size() != sums.size()) return 0;
      for (size_t s = 0; s < sums.size(); ++s) sums[s] += weight * values[s] / static_cast<double>(seeds.size());
    }
  return band_of_mean(sums, confidence_);
}

Comparison of_absent_row(Comparison comparison, const std::string& row) {
  comparison.measured = comparison.band = std::numeric_limits<double>::quiet_NaN();
  comparison.absent_row = row;
  comparison.out_of_reach = "this scale does not train " + row;
  return comparison;
}

Comparison Measurements::compare(const std::string& statement, const std::vector<Term>& terms,
                                 const Expectation& expectation) const {
  Comparison comparison{.statement = statement, .unit = "nats", .expectation = expectation};
  comparison.measured = comparison.band = std::numeric_limits<double>::quiet_NaN();
  for (const Term& term : terms)
    if (!has(term.row)) return of_absent_row(comparison, term.row);
  const std::vector<uint64_t> seeds = shared_seeds(terms);
  const std::vector<double> values = by_seed(terms);
  if (values.empty()) {
    comparison.open = "its rows share no seed";
    return comparison;
  }
  comparison.measured = mean(values);
  double squares = 0;
  for (const Term& term : terms) squares += term.weight * term.weight;
  Scatter scatter{deviation(values), static_cast<int>(values.size()) - 1};
  if (values.size() < kOwnScatter) {
    scatter = pooled_scatter();
    scatter.deviation *= std::sqrt(squares);
  }
  const double of_text = text_band(terms, seeds), of_seeds = student_t(scatter.degrees, confidence_) *
                                                             scatter.deviation /
                                                             std::sqrt(static_cast<double>(values.size()));
  comparison.band = std::hypot(of_seeds, of_text);
  comparison.would_decide = deciding_runs(comparison, {of_seeds, of_text, scatter.deviation}, values.size());
  return comparison;
}

std::string Measurements::deciding_runs(const Comparison& comparison, const Noises& noises, size_t seeds) const {
  const auto decides = [&](double band) {
    return judge(comparison.expectation, comparison.measured, band) != Verdict::kInconclusive;
  };
  if (!std::isfinite(comparison.measured) || decides(comparison.band) || !decides(0)) return "";
  if (!std::isfinite(noises.deviation)) return "rows with several seeds";
  const auto fewest_seeds = [&](const auto& enough_with) -> std::string {
    const auto is_enough = [&](size_t n) {
      return enough_with(student_t(static_cast<int>(n) - 1, confidence_) * noises.deviation /
                         std::sqrt(static_cast<double>(n)));
    };
    size_t few = std::max(seeds, kOwnScatter - 1),
           enough = kMostSeeds;  // from three on the band falls with their number
    if (!is_enough(enough)) return "more than " + std::to_string(kMostSeeds) + " seeds a row";
    while (enough - few > 1) {
      const size_t middle = (few + enough) / 2;
      (is_enough(middle) ? enough : few) = middle;
    }
    return std::to_string(enough) + " seeds a row, " + std::to_string(seeds) + (seeds == 1 ? " is" : " are") + " here";
  };
  if (decides(noises.of_text))
    return fewest_seeds([&](double of_seeds) { return decides(std::hypot(of_seeds, noises.of_text)); });
  if (decides(noises.of_seeds)) return deciding_sample(comparison, noises.of_text, noises.of_seeds, "the text");
  return deciding_sample(comparison, std::numbers::sqrt2 * noises.of_text, 0, "the text") + " and " +
         fewest_seeds([&](double of_seeds) { return decides(std::numbers::sqrt2 * of_seeds); });
}

}  // namespace lethe
