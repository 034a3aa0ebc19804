#include "experiments/papers/runs.hpp"

#include <algorithm>
#include <fstream>
#include <stdexcept>

namespace lethe {

Run make_run(const std::string& label, const ModelConfig& architecture, const nlohmann::json& settings,
             int64_t vocabulary, uint64_t seed) {
  nlohmann::json model = architecture;
  model.update(settings.at("model"));
  model["vocabulary"] = vocabulary;
  Run run{label, model.get<ModelConfig>(), settings.at("training").get<TrainingConfig>()};
  run.training.seed = seed;
  return run;
}

Record record_of(const Experiment& experiment, const Run& run, int64_t batch, int64_t length, const std::string& metric,
                 const std::string& unit, double value) {
  return {.experiment = experiment.paper,
          .claim = experiment.claim,
          .variant = run.label,
          .implementation = "lethe",
          .device = run.training.device,
          .dtype = run.model.compute_dtype,
          .batch = batch,
          .length = length,
          .heads = run.model.heads,
          .key_dim = run.model.head_dim(),
          .value_dim = run.model.head_dim(),
          .seed = run.training.seed,
          .metric = metric,
          .unit = unit,
          .value = value};
}

std::vector<Point> training_curve(const Run& run, const Artefact& artefact) {
  std::ifstream log(artefact.folder / "log.jsonl");
  std::vector<Point> points;
  for (std::string line; std::getline(log, line);) {
    const nlohmann::json step = nlohmann::json::parse(line);
    points.push_back({.quantity = "training_loss",
                      .variant = run.label,
                      .seed = run.training.seed,
                      .x = step.at("tokens"),
                      .value = step.at("loss")});
  }
  return points;
}

double paper_value(const Study& study, const std::string& variant, const std::string& metric) {
  const auto is_it = [&](const PaperRecord& number) {
    return number.record.variant == variant && number.record.metric == metric;
  };
  if (const auto found = std::ranges::count_if(study.paper, is_it); found != 1)
    throw std::invalid_argument("paper.csv of " + study.experiment.name() + ": expected one " + metric + " of " +
                                variant + ", found " + std::to_string(found));
  return std::ranges::find_if(study.paper, is_it)->record.value;
}

}  // namespace lethe
