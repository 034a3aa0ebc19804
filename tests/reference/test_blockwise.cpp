// The papers' block algorithms against the definition, whole and pruned.

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "reference/agreement.hpp"
#include "reference/blockwise.hpp"
#include "reference/computation_pruning.hpp"
#include "reference/forgetting_attention.hpp"
#include "tests/support/finite_differences.hpp"
#include "tests/support/heads.hpp"

namespace lethe {
namespace {

namespace blockwise = reference::blockwise;
namespace computation_pruning = reference::computation_pruning;
namespace forgetting_attention = reference::forgetting_attention;
using reference::Blocks;
using reference::Input;

constexpr Blocks kBlockSizes[] = {{1, 1}, {7, 5}, {16, 64}, {64, 16}, {64, 64}, {300, 300}};
constexpr Input kEveryInput[] = {Input::kQuery, Input::kKey, Input::kValue, Input::kLogForget};

void expect_equal(const Output& actual, const Output& expected) {
  const Agreement values = compare(flat(actual.values), flat(expected.values), budget(Dtype::kFloat64));
  EXPECT_TRUE(values.passed()) << "values: " << values.describe();
  const Agreement normalizer =
      compare(flat(actual.log_normalizer), flat(expected.log_normalizer), budget(Dtype::kFloat64), 1e-3);
  EXPECT_TRUE(normalizer.passed()) << "log_normalizer: " << normalizer.describe();
}

TEST(Blockwise, ForwardEqualsTheParallelFormForEveryBlockSize) {
  for (const Lengths& lengths : kLengthsAroundTheTile) {
    for (Gate gate : kEveryGate) {
      const Head head = random_head(lengths, gate);
      const Output expected = forgetting_attention::parallel(head);
      for (const Blocks& blocks : kBlockSizes) {
        SCOPED_TRACE(describe(lengths, gate) + ", blocks of " + std::to_string(blocks.query) + " × " +
                     std::to_string(blocks.key));
        expect_equal(blockwise::forward(head, blocks), expected);
      }
    }
  }
}

TEST(Blockwise, BackwardEqualsTheGradientsForEveryBlockSize) {
  for (const Lengths& lengths : kLengthsAroundTheTile) {
    for (Gate gate : kEveryGate) {
      const Head head = random_head(lengths, gate);
      const Matrix<double> values_gradient = random_values_gradient(head);
      const Gradients expected = forgetting_attention::gradients(head, values_gradient);
      for (const Blocks& blocks : kBlockSizes) {
        SCOPED_TRACE(describe(lengths, gate) + ", blocks of " + std::to_string(blocks.query) + " × " +
                     std::to_string(blocks.key));
        const Output output = blockwise::forward(head, blocks);
        const Gradients actual = blockwise::backward(head, output, values_gradient, blocks);
        EXPECT_EQ(actual.log_forget[0], 0.0);
        for (Input input : kEveryInput) {
          const Agreement agreement =
              compare(entries(actual, input), entries(expected, input), budget(Dtype::kFloat64), 1e-2);
          EXPECT_TRUE(agreement.passed()) << input_name(input) << ": " << agreement.describe();
        }
      }
    }
  }
}

// Attention in which the pruned keys do not exist: the definition for what a pruned pass computes.
Output without_pruned_keys(const Head& head, Blocks blocks, double threshold) {
  const auto boundary = computation_pruning::boundary_by_walk(head.log_forget, head.query.rows(), blocks, threshold);
  Output output;
  output.values.resize(head.query.rows(), head.value.cols());
  output.log_normalizer.resize(head.query.rows());
  for (Eigen::Index row = 0; row < head.query.rows(); ++row) {
    const Eigen::Index first = boundary[row / blocks.query] * blocks.key;
    const Eigen::Index kept = head.key.rows() - head.query.rows() + row + 1 - first;
    const Head alone{head.query.row(row), head.key.middleRows(first, kept), head.value.middleRows(first, kept),
                     head.log_forget.segment(first, kept), head.scale};
    const Output one = forgetting_attention::recurrent(alone);
    output.values.row(row) = one.values;
    output.log_normalizer[row] = one.log_normalizer[0];
  }
  return output;
}

TEST(Blockwise, PrunedForwardIsAttentionInWhichThePrunedKeysDoNotExist) {
  int64_t skipped = 0;
  for (const Lengths& lengths : kLengthsAroundTheTile) {
    for (Gate gate : kEveryGate) {
      const Head head = random_head(lengths, gate);
      for (const Blocks& blocks : kBlockSizes) {
        for (double threshold : {-0.5, -17.25}) {
          SCOPED_TRACE(describe(lengths, gate));
          expect_equal(blockwise::forward(head, blocks, threshold), without_pruned_keys(head, blocks, threshold));
          const auto boundary =
              computation_pruning::boundary_by_walk(head.log_forget, lengths.query, blocks, threshold);
          skipped += std::accumulate(boundary.begin(), boundary.end(), int64_t{0});
        }
      }
    }
  }
  EXPECT_GT(skipped, 0);
}

TEST(Blockwise, PrunedBackwardIsTheGradientOfThePrunedForward) {
  constexpr Blocks kBlocks{4, 3};
  constexpr double kThreshold = -2.0;
  for (Gate gate : {Gate::kInitial, Gate::kStrong, Gate::kSpiky, Gate::kCutting}) {
    Head head = random_head({40, 48}, gate);
    const auto boundary = computation_pruning::boundary_by_walk(head.log_forget, 40, kBlocks, kThreshold);
    ASSERT_GT(boundary.back(), 0) << "nothing is pruned";
    const Matrix<double> values_gradient = random_values_gradient(head);
    const auto loss = [&] {
      return blockwise::forward(head, kBlocks, kThreshold).values.cwiseProduct(values_gradient).sum();
    };
    const Output output = blockwise::forward(head, kBlocks, kThreshold);
    Gradients gradients = blockwise::backward(head, output, values_gradient, kBlocks, kThreshold);
    for (Input input : kEveryInput) {
      const std::vector<double> expected = finite_differences(loss, entries(head, input), input == Input::kLogForget);
      const Agreement agreement = compare(entries(gradients, input), expected, 1e-9, 1e-3);
      EXPECT_TRUE(agreement.passed()) << input_name(input) << ", " << gate_name(gate) << ": " << agreement.describe();
    }
  }
}

TEST(Blockwise, PrunedValuesMoveByNoMoreThanTheDiscardedWeightAllows) {
  constexpr Blocks kBlocks{16, 16};
  for (Gate gate : kEveryGate) {
    for (const Head& head : random_heads({65, 257}, gate)) {
      const double bound = computation_pruning::logit_bound_from_norms(head);
      const double threshold = computation_pruning::threshold(bound, 257, std::log(1e-3));
      const Output pruned = blockwise::forward(head, kBlocks, threshold), whole = blockwise::forward(head, kBlocks);
      // o' − o = w (mean of the kept values − mean of the discarded ones), and w < ε.
      const double widest = 2.0 * head.value.rowwise().norm().maxCoeff();
      EXPECT_LE((pruned.values - whole.values).rowwise().norm().maxCoeff(), 1e-3 * widest) << gate_name(gate);
      // L' = L + log(1 − w)
      EXPECT_LE((whole.log_normalizer - pruned.log_normalizer).maxCoeff(), -std::log1p(-1e-3));
    }
  }
}

TEST(Blockwise, AThresholdThatPrunesNothingIsBitIdenticalToNone) {
  const double none = computation_pruning::threshold(8.0, 257, -std::numeric_limits<double>::infinity());
  for (Gate gate : kEveryGate) {
    const Head head = random_head({257, 257}, gate);
    const Matrix<double> values_gradient = random_values_gradient(head);
    const Output expected = blockwise::forward(head, {16, 32}), output = blockwise::forward(head, {16, 32}, none);
    EXPECT_EQ(output.values, expected.values);
    EXPECT_EQ(output.log_normalizer, expected.log_normalizer);
    const Gradients gradients = blockwise::backward(head, output, values_gradient, {16, 32}, none);
    EXPECT_EQ(gradients.key, blockwise::backward(head, expected, values_gradient, {16, 32}).key);
  }
}

TEST(Blockwise, RefusesWrongArgumentsByName) {
  const Head head = random_head({8, 8}, Gate::kInitial);
  const Output output = blockwise::forward(head, {4, 4});
  EXPECT_THROW(blockwise::forward(head, {0, 4}), std::invalid_argument);
  EXPECT_THROW(blockwise::forward(head, {4, 4}, 0.5), std::invalid_argument);
  EXPECT_THROW(blockwise::backward(head, output, Matrix<double>::Zero(7, 3), {4, 4}), std::invalid_argument);
  EXPECT_THROW(blockwise::backward(head, Output{}, Matrix<double>::Zero(8, 3), {4, 4}), std::invalid_argument);
}

}  // namespace
}  // namespace lethe
