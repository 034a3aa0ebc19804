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

class GradientsOf : public testing::TestWithParam<Variant> {};

std::vector<double> measured(const Variant& variant, Head& head, const Matrix<double>& values_gradient, Input input) {
  const auto loss = [&] { return variant.recurrent(head).values.cwiseProduct(values_gradient).sum(); };
  return finite_differences(loss, entries(head, input), input == Input::kLogForget);
}

TEST_P(GradientsOf, EqualFiniteDifferencesForEveryInput) {
  for (const Lengths& lengths : {Lengths{1, 1}, Lengths{2, 2}, Lengths{17, 17}, Lengths{1, 9}, Lengths{7, 17}}) {
    for (Gate gate : kEveryGate) {
      Head head = random_head(lengths, gate);
      const Matrix<double> values_gradient = random_values_gradient(head);
      Gradients gradients = GetParam().gradients(head, values_gradient);
      for (Input input : GetParam().inputs) {
        const std::vector<double> expected = measured(GetParam(), head, values_gradient, input);
        const Agreement agreement = compare(entries(gradients, input), expected, kBudget, 1e-3);
        EXPECT_TRUE(agreement.passed()) << input_name(input) << ": " << agreement.describe() << ", "
                                        << describe(lengths, gate);
      }
    }
  }
}

TEST_P(GradientsOf, InputsThatAreNotReadAreEmpty) {
  Gradients gradients = GetParam().gradients(random_head({3, 3}, Gate::kInitial), Matrix<double>::Ones(3, 3));
  for (Input input : {Input::kQuery, Input::kKey, Input::kValue, Input::kLogForget}) {
    EXPECT_EQ(entries(gradients, input).empty(), std::ranges::count(GetParam().inputs, input) == 0)
        << input_name(input);
  }
}

TEST_P(GradientsOf, AreLinearInTheGradientOfTheValues) {
  const Head head = random_head({33, 65}, Gate::kInitial);
  const Matrix<double> first = random_values_gradient(head, 3), second = random_values_gradient(head, 4);
  Gradients a = GetParam().gradients(head, first), b = GetParam().gradients(head, second);
  Gradients both = GetParam().gradients(head, first - 2.0 * second);
  for (Input input : GetParam().inputs) {
    const std::span<double> sum = entries(a, input), minus = entries(b, input);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] -= 2.0 * minus[i];
    EXPECT_TRUE(compare(sum, entries(both, input), budget(Dtype::kFloat64)).passed()) << input_name(input);
  }
}

// A budget is worth what it rejects: the gradients of a slightly wrong formula must exceed three times of it.
TEST_P(GradientsOf, OfASlightlyWrongFormulaExceedThreeTimesTheBudget) {
  Head head = random_head({7, 17}, Gate::kInitial);
  const Matrix<double> values_gradient = random_values_gradient(head);
  Head rescaled = head;
  rescaled.scale *= 1.0001;
  Gradients right = GetParam().gradients(head, values_gradient);
  Gradients wrong = GetParam().gradients(rescaled, values_gradient);
  for (Input input : GetParam().inputs) {
    const std::vector<double> expected = measured(GetParam(), head, values_gradient, input);
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
