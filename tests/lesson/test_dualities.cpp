// Forgetting Attention as a decoder with a cache, in blocks, as a recurrence on features; and what it does not equal.

#include <Eigen/Eigenvalues>
#include <Eigen/LU>
#include <algorithm>
#include <vector>

#include "reference/blockwise.hpp"
#include "reference/decay_bias.hpp"
#include "reference/feature_map.hpp"
#include "reference/gated_linear_attention.hpp"
#include "reference/layers/rotary_embedding.hpp"
#include "reference/softmax_attention.hpp"
#include "tests/lesson/by_hand.hpp"

namespace lethe::lesson {
namespace {

namespace forgetting_attention = reference::forgetting_attention;
namespace gated_linear_attention = reference::gated_linear_attention;
namespace linear_attention = reference::linear_attention;
using reference::Normalized;

// `head` with features in the place of its queries and keys for which φ(q)·φ(k) = exp(scale q·k) exactly: the rows of a
// root of their Gram matrix.
Head with_gram_features(const Head& head) {
  Matrix<double> vectors(head.query.rows() + head.key.rows(), head.query.cols());
  vectors << head.query, head.key;
  const Matrix<double> gram = (head.scale * vectors * vectors.transpose()).array().exp();
  const Eigen::SelfAdjointEigenSolver<Matrix<double>> eigen(gram);
  const Matrix<double> root = eigen.eigenvectors() * eigen.eigenvalues().cwiseMax(0.0).cwiseSqrt().asDiagonal();
  return {root.topRows(head.query.rows()), root.bottomRows(head.key.rows()), head.value, head.log_forget, 1.0};
}

double error_of_random_features(Head head, Eigen::Index features, uint64_t seed) {
  const Matrix<double> expected = forgetting_attention::parallel(head).values;
  head.query *= std::sqrt(head.scale);
  head.key *= std::sqrt(head.scale);
  const auto map = reference::feature_map::positive_random(random_matrix(features, head.query.cols(), seed));
  const Head mapped = with_features(head, map);
  return relative_error(gated_linear_attention::recurrent(mapped, Normalized::kYes).values, expected);
}

Eigen::Index rank_of(const Matrix<double>& matrix) {
  return Eigen::FullPivLU<Matrix<double>>(matrix).setThreshold(1e-10).rank();
}

TEST(Dualities, DecodingFromACacheThatAgesEveryKeyEqualsTheParallelForm) {
  const Head head = random_head(20, 4, 3, Gate::kInitial, 1);
  const Matrix<double> values = forgetting_attention::parallel(head).values;
  Vector<double> age;  // D_tj of each stored key
  for (Eigen::Index t = 0; t < 20; ++t) {
    age.array() += head.log_forget[t];
    age.conservativeResize(t + 1);
    age[t] = 0.0;
    const Vector<double> weights =
        (head.scale * head.key.topRows(t + 1) * head.query.row(t).transpose() + age).array().exp();
    const Matrix<double> decoded = weights.transpose() * head.value.topRows(t + 1) / weights.sum();
    EXPECT_LT(relative_error(decoded, values.row(t)), kExact) << t;

    const Head step{head.query.row(t), head.key.topRows(t + 1), head.value.topRows(t + 1), head.log_forget.head(t + 1),
                    head.scale};
    EXPECT_LT(relative_error(forgetting_attention::parallel(step).values, values.row(t)), kExact) << t;
  }
}

TEST(Dualities, OnlineSoftmaxInBlocksOfAnySizeEqualsTheParallelForm) {
  const Head head = random_head(57, 4, 3, Gate::kInitial, 2);
  const Matrix<double> values = forgetting_attention::parallel(head).values;
  for (int64_t size : {1, 4, 7, 29}) {
    const Matrix<double> blockwise =
        reference::blockwise::forward(head, reference::Blocks{.query = size, .key = size}).values;
    EXPECT_LT(relative_error(blockwise, values), kExact) << size;
  }
}

TEST(Dualities, AVectorAddedToEveryKeyChangesNothingUntilKeysAreRotated) {
  Head head = random_head(20, 4, 3, Gate::kInitial, 3);
  Head moved = head;
  moved.key.rowwise() += random_matrix(1, 4, 4).row(0);
  EXPECT_LT(relative_error(forgetting_attention::parallel(moved).values, forgetting_attention::parallel(head).values),
            kExact);
  for (Head* rotated : {&head, &moved})
    rotated->key = reference::layers::rotary_embedding<double>(rotated->key, 1, 10.0);
  EXPECT_GT(relative_error(forgetting_attention::parallel(moved).values, forgetting_attention::parallel(head).values),
            kClearlyWrong);
}

TEST(Dualities, ForgettingAttentionIsGatedLinearAttentionOnGramFeatures) {
  const Head head = random_head(12, 4, 3, Gate::kInitial, 5);
  const Head features = with_gram_features(head);
  const Matrix<double> values = forgetting_attention::parallel(head).values;
  const Output recurrent = gated_linear_attention::recurrent(features, Normalized::kYes);
  EXPECT_LT(relative_error(recurrent.values, values), 1e-9);
  EXPECT_LT(relative_error(gated_linear_attention::chunked(features, Normalized::kYes, 5).values, values), 1e-9);
  EXPECT_EQ(recurrent.state.rows(), 2 * 12) << "one feature for each vector of the text";
  EXPECT_GT(relative_error(linear_attention::recurrent(features, Normalized::kYes).values, values), kClearlyWrong);
  EXPECT_LT(relative_error(linear_attention::recurrent(features, Normalized::kYes).values,
                           reference::softmax_attention::parallel(head).values),
            1e-9);
}

TEST(Dualities, OnThoseFeaturesBothHaveTheSameGradientsOfValuesAndGates) {
  const Head head = random_head(12, 4, 3, Gate::kInitial, 5);
  const Matrix<double> values_gradient = random_matrix(12, 3, 16);
  const Gradients of_softmax = forgetting_attention::gradients(head, values_gradient);
  Gradients of_state = gated_linear_attention::gradients(with_gram_features(head), Normalized::kYes, values_gradient);
  EXPECT_LT(relative_error(of_state.value, of_softmax.value), 1e-9);
  EXPECT_LT(relative_error(of_state.log_forget, of_softmax.log_forget), 1e-9);
}

TEST(Dualities, RandomFeaturesApproachItWithTheRootOfTheirNumber) {
  Head head = random_head(12, 4, 3, Gate::kInitial, 6);
  head.query *= 0.5;
  head.key *= 0.5;
  double few = 0, many = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    few += error_of_random_features(head, 128, seed) / 8;
    many += error_of_random_features(head, 128 * 64, seed) / 8;
  }
  EXPECT_NEAR(few / many, 8.0, 3.0) << "64 times the features, an eighth of the error";
}

TEST(Dualities, AVectorOfGatesOnTheKeyDimensionsIsNoKeepMass) {
  // A scalar gate multiplies a pair's score by F_ij whatever the query; with a gate a dimension the factor is the
  // query's.
  const Matrix<double> queries = random_matrix(2, 4, 7).array().exp();
  const Vector<double> key = random_matrix(4, 1, 8).array().exp();
  const auto factors = [&](const Vector<double>& gates) -> Vector<double> {
    return (queries * gates.cwiseProduct(key)).array() / (queries * key).array();
  };
  const Vector<double> scalar = factors(Vector<double>::Constant(4, 0.3));
  EXPECT_NEAR(scalar[0], 0.3, kExact);
  EXPECT_NEAR(scalar[1], 0.3, kExact);
  const Vector<double> vector = factors(Vector<double>{{0.1, 0.9, 0.3, 0.5}});
  EXPECT_GT(std::abs(vector[0] - vector[1]), kClearlyWrong);
}

TEST(Dualities, NoGatesMakeASlidingWindowLongerThanOneToken) {
  constexpr int kTokens = 6;
  const auto gates_that_make = [](int window) {
    int found = 0;
    for (unsigned closed = 0; closed < 1u << (kTokens - 1); ++closed) {  // which of the gates 1 … 5 are zero
      Vector<double> log_forget = Vector<double>::Zero(kTokens);
      for (int l = 1; l < kTokens; ++l) {
        if (closed >> (l - 1) & 1) log_forget[l] = -kInfinity;
      }
      const Matrix<double> weights = attention_weights(head_of_logits(random_matrix(6, 6, 9), log_forget));
      bool same = true;
      for (int i = 0; i < kTokens; ++i) {
        for (int j = 0; j <= i; ++j) same = same && (weights(i, j) > 0.0) == (i - j < window);
      }
      found += same;
    }
    return found;
  };
  EXPECT_EQ(gates_that_make(1), 1) << "all closed";
  for (int window = 2; window < kTokens; ++window) EXPECT_EQ(gates_that_make(window), 0) << window;
  EXPECT_EQ(gates_that_make(kTokens), 1) << "all open";
}

TEST(Dualities, AClosedGateMakesAPlainPrefixSumNaNAndNotTheReference) {
  Head head = random_head(20, 4, 3, Gate::kInitial, 10);
  head.log_forget[8] = -kInfinity;
  double prefix_at_ten = 0, prefix_at_fifteen = 0;
  for (Eigen::Index l = 1; l <= 15; ++l) {
    prefix_at_fifteen += head.log_forget[l];
    if (l <= 10) prefix_at_ten += head.log_forget[l];
  }
  EXPECT_TRUE(std::isnan(prefix_at_fifteen - prefix_at_ten));
  const reference::DecayBias<double> bias(head.log_forget);
  EXPECT_NEAR(bias(15, 10), head.log_forget.segment(11, 5).sum(), kExact);
  EXPECT_EQ(bias(10, 7), -kInfinity);
  EXPECT_TRUE(forgetting_attention::parallel(head).values.allFinite());
}

TEST(Dualities, APlainFloatPrefixSumLosesTheBiasOfNeighboursFarDownTheText) {
  constexpr Eigen::Index kTokens = 16384, kGap = 16;
  const Vector<double> log_forget = random_head(kTokens, 1, 1, Gate::kInitial, 11).log_forget;
  const Vector<float> rounded = log_forget.cast<float>();
  const reference::DecayBias<float> bias(rounded);
  Vector<float> prefix = Vector<float>::Zero(kTokens);
  for (Eigen::Index t = 1; t < kTokens; ++t) prefix[t] = prefix[t - 1] + rounded[t];
  double plain_error = 0, error = 0;
  for (Eigen::Index i = kTokens - 1000; i < kTokens; ++i) {
    const double exact = rounded.cast<double>().segment(i - kGap + 1, kGap).sum();
    plain_error = std::max(plain_error, std::abs(prefix[i] - prefix[i - kGap] - exact));
    error = std::max(error, std::abs(bias(i, i - kGap) - exact));
  }
  EXPECT_GT(plain_error, 1e-3);
  EXPECT_LT(error, 1e-5);
}

TEST(Dualities, SoftmaxScoresHaveNoFixedRank) {
  // Later queries depend on earlier keys through this block only. Its rank is the size of the smallest sufficient state.
  constexpr Eigen::Index kHalf = 12, kDim = 2;
  const Matrix<double> queries = 2.0 * random_matrix(kHalf, kDim, 12), keys = 2.0 * random_matrix(kHalf, kDim, 13);
  const Matrix<double> logits = queries * keys.transpose();
  EXPECT_EQ(rank_of(logits), kDim) << "linear attention: the state is d × d";
  const Vector<double> log_forget = random_head(2 * kHalf, 1, 1, Gate::kInitial, 14).log_forget;
  const Matrix<double> mass = keep_masses(log_forget).bottomLeftCorner(kHalf, kHalf);
  EXPECT_EQ(rank_of(mass / mass(0, kHalf - 1)), 1) << "the gate adds nothing to the rank";
  const Vector<double> row_scale = mass.col(0) / mass(0, 0), column_scale = mass.row(0) / mass(0, 0);
  EXPECT_LT(relative_error(row_scale * column_scale.transpose(), mass / mass(0, 0)), kExact);
  EXPECT_EQ(rank_of(logits.array().exp()), kHalf) << "softmax: as many as there are keys";
}

TEST(Dualities, EveryPastTokenStaysReachableSoTheCacheGrowsWithTheText) {
  const Head head = random_head(64, 4, 3, Gate::kInitial, 15);
  const Output output = forgetting_attention::parallel(head);
  EXPECT_EQ(output.state.size(), 0) << "expected no state of fixed size";
  Matrix<double> last_query_only = Matrix<double>::Zero(64, 3);
  last_query_only.row(63).setOnes();
  const Gradients gradients = forgetting_attention::gradients(head, last_query_only);
  for (Eigen::Index j = 0; j < 64; ++j) EXPECT_GT(gradients.value.row(j).norm(), 0.0) << j;
  const auto pairs = [](int64_t length) {
    return reference::computation_pruning::visited_pairs(length, length, {}, {});
  };
  EXPECT_EQ(pairs(64), 64 * 65 / 2);
  EXPECT_EQ(pairs(4096), 4096LL * 4097 / 2) << "work grows with the square of the length";
}

}  // namespace
}  // namespace lethe::lesson
