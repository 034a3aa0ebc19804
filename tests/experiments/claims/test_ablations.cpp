// What ablations says of seeds (FoX Fig. 19), and the notes on rows that were added after a run.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "experiments/claims/measures.hpp"
#include "experiments/claims/record_files.hpp"
#include "tests/experiments/claims/claim_study.hpp"
#include "tests/experiments/claims/statements.hpp"

namespace lethe {
namespace {

/// The claim at the scale smoke with FoX (LLaMA) and Transformer (LLaMA) alone.
class SeedsOfAblations : public ClaimStudy {
 protected:
  SeedsOfAblations() : ClaimStudy("ablations") {
    study.paper = read_paper(claim_folder(LETHE_SOURCE, experiment) / "paper.csv");
  }

  Comparison found(int64_t seeds) {
    settings["row_seeds"] = {{"FoX (LLaMA)", seeds}, {"Transformer (LLaMA)", seeds}, {"control", 0}, {"others", 0}};
    train();
    return one_of(experiment.measure(study).comparisons, "Seeds move L(i) of FoX (LLaMA) by less");
  }

  std::vector<double> sixteenths(const Artefact& model) const {
    constexpr int64_t kLength = 64;
    const auto curve = evaluate(study, model, kLength).curve("loss_at_position");
    std::vector<double> means(16, 0.0);
    for (size_t i = 0; i < curve.size(); ++i) means[i / 4] += curve[i] / 4;
    return means;
  }
};

TEST_F(SeedsOfAblations, AreComparedWithTheForgetGateAtEveryPosition) {
  const Comparison comparison = found(3);
  std::vector<std::vector<double>> fox, transformer;
  for (const Artefact& model : study.labelled("FoX (LLaMA)")) fox.push_back(sixteenths(model));
  for (const Artefact& model : study.labelled("Transformer (LLaMA)")) transformer.push_back(sixteenths(model));
  std::vector<double> of_seeds;
  for (size_t s = 0; s < 3; ++s) {
    double advantage = std::numeric_limits<double>::infinity(), moved = 0;
    for (size_t part = 0; part < 16; ++part) {
      advantage = std::min(advantage, transformer[s][part] - fox[s][part]);
      const double others = (fox[(s + 1) % 3][part] + fox[(s + 2) % 3][part]) / 2;
      moved = std::max(moved, std::abs(fox[s][part] - others));
    }
    of_seeds.push_back(advantage - moved);
  }
  EXPECT_NEAR(comparison.measured, mean(of_seeds), 1e-9);
  EXPECT_NEAR(comparison.band, band_of_mean(of_seeds), 1e-9);
  EXPECT_EQ(comparison.source, "FoX Fig. 19 and Appendix E.10");
}

TEST_F(SeedsOfAblations, AreOutOfReachOfOne) { EXPECT_EQ(found(1).verdict(), Verdict::kOutOfReach); }

/// A claim without a model: its statements are out of reach, with their notes.
class LateRows : public ClaimStudy {
 protected:
  explicit LateRows(const std::string& claim) : ClaimStudy(claim) {
    study.paper = read_paper(claim_folder(LETHE_SOURCE, experiment) / "paper.csv");
  }

  /// Expects the note of a setting with the statements whose source or text has these words, and with no other.
  void expect_note(const char* setting, const std::string& words) {
    settings[setting] = "a late row";
    size_t noted = 0;
    for (const Comparison& comparison : experiment.measure(study).comparisons) {
      const bool is_late = (comparison.source + ": " + comparison.statement).find(words) != std::string::npos;
      EXPECT_EQ(comparison.note == "a late row", is_late) << comparison.statement;
      noted += is_late;
    }
    EXPECT_GT(noted, 1u);
  }
};

class RowsOfFigure9 : public LateRows {
 protected:
  RowsOfFigure9() : LateRows("ablations") {}
};

TEST_F(RowsOfFigure9, HaveANoteOfTheirOwn) { expect_note("figure_9_after_a_run", "FoX Fig. 9"); }

class RowsOfAnotherDecayTime : public LateRows {
 protected:
  RowsOfAnotherDecayTime() : LateRows("forget_gate_types") {}
};

TEST_F(RowsOfAnotherDecayTime, HaveANoteOfTheirOwn) { expect_note("other_decay_times_after_a_run", "T_max"); }

}  // namespace
}  // namespace lethe
