// The claim on forms: inputs from a traced head for each row, detection of shifted gates, and verdicts on hand-written differences.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "experiments/papers/forgetting_transformer/duality/forms.hpp"
#include "experiments/papers/forgetting_transformer/duality/inputs.hpp"
#include "experiments/papers/forgetting_transformer/duality/single_precision.hpp"
#include "tests/support/heads.hpp"

namespace lethe::duality {
namespace {

/// A traced head: only query, key, value, log_forget and scale.
Head as_traced() {
  const Head random = random_head({40, 40}, Gate::kInitial);
  return {.query = random.query,
          .key = random.key,
          .value = random.value,
          .log_forget = random.log_forget,
          .scale = random.scale};
}

const reference::Variant& row(const std::string& name) {
  return *std::ranges::find(reference::variants(), name, &reference::Variant::name);
}

TEST(DualityInputs, AreWhatEachRowReadsAndNothingElse) {
  for (const reference::Variant& variant : reference::variants()) {
    Head head = inputs_of(variant, as_traced());
    for (const reference::Input input : kEveryInput) {
      const bool is_initial = !has_positions(input);
      const bool is_whole = entries(head, input).size() > 0;
      EXPECT_EQ(is_whole, reads(variant, input) && !is_initial) << variant.name << ", " << input_name(input);
    }
  }
}

TEST(DualityInputs, SpreadTheTrainedGateSoThatItIsItselfOnAverage) {
  const Head traced = as_traced(), head = inputs_of(row("decay_fast_weights"), traced);
  const double both = head.log_key_gate.row(7).mean() + head.log_value_gate.row(7).mean();
  EXPECT_NEAR(both, traced.log_forget[7], 1e-14);
  EXPECT_NE(head.log_key_gate(7, 0), head.log_key_gate(7, 1));
  const Head gated_delta = inputs_of(row("gated_delta_fast_weights"), traced);
  EXPECT_NEAR(gated_delta.log_forget[7] + gated_delta.log_key_gate.row(7).mean(), traced.log_forget[7], 1e-14);
  EXPECT_NEAR(gated_delta.write_strength[7], 1 - std::exp(traced.log_forget[7]), 1e-15);
  EXPECT_NEAR(gated_delta.key.row(3).norm(), 1, 1e-14);
}

TEST(DualityDifferences, AreRoundingInEveryRowAndInBothPrecisions) {
  for (const reference::Variant& variant : reference::variants()) {
    const Differences found = differences(variant, as_traced(), {1, 16});
    EXPECT_EQ(found.in_double.size(), 3u) << variant.name;
    for (const auto& [form, value] : found.in_double) EXPECT_LE(value, 1e-12) << variant.name << ", " << form;
    EXPECT_FALSE(found.in_float.empty()) << variant.name << " has no forms in single precision";
    for (const auto& [form, value] : found.in_float) EXPECT_LE(value, 1e-5) << variant.name << ", " << form;
    // Rounding in float is far above rounding in double: otherwise the measured forms would not be in float.
    double worst = 0;
    for (const auto& [form, value] : found.in_float) worst = std::max(worst, value);
    EXPECT_GT(worst, 1e-9) << variant.name;
    EXPECT_EQ(reads_a_gate(variant), std::isfinite(found.off_by_one)) << variant.name;
    EXPECT_GT(found.off_by_one, 1e-4) << variant.name;
  }
  EXPECT_LE(gauge_difference(as_traced()), 1e-12);
}

Differences made_up(double parallel, double chunked, double off_by_one) {
  return {.in_double = {{"parallel", parallel}, {"chunks of 3", chunked}},
          .in_float = {{"parallel", 1e-7}},
          .off_by_one = off_by_one};
}

Verdict verdict_of(const Differences& one) {
  return overall(statements({{"a row", made_up(1e-15, 1e-15, 1)}, {"one", one}}, 1e-15));
}

TEST(DualityVerdict, IsReproducedBelowTheBudgetAndRefutedAbove) {
  EXPECT_EQ(verdict_of(made_up(1e-14, 1e-14, 0.1)), Verdict::kReproduced);
  EXPECT_EQ(verdict_of(made_up(2e-12, 1e-14, 0.1)), Verdict::kRefuted);
  EXPECT_EQ(verdict_of(made_up(1e-14, 2e-12, 0.1)), Verdict::kRefuted);
  EXPECT_EQ(verdict_of(made_up(std::numeric_limits<double>::infinity(), 1e-14, 0.1)), Verdict::kRefuted);
}

TEST(DualityVerdict, IsRefutedWhereAMistakeWouldNotBeFound) {
  EXPECT_EQ(verdict_of(made_up(1e-14, 1e-14, 2e-12)), Verdict::kRefuted);
}

TEST(DualityDifferences, KeepTheWorstOfAllHeadsAndTheControlThatIsHardestToFind) {
  Differences kept = made_up(1, 2, 3);
  kept.merge(made_up(5, 1, 2));
  EXPECT_EQ(kept.in_double.at("parallel"), 5);
  EXPECT_EQ(kept.in_double.at("chunks of 3"), 2);
  EXPECT_EQ(kept.off_by_one, 2);
}

}  // namespace
}  // namespace lethe::duality
