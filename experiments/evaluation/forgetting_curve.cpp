#include "experiments/evaluation/forgetting_curve.hpp"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <stdexcept>

#include "experiments/evaluation/evaluation.hpp"
#include "experiments/evaluation/per_token_loss.hpp"
#include "experiments/evaluation/predictor.hpp"
#include "experiments/evaluation/significance.hpp"

namespace lethe {
namespace {

using torch::Tensor;

constexpr double kFineAccuracy = 0.99, kCoarseGap = 0.01, kCertain = 0.01;
constexpr int64_t kShortest = 8;  ///< of the logarithmic lengths
constexpr const char *kCopies = "copy_of_repeat_at_length", *kLms = "lm_of_repeat_at_length";

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// Between repeats, of the n values themselves: the band of the paper's figures.
double deviation_of(const std::vector<double>& values) {
  const double centre = mean_of(values);
  double squares = 0;
  for (const double value : values) squares += (value - centre) * (value - centre);
  return std::sqrt(squares / static_cast<double>(values.size()));
}

/// A source of text.
class Source {
 public:
  Source(const Dataset& dataset, const std::string& name) : dataset_(dataset), name_(name) {}

  bool is_split() const { return name_ != "random" && name_ != "shuffled"; }
  int64_t tokens() const { return dataset_.tokens(name_); }

  Tensor passage(int64_t begin, int64_t length, std::mt19937_64& random) const {
    if (is_split()) return dataset_.passage(name_, begin, length);
    Tensor tokens = torch::empty({length}, torch::kInt64);
    for (int64_t i = 0; i < length; ++i) tokens[i] = token(random);
    return tokens;
  }

 private:
  int64_t token(std::mt19937_64& random) const {
    if (name_ == "shuffled") {
      const auto all = static_cast<uint64_t>(dataset_.tokens("train"));
      return dataset_.passage("train", static_cast<int64_t>(random() % all), 1).item<int64_t>();
    }
    const auto token = static_cast<int64_t>(random() % static_cast<uint64_t>(dataset_.vocabulary() - 1));
    return token < dataset_.begin_token() ? token : token + 1;
  }

  const Dataset& dataset_;
  std::string name_;
};

/// The prompts of one length. Targets are drawn apart from irrelevant text: another source of that leaves them as they are.
class Prompts {
 public:
  Prompts(const Dataset& dataset, const CurveSettings& settings, int64_t length)
      : target_(dataset, settings.split),
        irrelevant_(dataset, settings.irrelevant.empty() ? settings.split : settings.irrelevant), length_(length),
        is_one_source_(target_.is_split() && (settings.irrelevant.empty() || settings.irrelevant == settings.split)) {
    for (uint32_t which = 0; which < 2; ++which) {
      std::seed_seq words{static_cast<uint32_t>(settings.seed), static_cast<uint32_t>(settings.seed >> 32),
                          static_cast<uint32_t>(length), which};
      randoms_[which].seed(words);
    }
    if (settings.separator == Separator::kBegin) separator_ = {dataset.begin_token()};
    if (settings.separator == Separator::kNewline) separator_ = tokens_of(dataset, "\n");
  }

  /// Empty where these prompts exist.
  std::string not_measurable() const {
    const auto short_of = [](const Source& source, int64_t needed) {
      return source.is_split() && source.tokens() < needed ? "expected a source of " + std::to_string(needed) +
                                                                 " tokens, found " + std::to_string(source.tokens())
                                                           : "";
    };
    const std::string reason = short_of(target_, is_one_source_ ? 3 * length_ : length_);
    return reason.empty() ? short_of(irrelevant_, length_) : reason;
  }

  int64_t scored() const { return (length_ + 1) / 2; }
  int64_t tokens() const { return 2 * (length_ + std::ssize(separator_)) - 1; }

  /// tokens [n,T], without the last, which predicts nothing; labels [n,⌈L/2⌉].
  struct Batch {
    Tensor copy, lm, labels;
  };
  Batch next(int64_t count) {
    std::vector<Tensor> copies, lms;
    const Tensor separator = torch::tensor(separator_, torch::kInt64);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t begin = position(target_, length_, randoms_[0]);
      const Tensor target = target_.passage(begin, length_, randoms_[0]);
      const Tensor irrelevant = irrelevant_.passage(away_from(begin), length_, randoms_[1]);
      copies.push_back(torch::cat({separator, target, separator, target}));
      lms.push_back(torch::cat({separator, irrelevant, separator, target}));
    }
    const Tensor copy = torch::stack(copies), lm = torch::stack(lms);
    return {copy.narrow(1, 0, tokens()), lm.narrow(1, 0, tokens()), copy.narrow(1, tokens() + 1 - scored(), scored())};
  }

