// A sequence may be cut anywhere and continued from its state.

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

#include "reference/agreement.hpp"
#include "reference/variant.hpp"
#include "tests/support/heads.hpp"

namespace lethe {
namespace {

using reference::Variant;

constexpr Eigen::Index kLength = 65;

class Continuation : public testing::TestWithParam<Variant> {};

// Positions first … first + length − 1 of `head`, as many queries as keys.
Head part(const Head& head, Eigen::Index first, Eigen::Index length) {
  Head result = head;
  for (auto* tensor : {&result.query, &result.key, &result.value, &result.log_key_gate, &result.log_value_gate}) {
    *tensor = tensor->middleRows(first, length).eval();
  }
  for (auto* tensor : {&result.log_forget, &result.write_strength}) *tensor = tensor->segment(first, length).eval();
  return result;
}

// The second part after the first, from the first one's state.
Output continued(const Variant::Form& form, const Head& head, Eigen::Index cut) {
  const Output before = form(part(head, 0, cut));
  Head rest = part(head, cut, head.key.rows() - cut);
  rest.initial_state = before.state;
  rest.initial_normalizer = before.normalizer;
  Output after = form(rest);
  Matrix<double> values(head.query.rows(), head.value.cols());
  values << before.values, after.values;
  after.values = values;
  return after;
}

TEST_P(Continuation, OfTheRecurrentFormIsBitIdenticalWhereverTheSequenceIsCut) {
  for (Gate gate : kEveryGate) {
    const Head head = random_head({kLength, kLength}, gate);
    const Output whole = GetParam().recurrent(head);
    for (Eigen::Index cut = 1; cut < kLength; ++cut) {
      const Output output = continued(GetParam().recurrent, head, cut);
      EXPECT_EQ(output.values, whole.values) << "cut at " << cut << ", gate " << gate_name(gate);
      EXPECT_EQ(output.state, whole.state) << "cut at " << cut << ", gate " << gate_name(gate);
      EXPECT_EQ(output.normalizer, whole.normalizer) << "cut at " << cut << ", gate " << gate_name(gate);
    }
  }
}

TEST_P(Continuation, OfEveryOtherFormKeepsTheBudget) {
  for (Gate gate : kEveryGate) {
    const Head head = random_head({kLength, kLength}, gate);
    const Output whole = GetParam().recurrent(head);
    for (const auto& [name, compute] : forms(GetParam())) {
      for (Eigen::Index cut = 1; cut < kLength; ++cut) {
        const Output output = continued(compute, head, cut);
        const Agreement values = compare(flat(output.values), flat(whole.values), budget(Dtype::kFloat64));
        EXPECT_TRUE(values.passed()) << name << " cut at " << cut << ", " << values.describe();
        const Agreement state = compare(flat(output.state), flat(whole.state), budget(Dtype::kFloat64));
        EXPECT_TRUE(state.passed()) << name << " cut at " << cut << ", " << state.describe();
      }
    }
  }
}

// The control: a state that is not carried, or carried without its normalizer, exceeds the budget.
TEST_P(Continuation, WithoutTheStateExceedsThreeTimesTheBudget) {
  const Head head = random_head({kLength, kLength}, Gate::kInitial);
  const Output whole = GetParam().recurrent(head);
  Head rest = part(head, 31, kLength - 31);
  rest.initial_state.resize(0, 0);
  rest.initial_normalizer.resize(0);
  const Matrix<double> expected = whole.values.bottomRows(kLength - 31);
  EXPECT_GT(compare(flat(GetParam().recurrent(rest).values), flat(expected), budget(Dtype::kFloat64)).share(), 3.0);
  if (!reads(GetParam(), reference::Input::kInitialNormalizer)) return;
  rest.initial_state = GetParam().recurrent(part(head, 0, 31)).state;
  EXPECT_GT(compare(flat(GetParam().recurrent(rest).values), flat(expected), budget(Dtype::kFloat64)).share(), 3.0);
}

TEST_P(Continuation, ByNoTokenIsRefusedByName) {
  Head head = random_head({4, 4}, Gate::kInitial);
  for (auto* tensor : {&head.query, &head.key, &head.value, &head.log_key_gate, &head.log_value_gate}) {
    tensor->conservativeResize(0, Eigen::NoChange);
  }
  head.log_forget.resize(0);
  head.write_strength.resize(0);
  const auto message_of = [&](const auto& compute) -> std::string {
    try {
      compute();
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  for (const auto& [name, compute] : forms(GetParam())) {
    EXPECT_EQ(message_of([&] { compute(head); }), "key: expected at least 1 row, found 0") << name;
  }
  EXPECT_EQ(message_of([&] { GetParam().gradients(head, Matrix<double>(0, 3), {}, {}); }),
            "key: expected at least 1 row, found 0");
}

std::vector<Variant> variants_with_a_state() {
  std::vector<Variant> result;
  std::ranges::copy_if(reference::variants(), std::back_inserter(result),
                       [](const Variant& v) { return reads(v, reference::Input::kInitialState); });
  return result;
}

INSTANTIATE_TEST_SUITE_P(EveryVariant, Continuation, testing::ValuesIn(variants_with_a_state()),
                         [](const auto& info) { return info.param.name; });

TEST(Continuations, AreTestedForEveryVariantWithAState) {
  std::vector<std::string> without;
  for (const Variant& variant : reference::variants()) {
    if (!reads(variant, reference::Input::kInitialState)) without.push_back(variant.name);
    const Head head = random_head({3, 3}, Gate::kInitial);
    EXPECT_EQ(variant.recurrent(head).state.size() > 0, reads(variant, reference::Input::kInitialState))
        << variant.name;
  }
  EXPECT_EQ(without,
            (std::vector<std::string>{"softmax_attention", "alibi", "forgetting_attention", "local_attention"}));
}

}  // namespace
}  // namespace lethe
