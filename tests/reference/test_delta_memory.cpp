// What the delta rule does with what it holds: overwriting, stability, going backwards, and its gradients.

#include <gtest/gtest.h>

#include <Eigen/QR>
#include <Eigen/SVD>
#include <cstdio>

#include "reference/additive_fast_weights.hpp"
#include "reference/agreement.hpp"
#include "reference/delta_fast_weights.hpp"
#include "reference/feature_map.hpp"
#include "reference/gated_delta_fast_weights.hpp"
#include "tests/support/fast_weights.hpp"
#include "tests/support/finite_differences.hpp"

namespace lethe {
namespace {

namespace additive = reference::additive_fast_weights;
namespace delta = reference::delta_fast_weights;
namespace gated_delta = reference::gated_delta_fast_weights;
using reference::Input;
using reference::Normalized;

// As many orthonormal keys as dimensions, each read by its own query; strengths of one, from zeros.
Head orthonormal_keys(Eigen::Index size, Eigen::Index value_dim) {
  Head head;
  head.key = Eigen::HouseholderQR<Matrix<double>>(random_matrix(size, size, 3)).householderQ() *
             Matrix<double>::Identity(size, size);
  head.query = head.key;
  head.value = random_matrix(size, value_dim, 4);
  head.write_strength = Vector<double>::Ones(size);
  return head;
}

// The same with key `again` written once more, as the last token, with another value.
Head rewriting(Head head, Eigen::Index again) {
  const Eigen::Index size = head.key.rows();
  for (Matrix<double>* tensor : {&head.query, &head.key, &head.value}) {
    tensor->conservativeResize(size + 1, Eigen::NoChange);
    tensor->row(size) = tensor->row(again).eval();
  }
  head.value.row(size) = random_matrix(1, head.value.cols(), 5);
  head.write_strength = Vector<double>::Ones(size + 1);
  return head;
}

TEST(DeltaFastWeights, EqualsTheAdditiveRuleOnOrthonormalKeys) {
  const Head head = orthonormal_keys(7, 5);
  const Output output = delta::recurrent(head, Normalized::kNo);
  EXPECT_LE(relative_error(head.key * output.state, head.value), kExact);
  EXPECT_LE(relative_error(output.values, additive::recurrent(head, Normalized::kNo).values), kExact);
  EXPECT_LE(relative_error(output.state, additive::recurrent(head, Normalized::kNo).state), kExact);
}

TEST(DeltaFastWeights, OverwritesOneKeyWhereTheAdditiveRuleAddsUp) {
  const Head first = orthonormal_keys(7, 5), head = rewriting(first, 2);
  const Matrix<double> state = delta::chunked(head, Normalized::kNo, 3).state;
  const Matrix<double> added = additive::recurrent(head, Normalized::kNo).state;
  for (Eigen::Index j = 0; j < 7; ++j) {
    const Matrix<double> expected = j == 2 ? head.value.row(7) : head.value.row(j);
    EXPECT_LE(relative_error(first.key.row(j) * state, expected), kExact) << "key " << j;
  }
  EXPECT_LE(relative_error(first.key.row(2) * added, head.value.row(2) + head.value.row(7)), kExact);
}

TEST(GatedDeltaFastWeights, ReturnsTheNewValueExactlyAfterAnyFading) {
  Head head = random_head({31, 31, 6, 5}, Gate::kInitial);
  head.key.rowwise().normalize();
  head.write_strength.setOnes();
  head.query = head.key;
  head.scale = 1;
  EXPECT_LE(relative_error(gated_delta::recurrent(head).values, head.value), kExact);
  // Corrected first and faded then, a key returns only what the gates have left of its value.
  Matrix<double> state = head.initial_state, returned(31, 5);
  for (Eigen::Index t = 0; t < 31; ++t) {
    state += head.key.row(t).transpose() * (head.value.row(t) - head.key.row(t) * state);
    state = (head.log_key_gate.row(t).array() + head.log_forget[t]).exp().matrix().asDiagonal() * state;
    returned.row(t) = head.key.row(t) * state;
  }
  EXPECT_GT(relative_error(returned, head.value), 3 * budget(Dtype::kBFloat16));
}

// The loss of one token, ½‖Sᵀk − v‖², one step down its measured gradient.
TEST(DeltaFastWeights, IsOneStepOfGradientDescentOnTheErrorOfItsKey) {
  Head head = random_head({1, 1, 5, 3}, Gate::kZero);
  Matrix<double> state = head.initial_state;
  const auto loss = [&] { return 0.5 * (head.key * state - head.value).squaredNorm(); };
  const std::vector<double> gradient =
      finite_differences(loss, std::span(state.data(), static_cast<size_t>(state.size())), false);
  state -= head.write_strength[0] * Eigen::Map<const Matrix<double>>(gradient.data(), 5, 3);
  EXPECT_LE(relative_error(delta::recurrent(head, Normalized::kNo).state, state),
            1e-10);  // as exact as the differences
}

// The largest factor by which a token can grow the state: ‖I − β k kᵀ‖, from the states that the rule computes from the identity.
double gain(double strength, double length) {
  Head head;
  head.key = random_matrix(1, 6, 8).rowwise().normalized() * length;
  head.query = head.key;
  head.value = Matrix<double>::Zero(1, 6);
  head.write_strength = Vector<double>{{strength}};
  head.initial_state = Matrix<double>::Identity(6, 6);
  const Matrix<double> state = delta::recurrent(head, Normalized::kNo).state;
  return Eigen::JacobiSVD<Eigen::MatrixXd>(state).singularValues()[0];
}

TEST(DeltaFastWeights, GrowsBeyondAStrengthTimesSquaredKeyOfTwo) {
  for (double length : {0.5, 1.0, 3.0}) {
    const double square = length * length;
    for (double product : {0.0, 0.3, 1.0, 1.7, 2.0}) EXPECT_NEAR(gain(product / square, length), 1.0, 1e-12) << product;
    EXPECT_NEAR(gain(2.2 / square, length), 1.2, 1e-12);
    EXPECT_NEAR(gain(5.0 / square, length), 4.0, 1e-12);
  }
}

TEST(DeltaFastWeights, DivergesOnOneKeyFromABetaTimesSquareAboveTwo) {
  const auto last = [](double strength) {
    Head head;
    head.key = head.query = Matrix<double>::Ones(400, 1);
    head.value = Matrix<double>::Zero(400, 1);
    head.write_strength = Vector<double>::Constant(400, strength);
    head.initial_state = Matrix<double>::Ones(1, 1);
    return std::abs(delta::recurrent(head, Normalized::kNo).state(0, 0));
  };
  EXPECT_EQ(last(2.0), 1.0);  // reflected for ever
  EXPECT_LT(last(1.9), 1e-18);
  EXPECT_GT(last(2.2), 1e31);
}

TEST(DeltaFastWeights, NeverGrowsOnKeysUnderASumNorm) {
  const Eigen::Index size = 9;
  const auto map = reference::feature_map::sum_normalized(reference::feature_map::elu_plus_one());
  const Matrix<double> keys = map.features(3.0 * random_matrix(500, size, 12));
  const Vector<double> squares = keys.rowwise().squaredNorm();
  EXPECT_GE(squares.minCoeff(), 1.0 / size);
  EXPECT_LE(squares.maxCoeff(), 1.0);
}

// S_{t−1} = S_t − k δᵀ. Each step back rounds once, and nothing decays that could magnify it.
template <typename Scalar>
double error_of_going_back(Eigen::Index length) {
  Head wide = random_head({length, length, 8, 8}, Gate::kInitial);
  wide.key.rowwise().normalize();
  const BasicHead<Scalar> head = head_as<Scalar>(wide);
  Matrix<Scalar> state = head.initial_state, corrections(length, 8);
  for (Eigen::Index t = 0; t < length; ++t) {
    corrections.row(t) = head.write_strength[t] * (head.value.row(t) - head.key.row(t) * state);
    state += head.key.row(t).transpose() * corrections.row(t);
  }
  EXPECT_LE(relative_error(state.template cast<double>(),
                           delta::recurrent(head, Normalized::kNo).state.template cast<double>()),
            budget(std::is_same_v<Scalar, float> ? Dtype::kFloat32 : Dtype::kFloat64));
  for (Eigen::Index t = length - 1; t >= 0; --t) state -= head.key.row(t).transpose() * corrections.row(t);
  return relative_error(state.template cast<double>(), head.initial_state.template cast<double>());
}

TEST(DeltaFastWeights, CanBeRunBackwardsFromItsLastState) {
  for (Eigen::Index length : {64, 4096}) {
    const double in_double = error_of_going_back<double>(length), in_float = error_of_going_back<float>(length);
    std::printf("T = %ld: the initial state comes back within %.1e in double, %.1e in float\n",
                static_cast<long>(length), in_double, in_float);
    EXPECT_LE(in_double, kExact);
    EXPECT_LE(in_float, 1e-5);  // √T roundings of 6e-8, twice
    EXPECT_GT(in_float, in_double);
  }
}

// For the read before the write, which no row of the registry has.
TEST(DeltaGradients, OfTheReadBeforeTheWriteEqualFiniteDifferences) {
  for (const StateShape& shape : {StateShape{1, 1, 4, 3}, StateShape{13, 13, 3, 5}, StateShape{7, 17, 5, 3}}) {
    Head head = random_head(shape, Gate::kInitial);
    head.key.rowwise().normalize();
    const LinearLoss loss(head);
    Gradients gradients = delta::gradients_reading_first(head, loss.values, loss.state);
    const auto of_head = [&] { return loss.of(delta::recurrent_reading_first(head)); };
    for (Input input : {Input::kQuery, Input::kKey, Input::kValue, Input::kWriteStrength, Input::kInitialState}) {
      const std::vector<double> expected = finite_differences(of_head, entries(head, input), false);
      const Agreement agreement = compare(entries(gradients, input), expected, 1e-9);
      EXPECT_TRUE(agreement.passed()) << input_name(input) << ": " << agreement.describe() << ", " << describe(shape);
    }
    Gradients after = delta::gradients(head, Normalized::kNo, loss.values, loss.state);
    EXPECT_GT(relative_error(after.key, gradients.key), kClearlyWrong) << describe(shape);
  }
}

TEST(DeltaGradients, AreTheAdjointOfALinearMapOfValueAndInitialState) {
  for (Gate gate : kEveryGate) {
    Head head = random_head({23, 41, 7, 5}, gate);
    head.key.rowwise().normalize();
    const LinearLoss loss(head);
    const auto adjoint = [&](const Gradients& gradients) {
      return inner(gradients.value, head.value) + inner(gradients.initial_state, head.initial_state);
    };
    const double of_delta = loss.of(delta::recurrent(head, Normalized::kNo)),
                 of_gated = loss.of(gated_delta::recurrent(head));
    EXPECT_NEAR(adjoint(delta::gradients(head, Normalized::kNo, loss.values, loss.state)), of_delta,
                1e-12 * (1 + std::abs(of_delta)));
    EXPECT_NEAR(adjoint(gated_delta::gradients(head, loss.values, loss.state)), of_gated,
                1e-12 * (1 + std::abs(of_gated)));
  }
}

// A normalized output does not change with the length of its query.
TEST(DeltaGradients, OfANormalizedQueryAreOrthogonalToIt) {
  Head head = random_head({23, 41, 7, 5}, Gate::kInitial);
  head = reference::with_features(head, reference::feature_map::sum_normalized(reference::feature_map::elu_plus_one()));
  const LinearLoss loss(head);
  const Gradients gradients = delta::gradients(head, Normalized::kYes, loss.values, loss.state);
  for (Eigen::Index row = 0; row < 23; ++row) {
    EXPECT_NEAR(gradients.query.row(row).dot(head.query.row(row)), 0.0, 1e-12 * gradients.query.norm());
  }
}

}  // namespace
}  // namespace lethe
