// The claims that judge measurements of the GPU's kernels: ratios, their bands and the verdicts on hand-written speeds.

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "experiments/papers/throughput/kernel_speeds.hpp"
#include "tests/experiments/tiny.hpp"

namespace lethe {
namespace {

class KernelSpeeds : public testing::Test {
 protected:
  KernelSpeeds() {
    std::vector<Record> records;
    const auto add = [&](const char* gate, const char* implementation, const char* metric, double value,
                         double stddev) {
      records.push_back({.experiment = "throughput",
                         .variant = gate,
                         .implementation = implementation,
                         .device = "a GPU",
                         .dtype = "bfloat16",
                         .length = 4096,
                         .key_dim = 64,
                         .metric = metric,
                         .unit = "1",
                         .value = value,
                         .stddev = stddev,
                         .samples = 25});
    };
    add("bimodal", "lethe", "forward_speed", 500, 5);
    add("bimodal", "lethe", "pruned_share", 0.5, 0);
    add("bimodal", "lethe_pruned", "forward_speed", 900, 0);
    add("bimodal", "slow", "forward_speed", 300, 0);
    add("bimodal", "fast", "forward_speed", 600, 6);
    write_records(folder.path() / "speeds", records, "");
  }

  Study study(const std::vector<PaperRecord>& goals = {}) const {
    return {.experiment = experiment,
            .settings = settings,
            .dataset = dataset,
            .data = folder.path() / "speeds.csv",
            .paper = goals,
            .trained = {},
            .progress = {}};
  }

  static PaperRecord goal(const std::string& metric, double value) {
    PaperRecord goal{.record = {}, .source = "a goal", .comparability = "exact"};
    goal.record.variant = "T=4096 D=64";
    goal.record.metric = metric;
    goal.record.value = value;
    return goal;
  }

  static SpeedRatio ratio(const std::vector<std::string>& rivals, bool times_kept_share = false) {
    return {"forward_beside_them", "Ours over theirs", "bimodal", "forward", "lethe_pruned", rivals, times_kept_share};
  }

  TemporaryFolder folder;
  const Experiment experiment{"throughput", "a_claim", nullptr, nullptr};
  const nlohmann::json settings = nlohmann::json::object();
  const Dataset dataset;
};

TEST_F(KernelSpeeds, AreDividedByTheFastestRivals) {
  const auto found = speed_ratios(study(), {ratio({"slow", "fast", "absent"})});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_DOUBLE_EQ(found[0].record.value, 1.5);
  EXPECT_DOUBLE_EQ(found[0].band, 1.5 * 1.25 * 1.96 * 0.01 / 5);
  EXPECT_EQ(found[0].record.variant, "T=4096 D=64");
  EXPECT_EQ(found[0].record.claim, "a_claim");
}

TEST_F(KernelSpeeds, AreMultipliedByTheShareThatIsKept) {
  const auto found = speed_ratios(study(), {ratio({"lethe"}, true)});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_DOUBLE_EQ(found[0].record.value, 900.0 / 500 * 0.5);
}

TEST_F(KernelSpeeds, WithoutARivalGiveNoNumber) { EXPECT_TRUE(speed_ratios(study(), {ratio({"absent"})}).empty()); }

TEST_F(KernelSpeeds, AreJudgedByTheGoalsOfThePapersFile) {
  const auto at_least = [](double goal) { return Expectation{.low = goal}; };
  const auto verdict_of = [&](double value) {
    const Study with_goal = study({goal("forward_beside_them", value)});
    const Findings found = judge(with_goal, speed_ratios(with_goal, {ratio({"fast"})}), at_least);
    EXPECT_EQ(found.comparisons.size(), 1u);
    return found.comparisons.front().verdict();
  };
  EXPECT_EQ(verdict_of(1.4), Verdict::kReproduced);
  EXPECT_EQ(verdict_of(1.5), Verdict::kInconclusive);
  EXPECT_EQ(verdict_of(1.6), Verdict::kRefuted);
  const Study with_another = study({goal("backward_beside_them", 1)});
  EXPECT_THROW(judge(with_another, speed_ratios(with_another, {ratio({"fast"})}), at_least), std::invalid_argument);
}

}  // namespace
}  // namespace lethe
