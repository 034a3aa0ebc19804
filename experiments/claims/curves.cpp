#include "experiments/claims/curves.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <stdexcept>

#include "experiments/claims/deciding.hpp"
#include "experiments/claims/measures.hpp"
#include "experiments/claims/seeds.hpp"
#include "experiments/json_file.hpp"

namespace lethe {
namespace {

const std::vector<std::string> kRaw = {"copy_of_repeat_at_length", "lm_of_repeat_at_length"};
constexpr double kCertainP = 0.01;

const CurvePoint* point_at(const ForgettingCurve& curve, int64_t length) {
  const auto found = std::ranges::find(curve.points, length, &CurvePoint::length);
  return found == curve.points.end() ? nullptr : &*found;
}

double gap_at(const ForgettingCurve& curve, int64_t length) {
  const CurvePoint* point = point_at(curve, length);
  return point ? point->gap() : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

void Curves::add(const Artefact& model, const std::string& variant, const nlohmann::json& changes) {
  nlohmann::json asked = study_.settings.at("curve");
  asked.update(changes);
  CurveSettings settings;
  JsonReader reader(asked, "curve");
  settings.read(reader);
  reader.finish();
  ForgettingCurve curve;
  Record of_model;
  for (const int64_t length : settings.lengths()) {
    asked["length"] = length;
    asked["steps"] = 1;
    const Evaluated found = evaluated(study_, model, "forgetting_curve", asked, kRaw);
    const ForgettingCurve one = curve_of(found.points);
    curve.points.insert(curve.points.end(), one.points.begin(), one.points.end());
    for (const std::string& note : found.notes) curve.not_measurable.push_back({length, note});
    if (found.records.empty()) curve.not_measurable.push_back({length, "expected finite activations, found others"});
    else of_model = found.records.front();
  }
  keep(model, variant, settings, std::move(curve), of_model);
}

void Curves::add_at_once(const Artefact& model) {
  CurveSettings settings;
  JsonReader reader(study_.settings.at("curve"), "curve");
  settings.read(reader);
  reader.finish();
  const Evaluated found = evaluated(study_, model, "forgetting_curve", study_.settings.at("curve"), kRaw);
  ForgettingCurve curve = curve_of(found.points);
  for (const std::string& note : found.notes) curve.not_measurable.push_back({settings.length, note});
  keep(model, model.run.label, settings, std::move(curve), found.records.empty() ? Record() : found.records.front());
}

void Curves::keep(const Artefact& model, const std::string& variant, const CurveSettings& settings,
                  ForgettingCurve curve, const Record& of_model) {
  const auto record = [&](const std::string& metric, const char* unit, int64_t length, double value) {
    Record one = record_of(study_.experiment, model.run, of_model.batch, length, metric, unit, value);
    one.variant = variant;
    one.artefact = model.folder.filename();
    one.samples = settings.sequences;
    findings.records.push_back(one);
  };
  const auto memory = [&](const char* metric, int64_t value) {
    record(metric, "tokens", settings.length, static_cast<double>(value));
  };
  memory("fine_length", curve.fine().length);
  memory("coarse_length", curve.coarse().length);
  memory("certain_coarse_length", curve.coarse(kCertainP).length);
  memory("longest_length", curve.points.empty() ? 0 : curve.points.back().length);
  for (const CurvePoint& point : curve.points) {
    record("copy_accuracy", "1", point.length, point.copy_accuracy());
    record("lm_accuracy", "1", point.length, point.lm_accuracy());
  }
  for (Point& point : points_of(curve)) {
    point.variant = variant;
    point.seed = model.run.training.seed;
    findings.points.push_back(point);
  }
  of_[variant].push_back(std::move(curve));
}

std::vector<double> Curves::gaps(const std::string& variant, int64_t length) const {
  const auto& curves = of_.at(variant);
  std::vector<double> mean_gaps;
  for (const ForgettingCurve& curve : curves) {
    const CurvePoint* point = point_at(curve, length);
    if (!point) return {};
    mean_gaps.resize(point->copy.size());
    for (size_t repeat = 0; repeat < mean_gaps.size(); ++repeat)
      mean_gaps[repeat] += (point->copy[repeat] - point->lm[repeat]) / static_cast<double>(curves.size());
  }
  return mean_gaps;
}

double Curves::seed_band(const std::vector<Term>& terms, int64_t length) const {
  double squares = 0, parts = 0;
  int degrees = 0;
  for (const auto& [_, curves] : of_) {
    std::vector<double> values;
    for (const ForgettingCurve& curve : curves) values.push_back(gap_at(curve, length));
    if (values.size() < 2 || std::ranges::any_of(values, [](double value) { return std::isnan(value); })) continue;
    const double centre = mean(values);
    for (const double value : values) squares += (value - centre) * (value - centre);
    degrees += static_cast<int>(values.size()) - 1;
  }
  for (const auto& [variant, weight] : terms) parts += weight * weight / static_cast<double>(of_.at(variant).size());
  return degrees == 0 ? 0 : student_t(degrees) * std::sqrt(squares / degrees * parts);
}

Comparison Curves::gap(const std::string& statement, const std::vector<Term>& terms, int64_t length,
                       const Expectation& expectation) const {
  for (const auto& [variant, weight] : terms)
    if (!has(variant))
      return of_absent_row({.statement = statement, .unit = "1", .expectation = expectation}, variant);
  std::vector<double> sums;
  for (const auto& [variant, weight] : terms) {
    const std::vector<double> of_variant = gaps(variant, length);
    if (of_variant.empty()) {
      sums = {std::numeric_limits<double>::quiet_NaN()};
      break;
    }
    sums.resize(of_variant.size());
    for (size_t repeat = 0; repeat < sums.size(); ++repeat) sums[repeat] += weight * of_variant[repeat];
  }
  const double of_text = band_of_mean(sums), of_seeds = seed_band(terms, length);
  Comparison comparison{.statement = statement,
                        .unit = "1",
                        .expectation = expectation,
                        .measured = mean(sums),
                        .band = std::hypot(of_text, of_seeds)};
  const auto decides = [&](double band) {
    return judge(expectation, comparison.measured, band) != Verdict::kInconclusive;
  };
  // The wider of the two noises is the one to be lowered; both, each to half of the variance, where the other is too wide by itself.
  if (decides(std::min(of_seeds, of_text)) || decides(comparison.band) || !decides(0))
    comparison.would_decide = of_seeds > of_text ? deciding_sample(comparison, of_seeds, of_text, "the seeds")
                                                 : deciding_sample(comparison, of_text, of_seeds, "the text");
  else
    comparison.would_decide = deciding_sample(comparison, std::numbers::sqrt2 * of_seeds, 0, "the seeds") + " and " +
                              deciding_sample(comparison, std::numbers::sqrt2 * of_text, 0, "the text");
  return comparison;
}

Comparison Curves::control(const std::string& statement, const std::string& variant, int64_t length,
                           const Expectation& expectation) const {
  Comparison comparison = gap(statement, {{variant, 1}}, length, expectation);
  if (!has(variant)) return comparison;
  const std::vector<double> repeats = gaps(variant, length);
  if (!repeats.empty()) comparison.band = band_of_mean(repeats);
  comparison.would_decide = deciding_sample(comparison, comparison.band, 0, "the text");
  comparison.note = study_.settings.value("control_after_a_run", "");
  return comparison;
}

Comparison Curves::memory(const std::string& statement, const std::string& variant,
                          MemoryLength (*rule)(const ForgettingCurve&), int64_t unit,
                          const Expectation& expectation) const {
  Comparison comparison{.statement = statement, .unit = unit == 1 ? "tokens" : "1", .expectation = expectation};
  if (!has(variant)) return of_absent_row(comparison, variant);
  std::vector<double> lengths;
  for (const ForgettingCurve& curve : of_.at(variant))
    lengths.push_back(static_cast<double>(rule(curve).length) / static_cast<double>(unit));
  comparison.measured = mean(lengths);
  comparison.band = (std::ranges::max(lengths) - std::ranges::min(lengths)) / 2;
  return comparison;
}

int64_t curve_seeds(const nlohmann::json& settings, const std::string& row) {
  const auto seeds = settings.value("row_seeds", nlohmann::json::object());
  return seeds.contains(row) ? whole_number(seeds, row) : 1;
}

Run untrained(const Run& run) {
  Run begin = run;
  begin.label = "Untrained";
  TrainingConfig& training = begin.training;
  training.total_tokens = training.warmup_tokens = training.batch_tokens;
  training.decay_tokens = 0;
  return begin;
}

Comparison stated(Comparison comparison, const std::string& source, bool headline) {
  comparison.source = source;
  comparison.headline = headline;
  return comparison;
}

}  // namespace lethe
