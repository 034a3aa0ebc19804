// The shares and the training step at each context, ACP Fig. 2, and the losses with and without pruning by positions, Fig. 3 left.

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <string>
#include <vector>

#include "experiments/claims/record_files.hpp"
#include "experiments/claims/runs.hpp"
#include "tests/experiments/claims/claim_study.hpp"
#include "tests/experiments/claims/statements.hpp"

namespace lethe {
namespace {

/// The claim at the scale smoke; the losses and shares of its models are replaced in the files of their measurements.
class Savings : public ClaimStudy {
 protected:
  Savings() : ClaimStudy("savings") {
    settings["seeds"] = 3;  // of one seed every stretch has a band without end
    settings["row_seeds"] = nlohmann::json::object();
    study.paper = read_paper(claim_folder(LETHE_SOURCE, experiment) / "paper.csv");
    train();
    experiment.measure(study);
    study.makes = false;
  }

  /// The statement on positions, of models that with pruning have so much more loss at those to 1/8, 1/4, 1/2 and all of the context.
  Comparison of_positions(const std::array<double, 4>& more) {
    change_measured("per_token_loss", [&](const Artefact& model, nlohmann::json& file) {
      for (nlohmann::json& curve : file.at("value").at("points")) {
        if (curve.at("quantity") != "loss_of_sequence") continue;
        for (size_t p = 0; p < curve.at("x").size(); ++p) {
          const double end = curve.at("x")[p].get<double>() / static_cast<double>(model.run.training.context_length);
          const size_t stretch = end <= 0.125 ? 0 : end <= 0.25 ? 1 : end <= 0.5 ? 2 : 3;
          curve.at("value")[p] = 5 + (model.run.label.ends_with("with ACP") ? more[stretch] : 0);
        }
      }
    });
    return one_of(experiment.measure(study).comparisons, "Pruning changes the loss at no position");
  }

  /// The statements on shares, of models whose shares of the blocks are these at contexts of 64 and 128, and 0.97 before training.
  std::array<Comparison, 2> of_shares(double at_64, double at_128) {
    change_measured("pruned", [&](const Artefact& model, nlohmann::json& file) {
      const double after = model.run.training.context_length == 64 ? at_64 : at_128;
      for (nlohmann::json& share : file.at("value").at("blocks"))
        share = file.at("settings").contains("untrained") ? 0.97 : after;
    });
    const auto found = experiment.measure(study).comparisons;
    const std::string begin = "About 70 % of the attention's blocks are pruned at a context of ";
    return {one_of(found, begin + "64"), one_of(found, begin + "128")};
  }

