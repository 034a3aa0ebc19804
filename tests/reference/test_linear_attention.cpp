// Linear attention with and without a gate: by hand, and the identities that make it attention.

#include "reference/linear_attention.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reference/feature_map.hpp"
#include "reference/gated_linear_attention.hpp"
#include "tests/support/heads.hpp"
#include "tests/support/matrices.hpp"

namespace lethe {
namespace {

namespace gated_linear_attention = reference::gated_linear_attention;
namespace linear_attention = reference::linear_attention;
using reference::Normalized;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<NamedForm> linear_forms(Normalized normalized) {
  reference::Variant variant;
  variant.recurrent = [=](const Head& head) { return linear_attention::recurrent(head, normalized); };
  variant.parallel = [=](const Head& head) { return linear_attention::parallel(head, normalized); };
  variant.chunked = [=](const Head& head, Eigen::Index length) {
    return linear_attention::chunked(head, normalized, length);
  };
  return forms(variant);
}

std::vector<NamedForm> gated_forms(Normalized normalized) {
  reference::Variant variant;
  variant.recurrent = [=](const Head& head) { return gated_linear_attention::recurrent(head, normalized); };
  variant.parallel = [=](const Head& head) { return gated_linear_attention::parallel(head, normalized); };
  variant.chunked = [=](const Head& head, Eigen::Index length) {
    return gated_linear_attention::chunked(head, normalized, length);
  };
  return forms(variant);
}

// A random head of positive features, so that its normalizers are positive.
Head positive_head(const Lengths& lengths, Gate gate) {
  return with_features(random_head(lengths, gate), reference::feature_map::elu_plus_one());
}

// The same without an initial state.
Head fresh(Head head) {
  head.initial_state.resize(0, 0);
  head.initial_normalizer.resize(0);
  return head;
}

// w_ij of o_i = Σ_j w_ij v_j, read off from the values of an identity matrix.
Matrix<double> weights_of(Head head, Normalized normalized) {
  head.value = Matrix<double>::Identity(head.key.rows(), head.key.rows());
  return gated_linear_attention::recurrent(head, normalized).values;
}

TEST(LinearAttention, ByHand) {
  Head head;
  head.query = Matrix<double>{{1, 1}, {1, 0}, {1, 2}};
  head.key = Matrix<double>{{1, 0}, {0, 1}, {1, 1}};
  head.value = Matrix<double>{{2.0}, {3.0}, {5.0}};
  head.scale = 0.5;
  for (const auto& [name, compute] : linear_forms(Normalized::kNo)) {
    // S = (2, 0), (2, 3), (7, 8); q·S = 2, 2, 23
    const Output output = compute(head);
    EXPECT_EQ(output.values, (Matrix<double>{{1.0}, {1.0}, {11.5}})) << name;
    EXPECT_EQ(output.state, (Matrix<double>{{7.0}, {8.0}})) << name;
    EXPECT_EQ(output.normalizer.size(), 0) << name;
  }
  for (const auto& [name, compute] : linear_forms(Normalized::kYes)) {
    // z = (1, 0), (1, 1), (2, 2); q·z = 1, 1, 6
    const Output output = compute(head);
    EXPECT_EQ(output.values, (Matrix<double>{{2.0}, {2.0}, {23 / 6.0}})) << name;
    EXPECT_EQ(output.normalizer, (Vector<double>{{2.0, 2.0}})) << name;
  }
}

// One feature, f = (1/2, 1/2, 1/4), from S_0 = 4 and z_0 = 2.
Head three_tokens() {
  Head head;
  head.query = Matrix<double>::Ones(3, 1);
  head.key = Matrix<double>{{1.0}, {2.0}, {1.0}};
  head.value = Matrix<double>{{1.0}, {4.0}, {3.0}};
  head.log_forget = Vector<double>{{0.5, 0.5, 0.25}}.array().log();
  head.initial_state = Matrix<double>{{4.0}};
  head.initial_normalizer = Vector<double>{{2.0}};
  return head;
}

TEST(GatedLinearAttention, ByHandFromAnInitialStateThatTheFirstGateFades) {
  // S = 4/2 + 1 = 3,  3/2 + 8 = 9.5,  9.5/4 + 3 = 5.375;  z = 2/2 + 1 = 2,  2/2 + 2 = 3,  3/4 + 1 = 1.75
  for (const auto& [name, compute] : gated_forms(Normalized::kNo)) {
    EXPECT_LT(relative_error(compute(three_tokens()).values, Matrix<double>{{3.0}, {9.5}, {5.375}}), 1e-15) << name;
  }
  for (const auto& [name, compute] : gated_forms(Normalized::kYes)) {
    const Output output = compute(three_tokens());
    EXPECT_LT(relative_error(output.values, Matrix<double>{{1.5}, {9.5 / 3}, {5.375 / 1.75}}), 1e-15) << name;
    EXPECT_NEAR(output.state(0, 0), 5.375, 1e-15) << name;
    EXPECT_NEAR(output.normalizer[0], 1.75, 1e-15) << name;
  }
}

TEST(GatedLinearAttention, GradientsByHand) {
  // Loss o_2 = scale · q_2 (f_2 k_1 v_1 + k_2 v_2) = 1/2 · 3 (1/2 · 2 · 7 + 5 · 1) = 18
  Head head;
  head.query = Matrix<double>{{8.0}, {3.0}};
  head.key = Matrix<double>{{2.0}, {5.0}};
  head.value = Matrix<double>{{7.0}, {1.0}};
  head.log_forget = Vector<double>{{-1.0, std::log(0.5)}};
  head.scale = 0.5;
  const Matrix<double> of_second{{0.0}, {1.0}};
  EXPECT_NEAR(gated_linear_attention::recurrent(head, Normalized::kNo).values(1, 0), 18.0, 1e-14);
  const Gradients g = gated_linear_attention::gradients(head, Normalized::kNo, of_second);
  EXPECT_LT(relative_error(g.query, Matrix<double>{{0.0}, {6.0}}), 1e-15);      // 1/2 (7 + 5)
  EXPECT_LT(relative_error(g.key, Matrix<double>{{5.25}, {1.5}}), 1e-15);       // 1/2 · 3 · (1/2 · 7, 1)
  EXPECT_LT(relative_error(g.value, Matrix<double>{{1.5}, {7.5}}), 1e-15);      // 1/2 · 3 · (1/2 · 2, 5)
  EXPECT_LT(relative_error(g.log_forget, Vector<double>{{0.0, 10.5}}), 1e-15);  // 1/2 · 3 · 1/2 · 14
  EXPECT_LT(relative_error(g.initial_state, Matrix<double>{{1.5 * 0.5 * std::exp(-1.0)}}), 1e-15);
}

TEST(LinearAttention, IsGatedLinearAttentionWhoseGatesAreOpen) {
  for (const Head& head : {positive_head({64, 65}, Gate::kZero), positive_head({1, 9}, Gate::kZero)}) {
    for (Normalized normalized : {Normalized::kNo, Normalized::kYes}) {
      const Output expected = linear_attention::recurrent(head, normalized);
      const Output output = gated_linear_attention::recurrent(head, normalized);
      EXPECT_EQ(output.values, expected.values);
      EXPECT_EQ(output.state, expected.state);
      EXPECT_EQ(output.normalizer, expected.normalizer);
    }
  }
}

TEST(LinearAttention, OnPositiveFeaturesIsAnAverageOfTheValuesSoFar) {
  const Head head = fresh(positive_head({65, 65}, Gate::kInitial));
  const Head signed_head = fresh(random_head({65, 65}, Gate::kInitial));
  const auto leaves_the_box = [](const Head& head, const Matrix<double>& values) {
    int left = 0;
    for (Eigen::Index t = 0; t < values.rows(); ++t) {
      const auto past = head.value.topRows(t + 1).array();
      left += (values.row(t).array() > past.colwise().maxCoeff() + kExact).any() ||
              (values.row(t).array() < past.colwise().minCoeff() - kExact).any();
    }
    return left;
  };
  for (const auto& named : {linear_forms(Normalized::kYes), gated_forms(Normalized::kYes)}) {
    for (const auto& [name, compute] : named) {
      EXPECT_EQ(leaves_the_box(head, compute(head).values), 0) << name;
      EXPECT_GT(leaves_the_box(signed_head, compute(signed_head).values), 10) << name << ": features of any sign";
    }
  }
  EXPECT_GT(leaves_the_box(head, linear_attention::parallel(head, Normalized::kNo).values), 10) << "no normalizer";
}

TEST(GatedLinearAttention, WeighsAPairByTheKeepMassBetweenThem) {
  // Eq. 10, term by term: F_ij q_i·k_j over its sum.
  const Head head = fresh(positive_head({20, 20}, Gate::kInitial));
  Matrix<double> expected = Matrix<double>::Zero(20, 20);
  for (Eigen::Index i = 0; i < 20; ++i) {
    for (Eigen::Index j = 0; j <= i; ++j) {
      expected(i, j) = head.query.row(i).dot(head.key.row(j));
      for (Eigen::Index l = j + 1; l <= i; ++l) expected(i, j) *= std::exp(head.log_forget[l]);
    }
  }
  EXPECT_LT(relative_error(weights_of(head, Normalized::kNo), head.scale * expected), kExact);
  const Vector<double> sums = expected.rowwise().sum();
  expected = sums.cwiseInverse().asDiagonal() * expected;
  EXPECT_LT(relative_error(weights_of(head, Normalized::kYes), expected), kExact);
  // The lower limit that Eq. 10 prints, an empty product, would leave the gate out.
  Head open = head;
  open.log_forget.setZero();
  EXPECT_GT(relative_error(weights_of(open, Normalized::kYes), expected), kClearlyWrong);
}

TEST(GatedLinearAttention, AZeroGateClearsTheStateAndNotItsOwnToken) {
  Head packed = positive_head({40, 40}, Gate::kInitial);
  packed.log_forget[15] = -kInfinity;
  Head second = fresh(packed);
  second.query = packed.query.bottomRows(25).eval();
  second.key = packed.key.bottomRows(25).eval();
  second.value = packed.value.bottomRows(25).eval();
  second.log_forget = packed.log_forget.tail(25).eval();
  for (Normalized normalized : {Normalized::kNo, Normalized::kYes}) {
    for (const auto& [name, compute] : gated_forms(normalized)) {
      const Output whole = compute(packed), alone = compute(second);
      EXPECT_LT(relative_error(whole.values.bottomRows(25), alone.values), kExact) << name;
      EXPECT_LT(relative_error(whole.state, alone.state), kExact) << name;
      EXPECT_TRUE(whole.values.allFinite()) << name;
    }
    Matrix<double> later_rows = Matrix<double>::Zero(40, 3);
    later_rows.bottomRows(25).setOnes();
    const Gradients gradients = gated_linear_attention::gradients(packed, normalized, later_rows);
    EXPECT_EQ(gradients.key.topRows(15), (Matrix<double>::Zero(15, 5)));
    EXPECT_EQ(gradients.value.topRows(15), (Matrix<double>::Zero(15, 3)));
    EXPECT_EQ(gradients.initial_state, (Matrix<double>::Zero(5, 3)));
    EXPECT_EQ(gradients.log_forget.head(16), Vector<double>::Zero(16));
    EXPECT_GT(gradients.key.row(15).norm(), 0.0);
  }
}

TEST(GatedLinearAttention, NormalizedIgnoresTheLengthOfAQuery) {
  const Head head = positive_head({17, 33}, Gate::kInitial);
  const Matrix<double> values_gradient = random_values_gradient(head);
  const auto along_the_query = [&](Normalized normalized) -> Vector<double> {
    const Gradients g = gated_linear_attention::gradients(head, normalized, values_gradient);
    return g.query.cwiseProduct(head.query)
        .rowwise()
        .sum()
        .cwiseQuotient(g.query.rowwise().norm().cwiseProduct(head.query.rowwise().norm()));
  };
  EXPECT_LT(along_the_query(Normalized::kYes).cwiseAbs().maxCoeff(), kExact);
  EXPECT_GT(along_the_query(Normalized::kNo).cwiseAbs().maxCoeff(), kClearlyWrong);
  Head longer = head;
  longer.query *= 3.0;
  longer.scale = 7.0;
  EXPECT_LT(relative_error(gated_linear_attention::parallel(longer, Normalized::kYes).values,
                           gated_linear_attention::parallel(head, Normalized::kYes).values),
            kExact);
}

TEST(GatedLinearAttention, InFloatKeepsFloatsBudgetInEveryForm) {
  for (Gate gate : kEveryGate) {
    const BasicHead<float> single = as_float(positive_head({64, 129}, gate));
    const Head head = as_double(single);
    for (Normalized normalized : {Normalized::kNo, Normalized::kYes}) {
      const Matrix<double> expected = gated_linear_attention::recurrent(head, normalized).values;
      for (const Matrix<double>& values :
           {Matrix<double>(gated_linear_attention::recurrent(single, normalized).values.cast<double>()),
            Matrix<double>(gated_linear_attention::parallel(single, normalized).values.cast<double>()),
            Matrix<double>(gated_linear_attention::chunked(single, normalized, 16).values.cast<double>())}) {
        const Agreement agreement = compare(flat(values), flat(expected), budget(Dtype::kFloat32));
        EXPECT_TRUE(agreement.passed()) << gate_name(gate) << ": " << agreement.describe();
      }
    }
  }
}

}  // namespace
}  // namespace lethe
