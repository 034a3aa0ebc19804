// One function, several forms: every mechanism of the reference in all its forms, on the traced attention of a trained model.

#include <algorithm>
#include <functional>
#include <limits>
#include <map>

#include "experiments/claims/measures.hpp"
#include "experiments/evaluation/pruned_share.hpp"
#include "experiments/papers/forgetting_transformer/duality/forms.hpp"
#include "experiments/papers/forgetting_transformer/rows.hpp"

namespace lethe::duality {
namespace {

/// The gates and the attention weights of the first tokens, for the plots of F, D and A.
void add_picture(const Head& head, int64_t tokens, const std::string& name, std::vector<Point>& points) {
  Vector<double> decay = Vector<double>::Zero(tokens);  // c_i, D_ij = c_i − c_j
  for (Eigen::Index i = 0; i < tokens; ++i) {
    points.push_back(
        {.quantity = "log_forget", .variant = name, .x = static_cast<double>(i), .value = head.log_forget[i]});
    if (i > 0) decay[i] = decay[i - 1] + head.log_forget[i];
    Vector<double> weights = head.scale * (head.key.topRows(i + 1) * head.query.row(i).transpose()) - decay.head(i + 1);
    weights = (weights.array() - weights.maxCoeff()).exp();
    weights /= weights.sum();
    for (Eigen::Index j = 0; j <= i; ++j)
      points.push_back({.quantity = "attention",
                        .variant = name,
                        .x = static_cast<double>(i),
                        .y = static_cast<double>(j),
                        .value = weights[j]});
  }
}

struct TracedHead {
  std::string name;
  Head head;
};

std::vector<TracedHead> traced_heads(LanguageModel& model, const Dataset& dataset, int64_t length, int64_t sequence) {
  std::vector<TracedHead> heads;
  const auto layers = traced(model, dataset, length, sequence);
  for (size_t layer = 0; layer < layers.size(); ++layer)
    for (int64_t head = 0; head < model->config().heads; ++head)
      heads.push_back(
          {"layer " + std::to_string(layer) + " head " + std::to_string(head), traced_head(layers[layer], head)});
  return heads;
}

// A difference that isn't finite is null in JSON, and infinite after it.
std::map<std::string, Differences> by_row_of(const nlohmann::json& rows) {
  const auto number = [](const nlohmann::json& value) {
    return value.is_null() ? std::numeric_limits<double>::infinity() : value.get<double>();
  };
  std::map<std::string, Differences> by_row;
  for (const auto& [name, row] : rows.items()) {
    for (const auto& [form, value] : row.at("in_double").items()) by_row[name].in_double[form] = number(value);
    for (const auto& [form, value] : row.at("in_float").items()) by_row[name].in_float[form] = number(value);
    by_row[name].off_by_one = number(row.at("off_by_one"));
  }
  return by_row;
}

/// The differences of all rows on the heads of some sequences, the worst of each, and the pictures of two heads.
nlohmann::json compared_heads(LanguageModel& model, const Dataset& dataset, const nlohmann::json& evaluation,
                              const std::function<void(double)>& progress) {
  const int64_t length = evaluation.at("length"), sequences = evaluation.at("sequences"),
                pictured = evaluation.at("pictured");
  const auto chunk_lengths = evaluation.at("chunk_lengths").get<std::vector<int64_t>>();
  std::map<std::string, Differences> by_row;
  std::vector<Point> pictures;
  double gauge = 0, heads_compared = 0;
  for (int64_t sequence = 0; sequence < sequences; ++sequence) {
    auto heads = traced_heads(model, dataset, length, sequence);
    for (const auto& [_, head] : heads) {
      for (const reference::Variant& variant : reference::variants()) {
        const Differences found = differences(variant, head, chunk_lengths);
        const auto [place, is_new] = by_row.emplace(variant.name, found);
        if (!is_new) place->second.merge(found);
      }
      gauge = std::max(gauge, gauge_difference(head));
      progress(++heads_compared / static_cast<double>(sequences * static_cast<int64_t>(heads.size())));
    }
    if (sequence > 0) continue;
    std::ranges::sort(heads, {}, [](const TracedHead& traced) { return traced.head.log_forget.mean(); });
    for (const TracedHead* shown : {&heads.front(), &heads.back()})
      add_picture(shown->head, std::min(pictured, length), shown->name, pictures);
  }
  nlohmann::json rows = nlohmann::json::object();
  for (const auto& [name, row] : by_row)
    rows[name] = {{"in_double", row.in_double}, {"in_float", row.in_float}, {"off_by_one", row.off_by_one}};
  return {{"rows", rows}, {"gauge", gauge}, {"heads", heads_compared}, {"pictures", json_of(pictures)}};
}

}  // namespace

std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary) {
  return runs_of(table_3_row("FoX (Pro)"), settings, vocabulary, 1);
}

Findings measure(const Study& study) {
  const Run& run = study.trained.front().run;
  const nlohmann::json& evaluation = study.settings.at("evaluation");
  const int64_t length = evaluation.at("length");
  const auto chunk_lengths = evaluation.at("chunk_lengths").get<std::vector<int64_t>>();

  Findings findings;
  nlohmann::json found_of_model;
  study.each([&](const Artefact& artefact) {
    found_of_model = study.measured(artefact, {"duality"}, evaluation, [&](LanguageModel& model) {
      return compared_heads(model, study.dataset, evaluation, study.progress);
    });
  });
  const auto by_row = by_row_of(found_of_model.at("rows"));
  const double gauge = found_of_model.at("gauge"), heads_compared = found_of_model.at("heads");
  findings.points = points_of(found_of_model.at("pictures"));

  for (const reference::Variant& variant : reference::variants()) {
    const auto add = [&](const std::string& form, const char* metric, double value) {
      Record record = record_of(study.experiment, run, 1, length, metric, "1", value);
      record.variant = variant.name;
      record.implementation = form;
      record.dtype = metric == std::string("difference") ? "float64" : "float32";
      record.samples = static_cast<int64_t>(heads_compared);
      findings.records.push_back(record);
    };
    const Differences& found = by_row.at(variant.name);
    const auto add_all = [&](const std::map<std::string, double>& differences, const char* metric) {
      add("parallel", metric, differences.at("parallel"));
      for (const int64_t chunk : chunk_lengths)
        if (const auto place = differences.find("chunks of " + std::to_string(chunk)); place != differences.end())
          add(place->first, metric, place->second);
    };
    add_all(found.in_double, "difference");
    if (!found.in_float.empty()) add_all(found.in_float, "single_precision_difference");
  }
  findings.comparisons = statements(by_row, gauge);
  return findings;
}

}  // namespace lethe::duality
