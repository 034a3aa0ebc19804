// The delta rule and its gated form: worked by hand, against the equations written another way, and against mistakes.

#include <gtest/gtest.h>

#include <Eigen/LU>
#include <functional>

#include "reference/delta_fast_weights.hpp"
#include "reference/feature_map.hpp"
#include "reference/gated_delta_fast_weights.hpp"
#include "tests/support/fast_weights.hpp"

namespace lethe {
namespace {

namespace delta = reference::delta_fast_weights;
namespace gated_delta = reference::gated_delta_fast_weights;
using reference::Normalized;

constexpr double kClosedLogGate = -std::numeric_limits<double>::infinity();

struct DeltaForm {
  std::string name;
  std::function<Output(const Head&)> compute;
};
std::vector<DeltaForm> delta_forms(Normalized normalized = Normalized::kNo) {
  std::vector<DeltaForm> result{{"recurrent", [=](const Head& h) { return delta::recurrent(h, normalized); }},
                                {"parallel", [=](const Head& h) { return delta::parallel(h, normalized); }}};
  for (Eigen::Index length : {1, 3, 8, 16, 23, 64}) {
    result.push_back(
        {"chunks of " + std::to_string(length), [=](const Head& h) { return delta::chunked(h, normalized, length); }});
  }
  return result;
}
std::vector<DeltaForm> gated_delta_forms() {
  std::vector<DeltaForm> result{{"recurrent", gated_delta::recurrent<double>},
                                {"parallel", gated_delta::parallel<double>}};
  for (Eigen::Index length : {1, 3, 8, 16, 23, 64}) {
    result.push_back(
        {"chunks of " + std::to_string(length), [=](const Head& h) { return gated_delta::chunked(h, length); }});
  }
  return result;
}

// Two tokens of two keys and one value, β = 1/2: S_1 = (2, 0)ᵀ; the second key (1, 1) finds 2 where 6 should be, so δ = 2.
Head two_written_tokens() {
  Head head;
  head.query = head.key = Matrix<double>(2, 2);
  head.query << 1, 1, 1, 1;
  head.key << 1, 0, 1, 1;
  head.value = Vector<double>{{4, 6}};
  head.write_strength = Vector<double>{{0.5, 0.5}};
  return head;
}

TEST(DeltaFastWeights, ByHand) {
  for (const auto& [name, compute] : delta_forms()) {
    const Output output = compute(two_written_tokens());
    EXPECT_EQ(output.values, (Vector<double>{{2, 6}})) << name;
    EXPECT_EQ(output.state, (Vector<double>{{4, 2}})) << name;
  }
  EXPECT_EQ(delta::recurrent_reading_first(two_written_tokens()).values, (Vector<double>{{0, 2}}));
}

TEST(DeltaFastWeights, ByHandDividedByAnUngatedSumOfKeys) {
  // z_1 = (1, 0), z_2 = (2, 1): weights 1 and 3.
  for (const auto& [name, compute] : delta_forms(Normalized::kYes)) {
    const Output output = compute(two_written_tokens());
    EXPECT_EQ(output.values, (Vector<double>{{2, 2}})) << name;
    EXPECT_EQ(output.normalizer, (Vector<double>{{2, 1}})) << name;
  }
}

TEST(GatedDeltaFastWeights, ByHand) {
  // S_1 = (2, 0)ᵀ fades by 1/2 and its first row by another 1/2: (1/2, 0). The key finds 1/2 of 6, so δ = 11/4.
  Head head = two_written_tokens();
  head.log_forget = Vector<double>{{0, std::log(0.5)}};
  head.log_key_gate = Matrix<double>::Zero(2, 2);
  head.log_key_gate(1, 0) = std::log(0.5);
  for (const auto& [name, compute] : gated_delta_forms()) {
    const Output output = compute(head);
    EXPECT_LE((output.values - Vector<double>{{2, 6}}).norm(), 1e-14) << name;
    EXPECT_LE((output.state - Vector<double>{{3.25, 2.75}}).norm(), 1e-14) << name;
  }
}

// Bounded: keys of length one.
Head bounded(const StateShape& shape, Gate gate, uint64_t seed = 7) {
  Head head = random_head(shape, gate, seed);
  head.key.rowwise().normalize();
  return head;
}

TEST(DeltaFastWeights, FormsAgreeForEveryShapeOfTheState) {
  for (const StateShape& shape : kStateShapes) {
    for (Gate gate : kEveryGate) {
      const Head head = bounded(shape, gate);
      const Head sums = reference::with_features(
          head, reference::feature_map::sum_normalized(reference::feature_map::elu_plus_one()));
      const auto expect_equal = [&](const std::vector<DeltaForm>& forms, const Head& input) {
        const Output expected = forms.front().compute(input);
        for (const auto& [name, compute] : forms) {
          const Output output = compute(input);
          EXPECT_LE(relative_error(output.values, expected.values), kExact) << name << ", " << describe(shape);
          EXPECT_LE(relative_error(output.state, expected.state), kExact) << name << ", " << describe(shape);
        }
      };
      expect_equal(delta_forms(), head);
      expect_equal(delta_forms(Normalized::kYes), sums);
      expect_equal(gated_delta_forms(), head);
    }
  }
}

// With an explicit inverse, which no form computes.
TEST(DeltaFastWeights, IsASumOfCorrectionsThatSolveOneTriangularSystem) {
  const Head head = bounded({37, 37, 5, 7}, Gate::kInitial);
  const auto strength = head.write_strength.asDiagonal();
  const Matrix<double> coupling = (strength * head.key * head.key.transpose()).triangularView<Eigen::StrictlyLower>();
  const Matrix<double> corrections = (Matrix<double>::Identity(37, 37) + coupling).inverse() *
                                     (strength * (head.value - head.key * head.initial_state));
  const Matrix<double> scores = (head.query * head.key.transpose()).triangularView<Eigen::Lower>();
  const Output output = delta::recurrent(head, Normalized::kNo);
  EXPECT_LE(relative_error(output.values, head.scale * (scores * corrections + head.query * head.initial_state)),
            kExact);
  EXPECT_LE(relative_error(output.state, head.initial_state + head.key.transpose() * corrections), kExact);
}

// δ_t [T,V], from the states between the tokens.
Matrix<double> corrections_of(const Head& head) {
  Matrix<double> corrections(head.value.rows(), head.value.cols()), state = head.initial_state;
  for (Eigen::Index t = 0; t < head.key.rows(); ++t) {
    corrections.row(t) = head.write_strength[t] * (head.value.row(t) - head.key.row(t) * state);
    state += head.key.row(t).transpose() * corrections.row(t);
  }
  return corrections;
}

TEST(DeltaFastWeights, ReadsAfterAndBeforeTheWriteDifferByQKTimesTheCorrection) {
  const Head head = bounded({37, 37, 5, 7}, Gate::kInitial);
  const Output after = delta::recurrent(head, Normalized::kNo), before = delta::recurrent_reading_first(head);
  const Vector<double> products = head.scale * head.query.cwiseProduct(head.key).rowwise().sum();
  EXPECT_LE(relative_error(after.values - before.values, products.asDiagonal() * corrections_of(head)), kExact);
  EXPECT_TRUE(bit_equal(after.state, before.state));
}

// Where a strength of one is all that there is, √β on key and value stands for β, and nothing less does.
TEST(DeltaFastWeights, AbsorbsItsStrengthAsARootInBothKeyAndValueOnly) {
  const Head head = bounded({37, 37, 5, 7}, Gate::kInitial);
  const Matrix<double> right = delta::recurrent(head, Normalized::kNo).values;
  const Vector<double> root = head.write_strength.cwiseSqrt();
  const auto absorbed = [&](const Vector<double>& into_key, const Vector<double>& into_value) -> Matrix<double> {
    Head other = head;
    other.key = into_key.asDiagonal() * head.key;
    other.value = into_value.asDiagonal() * head.value;
    other.write_strength.setOnes();
    return delta::recurrent(other, Normalized::kNo).values;
  };
  const Vector<double> ones = Vector<double>::Ones(37);
  EXPECT_LE(relative_error(absorbed(root, root), right), kExact);
  EXPECT_GT(relative_error(absorbed(root, ones), right), 3 * budget(Dtype::kBFloat16));
  EXPECT_GT(relative_error(absorbed(head.write_strength, ones), right), 3 * budget(Dtype::kBFloat16));
}

TEST(GatedDeltaFastWeights, EqualsTheDeltaRuleWhenNoGateForgets) {
  Head head = bounded({37, 37, 5, 7}, Gate::kZero);
  const Output expected = delta::recurrent(head, Normalized::kNo);
  EXPECT_TRUE(bit_equal(gated_delta::recurrent(head).values, expected.values));
  head.log_forget = {};
  head.log_key_gate = {};
  EXPECT_TRUE(bit_equal(gated_delta::recurrent(head).state, expected.state));
  EXPECT_EQ(gated_delta::gradients(head, LinearLoss(head).values).log_forget.size(), 0);
  EXPECT_EQ(gated_delta::gradients(head, LinearLoss(head).values).log_key_gate.size(), 0);
}

TEST(GatedDeltaFastWeights, MultipliesItsTwoGates) {
  const Head head = bounded({37, 37, 5, 7}, Gate::kCutting);
  Head rows = head, scalar = head;
  rows.log_forget = {};
  rows.log_key_gate = head.log_key_gate.colwise() + head.log_forget;
  EXPECT_TRUE(bit_equal(gated_delta::recurrent(rows).values, gated_delta::recurrent(head).values));
  scalar.log_key_gate = {};
  rows.log_key_gate = head.log_forget.replicate(1, 5);
  EXPECT_TRUE(bit_equal(gated_delta::recurrent(rows).values, gated_delta::recurrent(scalar).values));
}

TEST(GatedDeltaFastWeights, AGateOfZeroHidesWhatCameBeforeAndNotItsOwnToken) {
  Head head = bounded({40, 40, 5, 3}, Gate::kInitial);
  head.log_forget[15] = kClosedLogGate;
  Head alone = head;
  for (Matrix<double>* tensor : {&alone.query, &alone.key, &alone.value, &alone.log_key_gate}) {
    *tensor = tensor->bottomRows(25).eval();
  }
  for (Vector<double>* tensor : {&alone.log_forget, &alone.write_strength}) *tensor = tensor->tail(25).eval();
  alone.initial_state = {};
  for (const auto& [name, compute] : gated_delta_forms()) {
    EXPECT_LE(relative_error(compute(head).values.bottomRows(25), gated_delta::recurrent(alone).values), kExact)
        << name;
  }
}

// Plausible mistakes, as a token's step on the state.
struct DeltaMistake {
  const char* name;
  bool gate_after_write, read_before_write, no_strength, no_gates, correct_before_gate;
};

Matrix<double> mistaken(const Head& head, const DeltaMistake& mistake) {
  Matrix<double> state = head.initial_state, values(head.query.rows(), head.value.cols());
  for (Eigen::Index t = 0; t < head.key.rows(); ++t) {
    const auto fade = [&] {
      if (!mistake.no_gates)
        state = (head.log_key_gate.row(t).array() + head.log_forget[t]).exp().matrix().asDiagonal() * state;
    };
    const auto correction = [&]() -> Matrix<double> {
      return (mistake.no_strength ? 1.0 : head.write_strength[t]) * (head.value.row(t) - head.key.row(t) * state);
    };
    if (mistake.read_before_write) values.row(t) = head.scale * head.query.row(t) * state;
    Matrix<double> written = correction();
    if (!mistake.gate_after_write) fade();
    if (!mistake.correct_before_gate) written = correction();
    state += head.key.row(t).transpose() * written;
    if (mistake.gate_after_write) fade();
    if (!mistake.read_before_write) values.row(t) = head.scale * head.query.row(t) * state;
  }
  return values;
}

TEST(GatedDeltaFastWeights, MistakesExceedThreeTimesTheWidestBudget) {
  const DeltaMistake mistakes[] = {{"gate after write", true, false, false, false, false},
                                   {"read before write", false, true, false, false, false},
                                   {"strength ignored", false, false, true, false, false},
                                   {"gates ignored", false, false, false, true, false},
                                   {"correction of what has not yet faded", false, false, false, false, true}};
  for (Gate gate : {Gate::kInitial, Gate::kSpiky}) {
    const Head head = bounded({65, 65, 5, 3}, gate);
    const Matrix<double> right = gated_delta::recurrent(head).values;
    EXPECT_LE(relative_error(mistaken(head, {"none", false, false, false, false, false}), right), kExact);
    for (const DeltaMistake& mistake : mistakes) {
      EXPECT_GT(relative_error(mistaken(head, mistake), right), 3 * budget(Dtype::kBFloat16))
          << mistake.name << ", gate " << gate_name(gate);
    }
  }
}

TEST(DeltaFastWeights, RefusesStrengthsOfAWrongShapeOrSign) {
  const auto message_of = [](const Head& head) -> std::string {
    try {
      delta::recurrent(head, Normalized::kNo);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  Head head = bounded({3, 3, 4, 6}, Gate::kInitial);
  head.write_strength[1] = -0.5;
  EXPECT_EQ(message_of(head), "write_strength: expected values >= 0, found a negative one or NaN");
  head.write_strength.resize(2);
  EXPECT_EQ(message_of(head), "write_strength: expected 3 entries, one a key, found 2");
}

}  // namespace
}  // namespace lethe
