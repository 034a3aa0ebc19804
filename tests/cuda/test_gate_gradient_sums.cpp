// The error of d log f from its sums, in double with the 16-bit roundings of P and dS switched on: for sums of dS in 16 bits, each row's and each
// column's by the tensor core; for float sums of each row, the kernels' other kind; and for float sums of 64 rows in one, which take less time and
// which the kernels use where the gate hardly decays. On the host.

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "reference/agreement.hpp"
#include "reference/forgetting_attention.hpp"
#include "tests/cuda/rounded_gradients.hpp"

namespace lethe {
namespace {

constexpr Dtype kDtype = Dtype::kBFloat16;
constexpr Eigen::Index kLength = 2048, kDim = 64;

// d log f_l = Σ_{t ≥ l} (u_t − columns_t), with rows subtracted from their keys in the shares of the gate alone (gate/gradient.cuh).
std::vector<double> grad_log_forget(const Matrix<double>& shares, const Vector<double>& rows,
                                    const Vector<double>& columns) {
  const Vector<double> taken = shares.transpose() * rows - columns;
  std::vector<double> grad(kLength);
  double sum = 0;
  for (Eigen::Index l = kLength - 1; l > 0; --l) grad[l] = sum += taken[l];
  return grad;
}

constexpr std::array<Eigen::Index, 4> kRows = {1, 4, 16, 64};

struct Errors {
  double in_16_bits;
  std::array<double, kRows.size()> in_float;  // of so many rows in one
};

Errors errors_of(double mean_log_forget, uint64_t seed) {
  Problem problem = random_problem({1, kLength, kLength, 1, 1, kDim, kDim}, kDtype, Gate::kOpen, seed);
  for (double& gate : problem.log_forget) gate = round_to(Dtype::kFloat32, gate * mean_log_forget / -1e-4);
  const Head head = head_of(problem, 0, 0);
  const Problem other = random_problem(problem.shape, kDtype, Gate::kOpen, seed + 1000);
  const Matrix<double> grad_values = head_of(other, 0, 0).value;

  const testing::Exponentials exponentials(head);
  const Matrix<double> grad_logits =
      exponentials.weights().cwiseProduct(testing::grad_weights(head, grad_values, exponentials, kDtype));
  Head of_gate_alone = head;
  of_gate_alone.scale = 0;
  const Matrix<double> shares = testing::Exponentials(of_gate_alone).weights();

  const Vector<double> exact = reference::forgetting_attention::gradients(head, grad_values).log_forget;
  const std::vector<double> expected(exact.data(), exact.data() + kLength);
  const auto error = [&](const Vector<double>& rows, const Matrix<double>& of) {
    return compare(grad_log_forget(shares, rows, of.colwise().sum().transpose()), expected, 1).error;
  };
  const Matrix<double> in_16_bits = testing::rounded(grad_logits, kDtype);
  Errors errors{error(in_16_bits.rowwise().sum(), in_16_bits), {}};
  std::string log;
  for (size_t i = 0; i < kRows.size(); ++i) {
    Vector<double> rows = grad_logits.rowwise().sum();
    for (Eigen::Index first = 0; first < kLength; first += kRows[i])
      rows.segment(first, kRows[i]).setConstant(rows.segment(first, kRows[i]).mean());
    errors.in_float[i] = error(rows, grad_logits);
    log += ", " + std::to_string(kRows[i]) + (i == 0 ? " row" : " rows") + " in float " +
           std::to_string(100 * errors.in_float[i]) + "%";
  }
  std::printf("mean log f %g, head %d: rows in 16 bits %f%%%s\n", mean_log_forget, int(seed), 100 * errors.in_16_bits,
              log.c_str());
  return errors;
}

// The errors of heads 1 to 3. For every gate, float sums of each row are more exact than sums in 16 bits (here 3 to 20 times), and those in 16 bits
// keep the budget.
std::vector<Errors> errors_of_heads(double mean_log_forget) {
  std::vector<Errors> all;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const Errors& errors = all.emplace_back(errors_of(mean_log_forget, seed));
    EXPECT_LE(errors.in_16_bits, budget(kDtype)) << seed;
    EXPECT_LE(2 * errors.in_float[0], errors.in_16_bits) << seed;
  }
  return all;
}

// Down to a decay of e⁻¹ over 128 tokens, from which on the kernels have a sum of each row.
TEST(GateGradientSums, OfManyRowsAreMoreExactInFloatThanIn16BitsWithAnOpenGate) {
  for (const double mean_log_forget : {-1e-4, -1e-3, -1 / 128.})
    for (const Errors& errors : errors_of_heads(mean_log_forget)) EXPECT_LE(3 * errors.in_float[3], errors.in_16_bits);
}

TEST(GateGradientSums, OfEachRowInFloatAreMoreExactThanOfFourInOne) {
  for (const Errors& errors : errors_of_heads(-0.5)) {
    EXPECT_LT(errors.in_float[0], errors.in_float[1]);
    EXPECT_GT(errors.in_float[3], errors.in_16_bits);
  }
}

TEST(GateGradientSums, OfManyRowsAreLessExactInFloatThanIn16BitsWithStrongGates) {
  for (const Errors& errors : errors_of_heads(-2)) {
    EXPECT_LT(errors.in_float[1], errors.in_16_bits);
    EXPECT_GT(errors.in_float[2], errors.in_16_bits);
  }
}

}  // namespace
}  // namespace lethe
