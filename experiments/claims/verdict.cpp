#include "experiments/claims/verdict.hpp"

#include <algorithm>
#include <array>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>

namespace lethe {

std::string to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::kReproduced: return "reproduced";
    case Verdict::kTrendReproduced: return "trend reproduced";
    case Verdict::kRefuted: return "refuted";
    case Verdict::kInconclusive: return "inconclusive at this scale";
  }
  throw std::invalid_argument("verdict: expected one of the four, found another value");
}

Verdict judge(const Expectation& expectation, double measured, double band) {
  const double low = measured - band, high = measured + band;
  if (!std::isfinite(low) || !std::isfinite(high)) return Verdict::kInconclusive;
  const auto [range_low, range_high, direction] = expectation;
  const bool range_stated = std::isfinite(range_low) || std::isfinite(range_high);
  if (range_stated && low >= range_low && high <= range_high) return Verdict::kReproduced;
  if (direction > 0 ? low > 0 : direction < 0 && high < 0) return Verdict::kTrendReproduced;
  if (direction > 0 ? high < 0 : direction < 0 && low > 0) return Verdict::kRefuted;
  if (direction == 0 && range_stated && (low > range_high || high < range_low)) return Verdict::kRefuted;
  return Verdict::kInconclusive;
}

void to_json(nlohmann::json& json, const Comparison& c) {
  const auto finite = [](double value) { return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(); };
  json = {{"statement", c.statement},
          {"source", c.source},
          {"unit", c.unit},
          {"headline", c.headline},
          {"expected",
           {{"low", finite(c.expectation.low)},
            {"high", finite(c.expectation.high)},
            {"direction", c.expectation.direction}}},
          {"paper", finite(c.paper)},
          {"measured", finite(c.measured)},
          {"band", finite(c.band)},
          {"verdict", to_string(c.verdict())}};
}

Verdict overall(const std::vector<Comparison>& comparisons) {
  std::array<int, 4> count{};
  for (const Comparison& comparison : comparisons)
    if (comparison.headline) ++count[static_cast<size_t>(comparison.verdict())];
  const auto any = [&](Verdict verdict) { return count[static_cast<size_t>(verdict)] > 0; };
  if (std::accumulate(count.begin(), count.end(), 0) == 0)
    throw std::invalid_argument("comparisons: expected at least one headline, found none");
  for (const Verdict verdict : {Verdict::kRefuted, Verdict::kInconclusive, Verdict::kTrendReproduced})
    if (any(verdict)) return verdict;
  return Verdict::kReproduced;
}

Noise::Noise(const std::vector<std::vector<double>>& rows) {
  double squares = 0;
  for (const auto& row : rows) {
    const double centre = mean(row);
    for (const double value : row) squares += (value - centre) * (value - centre);
    degrees_ += static_cast<int>(row.size()) - 1;
  }
  deviation_ = degrees_ > 0 ? std::sqrt(squares / degrees_) : std::numeric_limits<double>::infinity();
}

double Noise::band(double parts) const { return band_of({{*this, parts}}); }

double band_of(const std::vector<NoisePart>& kinds) {
  double variance = 0, squares = 0;
  for (const auto& [noise, parts] : kinds) {
    if (parts == 0) continue;
    if (noise.degrees() < 1) return std::numeric_limits<double>::infinity();
    const double share = noise.deviation() * noise.deviation() * parts;
    variance += share;
    squares += share * share / noise.degrees();
  }
  if (variance == 0) return 0;
  return student_t(std::max(1, static_cast<int>(variance * variance / squares * (1 + 1e-12)))) * std::sqrt(variance);
}

double student_t(int degrees) {
  if (degrees < 1) throw std::invalid_argument("degrees: expected at least 1, found " + std::to_string(degrees));
  return boost::math::quantile(boost::math::students_t(degrees), 0.975);
}

double mean(const std::vector<double>& values) {
  if (values.empty()) throw std::invalid_argument("values: expected at least one, found none");
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double median(std::vector<double> values) {
  if (values.empty()) throw std::invalid_argument("values: expected at least one, found none");
  const size_t middle = values.size() / 2;
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(middle));
  const double upper = values[middle];
  if (values.size() % 2 == 1) return upper;
  return 0.5 * (upper + *std::max_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(middle)));
}

double band_of_mean(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  if (count < 2) return std::numeric_limits<double>::infinity();
  const double centre = mean(values);
  double squares = 0;
  for (const double value : values) squares += (value - centre) * (value - centre);
  return 1.96 * std::sqrt(squares / (count - 1) / count);
}

}  // namespace lethe
