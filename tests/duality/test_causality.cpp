// Causality: a token affects its own row and later ones, never earlier ones.

#include <gtest/gtest.h>

#include "reference/variant.hpp"
#include "tests/support/heads.hpp"

namespace lethe {
namespace {

using reference::Input;
using reference::Variant;

constexpr Lengths kLengths{40, 49};

class Causality : public testing::TestWithParam<Variant> {};

// Another legal value: gates stay below one, strengths above zero. Each entry has its own step, since a feature map may be
// invariant to a common one (exponentials under a sum norm).
void change(std::span<double> tensor, Input input) {
  double step = 1.5;
  for (double& x : tensor) x = input == Input::kWriteStrength ? x / 2 : x - (step += 0.1);
}

// `head` with one input changed at one row: of the query, or at one position of the others.
Head changed(Head head, Input input, Eigen::Index row) {
  const std::span<double> tensor = entries(head, input);
  const size_t rows = static_cast<size_t>(input == Input::kQuery ? head.query.rows() : head.key.rows());
  const size_t width = tensor.size() / rows;
  change(tensor.subspan(static_cast<size_t>(row) * width, width), input);
  return head;
}

TEST_P(Causality, ChangingATokenLeavesEveryEarlierRowBitIdentical) {
  const Head head = random_head(kLengths, Gate::kInitial);
  const Eigen::Index before = kLengths.key - kLengths.query;  // positions in front of the first query
  for (const auto& [name, compute] : forms(GetParam())) {
    const Output expected = compute(head);
    for (Eigen::Index position : {9, 10, 24, 25, 31, 32, 48}) {
      const Eigen::Index row = position - before;
      for (Input input : GetParam().inputs) {
        if (!has_positions(input)) continue;
        SCOPED_TRACE(name + ", " + input_name(input) + " at position " + std::to_string(position));
        const Output output = compute(changed(head, input, input == Input::kQuery ? row : position));
        EXPECT_EQ(output.values.topRows(row), expected.values.topRows(row));
        if (expected.log_normalizer.size() > 0) {
          EXPECT_EQ(output.log_normalizer.head(row), expected.log_normalizer.head(row));
        }
        EXPECT_NE(output.values.row(row), expected.values.row(row));
      }
    }
  }
}

TEST_P(Causality, AQueryReachesItsOwnRowAlone) {
  const Head head = random_head(kLengths, Gate::kInitial);
  for (const auto& [name, compute] : forms(GetParam())) {
    const Output expected = compute(head), output = compute(changed(head, Input::kQuery, 7));
    EXPECT_NE(output.values.row(7), expected.values.row(7)) << name;
    EXPECT_EQ(output.values.bottomRows(kLengths.query - 8), expected.values.bottomRows(kLengths.query - 8)) << name;
    EXPECT_EQ(output.state, expected.state) << name;
  }
}

// In the softmax family the first gate acts on nothing; elsewhere it fades the initial state.
TEST_P(Causality, TheFirstGateActsWhereThereIsAnInitialStateToFade) {
  const Head head = random_head({17, 17}, Gate::kInitial);
  for (Input input : GetParam().inputs) {
    if (!is_log_gate(input)) continue;
    for (const auto& [name, compute] : forms(GetParam())) {
      SCOPED_TRACE(name + ", " + input_name(input));
      const bool acts = compute(changed(head, input, 0)).values != compute(head).values;
      EXPECT_EQ(acts, reads(GetParam(), Input::kInitialState));
    }
  }
}

TEST_P(Causality, TheInitialStateReachesEveryRow) {
  const Head head = random_head({17, 17}, Gate::kOpen);
  for (Input input : {Input::kInitialState, Input::kInitialNormalizer}) {
    if (!reads(GetParam(), input)) continue;
    Head other = head;
    for (double& x : entries(other, input)) x += 1.5;
    for (const auto& [name, compute] : forms(GetParam())) {
      const Matrix<double> values = compute(other).values, before = compute(head).values;
      for (Eigen::Index row = 0; row < 17; ++row) EXPECT_NE(values.row(row), before.row(row)) << name << row;
    }
  }
}

TEST_P(Causality, AnInputThatTheVariantDoesNotReadChangesNothing) {
  const Head head = random_head(kLengths, Gate::kInitial);
  for (Input input : kEveryInput) {
    if (reads(GetParam(), input)) continue;
    Head other = head;
    change(entries(other, input), input);
    for (const auto& [name, compute] : forms(GetParam())) {
      EXPECT_EQ(compute(other).values, compute(head).values) << name << ", " << input_name(input);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryVariant, Causality, testing::ValuesIn(reference::variants()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lethe
