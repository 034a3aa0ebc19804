#include "experiments/claims/verdict.hpp"

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <stdexcept>

namespace lethe {

std::string to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::kReproduced: return "reproduced";
    case Verdict::kTrendReproduced: return "trend reproduced";
    case Verdict::kDirectionReproduced: return "direction reproduced, size contradicted";
    case Verdict::kRefuted: return "refuted";
    case Verdict::kInconclusive: return "inconclusive at this scale";
    case Verdict::kOutOfReach: return "out of reach here";
  }
  throw std::invalid_argument("verdict: expected one of the six, found another value");
}

Verdict judge(const Expectation& expectation, double measured, double band) {
  const double low = measured - band, high = measured + band;
  if (!std::isfinite(low) || !std::isfinite(high)) return Verdict::kInconclusive;
  const auto [range_low, range_high, direction] = expectation;
  const bool range_stated = std::isfinite(range_low) || std::isfinite(range_high);
  const bool is_outside = range_stated && (low > range_high || high < range_low);
  if (range_stated && low >= range_low && high <= range_high) return Verdict::kReproduced;
  if (direction > 0 ? low > 0 : direction < 0 && high < 0)
    return is_outside ? Verdict::kDirectionReproduced : Verdict::kTrendReproduced;
  if (direction > 0 ? high < 0 : direction < 0 && low > 0) return Verdict::kRefuted;
  if (direction == 0 && is_outside) return Verdict::kRefuted;
  return Verdict::kInconclusive;
}

Verdict Comparison::verdict() const {
  if (!out_of_reach.empty()) return Verdict::kOutOfReach;
  if (!open.empty()) return Verdict::kInconclusive;
  const Verdict found = judge(expectation, measured, band);
  if (found == Verdict::kRefuted) return no_refutation.empty() ? found : Verdict::kInconclusive;
  return control_does_as_well() ? Verdict::kInconclusive : found;
}

bool Comparison::control_does_as_well() const {
  if (!control || !out_of_reach.empty() || !open.empty()) return false;
  // The enumerators on the paper's side come first, the best of them first.
  const Verdict found = judge(expectation, measured, band);
  return found < Verdict::kRefuted && judge(expectation, control->measured, control->band) <= found;
}

namespace {

/// What would decide a comparison that its band alone leaves open, or that nothing would; empty for every other.
std::string deciding(const Comparison& c) {
  const bool is_measured = c.out_of_reach.empty() && c.open.empty() && std::isfinite(c.measured);
  if (!is_measured || judge(c.expectation, c.measured, c.band) != Verdict::kInconclusive) return "";
  if (c.expectation.direction != 0 && judge(c.expectation, c.measured, 0) == Verdict::kInconclusive)
    return "no number of runs with this mean, which is the bound itself";
  Comparison exact = c;
  exact.band = 0;
  if (exact.control) exact.control->band = 0;
  if (exact.verdict() == Verdict::kInconclusive) return "";  // a reason or a control would stand against it
  return c.would_decide;
}

}  // namespace

std::string Comparison::lacks() const {
  if (control_does_as_well()) return "the control does as well: with these means no number of runs would decide it";
  const std::string what = deciding(*this);
  return what.empty() ? "" : "would be decided by " + what;
}

namespace {

nlohmann::json number_or_null(double value) { return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(); }

double number(const nlohmann::json& json, const char* key, double otherwise) {
  return json.contains(key) && json[key].is_number() ? json[key].get<double>() : otherwise;
}

/// The reasons of a Comparison with their JSON keys; only those that are there are written.
template <class Self, class Visitor>
void visit_reasons(Self& self, Visitor&& visit) {
  visit("out_of_reach", self.out_of_reach);
  visit("open", self.open);
  visit("no_refutation", self.no_refutation);
  visit("note", self.note);
}

}  // namespace

void to_json(nlohmann::json& json, const Comparison& c) {
  json = {{"statement", c.statement},
          {"source", c.source},
          {"unit", c.unit},
          {"headline", c.headline},
          {"expected",
           {{"low", number_or_null(c.expectation.low)},
            {"high", number_or_null(c.expectation.high)},
            {"direction", c.expectation.direction}}},
          {"paper", number_or_null(c.paper)},
          {"measured", number_or_null(c.measured)},
          {"band", number_or_null(c.band)},
          {"verdict", to_string(c.verdict())}};
  if (c.control) {
    json["control"] = {{"what", c.control->what},
                       {"measured", number_or_null(c.control->measured)},
                       {"band", number_or_null(c.control->band)}};
    if (c.control_does_as_well()) json["control"]["does_as_well"] = true;
  }
  visit_reasons(c, [&](const char* key, const std::string& reason) {
    if (!reason.empty()) json[key] = reason;
  });
  const std::string what = deciding(c);
  if (!c.control_does_as_well() && !what.empty()) json["would_decide"] = what;
}

void from_json(const nlohmann::json& json, Comparison& c) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();
  const auto& expected = json.at("expected");
  c = {.statement = json.at("statement"),
       .source = json.at("source"),
       .unit = json.at("unit"),
       .headline = json.at("headline"),
       .expectation = {number(expected, "low", -kInfinity), number(expected, "high", kInfinity),
                       expected.at("direction")},
       .paper = number(json, "paper", kNaN),
       .measured = number(json, "measured", kNaN),
       .band = number(json, "band", kInfinity)};
  if (json.contains("control"))
    c.control = Control{json["control"].at("what"), number(json["control"], "measured", kNaN),
                        number(json["control"], "band", kInfinity)};
  visit_reasons(c, [&](const char* key, std::string& reason) { reason = json.value(key, ""); });
  c.would_decide = json.value("would_decide", "");
}

Verdict overall(const std::vector<Comparison>& comparisons) {
  std::set<Verdict> found;
  for (const Comparison& comparison : comparisons)
    if (comparison.headline) found.insert(comparison.verdict());
  if (found.empty()) throw std::invalid_argument("comparisons: expected at least one headline, found none");
  for (const Verdict verdict : {Verdict::kRefuted, Verdict::kInconclusive, Verdict::kOutOfReach,
                                Verdict::kDirectionReproduced, Verdict::kTrendReproduced})
    if (found.contains(verdict)) return verdict;
  return Verdict::kReproduced;
}

double student_t(int degrees, double confidence) {
  if (degrees < 1) throw std::invalid_argument("degrees: expected at least 1, found " + std::to_string(degrees));
  if (!(confidence > 0 && confidence < 1))
    throw std::invalid_argument("confidence: expected a number between 0 and 1, found " + std::to_string(confidence));
  return boost::math::quantile(boost::math::students_t(degrees), (1 + confidence) / 2);
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

double deviation(const std::vector<double>& values) {
  const double centre = mean(values);
  double squares = 0;
  for (const double value : values) squares += (value - centre) * (value - centre);
  return values.size() < 2 ? std::numeric_limits<double>::quiet_NaN()
                           : std::sqrt(squares / static_cast<double>(values.size() - 1));
}

double band_of_mean(const std::vector<double>& values, double confidence) {
  if (values.size() < 2) return std::numeric_limits<double>::infinity();
  const auto degrees = static_cast<int>(values.size()) - 1;
  return student_t(degrees, confidence) * deviation(values) / std::sqrt(static_cast<double>(values.size()));
}

}  // namespace lethe
