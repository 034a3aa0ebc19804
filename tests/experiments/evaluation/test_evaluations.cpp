// The table of evaluations: properties of every row.

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "experiments/evaluation/evaluation.hpp"
#include "experiments/models/mixers/attention.hpp"
#include "tests/experiments/tiny.hpp"

namespace lethe {
namespace {

/// A tiny FoX (Pro) with pruning: every row can measure it.
ModelConfig pruning_model() {
  ModelConfig model = tiny_model();
  model.mixer.only<AttentionConfig>().log_pruning_tolerance = -10.0;
  return model;
}

/// One data set for all tests: no test changes it.
const Dataset& tiny_dataset() {
  static const TemporaryFolder folder;
  static const Dataset dataset(write_tiny_dataset(folder.path()));
  return dataset;
}

class EveryEvaluation : public testing::TestWithParam<Evaluation> {
 protected:
  /// The model predicts letters, so that some of its guesses are correct.
  void SetUp() override {
    const torch::NoGradGuard no_gradient;
    const torch::Tensor output = model->named_parameters()["lm_head.weight"];
    output.narrow(0, 0, 'a').zero_();
    output.narrow(0, 'z' + 1, 257 - 'z' - 1).zero_();
  }

  Evaluated run(const nlohmann::json& settings) { return GetParam().run(model, dataset, settings, {}); }