  /// The statements on a training step that is so many times as fast with pruning at contexts of 64 and 128.
  std::array<Comparison, 2> of_steps(double at_64, double at_128) {
    change_measured("times_of_pruning", [&](const Artefact& model, nlohmann::json& file) {
      const double faster = model.run.training.context_length == 64 ? at_64 : at_128;
      nlohmann::json& step = file.at("value").at("training_step");
      step["without"] = std::vector<double>{faster, faster};
      step["with"] = std::vector<double>{1, 1};
    });
    const auto found = experiment.measure(study).comparisons;
    const std::string begin = "A training step is 10 % to 35 % faster at a context of ";
    return {one_of(found, begin + "64"), one_of(found, begin + "128")};
  }
};

TEST_F(Savings, AreRefutedByAShareOutsideOfTheRangeAtEachContext) {
  const auto [below, above] = of_shares(0.55, 0.85);
  EXPECT_EQ(below.verdict(), Verdict::kRefuted);
  EXPECT_EQ(above.verdict(), Verdict::kRefuted) << "an untrained model's share is above it too";
  EXPECT_FALSE(below.headline);
  EXPECT_TRUE(above.headline);
  for (const Comparison& within : of_shares(0.75, 0.65)) EXPECT_EQ(within.verdict(), Verdict::kReproduced);
}

TEST_F(Savings, JudgeEachShareByTheGatesOfItsOwnContext) {
  const auto [closed, opened] = of_shares(0.95, 0.7);
  EXPECT_EQ(closed.open, "its gates have not left those of an untrained model");
  EXPECT_EQ(closed.verdict(), Verdict::kInconclusive);
  EXPECT_EQ(opened.verdict(), Verdict::kReproduced);
}

TEST_F(Savings, JudgeTheTrainingStepAtEachContextByOneRange) {
  settings["written_after_a_run"] = "written after a run";
  of_shares(0.75, 0.65);  // gates that have opened
  const auto [slight, within] = of_steps(1.05, 1.2);
  EXPECT_NEAR(slight.measured, 0.05, 1e-12);
  EXPECT_EQ(slight.verdict(), Verdict::kDirectionReproduced);
  EXPECT_EQ(slight.note, "written after a run");
  EXPECT_FALSE(slight.headline);
  EXPECT_EQ(slight.source, within.source);
  EXPECT_EQ(within.verdict(), Verdict::kReproduced);
  EXPECT_EQ(within.note, "");
  EXPECT_TRUE(within.headline);
  for (const Comparison& slower : of_steps(0.9, 0.8)) EXPECT_EQ(slower.verdict(), Verdict::kRefuted);
}

TEST_F(Savings, JudgeEachStepByTheGatesOfItsOwnContext) {
  of_shares(0.95, 0.7);
  const auto [closed, opened] = of_steps(1.2, 1.2);
  EXPECT_EQ(closed.open, "its gates have not left those of an untrained model");
  EXPECT_EQ(opened.verdict(), Verdict::kReproduced);
}

TEST_F(Savings, NameTheModelWhoseTimesTheyAre) {
  std::map<int64_t, std::string> first;  // the models of seed 0, by context
  for (const Artefact& model : study.trained)
    if (model.run.label == "FoX (Pro) with ACP" && model.run.training.seed == 0)
      first[model.run.training.context_length] = model.folder.filename();
  int times = 0;
  for (const Record& record : experiment.measure(study).records)
    if (record.metric.ends_with("_time")) {
      EXPECT_EQ(record.artefact, first.at(record.length)) << record.variant;
      ++times;
    }
  EXPECT_EQ(times, 8) << "of the operator and the step, with and without pruning, at two contexts";
}

TEST_F(Savings, StateTheStretchOfPositionsThatDiffersMost) {
  EXPECT_NEAR(of_positions({0.5, 0, 0, 0}).measured, 0.5, 1e-9);
  EXPECT_NEAR(of_positions({0.1, 0.4, 0.2, 0}).measured, 0.4, 1e-9);
  EXPECT_NEAR(of_positions({0.3, 0, -0.5, 0}).measured, -0.5, 1e-9);
  EXPECT_NEAR(of_positions({0, 0, 0.1, 0.2}).measured, 0.2, 1e-9);
}

TEST_F(Savings, CompareTheLossAtAShorterContextThatHasRunsWithoutPruning) {
  const std::string begin = "Training with pruning ends at the same loss as training without at a context of ";
  for (const Comparison& one : experiment.measure(study).comparisons)
    EXPECT_FALSE(one.statement.starts_with(begin)) << "no runs without pruning are asked for";
  of_shares(0.75, 0.65);  // gates that have opened
  settings["row_seeds"] = {{"FoX (Pro) without ACP at 64", 3}};
  settings["written_after_a_run"] = "written after a run";
  const Comparison absent = one_of(experiment.measure(study).comparisons, begin + "64");
  EXPECT_EQ(absent.open, "one of its contexts has not run yet");

  study.makes = true;
  study.trained.clear();
  train();
  experiment.measure(study);
  study.makes = false;
  const auto with_losses = [&](double difference) {
    change_measured("pruned", [&](const Artefact&, nlohmann::json& file) {
      for (nlohmann::json& loss : file.at("value").at("losses")) loss = 5 + difference;
    });
    change_measured("per_token_loss", [&](const Artefact&, nlohmann::json& file) {
      for (nlohmann::json& curve : file.at("value").at("points"))
        if (curve.at("quantity") == "loss_of_sequence")
          for (nlohmann::json& loss : curve.at("value")) loss = 5;
    });
    return one_of(experiment.measure(study).comparisons, begin + "64");
  };
  const Comparison equal = with_losses(1e-3);
  EXPECT_NEAR(equal.measured, 1e-3, 1e-9);
  EXPECT_EQ(equal.verdict(), Verdict::kReproduced);
  EXPECT_FALSE(equal.headline);
  EXPECT_EQ(equal.note, "written after a run");
  EXPECT_EQ(with_losses(0.5).verdict(), Verdict::kRefuted);
  EXPECT_EQ(with_losses(0).open, "runs with and without pruning are equal to the last bit");
}

TEST_F(Savings, TrainMoreSeedsAtTheContextsThatAskForThem) {
  settings["row_seeds"] = {{"FoX (Pro) with ACP", 2},
                           {"FoX (Pro) with ACP at 128", 4},
                           {"FoX (Pro) without ACP at 64", 1},
                           {"FoX (Pro) without ACP at 128", 3}};
  std::map<std::string, int> seeds;
  for (const lethe::Run& run : experiment.runs(settings, 256)) ++seeds[row_at(run.label, run.training.context_length)];
  EXPECT_EQ(seeds, (std::map<std::string, int>{{"FoX (Pro) with ACP at 64", 2},
                                               {"FoX (Pro) with ACP at 128", 4},
                                               {"FoX (Pro) without ACP at 64", 1},
                                               {"FoX (Pro) without ACP at 128", 3}}));
}

}  // namespace
}  // namespace lethe
