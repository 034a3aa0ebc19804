// The rule of the claim training_speed: ratios of a file's times, and what stays open where a cell is absent.

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "experiments/claims/registry.hpp"
#include "experiments/claims/settings.hpp"
#include "tests/experiments/claims/statements.hpp"
#include "tests/experiments/tiny.hpp"

namespace lethe {
namespace {

class TrainingSpeed : public testing::Test {
 protected:
  /// A cell whose rounds scatter by a part in a thousand around these tokens a second.
  void add(const char* size, const char* model, int64_t context, double tokens_per_second) {
    nlohmann::json cell = {
        {"size", size}, {"model", model}, {"context", context}, {"error", nullptr}, {"tokens", 32768}};
    for (const double share : {0.9995, 1.0, 1.0005})
      cell["seconds_a_step"].push_back(32768 / tokens_per_second * share);
    file["cells"].push_back(cell);
  }
  void add_failed(const char* size, const char* model, int64_t context) {
    file["cells"].push_back({{"size", size}, {"model", model}, {"context", context}, {"error", "out of memory"}});
  }

  Findings judged() {
    std::ofstream(folder.path() / "grid.json") << file;
    return judged_as_it_is();
  }

  Findings judged_as_it_is() {
    return experiment.measure({.experiment = experiment,
                               .settings = settings,
                               .dataset = dataset,
                               .data = folder.path() / "grid.json",
                               .paper = read_paper(claim_folder(LETHE_SOURCE, experiment) / "paper.csv"),
                               .trained = {},
                               .progress = {}});
  }

  TemporaryFolder folder;
  const Experiment experiment = select_experiments({"training_speed"}).front();
  const nlohmann::json settings = nlohmann::json::object();
  const Dataset dataset;
  nlohmann::json file = {{"gpu", "a GPU"}, {"commit", "c"}, {"cells", nlohmann::json::array()}};
};

TEST_F(TrainingSpeed, IsTheRatioOfTheMediansOfASizeAndContext) {
  add("760m", "fox-pro", 4096, 90000);
  add("760m", "fox-pro+acp", 4096, 99900);
  add("760m", "fox-pro", 16384, 60000);
  add("760m", "fox-pro+acp", 16384, 78000);
  add("760m", "transformer-llama", 16384, 62500);
  add("760m", "transformer-pro", 16384, 60600);
  const Findings found = judged();
  const auto of = [&](const char* begin) { return one_of(found.comparisons, begin); };
  EXPECT_NEAR(of("Pruning makes training 10 % to 35 % faster, 760M at a context of 16384").measured, 0.3, 1e-9);
  EXPECT_EQ(of("Pruning makes training 10 % to 35 % faster, 760M at a context of 16384").verdict(),
            Verdict::kReproduced);
  EXPECT_NEAR(of("Pruning gains more at a context of 16384 than at 4096, 760M").measured, 0.3 - 0.11, 1e-9);
  EXPECT_EQ(of("Pruning gains more at a context of 16384 than at 4096, 760M").verdict(), Verdict::kTrendReproduced);
  EXPECT_NEAR(of("With kernels in CUDA").measured, 0.96 - 1, 1e-9);
  EXPECT_EQ(of("With kernels in CUDA").verdict(), Verdict::kReproduced);
  EXPECT_EQ(of("FoX (Pro) trains more slowly").verdict(), Verdict::kTrendReproduced);
  EXPECT_NEAR(of("FoX (Pro) trains more slowly").paper, 38.0 / 60 - 1, 1e-9);
  EXPECT_EQ(of("FoX (Pro) trains as fast as Transformer (Pro)").verdict(), Verdict::kReproduced);
  ASSERT_EQ(found.records.size(), 6u);
  EXPECT_EQ(found.records.front().variant, "FoX (Pro) 760M");
  EXPECT_NEAR(found.records.front().value, 90000, 1e-6);
  EXPECT_EQ(found.records.front().batch, 8);
  write_records(folder.path() / "training_speed", found.records, "lethe run training_speed");
  EXPECT_EQ(read_records(folder.path() / "training_speed.csv").size(), 6u);
}

TEST_F(TrainingSpeed, RefutesPruningThatCostsTimeOrGainsLessFromALongerContext) {
  add("125m", "fox-pro", 4096, 400000);
  add("125m", "fox-pro+acp", 4096, 480000);
  add("125m", "fox-pro", 16384, 300000);
  add("125m", "fox-pro+acp", 16384, 290000);
  const auto found = judged().comparisons;
  EXPECT_EQ(one_of(found, "Pruning makes training 10 % to 35 % faster, 125M at a context of 16384").verdict(),
            Verdict::kRefuted);
  EXPECT_EQ(one_of(found, "Pruning gains more at a context of 16384 than at 4096, 125M").verdict(), Verdict::kRefuted);
}

TEST_F(TrainingSpeed, CallsAGainBeyondTheRangeADirection) {
  add("360m", "fox-pro", 8192, 100000);
  add("360m", "fox-pro+acp", 8192, 145000);
  EXPECT_EQ(
      one_of(judged().comparisons, "Pruning makes training 10 % to 35 % faster, 360M at a context of 8192").verdict(),
      Verdict::kDirectionReproduced);
}

TEST_F(TrainingSpeed, SaysHowManyRoundsWouldDecide) {
  add("125m", "fox-pro", 16384, 300000);
  add("125m", "fox-pro+acp", 16384, 300300);
  const auto found = judged().comparisons;
  const Comparison& open = one_of(found, "Pruning makes training 10 % to 35 % faster, 125M at a context of 16384");
  EXPECT_EQ(open.verdict(), Verdict::kInconclusive);
  EXPECT_EQ(open.lacks(), "would be decided by 5 times the rounds");
}

TEST_F(TrainingSpeed, IsOpenBeforeItsFirstRun) {
  const Findings found = judged_as_it_is();
  EXPECT_TRUE(found.records.empty());
  EXPECT_FALSE(found.comparisons.empty());
  for (const Comparison& comparison : found.comparisons) EXPECT_FALSE(comparison.open.empty()) << comparison.statement;
}

TEST_F(TrainingSpeed, IsOpenWhereACellIsAbsentOrHasFailed) {
  for (const Comparison& comparison : judged().comparisons) {
    EXPECT_EQ(comparison.verdict(), Verdict::kInconclusive) << comparison.statement;
    EXPECT_FALSE(comparison.open.empty()) << comparison.statement;
  }
  add("760m", "fox-pro", 16384, 60000);
  add_failed("760m", "transformer-llama", 16384);
  EXPECT_EQ(one_of(judged().comparisons, "FoX (Pro) trains more slowly").open,
            "Transformer (LLaMA) 760M at 16384 has not been timed");
}

}  // namespace
}  // namespace lethe
