// The statements of length_extrapolation on a short context (FoX Appendix E.3) and on further rows, and what would decide the open ones.

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "experiments/claims/measures.hpp"
#include "tests/experiments/claims/claim_study.hpp"
#include "tests/experiments/claims/statements.hpp"

namespace lethe {
namespace {

/// The claim at the scale smoke, with a short context of half the training length.
class ShortContext : public ClaimStudy {
 protected:
  ShortContext() : ClaimStudy("length_extrapolation") {
    settings["short_context"] = kShort;
    train();
  }

  /// The mean of L(i) over first + 1 … last and over the seeds of a row, from the curves of its models.
  double loss_of(const std::string& row, int64_t first, int64_t last) const {
    double sum = 0;
    const auto models = study.labelled(row);
    for (const Artefact& model : models) {
      const auto curve = evaluate(study, model, 4 * kTrained).curve("loss_at_position");
      sum += std::accumulate(curve.begin() + first, curve.begin() + last, 0.0) / static_cast<double>(last - first);
    }
    return sum / static_cast<double>(models.size());
  }

  static constexpr int64_t kTrained = 64, kShort = 32;
};

TEST_F(ShortContext, ComparesItsPositionsAndThoseAfterThem) {
  const std::vector<Comparison> found = experiment.measure(study).comparisons;
  for (const std::string trunk : {"(LLaMA)", "(Pro)"}) {
    const auto advantage = [&](int64_t first, int64_t last) {
      return loss_of("Transformer " + trunk, first, last) - loss_of("FoX " + trunk, first, last);
    };
    const Comparison& within = one_of(found, "FoX " + trunk + " has no advantage over Transformer " + trunk);
    EXPECT_NEAR(within.measured, advantage(0, kShort), 1e-9);
    const Comparison& after = one_of(found, "The advantage of FoX " + trunk);
    EXPECT_NEAR(after.measured, advantage(kTrained / 2, kTrained) - advantage(0, kShort), 1e-9);
    EXPECT_TRUE(after.no_refutation.empty());
  }
}

TEST_F(ShortContext, IsOutOfReachOfModelsOfALongerOne) {
  Comparison within = one_of(experiment.measure(study).comparisons, "FoX (Pro) has no advantage");
  within.measured = 0.2, within.band = 0.01;
  EXPECT_EQ(within.verdict(), Verdict::kOutOfReach);
  within.measured = 0.002, within.band = 0.001;
  EXPECT_EQ(within.verdict(), Verdict::kOutOfReach);
}

TEST_F(ShortContext, IsAskedOnlyWhereAScaleHasOne) {
  settings.erase("short_context");
  for (const Comparison& comparison : experiment.measure(study).comparisons)
    EXPECT_FALSE(comparison.source.starts_with("FoX Fig. 10")) << comparison.statement;
}

TEST_F(ShortContext, NamesWhatWouldDecideAnOpenRiseAndWhetherItIsRead) {
  const std::vector<Comparison> found = experiment.measure(study).comparisons;
  for (const std::string row : {"FoX (LLaMA)", "FoX (Pro)"}) {
    const Comparison& far = one_of(found, "L(i) of " + row + " falls in the last half");
    Comparison rise = one_of(found, row + " doesn't get worse beyond");
    const std::string open = std::exchange(rise.open, "");
    if (far.verdict() == Verdict::kTrendReproduced) {
      EXPECT_EQ(open, "");
    } else if (far.verdict() == Verdict::kRefuted) {
      EXPECT_TRUE(open.ends_with(": with these means no number of runs would decide it")) << open;
    } else {
      EXPECT_NE(open.find("; that " + far.lacks()), std::string::npos) << open;
      EXPECT_TRUE(rise.lacks().empty() || open.ends_with("; its rise " + rise.lacks())) << open;
    }
  }
}

/// The claim with a recurrent model of the figure, and one that the paper doesn't have.
class RecurrentRows : public ClaimStudy {
 protected:
  RecurrentRows() : ClaimStudy("length_extrapolation") {
    settings["recurrent_rows"] = {"Mamba-2"};
    settings["further_recurrent_rows"] = {"GLA"};
    settings["further_rows_after_a_run"] = "a late row";
    train();
  }
};

TEST_F(RecurrentRows, ThatThePaperLacksAreOurHypothesis) {
  const std::vector<Comparison> found = experiment.measure(study).comparisons;
  const std::string falls = "L(i) of FoX (Pro) falls in the last half of the training length by more than that of ";
  EXPECT_EQ(one_of(found, "FoX (Pro) is better than Mamba-2 beyond").source, "FoX Fig. 2 and Section 4.2");
  EXPECT_EQ(one_of(found, falls + "Mamba-2").source, "FoX Appendix C");
  EXPECT_EQ(one_of(found, "FoX (Pro) is better than GLA beyond").source, "hypothesis, ours");
  EXPECT_EQ(one_of(found, falls + "GLA").source, "hypothesis, ours");
  EXPECT_TRUE(one_of(found, falls + "GLA").absent_row.empty());
  for (const Comparison& comparison : found)
    EXPECT_EQ(comparison.note == "a late row", comparison.source == "hypothesis, ours") << comparison.statement;
}

}  // namespace
}  // namespace lethe
