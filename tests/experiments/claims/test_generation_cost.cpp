// The cost of a generated token: verdicts on hand-written times and bytes, the meter, and the steps against the reference.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <span>

#include "experiments/papers/decaying_fast_weights/generation_cost/costs.hpp"
#include "experiments/papers/decaying_fast_weights/generation_cost/memory_meter.hpp"
#include "reference/agreement.hpp"
#include "reference/variant.hpp"

namespace lethe::generation_cost {
namespace {

constexpr double kCacheBytes = 1000;
const std::vector<double> kContexts{100, 200, 300, 400};

/// A rival with bytes and seconds linear in the context, and one outlier per repetition.
Series straight(const std::string& rule, double bytes_a_token, double seconds_a_token) {
  Series series{.edition = Edition::kClean, .rival = {rule, "torch"}, .contexts = kContexts};
  for (const double context : kContexts) series.bytes.push_back(5000 + bytes_a_token * context);
  for (size_t repetition = 0; repetition < 9; ++repetition) {
    std::vector<double> seconds;
    for (const double context : kContexts) seconds.push_back(1 + seconds_a_token * context);
    seconds[repetition % 4] *= repetition % 3 == 0 ? 50 : 1.001;  // another process had the core
    series.seconds.push_back(seconds);
  }
  return series;
}

std::vector<Series> as_the_paper_says() {
  return {straight("attention", kCacheBytes, 1e-2), straight("decay", 0, 0), straight("delta", 0, 0)};
}

Verdict verdict_of(const std::vector<Series>& series) {
  return overall(statements(series, Edition::kClean, kCacheBytes, 0.1));
}

TEST(GenerationCost, IsReproducedWhereTheRulesAreFlatAndAttentionGrowsByItsCache) {
  EXPECT_EQ(verdict_of(as_the_paper_says()), Verdict::kTrendReproduced);  // a growing time has no stated size
}

TEST(GenerationCost, IsRefutedByARuleWhoseMemoryOrTimeGrows) {
  auto series = as_the_paper_says();
  series[1] = straight("decay", 2, 0);
  EXPECT_EQ(verdict_of(series), Verdict::kRefuted);
  series[1] = straight("decay", 0, 1e-3);
  EXPECT_EQ(verdict_of(series), Verdict::kRefuted);
}

TEST(GenerationCost, IsRefutedByAttentionThatKeepsMoreOrLessThanItsCache) {
  for (const double factor : {0.5, 1.05, 2.5}) {
    auto series = as_the_paper_says();
    series[0] = straight("attention", factor * kCacheBytes, 1e-2);
    EXPECT_EQ(verdict_of(series), Verdict::kRefuted) << factor;
  }
}

TEST(GenerationCost, IsUndecidedWhereTheRepetitionsContradictEachOther) {
  auto series = as_the_paper_says();
  for (size_t r = 0; r < series[2].seconds.size(); ++r)
    for (size_t c = 0; c < kContexts.size(); ++c)
      series[2].seconds[r][c] = 1 + 4e-4 * (static_cast<double>(r) - 4) * kContexts[c];
  EXPECT_EQ(verdict_of(series), Verdict::kInconclusive);
}

TEST(GenerationCost, TakesNoHeadlineFromTheScriptedEdition) {
  auto series = as_the_paper_says();
  for (Series& one : series) one.edition = Edition::kScripted;
  EXPECT_THROW(overall(statements(series, Edition::kScripted, kCacheBytes, 0.1)), std::invalid_argument);
  EXPECT_THROW(statements(series, Edition::kClean, kCacheBytes, 0.1), std::invalid_argument);
}

TEST(GenerationCost, SaysNothingOfScriptedRulesThatAreFlatByConstruction) {
  auto series = as_the_paper_says();
  for (Series& one : series) one.edition = Edition::kScripted;
  const auto all = statements(series, Edition::kScripted, kCacheBytes, 0.1);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all.front().statement,
            "Attention's step takes more time after a longer context, as the paper's script measures it");
}

TEST(Slope, IsThatOfALineDespiteOneOutlier) {
  EXPECT_DOUBLE_EQ(slope({0, 1, 2, 3, 4}, {1, 3, 5, 700, 9}), 2);
  EXPECT_THROW(slope({1, 1}, {2, 3}), std::invalid_argument);
}

TEST(Crossing, LiesBetweenTheContextsAroundIt) {
  EXPECT_DOUBLE_EQ(*crossing({0, 10, 20}, {0, 4, 8}, {6, 6, 6}), 15);
  EXPECT_DOUBLE_EQ(*crossing({5, 10}, {7, 8}, {6, 6}), 5);
  EXPECT_EQ(crossing({0, 10}, {1, 5}, {6, 6}), std::nullopt);
  EXPECT_DOUBLE_EQ(*crossing({0, 10, 20, 30}, {9, 4, 5, 7}, {6, 6, 6, 6}), 25);  // the last time counts
}

TEST(MemoryMeter, CountsTheBytesOfTensorsAliveAndTheirPeak) {
  const torch::Tensor before = torch::zeros({1000});
  MemoryMeter meter;
  const torch::Tensor kept = torch::zeros({256});
  EXPECT_EQ(meter.live(), 1024);
  { const torch::Tensor gone = torch::zeros({1024}); }
  EXPECT_EQ(meter.live(), 1024);
  EXPECT_EQ(meter.peak(), 1024 + 4096);
  meter.restart_peak();
  EXPECT_EQ(meter.peak(), 1024);
}

Sizes small(Edition edition) {
  return {.batch = 2,
          .heads = edition == Edition::kScripted ? 1 : 3,
          .key_dim = 8,
          .value_dim = 5,
          .device = torch::kCPU,
          .dtype = torch::kFloat32};
}

TEST(Steps, OfEveryRivalGiveTheReferencesValuesCallAfterCall) {
  for (const Edition edition : {Edition::kScripted, Edition::kClean}) {
    for (const Rival& rival : rivals(edition, {"lethe", "torch"})) {
      const Step step = make_step(edition, rival, small(edition), 9);
      const auto row = std::ranges::find(reference::variants(), step.variant, &reference::Variant::name);
      ASSERT_NE(row, reference::variants().end()) << step.variant;
      for (int call = 0; call < 3; ++call) {
        const Matrix<double> expected = row->recurrent(step.head()).values;
        const torch::Tensor values = step.run().detach().select(0, 0).select(1, 0).to(torch::kFloat64).contiguous();
        const Agreement agreement =
            compare({values.const_data_ptr<double>(), static_cast<size_t>(values.numel())},
                    {expected.data(), static_cast<size_t>(expected.size())}, budget(Dtype::kFloat32));
        EXPECT_TRUE(agreement.passed()) << rival.name() << ": " << agreement.describe();
      }
    }
  }
}

TEST(Steps, OfTheCleanEditionKeepTheCacheOrTheStateAndLittleMore) {
  const Sizes sizes = small(Edition::kClean);
  const auto live_after = [&](const Rival& rival, int64_t context) {
    MemoryMeter meter;
    const Step step = make_step(Edition::kClean, rival, sizes, context);
    step.run();
    return meter.live();
  };
  const Rival attention{"attention", "torch"}, decay{"decay", "lethe"};
  EXPECT_EQ(live_after(attention, 60) - live_after(attention, 10), 50 * sizes.cache_bytes());
  EXPECT_EQ(live_after(decay, 60), live_after(decay, 10));
  EXPECT_EQ(sizes.cache_bytes(), 2 * 3 * (8 + 5) * 4);
}

TEST(Steps, AreRefusedForARivalThatTheEditionLacks) {
  EXPECT_THROW(make_step(Edition::kScripted, {"forgetting attention", "lethe"}, small(Edition::kScripted), 4),
               std::invalid_argument);
  EXPECT_THROW(rivals(Edition::kClean, {"cuda"}), std::invalid_argument);
}

}  // namespace
}  // namespace lethe::generation_cost