  std::string refusal(const nlohmann::json& settings) {
    try {
      run(settings);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "no error";
  }

  const Dataset& dataset = tiny_dataset();
  LanguageModel model{pruning_model()};
  const nlohmann::json settings = [] {
    nlohmann::json settings{{"length", 64}, {"sequences", 3}};
    if (GetParam().name == "forgetting_curve") settings.update({{"steps", 3}, {"targets", 300}});
    return settings;
  }();
};

TEST_P(EveryEvaluation, FillsTheColumnsOfItsRecords) {
  const Evaluated found = run(settings);
  ASSERT_FALSE(found.records.empty());
  for (const Record& record : found.records) {
    EXPECT_FALSE(record.metric.empty());
    EXPECT_FALSE(record.unit.empty());
    EXPECT_TRUE(std::isfinite(record.value)) << record.metric;
    EXPECT_EQ(record.length, 64);
    EXPECT_EQ(record.samples, 3);
    EXPECT_EQ(record.heads, model->config().heads);
    EXPECT_EQ(record.dtype, model->config().compute_dtype);
    EXPECT_EQ(record.experiment + record.claim, "") << "those are the caller's";
  }
}

TEST_P(EveryEvaluation, GivesTheCurvesOfOneLengthAndOneX) {
  std::map<std::string, std::vector<double>> curves;
  std::set<std::string> x_names;
  for (const Point& point : run(settings).points) {
    if (!std::isnan(point.y)) continue;  // raw: of one sequence
    ASSERT_NE(point.quantity.find("_at_"), std::string::npos) << point.quantity;
    x_names.insert(point.quantity.substr(point.quantity.find("_at_")));
    curves[point.quantity].push_back(point.x);
  }
  EXPECT_LE(x_names.size(), 1u);
  for (const auto& [quantity, x] : curves) EXPECT_EQ(x, curves.begin()->second) << quantity;
}

TEST_P(EveryEvaluation, GivesTheSameNumbersAgain) {
  const Evaluated first = run(settings), second = run(settings);
  ASSERT_EQ(first.records.size(), second.records.size());
  for (size_t r = 0; r < first.records.size(); ++r) EXPECT_EQ(first.records[r].value, second.records[r].value);
}

TEST_P(EveryEvaluation, RefusesAnUnknownKey) {
  nlohmann::json unknown = settings;
  unknown["lenght"] = 64;
  EXPECT_EQ(refusal(unknown).find(GetParam().name + ": expected keys among "), 0u) << refusal(unknown);
  EXPECT_NE(refusal(unknown).find("length, "), std::string::npos) << refusal(unknown);
  EXPECT_TRUE(refusal(unknown).ends_with("found lenght")) << refusal(unknown);
}

TEST_P(EveryEvaluation, RefusesAValueOfAnotherType) {
  EXPECT_EQ(refusal({{"length", "long"}}), GetParam().name + ".length: expected a whole number, found \"long\"");
}

TEST_P(EveryEvaluation, RefusesASplitWithoutOnePiece) {
  const int64_t tokens = dataset.tokens("valid");
  EXPECT_NE(refusal({{"length", tokens + 1}}).find("length: expected at least one sequence in valid, found"),
            std::string::npos);
  EXPECT_NE(refusal({{"length", 0}}).find("length: expected at least one sequence"), std::string::npos);
}

TEST_P(EveryEvaluation, ReadsTheSplitThatItIsGiven) {
  nlohmann::json of_train = settings;
  of_train["split"] = "train";
  EXPECT_NE(run(settings).records.back().value, run(of_train).records.back().value);
}

TEST_P(EveryEvaluation, ReportsProgressThatRisesToOne) {
  std::vector<double> shares;
  GetParam().run(model, dataset, settings, [&](double share) { shares.push_back(share); });
  ASSERT_FALSE(shares.empty());
  EXPECT_TRUE(std::ranges::is_sorted(shares));
  EXPECT_GT(shares.front(), 0);
  EXPECT_EQ(shares.back(), 1);
}

TEST_P(EveryEvaluation, PutsTheModeOfTheModelBack) {
  for (const bool training : {true, false}) {
    model->train(training);
    run(settings);
    EXPECT_EQ(model->is_training(), training);
  }
}

/// The rows that read Pieces of the data set.
std::vector<Evaluation> rows_of_pieces() {
  std::vector<Evaluation> rows = evaluations();
  std::erase_if(rows, [](const Evaluation& row) { return row.own_settings != nullptr; });
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Evaluations, EveryEvaluation, testing::ValuesIn(rows_of_pieces()),
                         [](const auto& info) { return info.param.name; });

TEST(Evaluations, AreFoundByTheirNames) {
  std::set<std::string> names;
  for (const Evaluation& evaluation : evaluations()) {
    EXPECT_EQ(evaluation_named(evaluation.name).run, evaluation.run);
    EXPECT_FALSE(evaluation.title.empty());
    names.insert(evaluation.name);
  }
  EXPECT_EQ(names.size(), evaluations().size());
  try {
    evaluation_named("needles");
    FAIL() << "nothing was thrown";
  } catch (const std::invalid_argument& error) {
    EXPECT_EQ(std::string(error.what()).find("evaluation: expected one of per_token_loss"), 0u) << error.what();
  }
}

TEST(PrunedShare, RefusesAModelThatDoesNotPrune) {
  LanguageModel model{tiny_model()};
  EXPECT_THROW(evaluation_named("pruned_share").run(model, tiny_dataset(), {{"length", 32}}, {}),
               std::invalid_argument);
}

TEST(PrunedShare, HasBlocksAndSinglePairsOfEveryHead) {
  LanguageModel model{pruning_model()};
  const Evaluated found =
      evaluation_named("pruned_share").run(model, tiny_dataset(), {{"length", 256}, {"sequences", 2}}, {});
  const auto heads = static_cast<size_t>(model->config().layers * model->config().heads);
  ASSERT_EQ(found.records.size(), 2 * heads);
  for (size_t r = 0; r < found.records.size(); r += 2) {
    EXPECT_EQ(found.records[r].variant, found.records[r + 1].variant);
    EXPECT_EQ(found.records[r].implementation, "lethe");
    EXPECT_EQ(found.records[r + 1].implementation, "single pairs");
    EXPECT_LE(found.records[r].value, found.records[r + 1].value) << "a block is skipped where all of its pairs are";
    EXPECT_GT(found.records[r + 1].value, 0.1) << "gates of 1/2 prune what is 30 tokens away";
  }
}

}  // namespace
}  // namespace lethe
