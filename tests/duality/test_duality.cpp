// The lesson of the reference: every mechanism is one function in several forms.

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

#include "reference/agreement.hpp"
#include "reference/variant.hpp"
#include "tests/support/heads.hpp"

namespace lethe {
namespace {

using reference::Variant;

class Duality : public testing::TestWithParam<Variant> {};
class ChunkedDuality : public testing::TestWithParam<Variant> {};

void expect_equal(const Output& actual, const Output& expected) {
  const double allowed = budget(Dtype::kFloat64);
  const Agreement values = compare(flat(actual.values), flat(expected.values), allowed);
  EXPECT_TRUE(values.passed()) << "values: " << values.describe();
  const Agreement normalizer = compare(flat(actual.log_normalizer), flat(expected.log_normalizer), allowed);
  EXPECT_TRUE(normalizer.passed()) << "log_normalizer: " << normalizer.describe();
  EXPECT_EQ(actual.state.size(), expected.state.size());
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

TEST_P(ChunkedDuality, TheChunkedFormEqualsTheRecurrentForm) {
  for (const Lengths& lengths : kLengthsAroundTheTile) {
    for (Gate gate : kEveryGate) {
      SCOPED_TRACE(describe(lengths, gate));
      for (const Head& head : random_heads(lengths, gate)) {
        expect_equal(GetParam().chunked(head), GetParam().recurrent(head));
      }
    }
  }
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

TEST_P(Duality, EveryFormRefusesShapesThatDoNotBelongTogether) {
  const Head right = random_head({4, 4}, Gate::kInitial);
  std::vector<Head> wrong(3, right);
  wrong[0].key = Matrix<double>::Zero(4, right.key.cols() + 1);
  wrong[1].value = Matrix<double>::Zero(5, 3);
  wrong[2].query = Matrix<double>::Zero(5, right.query.cols());
  for (const Head& head : wrong) {
    EXPECT_THROW(GetParam().recurrent(head), std::invalid_argument);
    EXPECT_THROW(GetParam().parallel(head), std::invalid_argument);
    EXPECT_THROW(GetParam().gradients(head, Matrix<double>::Zero(head.query.rows(), 3)), std::invalid_argument);
    if (GetParam().chunked) {
      EXPECT_THROW(GetParam().chunked(head), std::invalid_argument);
    }
  }
  EXPECT_THROW(GetParam().gradients(right, Matrix<double>::Zero(3, 3)), std::invalid_argument);
  EXPECT_THROW(GetParam().gradients(right, Matrix<double>::Zero(4, 2)), std::invalid_argument);
}

std::vector<Variant> variants_with_a_chunked_form() {
  std::vector<Variant> result;
  std::ranges::copy_if(reference::variants(), std::back_inserter(result), [](const Variant& v) { return !!v.chunked; });
  return result;
}

INSTANTIATE_TEST_SUITE_P(EveryVariant, Duality, testing::ValuesIn(reference::variants()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(EveryVariant, ChunkedDuality, testing::ValuesIn(variants_with_a_chunked_form()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lethe
