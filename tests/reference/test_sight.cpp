// A sliding window and packed sequences: beside the definition, a pair at a time, and beside each sequence by itself.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reference/forgetting_attention.hpp"
#include "reference/local_attention.hpp"
#include "tests/support/heads.hpp"
#include "tests/support/matrices.hpp"

namespace lethe {
namespace {

using Eigen::Index;
using namespace reference::forgetting_attention;

constexpr Index kTokens = 60;
const std::vector<Index> kPacked{0, 7, 7, 8, 31, kTokens};

// The definition: weights of pairs, with D added gate by gate.
Output by_definition(const Head& head, Index window, const std::vector<Index>& cu_seqlens) {
  Output output;
  output.values.setZero(head.query.rows(), head.value.cols());
  output.log_normalizer.resize(head.query.rows());
  const auto same_sequence = [&](Index i, Index j) {
    for (size_t n = 1; n < cu_seqlens.size(); ++n)
      if (j < cu_seqlens[n] && cu_seqlens[n] <= i) return false;  // a boundary is between them
    return true;
  };
  for (Index row = 0; row < head.query.rows(); ++row) {
    const Index i = head.key.rows() - head.query.rows() + row;
    double sum = 0, decay = 0;
    for (Index j = i; j >= 0; decay += head.log_forget[j--]) {
      if (i - j >= window || !same_sequence(i, j)) continue;
      const double weight = std::exp(head.scale * head.query.row(row).dot(head.key.row(j)) + decay);
      sum += weight;
      output.values.row(row) += weight * head.value.row(j);
    }
    output.values.row(row) /= sum;
    output.log_normalizer[row] = std::log(sum);
  }
  return output;
}

void expect_equal(const Output& actual, const Output& expected) {
  EXPECT_LT(relative_error(actual.values, expected.values), kExact);
  EXPECT_LT((actual.log_normalizer - expected.log_normalizer).cwiseAbs().maxCoeff(), 1e-11);
}

TEST(Sight, IsThatOfTheDefinitionInBothForms) {
  for (const Gate gate : {Gate::kOpen, Gate::kInitial, Gate::kSpiky, Gate::kZero}) {
    for (const Lengths lengths : {Lengths{kTokens, kTokens}, Lengths{13, kTokens}}) {
      const Head head = random_head(lengths, gate);
      for (const Index window : {Index{1}, Index{2}, Index{9}, kTokens, std::numeric_limits<Index>::max()}) {
        for (const auto& cu_seqlens : {std::vector<Index>{}, kPacked}) {
          if (!cu_seqlens.empty() && lengths.query < lengths.key) continue;
          SCOPED_TRACE(describe(lengths, gate) + ", window " + std::to_string(window));
          const Output expected = by_definition(head, window, cu_seqlens);
          expect_equal(recurrent_within(head, {window, cu_seqlens}), expected);
          expect_equal(parallel_within(head, {window, cu_seqlens}), expected);
        }
      }
    }
  }
}

TEST(Sight, OfAWindowWithoutGatesIsLocalAttention) {
  const Head head = random_head({kTokens, kTokens}, Gate::kZero);
  expect_equal(parallel_within(head, {9}), reference::local_attention::parallel(head, 9));
}

TEST(Sight, OfPackedSequencesIsEachByItselfWithItsGradients) {
  const Head head = random_head({kTokens, kTokens}, Gate::kInitial);
  const Matrix<double> values_gradient = random_values_gradient(head);
  for (const Index window : {Index{6}, kTokens}) {
    const Gradients packed = gradients_within(head, {window, kPacked}, values_gradient);
    for (size_t n = 1; n < kPacked.size(); ++n) {
      const Index begin = kPacked[n - 1], length = kPacked[n] - begin;
      if (length == 0) continue;
      const Head alone{head.query.middleRows(begin, length), head.key.middleRows(begin, length),
                       head.value.middleRows(begin, length), head.log_forget.segment(begin, length), head.scale};
      const Matrix<double> arriving = values_gradient.middleRows(begin, length);
      const Gradients expected = gradients_within(alone, {window}, arriving);
      EXPECT_LT((packed.query.middleRows(begin, length) - expected.query).cwiseAbs().maxCoeff(), 1e-12);
      EXPECT_LT((packed.key.middleRows(begin, length) - expected.key).cwiseAbs().maxCoeff(), 1e-12);
      EXPECT_LT((packed.value.middleRows(begin, length) - expected.value).cwiseAbs().maxCoeff(), 1e-12);
      EXPECT_LT((packed.log_forget.segment(begin, length) - expected.log_forget).cwiseAbs().maxCoeff(), 1e-12);
      EXPECT_EQ(packed.log_forget[begin], 0.0) << "a sequence's first gate is in no D";
    }
  }
}

TEST(Sight, OfPackedSequencesIsThatOfCutsAtTheirStarts) {
  Head head = random_head({kTokens, kTokens}, Gate::kInitial);
  const Output packed = parallel_within(head, {.cu_seqlens = kPacked});
  for (size_t n = 0; n + 1 < kPacked.size(); ++n)
    head.log_forget[kPacked[n]] = -std::numeric_limits<double>::infinity();
  expect_equal(packed, parallel(head));
}

TEST(Sight, GradientsOfAWindowAreDifferenceQuotients) {
  Head head = random_head({kTokens, kTokens}, Gate::kInitial);
  const Matrix<double> values_gradient = random_values_gradient(head);
  const Sight sight{9, kPacked};
  const Gradients found = gradients_within(head, sight, values_gradient);
  const auto loss = [&] { return parallel_within(head, sight).values.cwiseProduct(values_gradient).sum(); };
  constexpr double kStep = 1e-5;
  for (const Index token : {Index{1}, Index{8}, Index{20}, Index{45}}) {
    for (const auto& [number, gradient] : {std::pair(&head.log_forget[token], found.log_forget[token]),
                                           std::pair(&head.key(token, 0), found.key(token, 0)),
                                           std::pair(&head.query(token, 1), found.query(token, 1))}) {
      const double before = *number;
      *number = before + kStep;
      const double above = loss();
      *number = before - kStep;
      const double below = loss();
      *number = before;
      EXPECT_NEAR((above - below) / (2 * kStep), gradient, 1e-7) << token;
    }
  }
}

TEST(Sight, NamesTheArgumentOutsideItsDomain) {
  const Head head = random_head({8, 8}, Gate::kZero), fewer = random_head({4, 8}, Gate::kZero);
  EXPECT_THROW(parallel_within(head, {0}), std::invalid_argument);
  for (const auto& wrong : std::vector<std::vector<Index>>{{0}, {1, 8}, {0, 7}, {0, 5, 3, 8}})
    EXPECT_THROW(recurrent_within(head, {.cu_seqlens = wrong}), std::invalid_argument);
  EXPECT_THROW(recurrent_within(fewer, {.cu_seqlens = {0, 8}}), std::invalid_argument);
}

}  // namespace
}  // namespace lethe
