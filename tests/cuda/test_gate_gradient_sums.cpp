// What d log f loses to the sums it is made of, in double with the kernels' roundings switched on: to sums of dS in 16 bits, each row's and
// each column's by the tensor core, as in the kernels; and to sums of dS in float, for which a kernel would have time if it added up sixteen
// rows in one. On the host.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "reference/agreement.hpp"
#include "reference/forgetting_attention.hpp"

namespace lethe {
namespace {

constexpr Dtype kDtype = Dtype::kBFloat16;
constexpr Eigen::Index kLength = 2048, kDim = 64;

Matrix<double> rounded(const Matrix<double>& numbers) {
  return numbers.unaryExpr([](double number) { return round_to(kDtype, number); });
}

// Row i is softmax_j(logits_ij + Σ_{j < l ≤ i} log f_l) over j ≤ i; exponentials and what they sum to, apart.
struct Weights {
  Matrix<double> exponentials;
  Vector<double> sums;

  Weights(Matrix<double> logits, const Vector<double>& log_forget) : exponentials(std::move(logits)), sums(kLength) {
    for (Eigen::Index i = 0; i < kLength; ++i) {
      double decay = 0;
      for (Eigen::Index j = i; j >= 0; --j) {
        exponentials(i, j) += decay;
        decay += log_forget[j];
      }
      auto row = exponentials.row(i);
      row.head(i + 1) = (row.head(i + 1).array() - row.head(i + 1).maxCoeff()).exp();
      row.tail(kLength - i - 1).setZero();
      sums[i] = row.sum();
    }
  }
  Matrix<double> normalized() const { return sums.cwiseInverse().asDiagonal() * exponentials; }
};

// d log f_l = Σ_{t ≥ l} (u_t − columns_t), with rows taken from their keys as the gate alone would share them out (backward_gate.cu).
std::vector<double> grad_log_forget(const Matrix<double>& shares, const Vector<double>& rows,
                                    const Vector<double>& columns) {
  const Vector<double> taken = shares.transpose() * rows - columns;
  std::vector<double> grad(kLength);
  double sum = 0;
  for (Eigen::Index l = kLength - 1; l > 0; --l) grad[l] = sum += taken[l];
  return grad;
}

struct Errors {
  double in_16_bits = 0, of_sixteen_rows = 0;
};

Errors errors_of(double mean_log_forget, uint64_t seed) {
  Problem problem = random_problem({1, kLength, kLength, 1, 1, kDim, kDim}, kDtype, Gate::kOpen, seed);
  for (double& gate : problem.log_forget) gate = round_to(Dtype::kFloat32, gate * mean_log_forget / -1e-4);
  const Head head = head_of(problem, 0, 0);
  const Problem other = random_problem(problem.shape, kDtype, Gate::kOpen, seed + 1000);
  const Matrix<double> grad_values = head_of(other, 0, 0).value;

  const Weights weights(head.scale * head.query * head.key.transpose(), head.log_forget);
  const Matrix<double> values = weights.sums.cwiseInverse().asDiagonal() * (rounded(weights.exponentials) * head.value);
  const Vector<double> delta = grad_values.cwiseProduct(values).rowwise().sum();
  const Matrix<double> grad_logits =
      weights.normalized().cwiseProduct((grad_values * head.value.transpose()).colwise() - delta);
  const Matrix<double> in_16_bits = rounded(grad_logits);
  const Matrix<double> shares = Weights(Matrix<double>::Zero(kLength, kLength), head.log_forget).normalized();
  Vector<double> of_sixteen = grad_logits.rowwise().sum();
  for (Eigen::Index first = 0; first < kLength; first += 16)
    of_sixteen.segment(first, 16).setConstant(of_sixteen.segment(first, 16).mean());

  const Vector<double> exact = reference::forgetting_attention::gradients(head, grad_values).log_forget;
  const std::vector<double> expected(exact.data(), exact.data() + kLength);
  const auto error = [&](const Vector<double>& rows, const Matrix<double>& of) {
    return compare(grad_log_forget(shares, rows, of.colwise().sum().transpose()), expected, 1).error;
  };
  return {error(in_16_bits.rowwise().sum(), in_16_bits), error(of_sixteen, grad_logits)};
}

// The worst of three heads; what it finds goes to the log.
Errors worst_errors(double mean_log_forget) {
  Errors worst;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const Errors found = errors_of(mean_log_forget, seed);
    worst = {std::max(worst.in_16_bits, found.in_16_bits), std::max(worst.of_sixteen_rows, found.of_sixteen_rows)};
  }
  std::printf("mean log f %g: rows of 16 bits %.3f%%, sixteen rows in float %.3f%%\n", mean_log_forget,
              100 * worst.in_16_bits, 100 * worst.of_sixteen_rows);
  return worst;
}

TEST(GateGradientSums, OfSixteenRowsAreMoreExactWithAnOpenGate) {
  const Errors errors = worst_errors(-1e-4);
  EXPECT_LE(errors.in_16_bits, 0.8 * budget(kDtype));
  EXPECT_LE(5 * errors.of_sixteen_rows, errors.in_16_bits);
}

TEST(GateGradientSums, OfEachRowInSixteenBitsAreMoreExactWithStrongGates) {
  for (const double mean : {-0.5, -2.0}) {
    const Errors errors = worst_errors(mean);
    EXPECT_LE(errors.in_16_bits, 0.5 * budget(kDtype));
    EXPECT_GT(errors.of_sixteen_rows, errors.in_16_bits);
  }
}

}  // namespace
}  // namespace lethe
