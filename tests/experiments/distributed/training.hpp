#pragma once
// A training by several processes beside the same by one.

#include <gtest/gtest.h>
#include <torch/nn/utils/convert_parameters.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/files.hpp"
#include "experiments/training/training.hpp"
#include "tests/experiments/distributed/ranks.hpp"
#include "tests/experiments/tiny.hpp"

namespace lethe {

class TrainingByProcesses : public TinyDatasetTest {
 protected:
  std::filesystem::path root(const std::string& name) const { return folder.path() / name; }

  /// The processes of a training below root(name).
  Ranks begin(const std::string& name, int size, const std::string& device = "") {
    const std::filesystem::path file = folder.path() / "run.json";
    std::ofstream(file) << nlohmann::json(run);
    return {{"train", file.string(), dataset_folder.string(), root(name).string()}, size, folder.path(), device};
  }

  torch::Tensor weights(const std::string& name) {
    LanguageModel model = load_model({root(name) / artefact_name(run, dataset), run}, "cpu");
    return torch::nn::utils::parameters_to_vector(model->parameters()).detach();
  }

  std::vector<nlohmann::json> log(const std::string& name) {
    std::ifstream file(root(name) / artefact_name(run, dataset) / "log.jsonl");
    std::vector<nlohmann::json> lines;
    for (std::string line; std::getline(file, line) && !file.eof();) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }

  /// Expects the losses, gradient norms and weights of one training in another.
  void expect_equal(const std::string& found, const std::string& expected, double budget) {
    const auto lines = log(found), others = log(expected);
    ASSERT_EQ(lines.size(), static_cast<size_t>(run.training.steps()));
    ASSERT_EQ(others.size(), lines.size());
    for (size_t step = 0; step < lines.size(); ++step)
      for (const char* key : {"loss", "gradient_norm"}) {
        const double value = lines[step].at(key), other = others[step].at(key);
        EXPECT_NEAR(value, other, budget * other) << key << " of step " << step;
      }
    EXPECT_LE(((weights(found) - weights(expected)).norm() / weights(expected).norm()).item<double>(), budget);
  }

  lethe::Run run = tiny_run();
};

}  // namespace lethe
