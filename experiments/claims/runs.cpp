#include "experiments/claims/runs.hpp"

#include <algorithm>
#include <filesystem>
#include <map>
#include <stdexcept>

#include "experiments/json_file.hpp"
#include "experiments/training/training_log.hpp"

namespace lethe {

Run make_run(const std::string& label, const ModelConfig& architecture, const nlohmann::json& settings,
             int64_t vocabulary, uint64_t seed) {
  nlohmann::json model = architecture;
  model.update(settings.at("model"));
  model["vocabulary"] = vocabulary;
  Run run{label, model.get<ModelConfig>(), settings.at("training").get<TrainingConfig>()};
  run.model.layers = layers_for(run.model, run.model.layers);
  run.training.seed = seed;
  return run;
}

std::string described(const Run& run) {
  return run.label + ", context " + std::to_string(run.training.context_length) + ", seed " +
         std::to_string(run.training.seed);
}

std::vector<Run> runs_of(const Row& row, const nlohmann::json& settings, int64_t vocabulary, int64_t seeds) {
  std::vector<Run> runs;
  for (int64_t seed = 0; seed < seeds; ++seed)
    runs.push_back(make_run(row.name, row.architecture, settings, vocabulary, static_cast<uint64_t>(seed)));
  return runs;
}

int64_t seeds_of(const nlohmann::json& settings, const std::string& row, int64_t otherwise) {
  const auto seeds = settings.value("row_seeds", nlohmann::json::object());
  const std::string key = seeds.contains(row) ? row : "others";
  return seeds.contains(key) ? whole_number(seeds, key) : otherwise;
}

std::string row_at(const std::string& row, int64_t context) { return row + " at " + std::to_string(context); }

int64_t seeds_at(const nlohmann::json& settings, const std::string& row, int64_t context, int64_t otherwise) {
  const auto seeds = settings.value("row_seeds", nlohmann::json::object());
  const std::string key = row_at(row, context);
  return seeds.contains(key) ? whole_number(seeds, key) : otherwise;
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

void fill_origins(std::vector<Record>& records, const std::vector<Artefact>& trained) {
  std::map<std::filesystem::path, nlohmann::json> ends;
  for (const Artefact& artefact : trained) ends[artefact.folder] = read_sealed(artefact.folder / "done.json");
  for (Record& record : records) {
    std::vector<const Artefact*> left;
    for (const Artefact& artefact : trained) left.push_back(&artefact);
    const auto narrow = [&](auto is_it) {  // unless nothing would be left: then the column isn't the run's
      if (std::ranges::any_of(left, is_it))
        std::erase_if(left, [&](const Artefact* artefact) { return !is_it(artefact); });
    };
    narrow([&](const Artefact* artefact) { return artefact->folder.filename() == record.artefact; });
    narrow([&](const Artefact* artefact) { return artefact->run.label == record.variant; });
    narrow([&](const Artefact* artefact) { return artefact->run.training.seed == record.seed; });
    narrow([&](const Artefact* artefact) { return artefact->run.training.context_length == record.length; });
    if (left.size() != 1) continue;
    const nlohmann::json& end = ends.at(left.front()->folder);
    record.artefact = left.front()->folder.filename();
    record.commit = end.value("commit", "unknown");
    if (record.commit == "unknown") record.commit = end.value("built", "unknown");  // trained away from a checkout
    record.machine = end.at("machine").value("name", "unknown");
  }
}

std::vector<Point> training_curve(const Run& run, const Artefact& artefact) {
  std::vector<Point> points;
  read_log(artefact.folder, [&](const nlohmann::json& step) {
    points.push_back({.quantity = "training_loss",
                      .variant = run.label,
                      .seed = run.training.seed,
                      .x = step.at("tokens"),
                      .value = step.at("loss")});
  });
  return points;
}

std::vector<Artefact> Study::labelled(const std::string& label) const {
  std::vector<Artefact> found;
  for (const Artefact& artefact : trained)
    if (artefact.run.label == label) found.push_back(artefact);
  if (found.empty())
    throw std::invalid_argument("run: expected one that " + experiment.name() + " asks for, found " + label);
  return found;
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
