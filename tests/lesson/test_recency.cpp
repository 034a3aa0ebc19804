// The recency bias: its bound, where the bound is void, and how it fails.

#include <algorithm>

#include "reference/computation_pruning.hpp"
#include "reference/layers/rms_norm.hpp"
#include "tests/lesson/by_hand.hpp"

namespace lethe::lesson {
namespace {

namespace computation_pruning = reference::computation_pruning;

// The largest P_ij / (f̄^(i−j) exp(budget)) over j < i.
double share_of_bound(const Head& head, double log_largest_gate, double budget) {
  const Matrix<double> weights = attention_weights(head);
  double share = 0;
  for (Eigen::Index i = 0; i < weights.rows(); ++i) {
    for (Eigen::Index j = 0; j < i; ++j) {
      share = std::max(share, weights(i, j) / std::exp(static_cast<double>(i - j) * log_largest_gate + budget));
    }
  }
  return share;
}

// The last query's weight on token `needle`, which alone has a logit of 20; all gates are open but one.
double weight_on_needle(Eigen::Index needle, Eigen::Index gate, double log_forget) {
  constexpr Eigen::Index kLength = 40;
  Matrix<double> logits = Matrix<double>::Zero(kLength, kLength);
  logits.col(needle).setConstant(20.0);
  Vector<double> gates = Vector<double>::Zero(kLength);
  gates[gate] = log_forget;
  return attention_weights(head_of_logits(logits, gates))(kLength - 1, needle);
}

TEST(RecencyBias, BoundedLogitsAndGatesBoundEveryWeightByAGeometricDecay) {
  double largest_share = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const double bound = 0.25 * static_cast<double>(1 + seed % 8);
    const double log_largest_gate = std::log(0.5 + 0.02 * static_cast<double>(seed));
    const Matrix<double> logits = bound * random_matrix(24, 24, seed).array().tanh();
    const Vector<double> log_forget = log_largest_gate - random_matrix(24, 1, 100 + seed).array().abs();
    const double share = share_of_bound(head_of_logits(logits, log_forget), log_largest_gate, 2 * bound);
    EXPECT_LE(share, 1.0) << seed;
    largest_share = std::max(largest_share, share);
  }
  RecordProperty("largest_share_of_bound", std::to_string(largest_share));
}

TEST(RecencyBias, TwoTokensNearlyReachTheBound) {
  const double bound = 2.0, log_largest_gate = std::log(1e-4);
  const Matrix<double> logits{{0, 0}, {bound, -bound}};
  const Head head = head_of_logits(logits, Vector<double>{{0.0, log_largest_gate}});
  EXPECT_LE(share_of_bound(head, log_largest_gate, 2 * bound), 1.0);
  EXPECT_GT(share_of_bound(head, log_largest_gate, 2 * bound), 0.99);
  EXPECT_GT(share_of_bound(head, log_largest_gate, bound), 1.0);
}

TEST(RecencyBias, WithoutABoundOneLargeLogitOutweighsFiftyGates) {
  constexpr Eigen::Index kLength = 51;
  const Vector<double> log_forget = Vector<double>::Constant(kLength, std::log(0.9));
  Matrix<double> logits = Matrix<double>::Zero(kLength, kLength);
  EXPECT_LT(attention_weights(head_of_logits(logits, log_forget))(50, 0), 0.001);
  logits(50, 0) = 20.0;
  EXPECT_LT(std::exp(50 * std::log(0.9)), 0.0052);
  EXPECT_GT(attention_weights(head_of_logits(logits, log_forget))(50, 0), 0.9999);
}

TEST(RecencyBias, QkNormBoundsTheLogitsByItsLearnedGainsAlone) {
  constexpr Eigen::Index kDim = 16;
  const double scale = 1 / std::sqrt(static_cast<double>(kDim));
  const Matrix<double> raw = 100.0 * random_matrix(30, kDim, 1);
  const auto largest_logit = [&](double gain, const Matrix<double>& query, const Matrix<double>& key) {
    const Vector<double> gains = Vector<double>::Constant(kDim, gain);
    const Matrix<double> q = reference::layers::rms_norm<double>(query, gains, 1, 1e-5);
    const Matrix<double> k = reference::layers::rms_norm<double>(key, gains, 1, 1e-5);
    return (scale * q * k.transpose()).cwiseAbs().maxCoeff();
  };
  for (double gain : {0.5, 1.0, 2.0}) {
    const Vector<double> gains = Vector<double>::Constant(kDim, gain);
    const double bound = computation_pruning::logit_bound_from_gains(gains, gains, scale);
    EXPECT_NEAR(bound, gain * gain * std::sqrt(static_cast<double>(kDim)), kExact);
    EXPECT_LE(largest_logit(gain, raw, random_matrix(30, kDim, 2)), bound);
    EXPECT_NEAR(largest_logit(gain, raw, 3.0 * raw) / bound, 1.0, 1e-6) << "aligned vectors reach it";
  }
}

TEST(RecencyBias, AtHeadDim64AndGatesOfNineTenthsTheBoundIsVoidFor151Tokens) {
  const Vector<double> gains = Vector<double>::Ones(64);
  const double bound = computation_pruning::logit_bound_from_gains(gains, gains, 1 / 8.0);
  EXPECT_EQ(bound, 8.0);
  const auto bound_on_weight = [&](double gap) { return std::exp(gap * std::log(0.9) + 2 * bound); };
  EXPECT_GT(bound_on_weight(151), 1.0);
  EXPECT_LT(bound_on_weight(152), 1.0);

  // No bound could: such logits put nearly the whole weight 100 tokens back.
  Matrix<double> logits = Matrix<double>::Constant(101, 101, -bound);
  logits(100, 0) = bound;
  const Vector<double> log_forget = Vector<double>::Constant(101, std::log(0.9));
  EXPECT_GT(attention_weights(head_of_logits(logits, log_forget))(100, 0), 0.9);
}

TEST(RecencyBias, OneClosedGateBetweenNeedleAndQueryLosesTheNeedle) {
  constexpr Eigen::Index kNeedle = 5;
  EXPECT_GT(weight_on_needle(kNeedle, 20, 0.0), 0.9999);
  double previous = 1.0;
  for (double log_forget : {-5.0, -10.0, -20.0, -40.0}) {
    const double weight = weight_on_needle(kNeedle, 20, log_forget);
    EXPECT_LT(weight, previous) << log_forget;
    previous = weight;
  }
  EXPECT_LT(previous, 1e-8);
  EXPECT_EQ(weight_on_needle(kNeedle, 20, -kInfinity), 0.0);
}

TEST(RecencyBias, AClosedGateAtOrBeforeTheNeedleKeepsIt) {
  constexpr Eigen::Index kNeedle = 5;
  for (Eigen::Index gate : {1, 4, 5}) EXPECT_GT(weight_on_needle(kNeedle, gate, -kInfinity), 0.9999) << gate;
  EXPECT_EQ(weight_on_needle(kNeedle, 6, -kInfinity), 0.0) << "the first gate on the way";
}

}  // namespace
}  // namespace lethe::lesson
