// Chunked forms with gates from exactly zero to exactly one, and how division by products of gates fails.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "reference/decay_fast_weights.hpp"
#include "reference/gated_delta_fast_weights.hpp"
#include "reference/gated_fast_weights.hpp"
#include "reference/gated_linear_attention.hpp"
#include "reference/pair_decay.hpp"
#include "tests/support/fast_weights.hpp"

namespace lethe {
namespace {

namespace decay = reference::decay_fast_weights;
namespace gated = reference::gated_fast_weights;
namespace gated_delta = reference::gated_delta_fast_weights;
namespace gated_linear = reference::gated_linear_attention;
using reference::Normalized;

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
    head.key.rowwise().normalize();  // keeps the delta rule bounded
  }
  return heads;
}

template <typename Scalar>
struct NamedRule {
  const char* name;
  std::function<BasicOutput<Scalar>(const BasicHead<Scalar>&)> recurrent;
  std::function<BasicOutput<Scalar>(const BasicHead<Scalar>&, Eigen::Index)> chunked;
};

// The head on positive features, which a normalizer needs.
template <typename Scalar>
BasicHead<Scalar> positive(BasicHead<Scalar> head) {
  head.query = head.query.cwiseAbs();
  head.key = head.key.cwiseAbs();
  return head;
}

