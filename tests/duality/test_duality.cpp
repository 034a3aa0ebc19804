// Every mechanism is one function in several forms.

#include <gtest/gtest.h>

#include <limits>

#include "reference/agreement.hpp"
#include "reference/variant.hpp"
#include "tests/support/heads.hpp"

namespace lethe {
namespace {

using reference::Variant;

class Duality : public testing::TestWithParam<Variant> {};
class ChunkedDuality : public testing::TestWithParam<Variant> {
  void SetUp() override { ASSERT_TRUE(GetParam().chunked) << "expected a chunked form in every row of the table"; }
};

void expect_equal(const Output& actual, const Output& expected) {
  const auto expect_close = [](const char* name, const auto& found, const auto& right) {
    ASSERT_EQ(found.rows(), right.rows()) << name;
    ASSERT_EQ(found.cols(), right.cols()) << name;
    const Agreement agreement = compare(flat(found), flat(right), budget(Dtype::kFloat64));
    EXPECT_TRUE(agreement.passed()) << name << ": " << agreement.describe();
  };
  expect_close("values", actual.values, expected.values);
  expect_close("log_normalizer", actual.log_normalizer, expected.log_normalizer);
  expect_close("state", actual.state, expected.state);
  expect_close("normalizer", actual.normalizer, expected.normalizer);
}

TEST_P(Duality, TheParallelFormEqualsTheRecurrentForm) {
  for (const Lengths& lengths : kLengthsAroundTheTile) {
    for (Gate gate : kEveryGate) {
      SCOPED_TRACE(describe(lengths, gate));
      for (const Head& head : random_heads(lengths, gate)) {
        expect_equal(GetParam().parallel(head), GetParam().recurrent(head));
      }
    }
  }
}

TEST_P(ChunkedDuality, TheChunkedFormEqualsTheRecurrentFormForEveryChunkLength) {
  for (const Lengths& lengths : kLengthsAroundTheTile) {
    for (Gate gate : kEveryGate) {
      for (const Head& head : random_heads(lengths, gate, 1)) {
        const Output expected = GetParam().recurrent(head);
        for (Eigen::Index chunk_length : kChunkLengths) {
          SCOPED_TRACE(describe(lengths, gate) + ", chunks of " + std::to_string(chunk_length));
          expect_equal(GetParam().chunked(head, chunk_length), expected);
        }
      }
    }
  }
}

TEST_P(ChunkedDuality, AChunkHoldsAtLeastOnePosition) {
  const Head head = random_head({4, 4}, Gate::kInitial);
  EXPECT_THROW(GetParam().chunked(head, 0), std::invalid_argument);
  EXPECT_THROW(GetParam().chunked(head, -1), std::invalid_argument);
}

TEST_P(Duality, TheLastQueriesAloneGetTheSameValuesAsAmongAllQueries) {
  for (Gate gate : kEveryGate) {
    const Head all = random_head({65, 65}, gate);
    const Output expected = GetParam().recurrent(all);
    for (Eigen::Index last : {1, 2, 17, 64}) {
      Head head = all;
      head.query = all.query.bottomRows(last).eval();
      const Output output = GetParam().recurrent(head);
      EXPECT_EQ(output.values, expected.values.bottomRows(last)) << last << " queries, gate " << gate_name(gate);
    }
  }
}

TEST_P(Duality, AnAbsentInputIsReadAsZeros) {
  Head without = random_head({20, 20}, Gate::kInitial);
  Head zeros = without;
  without.initial_state.resize(0, 0);
  without.initial_normalizer.resize(0);
  zeros.initial_state.setZero();
  zeros.initial_normalizer.setZero();
  for (const auto& [name, compute] : forms(GetParam())) {
    EXPECT_EQ(compute(without).values, compute(zeros).values) << name;
    EXPECT_EQ(compute(without).state, compute(zeros).state) << name;
  }
}

// `head` with one entry row more of one input; a vector grows by an entry.
Head with_another_row(Head head, reference::Input input) {
  const auto grow = [](auto& tensor) { tensor.conservativeResize(tensor.rows() + 1, tensor.cols()); };
  using enum reference::Input;
  switch (input) {
    case kQuery: grow(head.query); break;
    case kKey: grow(head.key); break;
    case kValue: grow(head.value); break;
    case kLogForget: grow(head.log_forget); break;
    case kLogKeyGate: grow(head.log_key_gate); break;
    case kLogValueGate: grow(head.log_value_gate); break;
    case kWriteStrength: grow(head.write_strength); break;
    case kInitialState: grow(head.initial_state); break;
    case kInitialNormalizer: grow(head.initial_normalizer); break;
  }
  return head;
}

TEST_P(Duality, EveryFormRefusesShapesThatDoNotMatch) {
  const Head right = random_head({4, 4}, Gate::kInitial);
  std::vector<Head> wrong(1, right);
  wrong[0].key = Matrix<double>::Zero(4, right.key.cols() + 1);
  for (reference::Input input : GetParam().inputs) wrong.push_back(with_another_row(right, input));
  for (const Head& head : wrong) {
    for (const auto& [name, compute] : forms(GetParam())) EXPECT_THROW(compute(head), std::invalid_argument) << name;
    EXPECT_THROW(GetParam().gradients(head, Matrix<double>::Zero(head.query.rows(), 3), {}, {}), std::invalid_argument);
  }
  EXPECT_THROW(GetParam().gradients(right, Matrix<double>::Zero(3, 3), {}, {}), std::invalid_argument);
  EXPECT_THROW(GetParam().gradients(right, Matrix<double>::Zero(4, 2), {}, {}), std::invalid_argument);
}

TEST_P(Duality, EveryFormRefusesALogGateAboveZero) {
  for (reference::Input input : GetParam().inputs) {
    if (!is_log_gate(input)) continue;
    for (double wrong : {0.1, std::numeric_limits<double>::quiet_NaN()}) {
      Head head = random_head({4, 4}, Gate::kInitial);
      entries(head, input)[1] = wrong;
      for (const auto& [name, compute] : forms(GetParam())) {
        EXPECT_THROW(compute(head), std::invalid_argument) << name << ", " << input_name(input);
      }
      EXPECT_THROW(GetParam().gradients(head, Matrix<double>::Zero(4, 3), {}, {}), std::invalid_argument);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryVariant, Duality, testing::ValuesIn(reference::variants()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(EveryVariant, ChunkedDuality, testing::ValuesIn(reference::variants()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lethe