 private:
  static int64_t below(int64_t count, std::mt19937_64& random) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(count));
  }
  static int64_t position(const Source& source, int64_t length, std::mt19937_64& random) {
    return source.is_split() ? below(source.tokens() - length + 1, random) : 0;
  }
  /// The begin of irrelevant text, which shares no token with the target.
  int64_t away_from(int64_t begin) {
    if (!is_one_source_) return position(irrelevant_, length_, randoms_[1]);
    const int64_t before = std::max<int64_t>(0, begin - length_ + 1);
    const int64_t after = std::max<int64_t>(0, irrelevant_.tokens() - begin - 2 * length_ + 1);
    const int64_t chosen = below(before + after, randoms_[1]);
    return chosen < before ? chosen : begin + length_ + chosen - before;
  }

  Source target_, irrelevant_;
  int64_t length_;
  bool is_one_source_;
  std::mt19937_64 randoms_[2];  // of targets, of irrelevant text
  std::vector<int64_t> separator_;
};

CurvePoint measured_point(const Guesses& guesses, Prompts& prompts, const CurveSettings& settings, int64_t length) {
  const int64_t a_repeat = settings.sequences * prompts.scored();  // predictions with one S in each repeat
  const int64_t passages = std::max<int64_t>(1, (settings.targets + a_repeat - 1) / a_repeat);
  const int64_t at_once = std::max<int64_t>(1, kEvaluationTokens / prompts.tokens());
  const auto predictions = static_cast<double>(passages * prompts.scored());
  CurvePoint point{length, {}, {}};
  for (int64_t repeat = 0; repeat < settings.sequences; ++repeat) {
    int64_t copied = 0, guessed = 0;
    for (int64_t first = 0; first < passages; first += at_once) {
      const auto batch = prompts.next(std::min(at_once, passages - first));
      copied += guesses(batch.copy, batch.labels).sum().item<int64_t>();
      guessed += guesses(batch.lm, batch.labels).sum().item<int64_t>();
    }
    point.copy.push_back(static_cast<double>(copied) / predictions);
    point.lm.push_back(static_cast<double>(guessed) / predictions);
  }
  return point;
}

void check(const CurveSettings& settings, const Dataset& dataset) {
  for (const auto& [name, value] : {std::pair("sequences", settings.sequences), std::pair("steps", settings.steps),
                                    std::pair("targets", settings.targets)})
    expect(value > 0, name, "at least 1", std::to_string(value));
  for (const std::string& name : {settings.split, settings.irrelevant.empty() ? settings.split : settings.irrelevant})
    if (Source(dataset, name).is_split() || settings.length < 1) Pieces{name, settings.length, 1}.count(dataset);
}

}  // namespace

void CurveSettings::read(JsonReader& reader) {
  reader("split", split);
  reader("irrelevant", irrelevant);
  reader("length", length);
  reader("sequences", sequences);
  reader("steps", steps);
  reader("targets", targets);
  reader("spacing", spacing);
  reader("separator", separator);
  reader("seed", seed);
}

std::vector<int64_t> CurveSettings::lengths() const {
  std::vector<int64_t> all;
  const double from = static_cast<double>(std::min(kShortest, length)), to = static_cast<double>(length);
  for (int64_t i = 1; i <= steps; ++i) {
    const double share = static_cast<double>(i) / static_cast<double>(steps);
    const double ratio = steps == 1 ? 1 : static_cast<double>(i - 1) / static_cast<double>(steps - 1);
    const double exact = spacing == Spacing::kLinear ? to * share : from * std::pow(to / from, ratio);
    const int64_t rounded = std::max<int64_t>(1, std::llround(exact));
    if (all.empty() || rounded > all.back()) all.push_back(rounded);
  }
  return all;
}

double CurvePoint::copy_accuracy() const { return mean_of(copy); }
double CurvePoint::lm_accuracy() const { return mean_of(lm); }
double CurvePoint::p() const { return copy.size() < 2 ? 1 : paired_t_test(copy, lm); }

namespace {

template <class Rule>
MemoryLength last_that(const std::vector<CurvePoint>& points, Rule&& passes) {
  MemoryLength last;
  for (const CurvePoint& point : points)
    if (passes(point)) last = {point.length, &point == &points.back()};
  return last;
}

}  // namespace

MemoryLength ForgettingCurve::fine() const {
  return last_that(points, [](const CurvePoint& point) { return point.copy_accuracy() > kFineAccuracy; });
}

MemoryLength ForgettingCurve::coarse(double largest_p) const {
  return last_that(points,
                   [&](const CurvePoint& point) { return point.gap() >= kCoarseGap && point.p() <= largest_p; });
}

