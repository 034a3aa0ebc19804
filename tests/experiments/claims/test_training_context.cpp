// The rule of the claim training_context: an advantage by position and by context on the same text, beside a window's.

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "experiments/json_file.hpp"
#include "tests/experiments/claims/claim_study.hpp"
#include "tests/experiments/claims/statements.hpp"

namespace lethe {
namespace {

/// A row's losses in the stretches of its context.
struct Course {
  double early, middle, late;
  double noise = 0;  ///< more in the first half of the text and less in the other: none of the mean
};
using Courses = std::map<std::string, Course>;

/// FoX gains with position and with the context, and the window with neither.
const Courses kHolds = {{"Transformer at 128", {5.0, 4.9, 4.8}}, {"FoX at 128", {4.9, 4.7, 4.5}},
                        {"Window at 128", {5.0, 5.0, 5.0}},      {"Transformer at 64", {5.0, 5.0, 5.0}},
                        {"FoX at 64", {4.95, 4.95, 4.95}},       {"Window at 64", {4.9, 4.9, 4.9}}};

/// The claim at the scale smoke; the losses of its models are replaced in the files of their measurements.
class TrainingContext : public ClaimStudy {
 protected:
  TrainingContext() : ClaimStudy("training_context") {
    settings.merge_patch({{"training", {{"total_tokens", 128}, {"warmup_tokens", 0}}}});  // a step each
    train();
    experiment.measure(study);
    study.makes = false;
  }

  std::vector<Comparison> judged(const Courses& courses) {
    change_measured("per_token_loss", [&](const Artefact& model, nlohmann::json& file) {
      const std::string label = model.run.label;
      const std::string family = label.substr(0, label.find(' ')) + label.substr(label.find(" at "));
      const auto context = static_cast<double>(model.run.training.context_length);
      for (nlohmann::json& curve : file.at("value").at("points"))
        if (curve.at("quantity") == "loss_of_sequence")
          for (size_t p = 0; p < curve.at("x").size(); ++p)
            curve.at("value")[p] = loss(courses.at(family), curve.at("x")[p].get<double>() / context,
                                        curve.at("y")[p].get<double>() * context);
    });
    return experiment.measure(study).comparisons;
  }

  /// Of the octave that ends at this part of the context, in the piece that begins at this position of the text. The claim reads the first
  /// 256 tokens.
  static double loss(const Course& course, double end, double position) {
    const double of_stretch = end <= 1.0 / 16 ? course.early : end <= 1.0 / 2 ? course.middle : course.late;
    return of_stretch + (position < 128 ? 0.25 + course.noise : position < 256 ? -0.25 - course.noise : 1000);
  }

