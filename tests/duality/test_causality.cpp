// What a token can reach: the present and the future, never the past.

#include <gtest/gtest.h>

#include <algorithm>

#include "reference/variant.hpp"
#include "tests/support/heads.hpp"

namespace lethe {
namespace {

using reference::Input;
using reference::Variant;

constexpr Lengths kLengths{40, 49};
constexpr Input kEveryInput[] = {Input::kQuery, Input::kKey, Input::kValue, Input::kLogForget};

class Causality : public testing::TestWithParam<Variant> {};

// `head` with one input changed at one row: of the query, or at one position of the others.
Head changed(Head head, Input input, Eigen::Index row) {
  const std::span<double> tensor = entries(head, input);
  const size_t rows = static_cast<size_t>(input == Input::kQuery ? head.query.rows() : head.key.rows());
  const size_t width = tensor.size() / rows;
  for (double& x : tensor.subspan(static_cast<size_t>(row) * width, width)) x -= 1.5;
  return head;
}

std::vector<Variant::Form> forms(const Variant& variant) {
  std::vector<Variant::Form> result{variant.recurrent, variant.parallel};
  if (variant.chunked) result.push_back(variant.chunked);
  return result;
}

bool reads(const Variant& variant, Input input) { return std::ranges::count(variant.inputs, input) > 0; }

TEST_P(Causality, ChangingATokenLeavesEveryEarlierRowBitIdenticalAndChangesItsOwn) {
  const Head head = random_head(kLengths, Gate::kInitial);
  const Eigen::Index before = kLengths.key - kLengths.query;  // positions in front of the first query
  for (const Variant::Form& form : forms(GetParam())) {
    const Output expected = form(head);
    for (Eigen::Index position : {9, 10, 24, 25, 31, 32, 48}) {
      const Eigen::Index row = position - before;
      for (Input input : GetParam().inputs) {
        SCOPED_TRACE(std::string(input_name(input)) + " at position " + std::to_string(position));
        const Output output = form(changed(head, input, input == Input::kQuery ? row : position));
        EXPECT_EQ(output.values.topRows(row), expected.values.topRows(row));
        EXPECT_EQ(output.log_normalizer.head(row), expected.log_normalizer.head(row));
        EXPECT_NE(output.values.row(row), expected.values.row(row));
      }
    }
  }
}

TEST_P(Causality, AQueryReachesItsOwnRowAlone) {
  const Head head = random_head(kLengths, Gate::kInitial);
  for (const Variant::Form& form : forms(GetParam())) {
    const Output expected = form(head), output = form(changed(head, Input::kQuery, 7));
    EXPECT_NE(output.values.row(7), expected.values.row(7));
    EXPECT_EQ(output.values.bottomRows(kLengths.query - 8), expected.values.bottomRows(kLengths.query - 8));
  }
}

TEST_P(Causality, TheFirstGateIsNeverUsed) {
  const Head head = random_head({17, 17}, Gate::kInitial);
  for (const Variant::Form& form : forms(GetParam())) {
    EXPECT_EQ(form(changed(head, Input::kLogForget, 0)).values, form(head).values);
  }
}

TEST_P(Causality, AnInputThatTheVariantDoesNotReadChangesNothing) {
  const Head head = random_head(kLengths, Gate::kInitial);
  for (Input input : kEveryInput) {
    if (reads(GetParam(), input)) continue;
    Head other = head;
    for (double& x : entries(other, input)) x -= 1.5;
    for (const Variant::Form& form : forms(GetParam())) EXPECT_EQ(form(other).values, form(head).values);
  }
}

INSTANTIATE_TEST_SUITE_P(EveryVariant, Causality, testing::ValuesIn(reference::variants()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lethe
