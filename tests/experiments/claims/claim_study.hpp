#pragma once
// A claim at the scale smoke, asked of models that a test trains or makes up.

#include <string>

#include "experiments/claims/registry.hpp"
#include "experiments/claims/settings.hpp"
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
