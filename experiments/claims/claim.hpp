#pragma once
// A claim: a row of the registry, the inputs of its measurement, and its findings.

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
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

/// The inputs of a claim's measurement.
struct Study {
  const Experiment& experiment;
  const nlohmann::json& settings;  ///< the scale's table of config.toml
  const Dataset& dataset;          ///< empty for a claim without training
  std::filesystem::path data;      ///< settings["data"]: the file of measurements to be judged; empty where absent
  std::vector<PaperRecord> paper;
  std::vector<Artefact> trained;         ///< the models of the runs that `runs` listed, in its order
  std::function<void(double)> progress;  ///< called with the share of the measurement that is done

  /// The trained models of the runs of that label, in their order.
  ///
  /// throws  std::invalid_argument where no run has that label
  std::vector<Artefact> labelled(const std::string& label) const;
};

}  // namespace lethe
