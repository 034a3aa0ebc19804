// The gradients of the decay rule: identities, and the gates' gradients without stored states.

#include <gtest/gtest.h>

#include <cstdio>

#include "reference/decay_fast_weights.hpp"
#include "tests/support/fast_weights.hpp"

namespace lethe {
namespace {

namespace decay = reference::decay_fast_weights;

constexpr double kClosedGate = -std::numeric_limits<double>::infinity();

// A gate's gradient as a sum has the rounding of all its terms. Under gates of e^-5 the result is 1e-4 of them: four digits
// of sixteen are lost; the rest is a margin.
constexpr double kBudgetOfSums = 1e-11;

Matrix<double> both(const Matrix<double>& left, const Matrix<double>& right) {
  Matrix<double> result(left.rows(), left.cols() + right.cols());
  result << left, right;
  return result;
}
Matrix<double> gates_of(const Gradients& gradients) { return both(gradients.log_key_gate, gradients.log_value_gate); }

// A scalar may move from one gate to the other, so the two gradients have one sum.
TEST(DecayGradients, OfBothGatesHaveTheSameSumAtEveryPosition) {
  for (const StateShape& shape : kStateShapes) {
    for (Gate gate : kEveryGate) {
      const Head head = random_head(shape, gate);
      const LinearLoss loss(head);
      const Gradients gradients = decay::gradients(head, loss.values, loss.state);
      const Matrix<double> rows = gradients.log_key_gate.rowwise().sum(),
                           columns = gradients.log_value_gate.rowwise().sum();
      EXPECT_LE((rows - columns).norm(), kExact * (1 + gates_of(gradients).norm())) << describe(shape);
    }
  }
}

// The output is linear in (value, S_0), in (key, S_0) and in the query.
TEST(DecayGradients, AreTheAdjointOfALinearMap) {
  for (Gate gate : kEveryGate) {
    const Head head = random_head({23, 41, 7, 5}, gate);
    const LinearLoss loss(head);
    const Output output = decay::recurrent(head);
    const Gradients gradients = decay::gradients(head, loss.values, loss.state);
    const double initial = inner(gradients.initial_state, head.initial_state), whole = loss.of(output);
    EXPECT_NEAR(inner(gradients.value, head.value) + initial, whole, 1e-12 * (1 + std::abs(whole)));
    EXPECT_NEAR(inner(gradients.key, head.key) + initial, whole, 1e-12 * (1 + std::abs(whole)));
    const double read = inner(output.values, loss.values);
    EXPECT_NEAR(inner(gradients.query, head.query), read, 1e-12 * (1 + std::abs(read)));
  }
}

TEST(DecayGradients, OfTheFirstGateAreWhatTheInitialStateIsWorth) {
  Head head = random_head({19, 19, 4, 6}, Gate::kInitial);
  const LinearLoss loss(head);
  Gradients gradients = decay::gradients(head, loss.values, loss.state);
  const Matrix<double> worth = head.initial_state.cwiseProduct(gradients.initial_state);
  EXPECT_LE(relative_error(gradients.log_key_gate.row(0), worth.rowwise().sum().transpose()), kExact);
  EXPECT_LE(relative_error(gradients.log_value_gate.row(0), worth.colwise().sum()), kExact);
  head.initial_state = {};
  gradients = decay::gradients(head, loss.values, loss.state);
  EXPECT_EQ(gradients.log_key_gate.row(0).norm(), 0.0);
  EXPECT_EQ(gradients.log_value_gate.row(0).norm(), 0.0);
}

TEST(DecayGradients, NeedNoStoredState) {
  for (const StateShape& shape : kStateShapes) {
    for (Gate gate : kEveryGate) {
      const Head head = random_head(shape, gate);
      const LinearLoss loss(head);
      for (const Matrix<double>& of_state : {loss.state, Matrix<double>()}) {
        const Gradients stored = decay::gradients(head, loss.values, of_state);
        const Gradients sums = decay::gradients_without_stored_states(head, loss.values, of_state);
        EXPECT_LE((gates_of(sums) - gates_of(stored)).norm(), kBudgetOfSums * gates_of(stored).norm())
            << describe(shape) << ", gate " << gate_name(gate);
        for (auto tensor : {&Gradients::query, &Gradients::key, &Gradients::value, &Gradients::initial_state}) {
          EXPECT_TRUE(bit_equal(sums.*tensor, stored.*tensor)) << describe(shape);
        }
      }
    }
  }
}

TEST(DecayGradients, NeedNoStoredStateForGatesFromExactlyZeroToExactlyOne) {
  for (const StateShape& shape : kStateShapes) {
    Head head = random_head(shape, Gate::kZero);
    head.log_key_gate = mixed_gates(shape.keys, shape.key_dim, 3);
    head.log_value_gate = mixed_gates(shape.keys, shape.value_dim, 4);
    const LinearLoss loss(head);
    const Gradients stored = decay::gradients(head, loss.values, loss.state);
    const Gradients sums = decay::gradients_without_stored_states(head, loss.values, loss.state);
    EXPECT_LE((gates_of(sums) - gates_of(stored)).norm(), kBudgetOfSums * (1 + gates_of(stored).norm()));
  }
}

TEST(DecayGradients, OfAGateOfZeroAreExactlyZeroInBothWays) {
  Head head = random_head({65, 65, 5, 3}, Gate::kInitial);
  head.log_key_gate(20, 2) = head.log_key_gate(41, 0) = head.log_value_gate(30, 1) = kClosedGate;
  head.log_value_gate.row(50).setConstant(kClosedGate);  // nothing passes
  const LinearLoss loss(head);
  for (const Gradients& gradients : {decay::gradients(head, loss.values, loss.state),
                                     decay::gradients_without_stored_states(head, loss.values, loss.state)}) {
    EXPECT_EQ(gradients.log_key_gate(20, 2), 0.0);
    EXPECT_EQ(gradients.log_key_gate(41, 0), 0.0);
    EXPECT_EQ(gradients.log_value_gate(30, 1), 0.0);
    EXPECT_EQ(gradients.log_value_gate.row(50).norm(), 0.0);
    EXPECT_EQ(gradients.log_key_gate.row(50).norm(), 0.0);
    EXPECT_TRUE(gates_of(gradients).allFinite());
  }
}

// The sums restart at a cut: otherwise the rounding of everything after it would remain in every gate before it.
TEST(DecayGradients, BeforeACutKeepNoRoundingFromAfterIt) {
  Head head = random_head({200, 200, 5, 3}, Gate::kZero);
  head.value.bottomRows(100) *= 1e8;
  head.log_key_gate.row(100).setConstant(kClosedGate);
  const Matrix<double> values_gradient = LinearLoss(head).values;
  const Gradients stored = decay::gradients(head, values_gradient);
  const Gradients sums = decay::gradients_without_stored_states(head, values_gradient);
  const Matrix<double> expected = stored.log_key_gate.topRows(100);
  EXPECT_LE(relative_error(sums.log_key_gate.topRows(100), expected), kBudgetOfSums);
  Matrix<double> terms = head.query.cwiseProduct(sums.query) - head.key.cwiseProduct(sums.key);
  for (Eigen::Index t = 198; t >= 0; --t) terms.row(t) += terms.row(t + 1);
  EXPECT_GT(relative_error(terms.topRows(100), expected), 3 * kBudgetOfSums);
}

// From zeros to zeros, each component's sums are equal.
TEST(DecayGradients, SumOutputsAndValuesAlikeAndQueriesAndKeysAlike) {
  for (Gate gate : kEveryGate) {
    Head head = random_head({65, 65, 7, 5}, gate);
    head.initial_state = {};
    const LinearLoss loss(head);
    const Output output = decay::recurrent(head);
    const Gradients gradients = decay::gradients(head, loss.values);
    const Matrix<double> of_outputs = output.values.cwiseProduct(loss.values).colwise().sum();
    const Matrix<double> of_queries = head.query.cwiseProduct(gradients.query).colwise().sum();
    EXPECT_LE(relative_error(head.value.cwiseProduct(gradients.value).colwise().sum(), of_outputs), kExact);
    EXPECT_LE(relative_error(head.key.cwiseProduct(gradients.key).colwise().sum(), of_queries), kExact);
  }
}

TEST(DecayGradients, AsSumsThatStartOneTokenLateOrForgetTheStateAreFarOff) {
  const Head head = random_head({65, 65, 5, 3}, Gate::kInitial);
  const LinearLoss loss(head);
  const Matrix<double> right = decay::gradients(head, loss.values, loss.state).log_key_gate;
  const Gradients sums = decay::gradients_without_stored_states(head, loss.values, loss.state);
  const Matrix<double> terms = head.query.cwiseProduct(sums.query) - head.key.cwiseProduct(sums.key);
  const Matrix<double> end = decay::recurrent(head).state.cwiseProduct(loss.state).rowwise().sum();
  EXPECT_GT(relative_error(sums.log_key_gate - terms, right), kClearlyWrong);  // Σ over s > t
  EXPECT_GT(relative_error(sums.log_key_gate.rowwise() - end.col(0).transpose(), right), kClearlyWrong);
}

// Precision of the sums in float: good where memory is long, poor where gates are strong, since then the gradient is small
// beside its terms. Stored states lose nothing.
TEST(DecayGradients, AsSumsLosePrecisionInFloatUnderStrongGates) {
  // [budgets]
  struct Row {
    Gate gate;
    double stored, sums;  // budgets: four times what was measured
  };
  const Row rows[] = {{Gate::kOpen, 1e-5, 2e-5}, {Gate::kInitial, 5e-7, 8e-5}, {Gate::kStrong, 5e-7, 3e-3}};
  // [/budgets]
  for (const Row& row : rows) {
    const Head head = as_double(as_float(random_head({4096, 4096, 16, 32}, row.gate)));
    const LinearLoss loss(head);
    const BasicHead<float> single = as_float(head);
    const Matrix<float> values = loss.values.cast<float>(), state = loss.state.cast<float>();
    const Matrix<double> expected =
        decay::gradients(head, values.cast<double>().eval(), state.cast<double>().eval()).log_key_gate;
    const auto error_of = [&](const BasicGradients<float>& gradients) {
      return relative_error(gradients.log_key_gate.cast<double>(), expected);
    };
    const double stored = error_of(decay::gradients(single, values, state));
    const double sums = error_of(decay::gradients_without_stored_states(single, values, state));
    std::printf("gate %-8s T = 4096, float: stored states %.1e, sums %.1e\n", gate_name(row.gate).c_str(), stored,
                sums);
    EXPECT_LE(stored, row.stored) << gate_name(row.gate);
    EXPECT_LE(sums, row.sums) << gate_name(row.gate);
    EXPECT_GT(sums, stored) << gate_name(row.gate);
  }
}

}  // namespace
}  // namespace lethe
