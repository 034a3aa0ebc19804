// Special cases of the decay rule: GLA, HGRN2, and the limits of its own parameters.

#include <gtest/gtest.h>

#include "reference/decay_fast_weights.hpp"
#include "reference/gated_fast_weights.hpp"
#include "reference/gated_linear_attention.hpp"
#include "reference/layers/sigmoid.hpp"
#include "tests/support/fast_weights.hpp"

namespace lethe {
namespace {

namespace decay = reference::decay_fast_weights;
namespace gated = reference::gated_fast_weights;
namespace gated_linear = reference::gated_linear_attention;
using reference::Normalized;

constexpr double kOpen = std::numeric_limits<double>::infinity();  // the logit of a gate of one

std::vector<NamedForm> forms_of_decay() {
  reference::Variant variant;
  variant.recurrent = decay::recurrent<double>;
  variant.parallel = decay::parallel<double>;
  variant.chunked = decay::chunked<double>;
  return forms(variant);
}

// GLA: a pair has the weight Σ_d q_d k_d Π a_d, each product computed by itself.
TEST(DecayFastWeights, WithoutAValueGateIsGlaWhoseKeyDimensionsFadeEachAtItsOwnPace) {
  for (Gate gate : {Gate::kInitial, Gate::kSpiky, Gate::kCutting}) {
    Head head = random_head({29, 29, 4, 6}, gate);
    head.log_value_gate = {};
    Matrix<double> weights = Matrix<double>::Zero(29, 29), initial(29, 4);
    for (Eigen::Index i = 0; i < 29; ++i) {
      Eigen::Array<double, 1, Eigen::Dynamic> product = head.scale * head.query.row(i);
      for (Eigen::Index j = i; j >= 0; --j) {
        weights(i, j) = product.matrix().dot(head.key.row(j));
        for (Eigen::Index d = 0; d < 4; ++d) product[d] *= std::exp(head.log_key_gate(j, d));
      }
      initial.row(i) = product;
    }
    const Matrix<double> expected = weights * head.value + initial * head.initial_state;
    for (const auto& [name, compute] : forms_of_decay()) {
      EXPECT_LE(relative_error(compute(head).values, expected), kExact) << name << ", " << gate_name(gate);
    }
    Head one_pace = head;  // a scalar gate, the mean of the vector's logs, is another rule
    one_pace.log_key_gate = head.log_key_gate.cwiseMax(-20.0).rowwise().mean().replicate(1, 4);
    EXPECT_GT(relative_error(decay::recurrent(one_pace).values, expected), kClearlyWrong) << gate_name(gate);
  }
}

// HGRN2: k = 1 − a, so that each row of the state is a running mean of the values.
TEST(DecayFastWeights, WithKeysOneMinusAAreHgrn2WhoseRowsAreRunningMeans) {
  for (Gate gate : {Gate::kInitial, Gate::kStrong, Gate::kCutting}) {
    Head head = random_head({41, 41, 4, 6}, gate);
    head.log_value_gate = {};
    head.key = -head.log_key_gate.unaryExpr([](double x) { return std::expm1(x); });
    Matrix<double> state = head.initial_state, values(41, 6);
    for (Eigen::Index t = 0; t < 41; ++t) {
      for (Eigen::Index d = 0; d < 4; ++d) {
        state.row(d) += (1 - std::exp(head.log_key_gate(t, d))) * (head.value.row(t) - state.row(d));
      }
      values.row(t) = head.scale * head.query.row(t) * state;
    }
    for (const auto& [name, compute] : forms_of_decay()) {
      EXPECT_LE(relative_error(compute(head).values, values), kExact) << name << ", " << gate_name(gate);
      EXPECT_LE(relative_error(compute(head).state, state), kExact) << name << ", " << gate_name(gate);
    }
    Head ones = head;
    ones.value.setOnes();
    ones.initial_state.setOnes();
    EXPECT_LE((decay::chunked(ones, 8).state.array() - 1).abs().maxCoeff(), 1e-14) << gate_name(gate);
  }
}

// The rule's own parameters: gates σ(W x + b) of an input x [T,D].
struct GateParameters {
  Matrix<double> key_weight, value_weight;  // W_f [K,D], W_z [V,D]
  Vector<double> key_bias, value_bias;      // b_f [K], b_z [V]
};

GateParameters random_parameters(Eigen::Index key_dim, Eigen::Index value_dim, Eigen::Index width) {
  return {random_matrix(key_dim, width, 21), random_matrix(value_dim, width, 22), random_matrix(key_dim, 1, 23),
          random_matrix(value_dim, 1, 24)};
}

Head with_gates(Head head, const Matrix<double>& x, const GateParameters& p) {
  const auto log_gates = [&](const Matrix<double>& weight, const Vector<double>& bias) -> Matrix<double> {
    return reference::layers::log_sigmoid(Matrix<double>((x * weight.transpose()).rowwise() + bias.transpose()));
  };
  head.log_key_gate = log_gates(p.key_weight, p.key_bias);
  head.log_value_gate = log_gates(p.value_weight, p.value_bias);
  return head;
}

// W_z = 0 and b_z → ∞, all rows of W_f and b_f equal: one gate σ(w·x + b), that of the gated rule, whose write factor
// is then applied to the values.
TEST(DecayFastWeights, WithOneKeyGateEqualTheGatedRuleOnValuesTimesOneMinusF) {
  const Matrix<double> x = random_matrix(37, 8, 20);
  const Head head = random_head({37, 37, 5, 7}, Gate::kZero);
  GateParameters parameters = random_parameters(5, 7, 8);
  const Matrix<double> row = parameters.key_weight.row(0);
  parameters.key_weight = row.replicate(5, 1).eval();
  parameters.key_bias.setConstant(0.3);
  Head scalar = head;
  scalar.log_forget = reference::layers::log_sigmoid(Matrix<double>((x * row.transpose()).array() + 0.3));
  const Output expected = gated::recurrent(scalar, Normalized::kNo);
  Head faded = head;
  faded.value = (1 - scalar.log_forget.array().exp()).matrix().asDiagonal() * head.value;
  const auto error = [&](double value_weight, double value_bias) {
    GateParameters p = parameters;
    p.value_weight *= value_weight;
    p.value_bias.setConstant(value_bias);
    return relative_error(decay::chunked(with_gates(faded, x, p), 8).values, expected.values);
  };
  EXPECT_LE(error(0, kOpen), kExact);
  EXPECT_LE(error(0, 40), kExact);  // 1 − σ(40) is 4e-18
  EXPECT_GT(error(0, 4), kClearlyWrong);
  EXPECT_GT(error(1, 4), kClearlyWrong);
}

// W_f = 0: the row gates are the constant σ(b_f), and a pair decays by their power.
TEST(DecayFastWeights, WithoutAGateWeightHaveOneConstantGateARow) {
  Head head = random_head({23, 23, 5, 7}, Gate::kZero);
  head.initial_state = {};
  GateParameters parameters = random_parameters(5, 7, 8);
  parameters.key_weight.setZero();
  parameters.value_weight.setZero();
  parameters.value_bias.setConstant(kOpen);
  const Vector<double> gates = 1 / (1 + (-parameters.key_bias.array()).exp());
  Matrix<double> weights = Matrix<double>::Zero(23, 23);
  for (Eigen::Index i = 0; i < 23; ++i) {
    for (Eigen::Index j = 0; j <= i; ++j) {
      for (Eigen::Index d = 0; d < 5; ++d)
        weights(i, j) += head.query(i, d) * head.key(j, d) * std::pow(gates[d], i - j);
    }
  }
  const Matrix<double> expected = head.scale * weights * head.value;
  for (uint64_t seed : {30, 31}) {
    const Head gated_head = with_gates(head, random_matrix(23, 8, seed), parameters);
    EXPECT_LE(relative_error(decay::parallel(gated_head).values, expected), kExact);
  }
  parameters.key_weight.setOnes();
  const Head seeing = with_gates(head, random_matrix(23, 8, 30), parameters);
  EXPECT_GT(relative_error(decay::parallel(seeing).values, expected), kClearlyWrong);
}

// W_f = 0 and b_f → ∞: each value column is gated linear attention with a gate of its own.
TEST(DecayFastWeights, WithOpenRowGatesGateEachValueColumnByItself) {
  const Matrix<double> x = random_matrix(23, 8, 20);
  GateParameters parameters = random_parameters(5, 3, 8);
  parameters.key_weight.setZero();
  parameters.key_bias.setConstant(kOpen);
  const Head head = with_gates(random_head({23, 23, 5, 3}, Gate::kZero), x, parameters);
  const Output output = decay::chunked(head, 8);
  for (Eigen::Index column = 0; column < 3; ++column) {
    Head alone = head;
    alone.value = head.value.col(column);
    alone.initial_state = head.initial_state.col(column);
    alone.log_forget = head.log_value_gate.col(column);
    const Output expected = gated_linear::recurrent(alone, Normalized::kNo);
    EXPECT_LE(relative_error(output.values.col(column), expected.values), kExact) << column;
    EXPECT_LE(relative_error(output.state.col(column), expected.state), kExact) << column;
    alone.log_forget = head.log_value_gate.col((column + 1) % 3);
    EXPECT_GT(relative_error(output.values.col(column), gated_linear::recurrent(alone, Normalized::kNo).values),
              kClearlyWrong);
  }
}

}  // namespace
}  // namespace lethe
