#include "experiments/claims/measures.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <stdexcept>

#include "experiments/json_file.hpp"
#include "experiments/models/not_finite.hpp"

namespace lethe {
namespace {

constexpr const char* kLossCurve = "loss_at_position";
constexpr const char* kSequences = "loss_of_sequence";
constexpr size_t kPointsAnOctave = 512;  // of a loss curve

double number(const nlohmann::json& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

nlohmann::json json_of(const Record& record) {
  return {{"variant", record.variant},     {"implementation", record.implementation},
          {"device", record.device},       {"dtype", record.dtype},
          {"batch", record.batch},         {"length", record.length},
          {"heads", record.heads},         {"key_dim", record.key_dim},
          {"value_dim", record.value_dim}, {"metric", record.metric},
          {"unit", record.unit},           {"value", record.value},
          {"stddev", record.stddev},       {"samples", record.samples}};
}

Record record_of(const nlohmann::json& json) {
  return {.variant = json.at("variant"),
          .implementation = json.at("implementation"),
          .device = json.at("device"),
          .dtype = json.at("dtype"),
          .batch = json.at("batch"),
          .length = json.at("length"),
          .heads = json.at("heads"),
          .key_dim = json.at("key_dim"),
          .value_dim = json.at("value_dim"),
          .metric = json.at("metric"),
          .unit = json.at("unit"),
          .value = number(json.at("value")),
          .stddev = number(json.at("stddev")),
          .samples = json.at("samples")};
}

}  // namespace

nlohmann::json json_of(const Evaluated& found) {
  nlohmann::json records = nlohmann::json::array();
  for (const Record& record : found.records) records.push_back(json_of(record));
  nlohmann::json json = {{"records", records}, {"points", json_of(found.points)}};
  if (!found.notes.empty()) json["notes"] = found.notes;
  return json;
}

// The neighbours of one quantity and variant are columns: a curve of 65536 points stays small.
nlohmann::json json_of(const std::vector<Point>& points) {
  nlohmann::json curves = nlohmann::json::array();
  for (const Point& point : points) {
    if (curves.empty() || curves.back()["quantity"] != point.quantity || curves.back()["variant"] != point.variant)
      curves.push_back({{"quantity", point.quantity}, {"variant", point.variant}});
    for (const auto& [column, value] :
         {std::pair("x", point.x), std::pair("y", point.y), std::pair("value", point.value)})
      curves.back()[column].push_back(value);
  }
  return curves;
}

Evaluated evaluated_of(const nlohmann::json& json) {
  Evaluated found{{}, points_of(json.at("points")), json.value("notes", std::vector<std::string>{})};
  for (const nlohmann::json& record : json.at("records")) found.records.push_back(record_of(record));
  return found;
}

std::vector<Point> points_of(const nlohmann::json& json) {
  std::vector<Point> points;
  for (const nlohmann::json& curve : json)
    for (size_t p = 0; p < curve.at("x").size(); ++p)
      points.push_back({.quantity = curve.at("quantity"),
                        .variant = curve.at("variant"),
                        .x = number(curve["x"][p]),
                        .y = number(curve.at("y").at(p)),
                        .value = number(curve.at("value").at(p))});
  return points;
}

Evaluated evaluated(const Study& study, const Artefact& model, const std::string& name, const nlohmann::json& settings,
                    const std::vector<std::string>& kept) {
  const Evaluation& evaluation = evaluation_named(name);
  nlohmann::json key = settings;
  if (!kept.empty()) key["kept"] = kept;
  const auto check = [&](double) {
    if (study.check) study.check();
  };
  return evaluated_of(study.measured(model, {name, evaluation.version}, key, [&](LanguageModel& weights) {
    Evaluated found;
    try {
      found = evaluation.run(weights, study.dataset, settings, check);
    } catch (const NotFinite&) {
      if (!model.run.training.divergence_is_a_result) throw;
    }
    std::erase_if(found.points, [&](const Point& point) { return std::ranges::count(kept, point.quantity) == 0; });
    return json_of(found);
  }));
}

Evaluated evaluate(const Study& study, const Artefact& model, int64_t length) {
  return evaluate(study, model, length, whole_number(study.settings.at("evaluation"), "tokens") / length);
}

Evaluated evaluate(const Study& study, const Artefact& model, int64_t length, int64_t sequences) {
  return evaluated(study, model, "per_token_loss", {{"length", length}, {"sequences", sequences}},
                   {kLossCurve, kSequences});
}

std::vector<double> losses_of_sequences(const Evaluated& found, int64_t first, int64_t last) {
  std::map<double, std::map<double, double>> sequences;  // octaves of each
  for (const Point& point : found.points)
    if (point.quantity == kSequences) sequences[point.y][point.x] = point.value;
  std::vector<double> means;
  for (const auto& [_, octaves] : sequences) {
    const auto is_end = [&](int64_t position) { return octaves.contains(static_cast<double>(position)); };
    if (first >= last || (first != 0 && !is_end(first)) || !is_end(last))
      throw std::invalid_argument("positions: expected ends of octaves, found " + std::to_string(first) + " and " +
                                  std::to_string(last));
    double sum = 0, begin = 0;
    for (const auto& [end, value] : octaves) {
      if (begin >= static_cast<double>(first) && end <= static_cast<double>(last)) sum += (end - begin) * value;
      begin = end;
    }
    means.push_back(sum / static_cast<double>(last - first));
  }
  return means;
}

std::vector<Point> loss_curve(const Run& run, const Evaluated& found) {
  const std::vector<double> losses = found.curve(kLossCurve);
  std::vector<Point> curve;
  double sum = 0;
  size_t begin = 0;
  for (size_t end = 1; end <= losses.size(); ++end) {
    sum += losses[end - 1];
    if (end % std::max<size_t>(1, std::bit_ceil(end) / (2 * kPointsAnOctave)) != 0 && end < losses.size()) continue;
    curve.push_back({.quantity = kLossCurve,
                     .variant = run.label,
                     .seed = run.training.seed,
                     .x = static_cast<double>(end),
                     .value = sum / static_cast<double>(end - begin)});
    sum = 0, begin = end;
  }
  return curve;
}

std::vector<Record> records_of(const Study& study, const Run& run, const Evaluated& found) {
  std::vector<Record> records = found.records;
  for (Record& record : records) {
    record.experiment = study.experiment.paper;
    record.claim = study.experiment.claim;
    record.device = run.training.device;
    record.seed = run.training.seed;
    if (record.variant.empty()) record.variant = run.label;
  }
  return records;
}

}  // namespace lethe