  void forget(const std::string& label) {
    std::erase_if(study.trained, [&](const Artefact& model) { return model.run.label.starts_with(label); });
  }
};

TEST_F(TrainingContext, ComparesStretchesAndContextsOfTheSameText) {
  const auto found = judged(kHolds);
  const auto measured = [&](const char* begin) { return one_of(found, begin).measured; };
  for (const Comparison& comparison : found)
    EXPECT_EQ(comparison.verdict(), Verdict::kTrendReproduced) << comparison.statement;
  EXPECT_NEAR(measured("FoX (Pro) is better than Transformer (Pro) in the last half"), 0.3, 1e-9);
  EXPECT_NEAR(measured("FoX (Pro) is better than Transformer (Pro) in the first 8 tokens"), 0.1, 1e-9);
  EXPECT_NEAR(measured("FoX (Pro) is better than Transformer (Pro) in the tokens 9 to 32"), 0.2, 1e-9);
  EXPECT_NEAR(measured("The advantage of FoX (Pro) is larger in the last half"), 0.2, 1e-9);
  EXPECT_NEAR(measured("The advantage of FoX (Pro) is larger with a training context of 128 than of 64"),
              0.1 / 16 + 0.2 * 7 / 16 + 0.3 / 2 - 0.05, 1e-9);
  EXPECT_NEAR(measured("L(i) of FoX (LLaMA) falls from 8 … 16 to the last half of 128 tokens"), 0.2, 1e-9);
}

const std::vector<const char*> kGrowths = {"The advantage of FoX (LLaMA) is larger in the last half",
                                           "The advantage of FoX (LLaMA) is larger with a training context",
                                           "The advantage of FoX (Pro) is larger in the last half",
                                           "The advantage of FoX (Pro) is larger with a training context"};

TEST_F(TrainingContext, GivesNoCreditForGrowthThatAWindowHasToo) {
  settings["control_after_a_run"] = "another rule first";
  Courses courses = kHolds;
  courses["Window at 128"] = {5.0, 4.6, 4.2};
  const auto found = judged(courses);
  for (const char* begin : kGrowths) {
    const Comparison& comparison = one_of(found, begin);
    ASSERT_TRUE(comparison.control) << begin;
    EXPECT_GT(comparison.control->measured, 0) << begin;
    EXPECT_EQ(comparison.verdict(), Verdict::kInconclusive) << begin;
    EXPECT_TRUE(comparison.open.starts_with("less that of Window of 8 tokens it is -")) << comparison.open;
    EXPECT_TRUE(comparison.open.ends_with(": with these means no number of runs would decide it")) << comparison.open;
    EXPECT_EQ(comparison.note, "another rule first") << begin;
  }
  EXPECT_EQ(one_of(found, "Transformer (LLaMA) is better than Window").verdict(), Verdict::kRefuted);
}

TEST_F(TrainingContext, GivesNoCreditForADifferenceWithinItsOwnBand) {
  Courses courses = kHolds;
  courses["Window at 128"].noise = 0.1;
  const auto found = judged(courses);
  for (const char* trunk : {"(LLaMA)", "(Pro)"}) {
    const Comparison& comparison =
        one_of(found, std::string("The advantage of FoX ") + trunk + " is larger with a training context");
    EXPECT_EQ(judge(comparison.expectation, comparison.measured, comparison.band), Verdict::kTrendReproduced);
    ASSERT_TRUE(comparison.control);
    EXPECT_LT(comparison.control->measured, 0) << "the window's own number is inconclusive at best";
    EXPECT_EQ(comparison.verdict(), Verdict::kInconclusive);
    EXPECT_TRUE(comparison.open.starts_with("less that of Window of 8 tokens it is 0.4")) << comparison.open;
    EXPECT_TRUE(comparison.open.ends_with("; that would be decided by 9 times the text")) << comparison.open;
  }
}

TEST_F(TrainingContext, CreditsGrowthByMoreThanAWindowsOwn) {
  settings["control_after_a_run"] = "another rule first";
  Courses courses = kHolds;
  courses["Window at 128"] = {5.0, 4.9, 4.75};
  courses["Window at 64"] = {5.0, 5.0, 5.0};
  const auto found = judged(courses);
  for (const char* begin : kGrowths) {
    const Comparison& comparison = one_of(found, begin);
    EXPECT_EQ(comparison.verdict(), Verdict::kTrendReproduced) << begin;
    EXPECT_FALSE(comparison.control) << "whose own number is positive too";
    EXPECT_TRUE(comparison.note.starts_with("less that of Window of 8 tokens it is 0.1")) << comparison.note;
    EXPECT_TRUE(comparison.note.ends_with("; another rule first")) << comparison.note;
  }
}

TEST_F(TrainingContext, RefutesAnAdvantageThatShrinks) {
  Courses courses = kHolds;
  courses["FoX at 64"] = {4.0, 4.0, 4.0};
  courses["FoX at 128"] = {4.5, 4.6, 4.7};
  const auto found = judged(courses);
  for (const char* begin : {"The advantage of FoX (Pro) is larger in the last half",
                            "The advantage of FoX (Pro) is larger with a training context",
                            "L(i) of FoX (Pro) falls from 8 … 16 to the last half of 128 tokens by more"})
    EXPECT_EQ(one_of(found, begin).verdict(), Verdict::kRefuted) << begin;
}

TEST_F(TrainingContext, LeavesGrowthWithoutItsControlToTheRunOfTheWindow) {
  judged(kHolds);
  forget("Window of 8 tokens at 128");
  const auto found = experiment.measure(study).comparisons;
  for (const char* begin : {"The advantage of FoX (Pro) is larger in the last half",
                            "The advantage of FoX (Pro) is larger with a training context"}) {
    EXPECT_EQ(one_of(found, begin).absent_row, "Window of 8 tokens at 128") << begin;
    EXPECT_NE(one_of(found, begin).verdict(), Verdict::kTrendReproduced) << begin;
  }
  EXPECT_EQ(one_of(found, "FoX (Pro) is better").verdict(), Verdict::kTrendReproduced) << "it needs no window";
  forget("Transformer (Pro) at 128");
  EXPECT_EQ(one_of(experiment.measure(study).comparisons, "The advantage of FoX (Pro)").absent_row,
            "Transformer (Pro) at 128");
}

TEST_F(TrainingContext, RefusesATextThatIsShorterThanItsPieces) {
  settings["evaluation"]["sequences"] = 1000;
  study.makes = true;
  EXPECT_THROW(experiment.measure(study), std::invalid_argument);
}

/// Its runs at a scale, as an artefact's identity has them.
std::multiset<std::string> identities(const char* claim, const char* scale, const std::string& begin, int64_t context) {
  const Experiment experiment = select_experiments({claim}).front();
  std::multiset<std::string> found;
  for (const lethe::Run& run : experiment.runs(claim_settings(LETHE_SOURCE, experiment, scale), 257))
    if (run.label.starts_with(begin) && run.training.context_length == context)
      found.insert(nlohmann::json(run.model).dump() + nlohmann::json(run.training).dump());
  return found;
}

TEST(TrainingContextRuns, AreThoseOfTheAblationsAndOfSavings) {
  for (const char* row : {"FoX (Pro)", "FoX (LLaMA)", "Transformer (Pro)", "Transformer (LLaMA)"}) {
    const std::string name = std::string(row) + " at ";
    const auto own = identities("training_context", "gpu", name, 4096);
    EXPECT_EQ(own.size(), 4u) << row;
    for (const std::string& run : own)
      EXPECT_EQ(identities("ablations", "gpu", row, 4096).count(run), 1u) << row << ": trained again";
    EXPECT_EQ(identities("training_context", "quick", name, 256).size(),
              name.find("Pro") == std::string::npos ? 5u : 2u)
        << row;
  }
  const auto own = identities("training_context", "gpu", "FoX (Pro) at 16384", 16384),
             of_savings = identities("savings", "gpu", "FoX (Pro) without ACP", 16384);
  EXPECT_EQ(own.size(), 4u);
  for (const std::string& run : own) EXPECT_EQ(of_savings.count(run), 1u) << "trained again";
}

}  // namespace
}  // namespace lethe