ForgettingCurve forgetting_curve(const Guesses& guesses, const Dataset& dataset, const CurveSettings& settings,
                                 const std::function<void(double)>& progress) {
  check(settings, dataset);
  ForgettingCurve curve;
  std::string full_memory;
  const std::vector<int64_t> lengths = settings.lengths();
  for (size_t l = 0; l < lengths.size(); ++l) {
    Prompts prompts(dataset, settings, lengths[l]);
    std::string reason = full_memory.empty() ? prompts.not_measurable() : full_memory;
    if (reason.empty()) try {
        curve.points.push_back(measured_point(guesses, prompts, settings, lengths[l]));
      } catch (const c10::OutOfMemoryError&) {
        reason = full_memory =
            "expected memory for a prompt of " + std::to_string(prompts.tokens()) + " tokens, found too little";
      }
    if (!reason.empty()) curve.not_measurable.push_back({lengths[l], reason});
    if (progress) progress(static_cast<double>(l + 1) / static_cast<double>(lengths.size()));
  }
  return curve;
}

ForgettingCurve curve_of(const std::vector<Point>& points) {
  ForgettingCurve curve;
  const auto at = [&](double x) -> CurvePoint& {
    const auto length = std::llround(x);
    auto found = std::ranges::find(curve.points, length, &CurvePoint::length);
    if (found == curve.points.end()) found = curve.points.insert(found, CurvePoint{length, {}, {}});
    return *found;
  };
  for (const Point& point : points) {
    if (point.quantity == kCopies) at(point.x).copy.push_back(point.value);
    if (point.quantity == kLms) at(point.x).lm.push_back(point.value);
  }
  std::ranges::sort(curve.points, {}, &CurvePoint::length);
  return curve;
}

std::vector<Point> points_of(const ForgettingCurve& curve) {
  std::vector<Point> points;
  const auto add = [&](const char* quantity, auto value_of) {
    for (const CurvePoint& point : curve.points)
      points.push_back({.quantity = quantity, .x = static_cast<double>(point.length), .value = value_of(point)});
    for (const auto& missing : curve.not_measurable)
      points.push_back({.quantity = quantity, .x = static_cast<double>(missing.length), .value = NAN});
  };
  add("copy_at_length", [](const CurvePoint& point) { return point.copy_accuracy(); });
  add("lm_at_length", [](const CurvePoint& point) { return point.lm_accuracy(); });
  add("copy_deviation_at_length", [](const CurvePoint& point) { return deviation_of(point.copy); });
  add("lm_deviation_at_length", [](const CurvePoint& point) { return deviation_of(point.lm); });
  add("p_at_length", [](const CurvePoint& point) { return point.p(); });
  for (const auto& [quantity, values] : {std::pair(kCopies, &CurvePoint::copy), std::pair(kLms, &CurvePoint::lm)})
    for (const CurvePoint& point : curve.points)
      for (size_t repeat = 0; repeat < (point.*values).size(); ++repeat)
        points.push_back({.quantity = quantity,
                          .x = static_cast<double>(point.length),
                          .y = static_cast<double>(repeat),
                          .value = (point.*values)[repeat]});
  return points;
}

Evaluation forgetting_curve_evaluation() {
  const auto run = [](LanguageModel& model, const Dataset& dataset, const nlohmann::json& given,
                      const std::function<void(double)>& progress) {
    CurveSettings settings;
    JsonReader reader(given, "forgetting_curve");
    settings.read(reader);
    reader.finish();
    const InEvaluation evaluating(model);
    const auto guesses = [&](const Tensor& tokens, const Tensor& labels) {
      return predictions_of_last(model, tokens, labels).correct;
    };
    const ForgettingCurve curve = forgetting_curve(guesses, dataset, settings, progress);

    Evaluated result;
    const auto record = [&](const char* metric, const char* unit, double value) {
      result.records.push_back(record_of_model(model, settings.sequences, settings.length, metric, unit, value));
    };
    const auto length = [&](const char* metric, int64_t value) {
      record(metric, "tokens", static_cast<double>(value));
    };
    length("fine_length", curve.fine().length);
    length("coarse_length", curve.coarse().length);
    length("certain_coarse_length", curve.coarse(kCertain).length);
    length("longest_length", curve.points.empty() ? 0 : curve.points.back().length);
    record("not_measurable", "lengths", static_cast<double>(curve.not_measurable.size()));
    for (const auto& [metric, of_point] :
         {std::pair("copy_accuracy", &CurvePoint::copy_accuracy), std::pair("lm_accuracy", &CurvePoint::lm_accuracy)}) {
      double sum = 0;
      for (const CurvePoint& point : curve.points) sum += (point.*of_point)();
      record(metric, "1", curve.points.empty() ? 0 : sum / static_cast<double>(curve.points.size()));
    }
    result.points = points_of(curve);
    for (const auto& [missing, reason] : curve.not_measurable)
      result.notes.push_back("not measurable at L = " + std::to_string(missing) + ": " + reason);
    return result;
  };
  return {"forgetting_curve",
          "How far back a model copies: copy and LM accuracy over the length, fine and coarse memory", run};
}

}  // namespace lethe
