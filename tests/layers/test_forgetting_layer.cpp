#include "reference/layers/forgetting_layer.hpp"

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "reference/alibi.hpp"
#include "reference/layers/rms_norm.hpp"
#include "reference/layers/rotary_embedding.hpp"
#include "reference/softmax_attention.hpp"
#include "tests/support/random_weights.hpp"

namespace lethe::reference::layers {
namespace {

using Weights = ForgettingLayerWeights<double>;

double logistic(double x) { return 1 / (1 + std::exp(-x)); }

// Row `row` of W times x.
double dot(const Matrix<double>& weight, Eigen::Index row, const Matrix<double>& input, Eigen::Index t) {
  double sum = 0;
  for (Eigen::Index i = 0; i < input.cols(); ++i) sum += weight(row, i) * input(t, i);
  return sum;
}

std::vector<double> normed(std::vector<double> x, const Vector<double>& weight, Eigen::Index first, double epsilon) {
  double mean_square = 0;
  for (double entry : x) mean_square += entry * entry / static_cast<double>(x.size());
  for (size_t i = 0; i < x.size(); ++i)
    x[i] *= weight[first + static_cast<Eigen::Index>(i)] / std::sqrt(mean_square + epsilon);
  return x;
}

// Equations 16–24 for one head at one time step, a number at a time, without the library.
struct EquationsOfOneHead {
  const Matrix<double>& x;
  const Weights& w;
  Eigen::Index heads, h;

  Eigen::Index dim() const { return x.cols() / heads; }

  std::vector<double> shifted(const Matrix<double>& projection, const Matrix<double>& mix, Eigen::Index t) const {
    const double alpha = logistic(dot(mix, h, x, t));
    std::vector<double> u;
    for (Eigen::Index i = h * dim(); i < (h + 1) * dim(); ++i) {
      const double before = t == 0 ? 0.0 : dot(projection, i, x, t - 1);
      u.push_back(alpha * before + (1 - alpha) * dot(projection, i, x, t));
    }
    return u;
  }
  std::vector<double> query(Eigen::Index t) const {
    std::vector<double> q;
    for (Eigen::Index i = h * dim(); i < (h + 1) * dim(); ++i) q.push_back(dot(w.query, i, x, t));
    return normed(q, *w.query_norm, 0, 1e-5);
  }
  std::vector<double> key(Eigen::Index t) const {
    return normed(shifted(w.key, *w.key_shift, t), *w.key_norm, 0, 1e-5);
  }
  std::vector<double> value(Eigen::Index t) const { return shifted(w.value, *w.value_shift, t); }
  double forget(Eigen::Index t) const { return logistic(dot(*w.forget, h, x, t) + (*w.forget_bias)[h]); }

