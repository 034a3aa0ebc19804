#pragma once
// A claim: a row of the registry, the inputs of its measurement, and its findings.

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "experiments/claims/record_files.hpp"
#include "experiments/claims/verdict.hpp"
#include "experiments/data/dataset.hpp"
#include "experiments/training/training.hpp"

namespace lethe {

/// The findings of a claim.
struct Findings {
  std::vector<Record> records;
  std::vector<Point> points;  ///< curves and matrices for the plots
  std::vector<Comparison> comparisons;
};

struct Study;

/// A claim: the runs that it trains, and its measurement. The program in its folder, experiments/papers/<paper>/<claim>, defines
/// `runs` and `measure` in the namespace lethe::<claim>.
struct Experiment {
  std::string paper, claim;
  /// Empty where nothing is trained; then config.toml needs neither a model nor a training, and `vocabulary` is 0.
  std::vector<Run> (*runs)(const nlohmann::json& settings, int64_t vocabulary);
  Findings (*measure)(const Study& study);

  std::string name() const { return paper + "/" + claim; }
};

/// A kind of measurement. The version is raised where its numbers change.
struct Measure {
  std::string name;
  int version = 1;
};

/// Thrown by Study::each after the last model of a part: a claim's result needs all of its models.
struct PartMeasured {};

/// Thrown by Study::measured where a measurement is absent from a study that computes none.
struct NotMeasured {};

/// The inputs of a claim's measurement.
struct Study {
  const Experiment& experiment;
  const nlohmann::json& settings;  ///< the scale's table of config.toml
  const Dataset& dataset;          ///< empty for a claim without training
  std::filesystem::path data;      ///< settings["data"]: the file of measurements to be judged; empty where absent
  std::vector<PaperRecord> paper;
  std::vector<Artefact> trained;         ///< the models of the runs that `runs` listed, in its order
  std::function<void(double)> progress;  ///< called with the share of the measurement that is done
  bool is_part = false;                  ///< whether `trained` has only some of the runs
  bool makes = true;                     ///< whether absent measurements are computed
  std::function<void()> check = {};  ///< called between the steps of an evaluation; its exception ends it; may be empty

  /// The trained models of the runs of that label, in their order.
  ///
  /// throws  std::invalid_argument where no run has that label
  std::vector<Artefact> labelled(const std::string& label) const;

  /// Calls `work` with each trained model, in their order. A claim computes all measurements of its models in here, so that a
  /// machine with some of the models can measure those.
  ///
  /// throws  PartMeasured after the last one where is_part
  void each(const std::function<void(const Artefact& model)>& work) const;

  /// A measurement of a model, computed once: <model>/measured/<hash>.json, the hash of measure, version and settings, has it with its
  /// birth certificate. A claim reads nothing else of a model but its log and done.json, so a model without weights is enough.
  ///
  /// reads    compute: the measurement of the model in evaluation mode on the device of its training
  /// returns  what compute returned, after a round trip through JSON: a number that is not finite is null
  /// throws   NotMeasured where the file is absent and the study computes none, after it has added the model to `absent`; std::invalid_argument,
  ///          std::runtime_error naming a damaged file, or the model where its weights are absent too
  nlohmann::json measured(const Artefact& model, const Measure& measure, const nlohmann::json& settings,
                          const std::function<nlohmann::json(LanguageModel& model)>& compute) const;

  mutable std::vector<std::filesystem::path> absent = {};  ///< the folders of the models that lacked a measurement
  mutable std::optional<std::pair<std::string, LanguageModel>> loaded =
      {};  ///< the last model whose weights were read, by its folder
};

}  // namespace lethe
