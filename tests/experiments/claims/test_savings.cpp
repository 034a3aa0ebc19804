// The losses with and without pruning by positions: ACP Fig. 3 left.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "experiments/claims/measures.hpp"
#include "tests/experiments/claims/claim_study.hpp"
#include "tests/experiments/claims/statements.hpp"

namespace lethe {
namespace {

/// The claim at the scale smoke, with three seeds.
class Savings : public ClaimStudy {
 protected:
  Savings() : ClaimStudy("savings") {
    settings["seeds"] = 3;
    settings["row_seeds"] = nlohmann::json::object();
    train();
  }

  /// The mean of L(i) over first + 1 … last and over the seeds of a row at the longest context.
  double loss_of(const std::string& row, int64_t longest, int64_t first, int64_t last) const {
    double sum = 0;
    int models = 0;
    for (const Artefact& model : study.labelled(row)) {
      if (model.run.training.context_length != longest) continue;
      const auto curve =
          evaluate(study, model, longest, settings.at("evaluation").at("sequences")).curve("loss_at_position");
      sum += std::accumulate(curve.begin() + first, curve.begin() + last, 0.0) / static_cast<double>(last - first);
      ++models;
    }
    return sum / models;
  }
};

TEST_F(Savings, ComparesTheStretchWhoseLossesDifferMost) {
  const Comparison stretch = one_of(experiment.measure(study).comparisons, "Pruning changes the loss at no position");
  const int64_t longest = settings.at("context_lengths").back();
  const std::vector<int64_t> ends = {0, longest / 8, longest / 4, longest / 2, longest};
  std::vector<double> differences;
  for (size_t i = 1; i < ends.size(); ++i)
    differences.push_back(loss_of("FoX (Pro) with ACP", longest, ends[i - 1], ends[i]) -
                          loss_of("FoX (Pro) without ACP", longest, ends[i - 1], ends[i]));
  EXPECT_TRUE(std::ranges::any_of(differences, [&](double one) { return std::abs(one - stretch.measured) < 1e-9; }));
  for (const double one : differences) EXPECT_GE(std::abs(stretch.measured) + stretch.band, std::abs(one) - 1e-9);
}

}  // namespace
}  // namespace lethe