  std::vector<double> output(Eigen::Index i) const {
    std::vector<double> sum(dim(), 0.0);
    double normalizer = 0, kept = 1;
    for (Eigen::Index j = i; j >= 0; kept *= forget(j), --j) {
      double logit = 0;
      for (Eigen::Index d = 0; d < dim(); ++d) logit += query(i)[d] * key(j)[d] / std::sqrt(static_cast<double>(dim()));
      normalizer += kept * std::exp(logit);
      for (Eigen::Index d = 0; d < dim(); ++d) sum[d] += kept * std::exp(logit) * value(j)[d];
    }
    for (double& entry : sum) entry /= normalizer;
    sum = normed(sum, *w.output_norm, h * dim(), 1e-6);
    for (Eigen::Index d = 0; d < dim(); ++d) sum[d] *= logistic(dot(*w.output_gate, h * dim() + d, x, i));
    return sum;
  }
};

TEST(ForgettingLayer, IsEquations16To24WithASigmoidOnTheOutputGate) {
  const Matrix<double> x = random_matrix(5, 6, 1);
  const Weights w = random_layer(6, 2, 2);
  Matrix<double> expected = Matrix<double>::Zero(5, 6);
  for (Eigen::Index h : {0, 1}) {
    for (Eigen::Index t = 0; t < 5; ++t) {
      const std::vector<double> gated = EquationsOfOneHead{x, w, 2, h}.output(t);
      for (Eigen::Index i = 0; i < 6; ++i) {
        for (Eigen::Index d = 0; d < 3; ++d) expected(t, i) += w.output(i, 3 * h + d) * gated[d];
      }
    }
  }
  EXPECT_LT(relative_error(forgetting_layer<double>(x, w, {.heads = 2}), expected), kExact);
}

TEST(ForgettingLayer, EveryComponentMatters) {
  const Matrix<double> x = random_matrix(6, 8, 3);
  const Weights w = random_layer(8, 2, 4);
  const Matrix<double> whole = forgetting_layer<double>(x, w, {.heads = 2});
  const std::vector<std::pair<std::string, std::function<void(Weights&)>>> removals{
      {"key shift", [](Weights& without) { without.key_shift.reset(); }},
      {"value shift", [](Weights& without) { without.value_shift.reset(); }},
      {"query norm", [](Weights& without) { without.query_norm.reset(); }},
      {"key norm", [](Weights& without) { without.key_norm.reset(); }},
      {"data in the gate", [](Weights& without) { without.forget.reset(); }},
      {"gate", [](Weights& without) { without.forget.reset(), without.forget_bias.reset(); }},
      {"output norm", [](Weights& without) { without.output_norm.reset(); }},
      {"output gate", [](Weights& without) { without.output_gate.reset(); }},
  };
  for (const auto& [name, remove] : removals) {
    Weights without = w;
    remove(without);
    EXPECT_GT(relative_error(forgetting_layer<double>(x, without, {.heads = 2}), whole), kClearlyWrong) << name;
  }
  EXPECT_GT(relative_error(forgetting_layer<double>(x, w, {.heads = 2, .rope_base = 500000.0}), whole), kClearlyWrong)
      << "RoPE";
  Weights undivided = w;
  undivided.key_shift.reset(), undivided.value_shift.reset(), undivided.forget.reset(), undivided.forget_bias.reset();
  undivided.query_norm = undivided.key_norm = w.output_norm;
  EXPECT_GT(relative_error(forgetting_layer<double>(x, undivided, {.heads = 1}),
                           forgetting_layer<double>(x, undivided, {.heads = 2})),
            kClearlyWrong)
      << "heads";
}

TEST(ForgettingLayer, WithABiasAsItsWholeGateIsAlibi) {
  const Matrix<double> x = random_matrix(9, 4, 5);
  const Weights all = random_layer(4, 1, 6);
  const double decay_time = 7.0;  // log σ(b) = −1/7
  const Weights plain{.query = all.query,
                      .key = all.key,
                      .value = all.value,
                      .output = Matrix<double>::Identity(4, 4),
                      .forget_bias = Vector<double>{{-std::log(std::expm1(1 / decay_time))}}};
  const Head head{x * all.query.transpose(), x * all.key.transpose(), x * all.value.transpose(), {}, 0.5};
  const Matrix<double> found = forgetting_layer<double>(x, plain, {.heads = 1});
  EXPECT_LT(relative_error(found, alibi::parallel<double>(head, 1 / decay_time).values), kExact);
  EXPECT_GT(relative_error(found, alibi::parallel<double>(head, 2 / decay_time).values), kClearlyWrong);
}

TEST(ForgettingLayer, NormsQueriesAndKeysBeforeItRotatesThem) {
  // Rotation keeps lengths, so the order matters only where a norm's weights differ.
  const Matrix<double> x = random_matrix(6, 4, 7);
  const Matrix<double> identity = Matrix<double>::Identity(4, 4);
  const Vector<double> unequal{{1, 2, 3, 4}};
  const Weights w{.query = identity,
                  .key = identity,
                  .value = identity,
                  .output = identity,
                  .query_norm = unequal,
                  .key_norm = unequal};
  const double base = 10.0;
  const auto attend = [&](const Matrix<double>& rows) -> Matrix<double> {
    return softmax_attention::parallel<double>({rows, rows, x, {}, 0.5}).values;
  };
  const auto norm = [&](const Matrix<double>& rows) { return rms_norm<double>(rows, unequal, 1, kQkNormEpsilon); };
  const auto rotate = [&](const Matrix<double>& rows) { return rotary_embedding<double>(rows, 1, base); };
  const Matrix<double> found = forgetting_layer<double>(x, w, {.heads = 1, .rope_base = base});
  EXPECT_LT(relative_error(found, attend(rotate(norm(x)))), kExact);
  EXPECT_GT(relative_error(found, attend(norm(rotate(x)))), kClearlyWrong);
}

TEST(ForgettingLayer, EarlierRowsNeverChangeWithALaterToken) {
  const Matrix<double> x = random_matrix(8, 8, 9);
  const Weights w = random_layer(8, 2, 10);
  const ForgettingLayerShape shape{.heads = 2, .rope_base = 500000.0};
  const Matrix<double> whole = forgetting_layer<double>(x, w, shape);
  for (Eigen::Index t = 0; t < 8; ++t) {
    Matrix<double> perturbed = x;
    perturbed.row(t) *= -3.0;
    const Matrix<double> changed = forgetting_layer<double>(perturbed, w, shape);
    EXPECT_TRUE(bit_equal(changed.topRows(t), whole.topRows(t)));
    for (Eigen::Index later = t; later < std::min<Eigen::Index>(t + 2, 8); ++later) {
      EXPECT_GT(relative_error(changed.row(later), whole.row(later)), 1e-6) << later;
    }
  }
}

TEST(ForgettingLayer, RefusesWeightsOfAnotherSizeByTheirName) {
  const Matrix<double> x = Matrix<double>::Ones(2, 4);
  const auto message = [&](const std::function<void(Weights&)>& spoil) -> std::string {
    Weights w = random_layer(4, 2, 11);
    spoil(w);
    try {
      forgetting_layer<double>(x, w, {.heads = 2});
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "nothing thrown";
  };
  EXPECT_EQ(message([](Weights& w) { w.query.setZero(3, 4); }), "query: expected 4 rows, found 3");
  EXPECT_EQ(message([](Weights& w) { w.forget_bias = Vector<double>::Zero(3).eval(); }),
            "forget_bias: expected 2 entries, one a head, found 3");
  EXPECT_EQ(message([](Weights& w) { w.forget_bias.reset(); }), "forget_bias: expected one beside forget, found none");
}

}  // namespace
}  // namespace lethe::reference::layers
