// Chunked forms with gates from exactly zero to exactly one, and what happens to those who divide by products of gates.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "reference/decay_fast_weights.hpp"
#include "reference/gated_delta_fast_weights.hpp"
#include "tests/support/fast_weights.hpp"

namespace lethe {
namespace {

namespace decay = reference::decay_fast_weights;
namespace gated_delta = reference::gated_delta_fast_weights;

constexpr StateShape kShape{131, 131, 7, 5};

// Every gate of kExtremeGates for all positions, then mixtures of them.
std::vector<Head> extreme_heads() {
  std::vector<Head> heads(std::size(kExtremeGates) + 3, random_head(kShape, Gate::kInitial));
  for (size_t i = 0; i < heads.size(); ++i) {
    Head& head = heads[i];
    const bool mixed = i >= std::size(kExtremeGates);
    const auto gates = [&](Eigen::Index columns, uint64_t seed) -> Matrix<double> {
      return mixed ? mixed_gates(kShape.keys, columns, 10 * i + seed)
                   : Matrix<double>::Constant(kShape.keys, columns, kExtremeGates[i]);
    };
    head.log_key_gate = gates(kShape.key_dim, 1);
    head.log_value_gate = gates(kShape.value_dim, 2);
    head.log_forget = gates(1, 3);
    head.key.rowwise().normalize();  // what the delta rule needs to stay bounded
  }
  return heads;
}

template <typename Scalar>
struct NamedRule {
  const char* name;
  std::function<BasicOutput<Scalar>(const BasicHead<Scalar>&)> recurrent;
  std::function<BasicOutput<Scalar>(const BasicHead<Scalar>&, Eigen::Index)> chunked;
};
template <typename Scalar>
std::vector<NamedRule<Scalar>> rules() {
  return {{"decay", decay::recurrent<Scalar>, decay::chunked<Scalar>},
          {"gated delta", gated_delta::recurrent<Scalar>, gated_delta::chunked<Scalar>}};
}

TEST(ChunkedNumerics, GatesFromExactlyZeroToExactlyOneKeepTheBudgetOfDouble) {
  for (const Head& head : extreme_heads()) {
    for (const auto& [name, recurrent, chunked] : rules<double>()) {
      const Output expected = recurrent(head);
      for (Eigen::Index length : {1, 3, 8, 16, 17, 23, 64, 131, 200}) {
        const Output output = chunked(head, length);
        EXPECT_LE(relative_error(output.values, expected.values), kExact) << name << ", chunks of " << length;
        EXPECT_LE(relative_error(output.state, expected.state), kExact) << name << ", chunks of " << length;
      }
    }
  }
}

TEST(ChunkedNumerics, TheSameGatesKeepTheBudgetOfFloat) {
  for (const Head& wide : extreme_heads()) {
    const BasicHead<float> head = as_float(wide);
    for (size_t i = 0; i < rules<float>().size(); ++i) {
      const Output expected = rules<double>()[i].recurrent(as_double(head));
      for (Eigen::Index length : {8, 16, 64, 131}) {
        const Matrix<double> values = rules<float>()[i].chunked(head, length).values.cast<double>();
        EXPECT_LE(relative_error(values, expected.values), budget(Dtype::kFloat32)) << rules<float>()[i].name;
      }
    }
  }
}

// (q_i e^{c_i})·(k_j e^{−c_j}) over a whole chunk, as the equations tempt one to write it; exponents above `cap` are cut.
template <typename Scalar>
Matrix<double> naive(const Head& head, Scalar cap) {
  Matrix<Scalar> sums = head.log_key_gate.cast<Scalar>();
  for (Eigen::Index t = 1; t < sums.rows(); ++t) sums.row(t) += sums.row(t - 1);
  const Matrix<Scalar> query =
      head.query.cast<Scalar>().array() * sums.array().unaryExpr([](Scalar x) { return std::exp(x); });
  const Matrix<Scalar> key = head.key.cast<Scalar>().array() *
                             (-sums).array().unaryExpr([cap](Scalar x) { return std::exp(std::min(x, cap)); });
  const Matrix<Scalar> scores = (query * key.transpose()).template triangularView<Eigen::Lower>();
  return (static_cast<Scalar>(head.scale) * scores * head.value.cast<Scalar>()).template cast<double>();
}

Head one_chunk(double log_gate) {
  Head head = random_head({64, 64, 7, 5}, Gate::kZero);
  head.log_key_gate.setConstant(log_gate);
  head.log_value_gate = head.initial_state = {};
  return head;
}

TEST(ChunkedNumerics, QuotientsOfWholeProductsAreRightForWeakGatesAndNoNumberForStrongOnes) {
  constexpr float kUncapped = std::numeric_limits<float>::infinity();
  const Head weak = one_chunk(-0.1), strong = one_chunk(std::log(1.0 / 64)), zero = one_chunk(kExtremeGates[0]);
  EXPECT_LE(relative_error(naive(weak, kUncapped), decay::recurrent(weak).values), budget(Dtype::kFloat32));
  EXPECT_FALSE(naive(strong, kUncapped).allFinite());
  EXPECT_FALSE(naive(zero, kUncapped).allFinite());
  EXPECT_FALSE(naive(zero, std::numeric_limits<double>::infinity()).allFinite());  // double is no cure
  for (const Head& head : {weak, strong, zero}) {
    EXPECT_LE(relative_error(decay::chunked(as_float(head), 64).values.cast<double>(), decay::recurrent(head).values),
              budget(Dtype::kFloat32));
  }
}

TEST(ChunkedNumerics, QuotientsWithACappedExponentAreSilentlyWrong) {
  for (double log_gate : {-2.5, -5.0}) {
    const Head head = one_chunk(log_gate);
    const Matrix<double> values = naive(head, 80.0f);
    EXPECT_TRUE(values.allFinite());
    EXPECT_GT(relative_error(values, decay::recurrent(head).values), kClearlyWrong);
  }
}

}  // namespace
}  // namespace lethe
