// The rule of the claim pruned_needle: what pruning changes is asked where there is a needle to lose and a block to skip.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "experiments/claims/deciding.hpp"
#include "experiments/claims/record_files.hpp"
#include "experiments/json_file.hpp"
#include "tests/experiments/claims/claim_study.hpp"
#include "tests/experiments/claims/statements.hpp"

namespace lethe {
namespace {

/// The claim at the scale smoke, with three depths; what its model answers is replaced in the file of its measurement.
class PrunedNeedle : public ClaimStudy {
 protected:
  PrunedNeedle() : ClaimStudy("pruned_needle") {
    settings["needle"]["depths"] = {0, 50, 100};
    train();
    experiment.measure(study);
    study.makes = false;
  }

  std::filesystem::path file() const {
    for (const auto& entry : std::filesystem::directory_iterator(study.trained.front().folder / "measured"))
      return entry.path();
    throw std::runtime_error("measured: expected a file, found none");
  }

  Comparison judged(const std::vector<double>& without, const std::vector<double>& with, double skipped) {
    return one_of(comparisons(without, with, skipped, skipped), "Trained on 512 tokens: pruning doesn't change");
  }

  std::vector<Comparison> comparisons(const std::vector<double>& without, const std::vector<double>& with,
                                      double skipped, double skipped_by_mass) {
    nlohmann::json measured = read_sealed(file());
    for (const auto& [key, gains] : {std::pair("without", without), std::pair("with", with)}) {
      nlohmann::json& points = measured.at("value").at(key).at("points");
      EXPECT_EQ(points.size(), 1u);
      EXPECT_EQ(points.at(0).at("value").size(), gains.size());
      points.at(0).at("value") = gains;
    }
    for (const auto& [key, share] : {std::pair("skipped", skipped), std::pair("skipped_by_mass", skipped_by_mass)})
      measured.at("value").at(key) = {{256, share}, {512, share}};  // a band needs two lengths
    write_sealed(file(), measured);
    return experiment.measure(study).comparisons;
  }
};

TEST_F(PrunedNeedle, IsReproducedWherePruningChangesNothing) {
  const Comparison found = judged({1, 1.1, 0.9}, {1, 1.1, 0.9}, 0.8);
  EXPECT_EQ(found.verdict(), Verdict::kReproduced);
  EXPECT_TRUE(found.headline);
  EXPECT_EQ(found.note, "80 % of the blocks skipped, no prompt's answer changed by a bit");
}

TEST_F(PrunedNeedle, IsRefutedByAChangeBeyondTheMarginAndItsNoise) {
  EXPECT_EQ(judged({1, 1.1, 0.9}, {0.6, 0.71, 0.5}, 0.8).verdict(), Verdict::kRefuted);
  const Comparison wide = judged({1, 1.1, 0.9}, {0.6, 1.5, 0.9}, 0.8);
  EXPECT_EQ(wide.verdict(), Verdict::kInconclusive);
  EXPECT_EQ(wide.lacks(), "would be decided by " + deciding_sample(wide, wide.band, 0, "the prompts"));
  EXPECT_TRUE(wide.lacks().ends_with(" times the prompts")) << wide.lacks();
}

TEST_F(PrunedNeedle, IsOpenWithoutANeedleToLoseOrABlockToSkip) {
  EXPECT_EQ(judged({0, 0.1, -0.1}, {0, 0.1, -0.1}, 0.8).open, "without pruning it doesn't find the needle");
  EXPECT_EQ(judged({1, 1.1, 0.9}, {1, 1.1, 0.9}, 0).open, "the tolerance skips no block");
}

TEST_F(PrunedNeedle, AsksTheBoundaryByMassForAQuarterOfTheBlocksAtMost) {
  const auto of_mass = [&](double skipped, double by_mass) {
    return one_of(comparisons({1, 1.1, 0.9}, {1, 1.1, 0.9}, skipped, by_mass), "At one tolerance the boundary by mass");
  };
  EXPECT_EQ(of_mass(0.8, 0.83).verdict(), Verdict::kReproduced);
  EXPECT_NEAR(of_mass(0.8, 0.83).measured, 0.15, 1e-9);
  EXPECT_EQ(of_mass(0.8, 0.78).verdict(), Verdict::kRefuted);
  EXPECT_EQ(of_mass(0.8, 0.9).verdict(), Verdict::kRefuted);
  EXPECT_EQ(of_mass(0, 0).open, "the tolerance skips no block");
}

TEST_F(PrunedNeedle, SkipsByMassWhatTheModelSkipsAndNoLess) {
  const nlohmann::json measured = read_sealed(file()).at("value");
  ASSERT_FALSE(measured.at("skipped").empty());
  ASSERT_EQ(measured.at("skipped").size(), measured.at("skipped_by_mass").size());
  for (size_t i = 0; i < measured.at("skipped").size(); ++i)
    EXPECT_GE(measured.at("skipped_by_mass")[i][1], measured.at("skipped")[i][1]);
}

TEST_F(PrunedNeedle, WritesItsRecords) {
  const auto records = experiment.measure(study).records;
  const std::filesystem::path base = folder.path() / "pruned_needle";
  write_records(base, records, "lethe run pruned_needle");
  EXPECT_EQ(read_records(base.string() + ".csv").size(), records.size());
}

TEST_F(PrunedNeedle, IsJudgedByTheModelsThatWereAsked) {
  settings["context_lengths"] = {512, 64};
  study.trained.push_back(trained(experiment.runs(settings, dataset.vocabulary()).back(), dataset, models));
  const std::vector<Comparison> found = experiment.measure(study).comparisons;
  EXPECT_EQ(one_of(found, "Trained on 64 tokens").open, "no model of this context has been measured yet");
  EXPECT_EQ(one_of(found, "Trained on 512 tokens").unit, "nats a token");
  std::filesystem::remove(file());
  EXPECT_THROW(experiment.measure(study), NotMeasured);
}

}  // namespace
}  // namespace lethe
