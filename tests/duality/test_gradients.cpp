// The analytic gradients against differences of the recurrent form.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "reference/agreement.hpp"
#include "reference/variant.hpp"
#include "tests/support/finite_differences.hpp"
#include "tests/support/heads.hpp"

namespace lethe {
namespace {

using reference::Input;
using reference::Variant;

// Fourth-order differences with step 1e-3 leave 1e-12 by truncation and 1e-13 by rounding, of a loss whose gradients may
// be a hundred times smaller than itself.
constexpr double kBudget = 1e-9;

// Each entry has about 1e-12 of the loss, which is of order ten, as rounding: below this norm of one entry a difference
// measures rounding alone. The errors of n entries add up to √n of it.
constexpr double kFloor = 1e-2;

class GradientsOf : public testing::TestWithParam<Variant> {};

// A linear loss on everything that a form returns; what a variant does not return has an empty gradient.
struct Loss {
  Matrix<double> values, state;
  Vector<double> normalizer;

  Loss(const Variant& variant, const Head& head, uint64_t seed = 2) {
    const Output output = variant.recurrent(head);
    values = random_values_gradient(head, seed);
    state = random_state_gradient(output, seed + 10);
    normalizer = random_normalizer_gradient(output, seed + 20);
  }
  double of(const Output& output) const {
    return output.values.cwiseProduct(values).sum() + output.state.cwiseProduct(state).sum() +
           output.normalizer.cwiseProduct(normalizer).sum();
  }
  Gradients gradients(const Variant& variant, const Head& head) const {
    return variant.gradients(head, values, state, normalizer);
  }
};

// Feature maps have a kink at zero; a difference across it approximates neither derivative.
Head away_from_bends(Head head) {
  for (Matrix<double>* tensor : {&head.query, &head.key}) {
    for (double& x : tensor->reshaped()) x += std::abs(x) < 0.01 ? 0.02 : 0.0;
  }
  return head;
}

std::vector<double> measured(const Variant& variant, Head& head, const Loss& loss, Input input) {
  const auto of_head = [&] { return loss.of(variant.recurrent(head)); };
  return finite_differences(of_head, entries(head, input), is_log_gate(input));
}

TEST_P(GradientsOf, EqualFiniteDifferencesForEveryInput) {
  for (const Lengths& lengths : {Lengths{1, 1}, Lengths{2, 2}, Lengths{17, 17}, Lengths{1, 9}, Lengths{7, 17}}) {
    for (Gate gate : kEveryGate) {
      Head head = away_from_bends(random_head(lengths, gate));
      const Loss loss(GetParam(), head);
      Gradients gradients = loss.gradients(GetParam(), head);
      for (Input input : GetParam().inputs) {
        const std::vector<double> expected = measured(GetParam(), head, loss, input);
        const Agreement agreement =
            compare(entries(gradients, input), expected, kBudget, kFloor * std::sqrt(expected.size()));
        EXPECT_TRUE(agreement.passed()) << input_name(input) << ": " << agreement.describe() << ", "
                                        << describe(lengths, gate);
      }
    }
  }
}

TEST_P(GradientsOf, InputsThatAreNotReadAreEmptyAndTheOthersAreShapedAsTheInput) {
  Head head = random_head({3, 4}, Gate::kInitial);
  Gradients gradients = GetParam().gradients(head, Matrix<double>::Ones(3, 3), {}, {});
  for (Input input : kEveryInput) {
    EXPECT_EQ(entries(gradients, input).size(), reads(GetParam(), input) ? entries(head, input).size() : 0u)
        << input_name(input);
  }
}

TEST_P(GradientsOf, AStateGradientThatIsLeftOutIsZeros) {
  const Head head = random_head({3, 4}, Gate::kInitial);
  const Output output = GetParam().recurrent(head);
  const Matrix<double> values = random_values_gradient(head), state = 0.0 * output.state;
  const Vector<double> normalizer = 0.0 * output.normalizer;
  Gradients without = GetParam().gradients(head, values, {}, {});
  Gradients zeros = GetParam().gradients(head, values, state, normalizer);
  for (Input input : GetParam().inputs) {
    EXPECT_TRUE(std::ranges::equal(entries(without, input), entries(zeros, input))) << input_name(input);
  }
}

TEST_P(GradientsOf, AreLinearInTheGradientsOfWhatAFormReturns) {
  const Head head = random_head({33, 65}, Gate::kInitial);
  const Loss first(GetParam(), head, 3), second(GetParam(), head, 4);
  Loss both = first;
  both.values -= 2.0 * second.values;
  both.state -= 2.0 * second.state;
  both.normalizer -= 2.0 * second.normalizer;
  Gradients a = first.gradients(GetParam(), head), b = second.gradients(GetParam(), head);
  Gradients of_both = both.gradients(GetParam(), head);
  for (Input input : GetParam().inputs) {
    const std::span<double> sum = entries(a, input), minus = entries(b, input);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] -= 2.0 * minus[i];
    EXPECT_TRUE(compare(sum, entries(of_both, input), budget(Dtype::kFloat64)).passed()) << input_name(input);
  }
}

// Negative control: the gradients of a slightly wrong formula exceed three times the budget.
TEST_P(GradientsOf, OfASlightlyWrongFormulaExceedThreeTimesTheBudget) {
  Head head = away_from_bends(random_head({7, 17}, Gate::kInitial));
  const Loss loss(GetParam(), head);
  Head changed = head;
  changed.query *= 1.0001;
  changed.value *= 1.0001;
  Gradients right = loss.gradients(GetParam(), head), wrong = loss.gradients(GetParam(), changed);
  for (Input input : GetParam().inputs) {
    const std::vector<double> expected = measured(GetParam(), head, loss, input);
    EXPECT_GT(compare(entries(wrong, input), expected, kBudget).share(), 3.0) << input_name(input);
    // Off by one row: the gate's sum taken over i > l ≥ j, for example.
    std::vector<double> shifted(expected.size());
    std::ranges::rotate_copy(entries(right, input), entries(right, input).begin() + 1, shifted.begin());
    EXPECT_GT(compare(shifted, expected, kBudget).share(), 3.0) << input_name(input);
  }
}

INSTANTIATE_TEST_SUITE_P(EveryVariant, GradientsOf, testing::ValuesIn(reference::variants()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lethe
