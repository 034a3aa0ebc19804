#pragma once
// Results of the kernels against the definition in double, per head; and that definition by products of matrices, which takes a third of the
// reference's time (PrecisionOracle holds one against the other).

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "reference/agreement.hpp"
#include "reference/forgetting_attention.hpp"
#include "tests/cuda/backward.hpp"
#include "tests/cuda/every_kernel.hpp"
#include "tests/cuda/rounded_gradients.hpp"

namespace lethe::testing {

/// P of some queries, on the keys that one of them sees.
struct WeightsOfRows {
  Eigen::Index first;             ///< of the keys
  Matrix<double> weights;         ///< [queries, keys]; 0 where a query sees no key
  Vector<double> log_normalizer;  ///< [queries]

  /// Of the queries [row, row + rows).
  WeightsOfRows(const Head& head, const Sight& sight, Eigen::Index row, Eigen::Index rows) : log_normalizer(rows) {
    const Eigen::Index position = head.key.rows() - head.query.rows() + row;
    first = sight.first_key(position);
    const Eigen::Index keys = position + rows - first;
    weights.noalias() = head.query.middleRows(row, rows) * head.key.middleRows(first, keys).transpose();
    weights *= head.scale;
    for (Eigen::Index i = 0; i < rows; ++i) {
      const Eigen::Index own = position + i - first;  // the query's key
      Eigen::Index begin = sight.first_key(position + i) - first;
      double decay = 0;
      for (Eigen::Index j = own; j >= begin; --j) {
        weights(i, j) += decay;
        decay += head.log_forget[first + j];
        if (std::isinf(decay)) begin = j;  // a cut: no query sees what is before it
      }
      auto seen = weights.row(i).segment(begin, own + 1 - begin);
      const double largest = seen.maxCoeff();
      seen = seen.unaryExpr([largest](double logit) { return std::exp(logit - largest); });
      const double sum = seen.sum();
      seen /= sum;
      weights.row(i).head(begin).setZero();
      weights.row(i).tail(keys - 1 - own).setZero();
      log_normalizer[i] = largest + std::log(sum);
    }
  }
};

/// Calls `call(row, weights)` for every 64 queries.
template <typename Call>
void for_rows(const Head& head, const Sight& sight, Call call) {
  constexpr Eigen::Index kRows = 64;
  for (Eigen::Index row = 0; row < head.query.rows(); row += kRows)
    call(row, WeightsOfRows(head, sight, row, std::min(kRows, head.query.rows() - row)));
}

/// As reference::forgetting_attention::parallel_within.
inline Output output_by_products(const Head& head, const Sight& sight = {}) {
  Output output;
  output.values.resize(head.query.rows(), head.value.cols());
  output.log_normalizer.resize(head.query.rows());
  for_rows(head, sight, [&](Eigen::Index row, const WeightsOfRows& of) {
    output.values.middleRows(row, of.weights.rows()).noalias() =
        of.weights * head.value.middleRows(of.first, of.weights.cols());
    output.log_normalizer.segment(row, of.weights.rows()) = of.log_normalizer;
  });
  return output;
}

/// As reference::forgetting_attention::gradients_within.
inline Gradients gradients_by_products(const Head& head, const Matrix<double>& grad_values, const Sight& sight = {}) {
  Gradients gradients;
  gradients.query.setZero(head.query.rows(), head.query.cols());
  gradients.key.setZero(head.key.rows(), head.key.cols());
  gradients.value.setZero(head.value.rows(), head.value.cols());
  gradients.log_forget.setZero(head.key.rows());
  for_rows(head, sight, [&](Eigen::Index row, const WeightsOfRows& of) {
    const Eigen::Index rows = of.weights.rows(), keys = of.weights.cols();
    const auto grad = grad_values.middleRows(row, rows);
    Matrix<double> grad_logits = grad * head.value.middleRows(of.first, keys).transpose();
    for (Eigen::Index i = 0; i < rows; ++i) {
      auto line = grad_logits.row(i);
      const double delta = of.weights.row(i).dot(line);
      line = of.weights.row(i).array() * (line.array() - delta);
      double older = 0;
      for (Eigen::Index l = 1; l < keys - rows + i + 1; ++l)
        gradients.log_forget[of.first + l] += older += grad_logits(i, l - 1);
    }
    gradients.value.middleRows(of.first, keys).noalias() += of.weights.transpose() * grad;
    grad_logits *= head.scale;
    gradients.query.middleRows(row, rows).noalias() = grad_logits * head.key.middleRows(of.first, keys);
    gradients.key.middleRows(of.first, keys).noalias() += grad_logits.transpose() * head.query.middleRows(row, rows);
  });
  return gradients;
}

struct WorstError {
  double values = 0, log_normalizer = 0;
};

/// The worst head's relative error of the values, and the largest absolute error of the log normaliser.
inline WorstError worst_error(const Problem& problem, const ForwardResult& result, const Sight& sight = {}) {
  const Shape& s = problem.shape;
  WorstError worst;
  for (int64_t batch = 0; batch < s.batch; ++batch)
    for (int64_t head = 0; head < s.query_heads; ++head) {
      const Output expected = output_by_products(head_of(problem, batch, head), sight);
      const auto values = slice(result.values, s.query_length, s.query_heads, s.value_dim, batch, head);
      const auto normalizer = slice(result.log_normalizer, s.query_length, s.query_heads, 1, batch, head);
      worst.values = std::max(worst.values, compare(values, {expected.values.data(), values.size()}, 1).error);
      for (size_t i = 0; i < normalizer.size(); ++i) {
        const double error = std::fabs(normalizer[i] - expected.log_normalizer[i]);
        worst.log_normalizer = std::isnan(error) ? INFINITY : std::max(worst.log_normalizer, error);
      }
    }
  return worst;
}

inline constexpr std::array kGradientNames = {"query", "key", "value", "log_forget"};

/// One gradient of one head.
struct Part {
  int which;  // of kGradientNames
  std::vector<double> numbers;
};

std::vector<double> flat(const auto& matrix) { return {matrix.data(), matrix.data() + matrix.size()}; }

/// For one (batch, head of keys): query's and log_forget's gradients of each query head, then key's and value's, which are summed over them.
/// `gradients_of(head, grad_values)` returns those of one query head.
template <typename Function>
std::vector<Part> parts_of_group(const Problem& problem, const std::vector<double>& grad_values, int64_t batch,
                                 int64_t head, Function gradients_of) {
  const Shape& s = problem.shape;
  const int64_t group = s.query_heads / s.heads;
  std::vector<Part> parts;
  Matrix<double> key = Matrix<double>::Zero(s.key_length, s.key_dim),
                 value = Matrix<double>::Zero(s.key_length, s.value_dim);
  for (int64_t h = head * group; h < (head + 1) * group; ++h) {
    const std::vector<double> grad = slice(grad_values, s.query_length, s.query_heads, s.value_dim, batch, h);
    const Matrix<double> grad_matrix = Eigen::Map<const Matrix<double>>(grad.data(), s.query_length, s.value_dim);
    const Gradients gradients = gradients_of(head_of(problem, batch, h), grad_matrix);
    parts.push_back({0, flat(gradients.query)});
    parts.push_back({3, flat(gradients.log_forget)});
    key += gradients.key;
    value += gradients.value;
  }
  parts.push_back({1, flat(key)});
  parts.push_back({2, flat(value)});
  return parts;
}

inline std::vector<Part> parts_of_group(const BackwardResult& result, const Shape& s, int64_t batch, int64_t head) {
  const int64_t group = s.query_heads / s.heads;
  std::vector<Part> parts;
  for (int64_t h = head * group; h < (head + 1) * group; ++h) {
    parts.push_back({0, slice(result.query, s.query_length, s.query_heads, s.key_dim, batch, h)});
    parts.push_back({3, slice(result.log_forget, s.key_length, s.query_heads, 1, batch, h)});
  }
  parts.push_back({1, slice(result.key, s.key_length, s.heads, s.key_dim, batch, head)});
  parts.push_back({2, slice(result.value, s.key_length, s.heads, s.value_dim, batch, head)});
  return parts;
}

/// The share of the allowed error that the worst head uses, for query, key, value, log_forget, of each result. Allowed is the budget. With fewer than
/// 64 keys, or in a window of fewer, a gradient may be the sum of a few small differences, which 16-bit P and dS degrade: there twice the error of
/// that storage alone is allowed where it is more, since its rounding errors differ from the kernel's. Gradients that vanish in exact arithmetic have
/// no relative error, and are measured against a thousandth of one head's ‖dO‖. In float16 that allows 10⁻⁶ ‖dO‖, some ten steps of a float of that
/// size; so does a tenth in float32.
using Shares = std::array<double, 4>;

inline std::vector<Shares> shares_of(const Problem& problem, const std::vector<double>& grad_values,
                                     const std::vector<BackwardResult>& results, const Sight& sight = {}) {
  const Shape& s = problem.shape;
  std::vector<Shares> worst(results.size(), Shares{});
  for (int64_t batch = 0; batch < s.batch; ++batch)
    for (int64_t head = 0; head < s.heads; ++head) {
      const auto parts = [&](auto function) { return parts_of_group(problem, grad_values, batch, head, function); };
      const std::vector<Part> expected =
          parts([&](const Head& h, const Matrix<double>& g) { return gradients_by_products(h, g, sight); });
      std::vector<Part> rounded;
      if (std::min<int64_t>(s.key_length, sight.window) < 64)
        rounded = parts(
            [&](const Head& h, const Matrix<double>& g) { return rounded_gradients(h, g, problem.dtype, sight); });
      const std::vector<double> grad =
          slice(grad_values, s.query_length, s.query_heads, s.value_dim, batch, head * s.query_heads / s.heads);
      const double floor = (problem.dtype == Dtype::kFloat32 ? 0.1 : 0.001) *
                           Eigen::Map<const Vector<double>>(grad.data(), grad.size()).norm();
      for (size_t which = 0; which < results.size(); ++which) {
        const std::vector<Part> actual = parts_of_group(results[which], s, batch, head);
        for (size_t i = 0; i < actual.size(); ++i) {
          const auto error = [&](const Part& part) {
            return compare(part.numbers, expected[i].numbers, 1, floor).error;
          };
          const double storage = rounded.empty() ? 0 : 2 * error(rounded[i]);
          double& share = worst[which][actual[i].which];
          share = std::max(share, error(actual[i]) / std::max(budget(problem.dtype), storage));
        }
      }
    }
  return worst;
}

/// Of the worst of all results.
inline Shares worst_shares(const Problem& problem, const std::vector<double>& grad_values,
                           const std::vector<BackwardResult>& results, const Sight& sight = {}) {
  Shares worst{};
  for (const Shares& shares : shares_of(problem, grad_values, results, sight))
    for (size_t i = 0; i < worst.size(); ++i) worst[i] = std::max(worst[i], shares[i]);
  return worst;
}

}  // namespace lethe::testing
