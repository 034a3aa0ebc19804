// The additive and the gated rule: by hand, as weighted means, and as special cases of the decay rule.

#include <gtest/gtest.h>

#include <functional>

#include "reference/additive_fast_weights.hpp"
#include "reference/decay_fast_weights.hpp"
#include "reference/feature_map.hpp"
#include "reference/gated_fast_weights.hpp"
#include "reference/gated_linear_attention.hpp"
#include "tests/support/fast_weights.hpp"

namespace lethe {
namespace {

namespace additive = reference::additive_fast_weights;
namespace decay = reference::decay_fast_weights;
namespace gated = reference::gated_fast_weights;
namespace gated_linear = reference::gated_linear_attention;
using reference::Normalized;

constexpr double kLogOfZero = -std::numeric_limits<double>::infinity();

struct GatedForm {
  std::string name;
  std::function<Output(const Head&, Normalized)> compute;
};
template <typename Recurrent, typename Parallel, typename Chunked>
std::vector<GatedForm> forms_of(const Recurrent& recurrent, const Parallel& parallel, const Chunked& chunked) {
  std::vector<GatedForm> result{{"recurrent", recurrent}, {"parallel", parallel}};
  for (Eigen::Index length : {1, 3, 8, 16, 64}) {
    result.push_back({"chunks of " + std::to_string(length),
                      [=](const Head& head, Normalized normalized) { return chunked(head, normalized, length); }});
  }
  return result;
}
std::vector<GatedForm> gated_forms() {
  return forms_of(gated::recurrent<double>, gated::parallel<double>, gated::chunked<double>);
}
std::vector<GatedForm> additive_forms() {
  return forms_of(additive::recurrent<double>, additive::parallel<double>, additive::chunked<double>);
}

// Positive features, which a normalizer needs.
Head positive(Head head) { return reference::with_features(head, reference::feature_map::elu_plus_one()); }

Matrix<double> past(const Matrix<double>& scores) { return scores.triangularView<Eigen::Lower>(); }

// Two tokens of two keys and one value.
Head two_gated_tokens() {
  Head head;
  head.query = head.key = Matrix<double>(2, 2);
  head.query << 1, 1, 2, 4;
  head.key << 1, 2, 3, 1;
  head.value = Vector<double>{{4, 8}};
  return head;
}

TEST(AdditiveFastWeights, ByHand) {
  // S_1 = (4, 8), z_1 = (1, 2); S_2 = (28, 16), z_2 = (4, 3).
  for (const auto& [name, compute] : additive_forms()) {
    EXPECT_EQ(compute(two_gated_tokens(), Normalized::kNo).values, (Vector<double>{{12, 120}})) << name;
    EXPECT_EQ(compute(two_gated_tokens(), Normalized::kYes).values, (Vector<double>{{12.0 / 3, 120.0 / 20}})) << name;
    EXPECT_EQ(compute(two_gated_tokens(), Normalized::kYes).normalizer, (Vector<double>{{4, 3}})) << name;
  }
}

TEST(GatedFastWeights, ByHand) {
  // f = (1/2, 3/4): S_1 = (2, 4), z_1 = (1/2, 1); S_2 = (1.5 + 6, 3 + 2), z_2 = (3/8 + 3/4, 3/4 + 1/4).
  Head head = two_gated_tokens();
  head.log_forget = Vector<double>{{std::log(0.5), std::log(0.75)}};
  for (const auto& [name, compute] : gated_forms()) {
    const Output plain = compute(head, Normalized::kNo), mean = compute(head, Normalized::kYes);
    EXPECT_LE((plain.values - Vector<double>{{6, 35}}).norm(), 1e-13) << name;
    EXPECT_LE((plain.state - Vector<double>{{7.5, 5}}).norm(), 1e-14) << name;
    EXPECT_LE((mean.values - Vector<double>{{6 / 1.5, 35 / 6.25}}).norm(), 1e-14) << name;
    EXPECT_LE((mean.normalizer - Vector<double>{{1.125, 1}}).norm(), 1e-15) << name;
    EXPECT_EQ(plain.normalizer.size(), 0) << name;
  }
}

TEST(GatedFastWeights, ByHandFromAStateThatTheFirstGateFades) {
  Head head = two_gated_tokens();
  head.log_forget = Vector<double>{{std::log(0.5), std::log(0.75)}};
  head.initial_state = Vector<double>{{16, 8}};
  head.initial_normalizer = Vector<double>{{4, 2}};
  for (const auto& [name, compute] : gated_forms()) {
    const Output output = compute(head, Normalized::kYes);  // S_1 = (10, 8), z_1 = (5/2, 2)
    EXPECT_LE((output.values - Vector<double>{{18 / 4.5, (2 * 13.5 + 4 * 8) / (2 * 2.625 + 4 * 1.75)}}).norm(), 1e-14)
        << name;
  }
}

TEST(GatedFastWeights, FormsAgreeForEveryShapeOfTheState) {
  for (const StateShape& shape : kStateShapes) {
    for (Gate gate : {Gate::kInitial, Gate::kStrong, Gate::kCutting}) {
      for (Normalized normalized : {Normalized::kNo, Normalized::kYes}) {
        const Head head = positive(random_head(shape, gate));
        const Output expected = gated::recurrent(head, normalized);
        for (const auto& [name, compute] : gated_forms()) {
          const Output output = compute(head, normalized);
          EXPECT_LE(relative_error(output.values, expected.values), kExact) << name << ", " << describe(shape);
          EXPECT_LE(relative_error(output.state, expected.state), kExact) << name << ", " << describe(shape);
        }
      }
    }
  }
}

TEST(AdditiveFastWeights, AreAttentionWithoutASoftmaxAndTheirNormalizerItsRowSums) {
  const Head head = positive(random_head({37, 37, 5, 7}, Gate::kZero));
  const Matrix<double> scores = past(head.query * head.key.transpose());
  const Matrix<double> products = scores * head.value + head.query * head.initial_state;
  const Vector<double> weights = scores.rowwise().sum() + head.query * head.initial_normalizer;
  for (const auto& [name, compute] : additive_forms()) {
    EXPECT_LE(relative_error(compute(head, Normalized::kNo).values, head.scale * products), kExact) << name;
    EXPECT_LE(relative_error(compute(head, Normalized::kYes).values, weights.cwiseInverse().asDiagonal() * products),
              kExact)
        << name;
  }
}

TEST(GatedFastWeights, NormalizedOnPositiveFeaturesStayBetweenTheValuesTheyHaveSeen) {
  for (Gate gate : {Gate::kOpen, Gate::kInitial, Gate::kStrong}) {
    Head head = positive(random_head({67, 67, 5, 7}, gate));
    head.initial_state = {};
    head.initial_normalizer = {};
    for (const Matrix<double>& values :
         {gated::recurrent(head, Normalized::kYes).values, additive::recurrent(head, Normalized::kYes).values}) {
      for (Eigen::Index t = 0; t < 67; ++t) {
        const auto seen = head.value.topRows(t + 1);
        EXPECT_LE((values.row(t) - seen.colwise().maxCoeff()).maxCoeff(), 1e-13);
        EXPECT_GE((values.row(t) - seen.colwise().minCoeff()).minCoeff(), -1e-13);
      }
    }
  }
}

// w_tj = (1 − f_j) Π_{j < l ≤ t} f_l, each product computed by itself. [T,T]
Matrix<double> weights_of(const Vector<double>& log_gate) {
  Matrix<double> weights = Matrix<double>::Zero(log_gate.size(), log_gate.size());
  for (Eigen::Index t = 0; t < log_gate.size(); ++t) {
    for (Eigen::Index j = 0; j <= t; ++j) {
      weights(t, j) = 1 - std::exp(log_gate[j]);
      for (Eigen::Index l = j + 1; l <= t; ++l) weights(t, j) *= std::exp(log_gate[l]);
    }
  }
  return weights;
}

// Read off the rule itself, with a single key of one and the tokens' numbers as values.
TEST(GatedFastWeights, WeightsOfAllTokensSumToOneMinusTheProductOfGates) {
  for (Gate gate : {Gate::kOpen, Gate::kInitial, Gate::kStrong, Gate::kCutting}) {
    Head head = random_head({37, 37, 1, 37}, gate);
    head.query.setOnes();
    head.key.setOnes();
    head.value.setIdentity();
    head.scale = 1;
    head.initial_state = {};
    for (const auto& [name, compute] : gated_forms()) {
      const Matrix<double> weights = compute(head, Normalized::kNo).values;
      EXPECT_LE(relative_error(weights, weights_of(head.log_forget)), 1e-11) << name;  // 1 − f of open gates: 1e-4 left
      double open = 1;
      for (Eigen::Index t = 0; t < 37; ++t) {
        open *= std::exp(head.log_forget[t]);
        EXPECT_NEAR(weights.row(t).sum(), 1 - open, 1e-13) << name;
      }
    }
  }
}

TEST(GatedFastWeights, NormalizedAreTheMeanUnderTheStickAndTheFeatures) {
  for (Gate gate : {Gate::kInitial, Gate::kStrong}) {
    Head head = positive(random_head({37, 37, 5, 7}, gate));
    head.initial_state = {};
    head.initial_normalizer = {};
    const Matrix<double> weights = weights_of(head.log_forget).cwiseProduct(past(head.query * head.key.transpose()));
    const Matrix<double> expected = weights.rowwise().sum().cwiseInverse().asDiagonal() * (weights * head.value);
    for (const auto& [name, compute] : gated_forms()) {
      EXPECT_LE(relative_error(compute(head, Normalized::kYes).values, expected), kExact) << name;
    }
  }
}

TEST(GatedFastWeights, NormalizedIgnoreTheWriteFactorOfAConstantGateOnly) {
  Head head = positive(random_head({37, 37, 5, 7}, Gate::kInitial));
  head.initial_state = {};
  head.initial_normalizer = {};
  Head constant = head;
  constant.log_forget.setConstant(-0.3);
  const auto error = [](const Head& h) {
    return relative_error(gated_linear::parallel(h, Normalized::kYes).values,
                          gated::parallel(h, Normalized::kYes).values);
  };
  EXPECT_LE(error(constant), kExact);
  EXPECT_GT(error(head), 3 * budget(Dtype::kBFloat16));
}

TEST(GatedFastWeights, EqualTheDecayRuleWithTheGateOnEitherSideOrItsRootOnBoth) {
  for (Gate gate : {Gate::kInitial, Gate::kStrong, Gate::kCutting}) {
    const Head head = random_head({37, 37, 5, 7}, gate);
    Head rows = head, both = head;
    rows.value = (1 - head.log_forget.array().exp()).matrix().asDiagonal() * head.value;
    both.value = rows.value;
    rows.log_key_gate = head.log_forget.replicate(1, 5);
    rows.log_value_gate = {};
    both.log_key_gate = rows.log_key_gate / 2;
    both.log_value_gate = head.log_forget.replicate(1, 7) / 2;
    const Output expected = gated::recurrent(head, Normalized::kNo);
    EXPECT_LE(relative_error(decay::chunked(rows, 8).values, expected.values), 1e-11);
    EXPECT_LE(relative_error(decay::chunked(both, 8).state, expected.state), 1e-11);
  }
}

TEST(DecayFastWeights, EqualGatedLinearAttentionWithOneGateForAllRows) {
  for (Gate gate : kEveryGate) {
    Head head = random_head({19, 37, 5, 7}, gate);
    head.log_key_gate = head.log_forget.replicate(1, 5);
    head.log_value_gate = {};
    const LinearLoss loss(head);
    const Gradients actual = decay::gradients(head, loss.values, loss.state);
    const Gradients expected = gated_linear::gradients(head, Normalized::kNo, loss.values, loss.state);
    EXPECT_LE(relative_error(decay::parallel(head).values, gated_linear::parallel(head, Normalized::kNo).values),
              kExact);
    EXPECT_LE(relative_error(actual.key, expected.key), kExact);
    EXPECT_LE(relative_error(actual.initial_state, expected.initial_state), kExact);
    EXPECT_LE(relative_error(actual.log_key_gate.rowwise().sum(), expected.log_forget), kExact) << gate_name(gate);
    head.log_key_gate = {};
    EXPECT_TRUE(bit_equal(decay::recurrent(head).state, additive::recurrent(head, Normalized::kNo).state));
  }
}

TEST(GatedFastWeights, KeepATokenAloneWhereTheGateIsZeroAndIgnoreItWhereItIsOne) {
  Head head = random_head({9, 9, 5, 7}, Gate::kInitial);
  head.log_forget[4] = kLogOfZero;
  head.log_forget[6] = 0;
  for (const auto& [name, compute] : gated_forms()) {
    const Matrix<double> values = compute(head, Normalized::kNo).values;
    const double product = head.scale * head.query.row(4).dot(head.key.row(4));
    EXPECT_LE(relative_error(values.row(4), product * head.value.row(4)), kExact) << name;
    Head other = head;
    other.key.row(6) *= -3;
    EXPECT_EQ(compute(other, Normalized::kNo).values, values) << name;
  }
}

TEST(GatedFastWeights, KeepTheDigitsOfAWriteFactorNearZero) {
  // 1 − exp(log f) of log f = −1e-12 would keep four digits.
  Head head = random_head({1, 1, 3, 2}, Gate::kZero);
  head.log_forget[0] = -1e-12;
  head.initial_state = {};
  const Matrix<double> expected = 1e-12 * head.key.transpose() * head.value;
  EXPECT_LE(relative_error(gated::recurrent(head, Normalized::kNo).state, expected), kExact);
  EXPECT_GT(std::abs((1 - std::exp(-1e-12)) / 1e-12 - 1), 3 * kExact);
}

// Plausible mistakes.
TEST(GatedFastWeights, MistakesExceedThreeTimesTheWidestBudget) {
  const double allowed = 3 * budget(Dtype::kBFloat16);
  for (Gate gate : {Gate::kInitial, Gate::kStrong}) {
    const Head head = positive(random_head({65, 65, 5, 7}, gate));
    for (Normalized normalized : {Normalized::kNo, Normalized::kYes}) {
      const Matrix<double> right = gated::recurrent(head, normalized).values;
      const auto error = [&](const Matrix<double>& values) { return relative_error(values, right); };
      EXPECT_GT(error(gated_linear::recurrent(head, normalized).values), allowed) << "write factor forgotten";
      EXPECT_GT(error(additive::recurrent(head, normalized).values), allowed) << "gate and write factor forgotten";
      Head closed = head;
      closed.key = head.log_forget.array().exp().matrix().asDiagonal() * head.key;
      EXPECT_GT(error(gated_linear::recurrent(closed, normalized).values), allowed) << "write factor f for 1 − f";
      Head late = head;
      late.log_forget.tail(64) = head.log_forget.head(64).eval();
      EXPECT_GT(error(gated::recurrent(late, normalized).values), allowed) << "gate one token late";
    }
    // The write factor on the state alone: the normalizer then still counts whole tokens.
    Head state_only = head;
    state_only.value = (1 - head.log_forget.array().exp()).matrix().asDiagonal() * head.value;
    EXPECT_GT(relative_error(gated_linear::recurrent(state_only, Normalized::kYes).values,
                             gated::recurrent(head, Normalized::kYes).values),
              allowed);
  }
}

}  // namespace
}  // namespace lethe
