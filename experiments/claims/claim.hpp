#pragma once
// What a claim is: a row of the registry, and what it is measured with and to.

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

/// What a claim found.
struct Findings {
  std::vector<Record> records;
  std::vector<Point> points;  ///< curves and matrices for the plots
  std::vector<Comparison> comparisons;
};

struct Study;

/// A claim: what has to be trained for it, and how it is measured. Its folder is experiments/papers/<paper>/<claim>, whose program
/// defines `runs` and `measure` in the namespace lethe::<claim>.
struct Experiment {
  std::string paper, claim;
  /// None where nothing is trained; then config.toml needs neither a model nor a training, and `vocabulary` is 0.
  std::vector<Run> (*runs)(const nlohmann::json& settings, int64_t vocabulary);
  Findings (*measure)(const Study& study);

  std::string name() const { return paper + "/" + claim; }
};

/// What a claim is measured with.
struct Study {
  const Experiment& experiment;
  const nlohmann::json& settings;  ///< the scale's table of config.toml
  const Dataset& dataset;          ///< empty for a claim without training
  std::filesystem::path data;      ///< settings["data"]: a file of measurements to be judged; empty where there is none
  std::vector<PaperRecord> paper;
  std::vector<Artefact> trained;         ///< the models of the runs that `runs` listed, in its order
  std::function<void(double)> progress;  ///< takes the share of the measuring that is done

  /// The trained models of the runs of that label, in their order.
  ///
  /// throws  std::invalid_argument where there is none
  std::vector<Artefact> labelled(const std::string& label) const;
};

}  // namespace lethe