template <typename Scalar>
std::vector<NamedRule<Scalar>> rules() {
  using H = BasicHead<Scalar>;
  constexpr Normalized kNo = Normalized::kNo, kYes = Normalized::kYes;
  return {
      {"decay", decay::recurrent<Scalar>, decay::chunked<Scalar>},
      {"gated delta", gated_delta::recurrent<Scalar>, gated_delta::chunked<Scalar>},
      {"gated linear", [](const H& head) { return gated_linear::recurrent(head, kNo); },
       [](const H& head, Eigen::Index length) { return gated_linear::chunked(head, kNo, length); }},
      {"gated linear, normalized", [](const H& head) { return gated_linear::recurrent(positive(head), kYes); },
       [](const H& head, Eigen::Index length) { return gated_linear::chunked(positive(head), kYes, length); }},
      {"gated", [](const H& head) { return gated::recurrent(head, kNo); },
       [](const H& head, Eigen::Index length) { return gated::chunked(head, kNo, length); }},
      {"gated, normalized", [](const H& head) { return gated::recurrent(positive(head), kYes); },
       [](const H& head, Eigen::Index length) { return gated::chunked(positive(head), kYes, length); }},
  };
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

TEST(ChunkedNumerics, LongSequencesKeepTheBudgetOfDouble) {
  for (Gate gate : {Gate::kOpen, Gate::kSpiky, Gate::kCutting}) {
    Head head = random_head({64, 16384, 3, 2}, gate);
    head.key.rowwise().normalize();
    for (const auto& [name, recurrent, chunked] : rules<double>()) {
      const Output expected = recurrent(head), output = chunked(head, 64);
      EXPECT_LE(relative_error(output.values, expected.values), kExact) << name << ", gate " << gate_name(gate);
      EXPECT_LE(relative_error(output.state, expected.state), kExact) << name << ", gate " << gate_name(gate);
    }
  }
}

TEST(PairDecay, IsTheProductOfTheGatesInBetweenFromTheInitialStateOn) {
  const Matrix<double> log_gate = mixed_gates(29, 4, 5);
  const reference::PairDecay<double> decay(log_gate, 4), none({}, 4);
  for (Eigen::Index i = 0; i < 29; ++i) {
    Eigen::Array<double, 1, Eigen::Dynamic> product = Eigen::Array<double, 1, Eigen::Dynamic>::Ones(4);
    for (Eigen::Index j = i; j >= -1; --j) {
      const auto actual = decay.between(i, j);
      for (Eigen::Index d = 0; d < 4; ++d) EXPECT_NEAR(actual[d], product[d], 1e-13 * product[d]) << i << ", " << j;
      EXPECT_TRUE((none.between(i, j) == 1).all());
      if (j >= 0) product *= log_gate.row(j).array().exp() * (log_gate.row(j).array() != -INFINITY).cast<double>();
    }
  }
}

TEST(PairDecay, GivesTheSameSumsInBlocksOfAnyLengthAndForTheLastRowsAlone) {
  const Eigen::Index keys = 37;
  const reference::PairDecay<double> decay(mixed_gates(keys, 4, 5), 4);
  const Matrix<double> left = random_matrix(keys, 4, 1), right = random_matrix(keys, 4, 2);
  const Matrix<double> weights = random_matrix(keys, keys, 3);
  const Matrix<double> products = reference::decayed_products(left, right, decay, 0, keys);
  const Matrix<double> sums = reference::decayed_sums(weights, right, decay, 0, keys);
  for (Eigen::Index first : {0, 1, 15, 16, 36}) {
    const Eigen::Index rows = keys - first;
    const Matrix<double> last = left.bottomRows(rows), last_weights = weights.bottomRows(rows);
    for (Eigen::Index block : {1, 3, 16, 36, 37, 64}) {
      EXPECT_LE(relative_error(decayed_products(last, right, decay, first, block), products.bottomRows(rows)), kExact);
      EXPECT_LE(relative_error(decayed_sums(last_weights, right, decay, first, block), sums.bottomRows(rows)), kExact);
    }
  }
}

// (q_i e^{c_i})·(k_j e^{−c_j}) over a whole chunk, as the equations suggest; exponents above `cap` are cut.
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

Head one_chunk(double log_gate, int64_t length = 64) {
  Head head = random_head({length, length, 7, 5}, Gate::kZero);
  head.log_key_gate.setConstant(log_gate);
  head.log_value_gate = head.initial_state = {};
  return head;
}

TEST(ChunkedNumerics, QuotientsOfProductsAreRightForWeakGatesAndNaNForStrongOnes) {
  constexpr float kUncapped = std::numeric_limits<float>::infinity();
  const Head weak = one_chunk(-0.1), strong = one_chunk(std::log(1.0 / 64)), zero = one_chunk(kExtremeGates[0]);
  EXPECT_LE(relative_error(naive(weak, kUncapped), decay::recurrent(weak).values), budget(Dtype::kFloat32));
  EXPECT_FALSE(naive(strong, kUncapped).allFinite());
  EXPECT_FALSE(naive(zero, kUncapped).allFinite());
  EXPECT_FALSE(naive(zero, std::numeric_limits<double>::infinity()).allFinite());  // nor in double
  for (const Head& head : {weak, strong, zero}) {
    EXPECT_LE(relative_error(decay::chunked(as_float(head), 64).values.cast<double>(), decay::recurrent(head).values),
              budget(Dtype::kFloat32));
  }
}

// The longest chunk over which 1 / (f · … · f) is finite in float, about 88 / −log f: the limit of a chunk's length if
// gates were divided by. 1/768 is the smallest gate that uniform initialization draws for 768 dimensions.
TEST(ChunkedNumerics, QuotientsOfWholeProductsEndWhereFloatDoes) {
  struct Row {
    double gate;
    int64_t longest;
  };
  constexpr float kUncapped = std::numeric_limits<float>::infinity();
  for (const Row& row : {Row{1.0 / 2, 127}, {1.0 / 16, 31}, {1.0 / 64, 21}, {1.0 / 768, 13}, {1e-4, 9}}) {
    float product = 1;
    for (int64_t t = 0; t < row.longest; ++t) product *= static_cast<float>(row.gate);
    EXPECT_TRUE(std::isfinite(1 / product)) << row.gate;
    EXPECT_FALSE(std::isfinite(1 / (product * static_cast<float>(row.gate)))) << row.gate;
    const auto chunk = [&](int64_t length) {
      Head head = one_chunk(std::log(row.gate), length);
      head.key.rowwise().normalize();  // so that only the quotient overflows
      return head;
    };
    const Head fits = chunk(row.longest), overflows = chunk(row.longest + 2);
    EXPECT_LE(relative_error(naive(fits, kUncapped), decay::recurrent(fits).values), budget(Dtype::kFloat32))
        << row.gate;
    EXPECT_FALSE(naive(overflows, kUncapped).allFinite()) << row.gate;
    const Matrix<double> values = decay::chunked(as_float(overflows), row.longest + 2).values.cast<double>();
    EXPECT_LE(relative_error(values, decay::recurrent(overflows).values), budget(Dtype::kFloat32)) << row.gate;
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
