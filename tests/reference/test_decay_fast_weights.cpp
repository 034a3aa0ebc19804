// The decay rule: by hand, its special cases, and negative controls. Its gradients have a file of their own.

#include <gtest/gtest.h>

#include <functional>

#include "reference/decay_fast_weights.hpp"
#include "tests/support/fast_weights.hpp"

namespace lethe {
namespace {

namespace decay = reference::decay_fast_weights;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

Matrix<double> matrix(std::initializer_list<std::initializer_list<double>> rows) {
  Matrix<double> result(rows.size(), rows.begin()->size());
  Eigen::Index i = 0;
  for (const auto& row : rows) {
    std::ranges::copy(row, result.row(i++).begin());
  }
  return result;
}

// Every form of the rule, under its name.
struct DecayForm {
  std::string name;
  std::function<Output(const Head&)> compute;
};
std::vector<DecayForm> decay_forms() {
  std::vector<DecayForm> result{{"recurrent", decay::recurrent<double>}, {"parallel", decay::parallel<double>}};
  for (Eigen::Index length : {1, 3, 8, 16, 23, 64}) {
    result.push_back({"chunks of " + std::to_string(length), [=](const Head& h) { return decay::chunked(h, length); }});
  }
  return result;
}

Head two_tokens() {
  Head head;
  head.query = matrix({{1, 1}, {2, 4}});
  head.key = matrix({{1, 2}, {1, 0}});
  head.value = matrix({{3, 5}, {2, 1}});
  head.log_key_gate = matrix({{1.0 / 2, 1}, {1.0 / 2, 1.0 / 4}}).array().log();
  head.log_value_gate = matrix({{1, 1.0 / 2}, {1, 1.0 / 5}}).array().log();
  return head;
}

TEST(DecayFastWeights, ByHand) {
  // S_1 = (1,2)ᵀ(3,5). Rows halve and quarter, the second column is cut to a fifth: ((1.5, .5), (1.5, .5)). Then (1,0)ᵀ(2,1).
  const Head head = two_tokens();
  for (const auto& [name, compute] : decay_forms()) {
    const Output output = compute(head);
    EXPECT_LE((output.values - matrix({{9, 15}, {13, 5}})).norm(), 1e-14) << name;
    EXPECT_LE((output.state - matrix({{3.5, 1.5}, {1.5, 0.5}})).norm(), 1e-14) << name;
  }
}

TEST(DecayFastWeights, ByHandFromAnInitialStateThatTheFirstGateFades) {
  // ((4,0),(0,8)) fades to ((2,0),(0,4)) before the first write.
  Head head = two_tokens();
  head.initial_state = matrix({{4, 0}, {0, 8}});
  for (const auto& [name, compute] : decay_forms()) {
    const Output output = compute(head);
    EXPECT_LE((output.values - matrix({{11, 19}, {15, 5.8}})).norm(), 1e-14) << name;
    EXPECT_LE((output.state - matrix({{4.5, 1.5}, {1.5, 0.7}})).norm(), 1e-14) << name;
  }
}

TEST(DecayFastWeights, FormsAgreeForEveryShapeOfTheState) {
  for (const StateShape& shape : kStateShapes) {
    for (Gate gate : kEveryGate) {
      const Head head = random_head(shape, gate);
      const Output expected = decay::recurrent(head);
      for (const auto& [name, compute] : decay_forms()) {
        const Output output = compute(head);
        EXPECT_LE(relative_error(output.values, expected.values), kExact) << name << ", " << describe(shape);
        EXPECT_LE(relative_error(output.state, expected.state), kExact) << name << ", " << describe(shape);
      }
    }
  }
}

// With A_t and B_t the products of all gates up to t, quotients of them are the decays. Gates near one only.
TEST(DecayFastWeights, EqualsTheProductOfQuotientsWhileTheseAreFinite) {
  Head head = random_head({23, 23, 5, 3}, Gate::kOpen);
  head.log_key_gate = -0.1 * random_matrix(23, 5, 1).array().abs();
  head.log_value_gate = -0.1 * random_matrix(23, 3, 2).array().abs();
  Matrix<double> rows = head.log_key_gate, columns = head.log_value_gate;
  for (Eigen::Index t = 1; t < 23; ++t) {
    rows.row(t) += rows.row(t - 1);
    columns.row(t) += columns.row(t - 1);
  }
  const Matrix<double> b = rows.array().exp(), a = columns.array().exp();
  const Matrix<double> query = head.query.cwiseProduct(b), key = head.key.cwiseQuotient(b),
                       value = head.value.cwiseQuotient(a);
  const Matrix<double> scores = (query * key.transpose()).triangularView<Eigen::Lower>();
  const Matrix<double> expected = head.scale * a.cwiseProduct(scores * value + query * head.initial_state);
  EXPECT_LE(relative_error(decay::parallel(head).values, expected), kExact);
  const Matrix<double> state =
      b.row(22).asDiagonal() * (head.initial_state + key.transpose() * value) * a.row(22).asDiagonal();
  EXPECT_LE(relative_error(decay::chunked(head, 8).state, state), kExact);
}

// The rules that it contains, each written out.
TEST(DecayFastWeights, WithoutGatesAddsUpOuterProducts) {
  for (bool absent : {true, false}) {
    Head head = random_head({19, 19, 4, 6}, Gate::kZero);
    if (absent) head.log_key_gate = head.log_value_gate = {};
    const Matrix<double> scores = (head.query * head.key.transpose()).triangularView<Eigen::Lower>();
    const Matrix<double> expected = head.scale * (scores * head.value + head.query * head.initial_state);
    for (const auto& [name, compute] : decay_forms()) {
      const Output output = compute(head);
      EXPECT_LE(relative_error(output.values, expected), kExact) << name;
      EXPECT_LE(relative_error(output.state, head.initial_state + head.key.transpose() * head.value), kExact) << name;
    }
  }
}

TEST(DecayFastWeights, WithOneConstantGateWeighsTokensByItsPower) {
  Head head = random_head({19, 19, 4, 6}, Gate::kZero);
  const double gate = 0.9;
  head.log_key_gate.setConstant(std::log(gate));
  Matrix<double> scores = (head.query * head.key.transpose()).triangularView<Eigen::Lower>();
  Matrix<double> initial = head.query * head.initial_state;
  for (Eigen::Index i = 0; i < 19; ++i) {
    for (Eigen::Index j = 0; j <= i; ++j) scores(i, j) *= std::pow(gate, i - j);
    initial.row(i) *= std::pow(gate, i + 1);
  }
  EXPECT_LE(relative_error(decay::parallel(head).values, head.scale * (scores * head.value + initial)), kExact);
}

TEST(DecayFastWeights, CarriesAScalarGateOnEitherSideOrAsItsRootOnBoth) {
  for (Gate gate : {Gate::kInitial, Gate::kStrong, Gate::kCutting}) {
    const Head head = random_head({29, 29, 4, 6}, gate);
    Head rows = head, columns = head, both = head;
    rows.log_key_gate = head.log_forget.replicate(1, 4);
    columns.log_value_gate = head.log_forget.replicate(1, 6);
    rows.log_value_gate = columns.log_key_gate = {};
    both.log_key_gate = rows.log_key_gate / 2;
    both.log_value_gate = columns.log_value_gate / 2;
    for (const auto& [name, compute] : decay_forms()) {
      const Matrix<double> expected = compute(rows).values;
      EXPECT_LE(relative_error(compute(columns).values, expected), kExact) << name;
      EXPECT_LE(relative_error(compute(both).values, expected), kExact) << name;
    }
  }
}

TEST(DecayFastWeights, TransposedIsItself) {
  // S ↦ Sᵀ changes the parts of key and value, and of their gates.
  const Head head = random_head({17, 17, 4, 6}, Gate::kInitial);
  Head transposed = head;
  std::swap(transposed.key, transposed.value);
  std::swap(transposed.log_key_gate, transposed.log_value_gate);
  transposed.initial_state = head.initial_state.transpose();
  transposed.query = Matrix<double>::Ones(17, 6);
  const Matrix<double> state = decay::recurrent(head).state;
  EXPECT_LE(relative_error(decay::recurrent(transposed).state, state.transpose()), kExact);
}

TEST(DecayFastWeights, IsTheSameHoweverAScalarIsSharedBetweenTheTwoGates) {
  const Head head = random_head({33, 33, 5, 3}, Gate::kStrong);
  Head shared = head;
  const Vector<double> share = 0.3 * random_matrix(33, 1, 5).cwiseAbs();
  shared.log_key_gate.colwise() += share;  // strong gates are below −1
  shared.log_value_gate.colwise() -= share;
  for (const auto& [name, compute] : decay_forms()) {
    EXPECT_LE(relative_error(compute(shared).values, compute(head).values), kExact) << name;
  }
}

// Constant gates s_z, s_f gain at most (1 − s_z)/(1 − s_z s_f) ≤ 1 once the values are scaled by 1 − s_z.
TEST(DecayFastWeights, IsBoundedByTheLargestWriteWhenValuesAreScaledByOneMinusB) {
  const double key_gates[] = {1.0 / 64, 0.5, 1 - 1.0 / 64}, value_gates[] = {1.0 / 64, 0.7, 1 - 1.0 / 64};
  Head head = random_head({1, 2000, 3, 3}, Gate::kZero);
  head.key.setOnes();  // the worst case: all writes have the same sign
  head.initial_state.setZero();
  for (Eigen::Index d = 0; d < 3; ++d) {
    head.log_key_gate.col(d).setConstant(std::log(key_gates[d]));
    head.log_value_gate.col(d).setConstant(std::log(value_gates[d]));
    head.value.col(d).setConstant(1 - value_gates[d]);
  }
  const Matrix<double> state = decay::recurrent(head).state;
  EXPECT_LE(state.maxCoeff(), 1.0);
  for (Eigen::Index k = 0; k < 3; ++k) {
    for (Eigen::Index v = 0; v < 3; ++v) {
      EXPECT_NEAR(state(k, v), (1 - value_gates[v]) / (1 - value_gates[v] * key_gates[k]), 1e-12);
    }
  }
  head.value.setOnes();  // unscaled, the slowest entry of 64 × 64 gains 32
  EXPECT_NEAR(decay::recurrent(head).state(2, 2), 1 / (1 - std::pow(1 - 1.0 / 64, 2)), 1e-10);
}

TEST(DecayFastWeights, AGateOfZeroHidesWhatCameBeforeAndNotItsOwnToken) {
  Head packed = random_head({40, 40, 5, 3}, Gate::kInitial);
  for (Matrix<double>* gate : {&packed.log_key_gate, &packed.log_value_gate}) {
    Head head = packed;
    (gate == &packed.log_key_gate ? head.log_key_gate : head.log_value_gate).row(15).setConstant(kMinusInfinity);
    Head alone = head;
    for (Matrix<double>* tensor :
         {&alone.query, &alone.key, &alone.value, &alone.log_key_gate, &alone.log_value_gate}) {
      *tensor = tensor->bottomRows(25).eval();
    }
    alone.initial_state = {};
    EXPECT_EQ(decay::recurrent(head).values.bottomRows(25), decay::recurrent(alone).values);
    for (const auto& [name, compute] : decay_forms()) {
      EXPECT_LE(relative_error(compute(head).values.bottomRows(25), decay::recurrent(alone).values), kExact) << name;
    }
  }
}

TEST(DecayFastWeights, InFloatKeepsFloatsBudgetInEveryForm) {
  for (Gate gate : kEveryGate) {
    const BasicHead<float> head = as_float(random_head({129, 129, 13, 17}, gate));
    const Output expected = decay::recurrent(as_double(head));
    for (const Matrix<float>& values : {decay::recurrent(head).values, decay::parallel(head).values,
                                        decay::chunked(head, 16).values, decay::chunked(head, 64).values}) {
      EXPECT_LE(relative_error(values.cast<double>(), expected.values), budget(Dtype::kFloat32)) << gate_name(gate);
    }
  }
}

// Plausible mistakes, as a token's step on the state.
struct DecayMistake {
  const char* name;
  bool gate_after_write, read_before_write, no_key_gate, no_value_gate;
};

Matrix<double> mistaken(const Head& head, const DecayMistake& mistake) {
  Matrix<double> state = head.initial_state, values(head.query.rows(), head.value.cols());
  for (Eigen::Index t = 0; t < head.key.rows(); ++t) {
    const auto gate = [&] {
      if (!mistake.no_key_gate) state = head.log_key_gate.row(t).array().exp().matrix().asDiagonal() * state;
      if (!mistake.no_value_gate) state = state * head.log_value_gate.row(t).array().exp().matrix().asDiagonal();
    };
    if (mistake.read_before_write) values.row(t) = head.scale * head.query.row(t) * state;
    if (!mistake.gate_after_write) gate();
    state += head.key.row(t).transpose() * head.value.row(t);
    if (mistake.gate_after_write) gate();
    if (!mistake.read_before_write) values.row(t) = head.scale * head.query.row(t) * state;
  }
  return values;
}

TEST(DecayFastWeights, MistakesExceedThreeTimesTheWidestBudget) {
  const DecayMistake mistakes[] = {{"gate after write", true, false, false, false},
                                   {"read before write", false, true, false, false},
                                   {"key gate ignored", false, false, true, false},
                                   {"value gate ignored", false, false, false, true}};
  for (Gate gate : {Gate::kInitial, Gate::kStrong, Gate::kSpiky}) {
    const Head head = random_head({65, 65, 5, 3}, gate);
    const Matrix<double> right = decay::recurrent(head).values;
    EXPECT_LE(relative_error(mistaken(head, {"none", false, false, false, false}), right), kExact);
    for (const DecayMistake& mistake : mistakes) {
      EXPECT_GT(relative_error(mistaken(head, mistake), right), 3 * budget(Dtype::kBFloat16)) << mistake.name;
    }
  }
}

TEST(DecayFastWeights, RefusesGatesOfAWrongShapeOrSignByName) {
  const auto message_of = [](const Head& head) -> std::string {
    try {
      decay::recurrent(head);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  Head head = random_head({3, 3, 4, 6}, Gate::kInitial);
  head.log_key_gate = Matrix<double>::Zero(3, 5);
  EXPECT_EQ(message_of(head), "log_key_gate: expected 4 columns, found 5");
  head = random_head({3, 3, 4, 6}, Gate::kInitial);
  head.log_value_gate(1, 1) = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(message_of(head), "log_value_gate: expected values <= 0, found a positive one or NaN");
  head = random_head({3, 3, 4, 6}, Gate::kInitial);
  head.initial_state = Matrix<double>::Zero(4, 5);
  EXPECT_EQ(message_of(head), "initial_state: expected 6 columns, as value has, found 5");
}

}  // namespace
}  // namespace lethe
