#pragma once
// A claim at the scale smoke, asked of models that a test trains or makes up.

#include <filesystem>
#include <string>

#include "experiments/claims/registry.hpp"
#include "experiments/claims/settings.hpp"
#include "experiments/json_file.hpp"
#include "tests/experiments/tiny.hpp"

namespace lethe {

/// A fixture: the claim of a name, and a study of it without models. `settings` may be changed before train().
class ClaimStudy : public TinyDatasetTest {
 protected:
  explicit ClaimStudy(const std::string& claim) : experiment(select_experiments({claim}).front()) {}

  /// Trains all of its runs.
  void train() {
    for (const lethe::Run& run : experiment.runs(settings, dataset.vocabulary()))
      study.trained.push_back(trained(run, dataset, models));
  }

  /// Replaces what a measurement of its models has found: change(model, file), of each model and each file of that measure.
  template <typename Change>
  void change_measured(const std::string& measure, const Change& change) {
    for (const Artefact& model : study.trained)
      for (const auto& entry : std::filesystem::directory_iterator(model.folder / "measured")) {
        nlohmann::json file = read_sealed(entry.path());
        if (file.at("measure") != measure) continue;
        change(model, file);
        write_sealed(entry.path(), file);
      }
  }

  Experiment experiment;
  nlohmann::json settings = claim_settings(LETHE_SOURCE, experiment, "smoke");
  Study study{.experiment = experiment,
              .settings = settings,
              .dataset = dataset,
              .data = {},
              .paper = {},
              .trained = {},
              .progress = [](double) {}};
};

}  // namespace lethe
