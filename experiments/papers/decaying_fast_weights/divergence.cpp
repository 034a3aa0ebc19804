#include "experiments/papers/decaying_fast_weights/divergence.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "experiments/json_file.hpp"
#include "experiments/training/training_log.hpp"

namespace lethe {
namespace {

constexpr double kLargestFloat16 = 65504;
constexpr double kWorse = 0.2;  // nats

double number_or_nan(const nlohmann::json& object, const char* key) {
  return object.contains(key) && object[key].is_number() ? object[key].get<double>()
                                                         : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

Outcome outcome_of(const Course& course) {
  if (course.stopped || !std::isfinite(course.validation_loss)) return Outcome::kNotFinite;
  if (course.validation_loss > std::log(static_cast<double>(course.vocabulary))) return Outcome::kWorseThanChance;
  const auto last = std::max<std::ptrdiff_t>(1, std::ssize(course.losses) / 10);
  const double mean =
      std::accumulate(course.losses.end() - std::min(last, std::ssize(course.losses)), course.losses.end(), 0.0) /
      static_cast<double>(last);
  if (mean > course.loss_without_context + kWorse) return Outcome::kWorseThanBlind;
  return course.largest > kLargestFloat16 ? Outcome::kOverflowsFloat16 : Outcome::kConverged;
}

std::string to_string(Outcome outcome) {
  switch (outcome) {
    case Outcome::kNotFinite: return "not finite";
    case Outcome::kWorseThanChance: return "worse than chance";
    case Outcome::kWorseThanBlind: return "worse than without context";
    case Outcome::kOverflowsFloat16: return "would overflow float16";
    default: return "converged";
  }
}

Course course_of(const Artefact& artefact, const Artefact* without_context) {
  const auto done = read_sealed(artefact.folder / "done.json");
  const auto blind =
      without_context == nullptr ? nlohmann::json::object() : read_sealed(without_context->folder / "done.json");
  Course course{.losses = {},
                .stopped = done.contains("diverged") && !done["diverged"].is_null(),
                .validation_loss = number_or_nan(done, "validation_loss"),
                .loss_without_context = number_or_nan(blind, "validation_loss"),
                .largest = 0,
                .vocabulary = artefact.run.model.vocabulary};
  const auto look = [&](const nlohmann::json& line) {
    for (const char* key : {"largest_state", "largest_value"})
      if (line.contains(key)) course.largest = std::fmax(course.largest, number_or_nan(line, key));
  };
  look(done);
  read_log(artefact.folder, [&](const nlohmann::json& line) {
    course.losses.push_back(line.at("loss"));
    look(line);
  });
  return course;
}

}  // namespace lethe
