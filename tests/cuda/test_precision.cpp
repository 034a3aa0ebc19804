// The kernels over long sequences against the definition in double on the device: outputs and all gradients within the plain budget.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "reference/agreement.hpp"
#include "reference/forgetting_attention.hpp"
#include "tests/cuda/against_reference.hpp"
#include "tests/cuda/backward.hpp"
#include "tests/cuda/double_gradients.hpp"
#include "tests/cuda/every_kernel.hpp"

namespace lethe {
namespace {

using testing::BackwardResult;
using testing::DoubleGradients;
using testing::grad_values_of;

using Errors = std::array<double, 5>;
constexpr std::array kResultNames = {"values", "query", "key", "value", "log_forget"};

Errors errors(const BackwardResult& actual, const DoubleGradients& expected) {
  return {compare(actual.values, expected.values, 1).error, compare(actual.query, expected.query, 1).error,
          compare(actual.key, expected.key, 1).error, compare(actual.value, expected.value, 1).error,
          compare(actual.log_forget, expected.log_forget, 1).error};
}

// With sums of dS in 16 bits, where there are any, and in float, from which the gate's gradient is computed.
struct Found {
  Errors errors, of_float_sums;
};

// One head; the measured errors go to the log.
// `of_gate`: times the budget that the gate's gradient may have.
Found expect_budget(const Problem& problem, const std::string& what, double of_gate = 1) {
  const std::vector<double> grad = grad_values_of(problem, 99);
  const DoubleGradients expected = testing::double_gradients(problem, grad);
  const std::vector<BackwardResult> results = testing::of_both_sums(problem, grad);
  const Found found = {errors(results.front(), expected), errors(results.back(), expected)};
  std::printf("%s D%d T%d %-10s", dtype_name(problem.dtype).c_str(), int(problem.shape.key_dim),
              int(problem.shape.key_length), what.c_str());
  for (size_t i = 0; i < kResultNames.size(); ++i) {
    std::printf("  %s %.3f%%", kResultNames[i], 100 * found.errors[i]);
    const double allowed = budget(problem.dtype) * (i + 1 == kResultNames.size() ? of_gate : 1);
    EXPECT_LE(found.errors[i], allowed) << kResultNames[i] << ", " << what;
    EXPECT_LE(found.of_float_sums[i], allowed) << kResultNames[i] << ", float sums, " << what;
  }
  std::printf(", of float sums %.3f%%\n", 100 * found.of_float_sums.back());
  return found;
}

// Not required where the logits decide against the gate: there most of the error is not of dS. One family and one instance have float sums alone.
void expect_float_sums_to_be_more_exact(const Found& found, double times, int64_t dim) {
  if (testing::family_under_test == testing::Family::kAmpere || !hopper::has_16_bit_sums(dim)) return;
  EXPECT_LE(times * found.of_float_sums.back(), found.errors.back());
}

// The relative error of rounding numbers of all sizes: uniform within half a unit in the last place, so a third of its square, averaged over
// mantissas with uniform logarithms, where 1/m² is 3 / (8 ln 2) on average.
double error_of_rounding(Dtype dtype) {
  return std::exp2(dtype == Dtype::kBFloat16 ? -8 : -11) / std::sqrt(8 * std::log(2));
}

Problem one_head(int64_t length, int64_t dim, Dtype dtype, Gate gate, uint64_t seed) {
  return random_problem({1, length, length, 1, 1, dim, dim}, dtype, gate, seed);
}

class Precision : public testing::EveryKernel {};

TEST_P(Precision, HoldsTheBudgetForEveryGateAtALengthOf8192) {
  const auto [family, dtype, dim] = GetParam();
  for (const Gate gate : {Gate::kOpen, Gate::kInitial, Gate::kStrong, Gate::kSpiky, Gate::kZero, Gate::kCutting})
    expect_float_sums_to_be_more_exact(expect_budget(one_head(8192, dim, dtype, gate, 20), gate_name(gate)), 2, dim);
}

TEST_P(Precision, HoldsTheBudgetForOpenGatesAndAnyNumbers) {
  const auto [family, dtype, dim] = GetParam();
  for (uint64_t seed = 30; seed < 36; ++seed) {
    const Found found = expect_budget(one_head(2048, dim, dtype, Gate::kZero, seed), "zero");
    expect_float_sums_to_be_more_exact(found, 3, dim);
    // Only dS and the results computed from it are rounded: computed from P in 16 bits, dS would have three roundings, 22 % more.
    const double two_roundings = std::sqrt(2) * error_of_rounding(dtype);
    for (const size_t i : {1, 2})
      EXPECT_LE(found.errors[i], 1.1 * two_roundings) << kResultNames[i] << ", seed " << seed;
  }
}

// The stronger the gates, the more of a query's weight is on its own key, and the smaller is dS beside the numbers it is computed from.
TEST_P(Precision, HoldsTheBudgetForEvenGates) {
  const auto [family, dtype, dim] = GetParam();
  for (const double gate : {-1.0, -1.99, -3.0, -5.0, -7.99}) {
    Problem problem = one_head(2048, dim, dtype, Gate::kZero, 21);
    for (double& log_forget : problem.log_forget) log_forget = round_to(Dtype::kFloat32, gate);
    expect_float_sums_to_be_more_exact(expect_budget(problem, "even " + std::to_string(gate).substr(0, 5)), 2, dim);
  }
}

TEST_P(Precision, HoldsTheBudgetForWeakAndForStrongGatesAtALengthOf16384) {
  const auto [family, dtype, dim] = GetParam();
  for (const double mean : {-0.5, -0.05}) {
    Problem problem = one_head(16384, dim, dtype, Gate::kOpen, 17);
    for (double& gate : problem.log_forget) gate = round_to(Dtype::kFloat32, gate * mean / -1e-4);
    expect_float_sums_to_be_more_exact(expect_budget(problem, "mean " + std::to_string(mean).substr(0, 5)), 2, dim);
  }
}

// Rows share a float sum where the gates of a block of 128 tokens and of the one before sum to more than −1: everywhere, nowhere, and in every third
// block.
TEST_P(Precision, HoldsTheBudgetWhereRowsShareSumsAndWhereTheyDoNot) {
  const auto [family, dtype, dim] = GetParam();
  for (const auto& [weak, strong, what] :
       {std::tuple{-0.0078, -0.0078, "sum -0.998"}, {-0.0079, -0.0079, "sum -1.011"}, {-1e-4, -0.5, "patchy"}}) {
    Problem problem = one_head(4096, dim, dtype, Gate::kZero, 22);
    for (int64_t t = 0; t < 4096; ++t)
      problem.log_forget[t] = round_to(Dtype::kFloat32, t / kGateBlock % 3 == 0 ? strong : weak);
    expect_float_sums_to_be_more_exact(expect_budget(problem, what), 2, dim);
  }
}

// Keys that hold nearly all weight of distant queries: a row's rounding error is spread by the gate alone, which gives no hint of its source.
TEST_P(Precision, HoldsTheBudgetWhereTheLogitsDecideAgainstTheGate) {
  const auto [family, dtype, dim] = GetParam();
  for (const int64_t period : {int64_t{64}, int64_t{512}}) {
    Problem problem = one_head(4096, dim, dtype, Gate::kOpen, 18);
    for (int64_t t = 0; t < 4096; ++t) {
      if (t % period != 3) continue;
      for (int64_t d = 0; d < dim; ++d) problem.key[t * dim + d] = round_to(dtype, problem.key[t * dim + d] * 4);
    }
    // Found were 0.99 % at head dim 32 and 0.52 % at 96.
    const bool many = dtype == Dtype::kBFloat16 && period == 64;
    expect_budget(problem, "needles " + std::to_string(period), many && dim == 32 ? 2.5 : many && dim == 96 ? 1.2 : 1);
  }
}

INSTANTIATE_TEST_SUITE_P(EveryKernel, Precision, testing::hopper_instances(), testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(OfWindows, Precision, testing::window_instances(), testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(OfAmpere, Precision, testing::ampere_instances(), testing::name_of_instance);

TEST(PrecisionOracle, EqualsTheReference) {
  LETHE_NEEDS_ANY_GPU();
  for (const Gate gate : {Gate::kInitial, Gate::kCutting}) {
    const Problem problem = one_head(300, 64, Dtype::kBFloat16, gate, 18);
    const std::vector<double> grad = grad_values_of(problem, 99);
    const Head head = head_of(problem, 0, 0);
    const Matrix<double> grad_matrix = Eigen::Map<const Matrix<double>>(grad.data(), 300, 64);
    const Gradients gradients = reference::forgetting_attention::gradients(head, grad_matrix);
    const Output output = reference::forgetting_attention::parallel(head);
    const auto flat = [](const auto& matrix) {
      return std::vector<double>(matrix.data(), matrix.data() + matrix.size());
    };
    const BackwardResult reference{flat(output.values), flat(gradients.query), flat(gradients.key),
                                   flat(gradients.value), flat(gradients.log_forget)};
    for (const double error : errors(reference, testing::double_gradients(problem, grad))) EXPECT_LE(error, 1e-10);
  }
}

// Of all keys, of a window and of packed sequences; with cuts, and fewer queries than keys.
TEST(PrecisionOracle, ByProductsEqualsTheReference) {
  using testing::Sight;
  const auto flat = [](const auto& matrix) {
    return std::vector<double>(matrix.data(), matrix.data() + matrix.size());
  };
  for (const auto& [queries, sight] : {std::pair<int64_t, Sight>{300, {}},
                                       {170, {}},
                                       {170, {.window = 70}},
                                       {300, {.window = 1}},
                                       {300, {.cu_seqlens = {0, 5, 5, 130, 300}}},
                                       {300, {.window = 40, .cu_seqlens = {0, 64, 300}}}})
    for (const Gate gate : {Gate::kOpen, Gate::kInitial, Gate::kStrong, Gate::kCutting}) {
      SCOPED_TRACE(std::to_string(queries) + " queries, " + gate_name(gate));
      const Problem problem = random_problem({1, queries, 300, 1, 1, 24, 40}, Dtype::kFloat64, gate, 18);
      const Head head = head_of(problem, 0, 0);
      const std::vector<double> grad = grad_values_of(problem, 99);
      const Matrix<double> grad_matrix = Eigen::Map<const Matrix<double>>(grad.data(), queries, 40);
      const Output output = reference::forgetting_attention::parallel_within(head, sight),
                   found = testing::output_by_products(head, sight);
      const Gradients gradients = reference::forgetting_attention::gradients_within(head, sight, grad_matrix),
                      by_products = testing::gradients_by_products(head, grad_matrix, sight);
      const auto expect_equal = [](const std::vector<double>& actual, const std::vector<double>& expected) {
        EXPECT_LE(compare(actual, expected, 1, 1e-3).error, 1e-12);
      };
      expect_equal(flat(found.values), flat(output.values));
      expect_equal(flat(found.log_normalizer), flat(output.log_normalizer));
      expect_equal(flat(by_products.query), flat(gradients.query));
      expect_equal(flat(by_products.key), flat(gradients.key));
      expect_equal(flat(by_products.value), flat(gradients.value));
      expect_equal(flat(by_products.log_forget), flat(gradients.log_forget));
    }
}

TEST(PrecisionOracle, RefusesAGateThatIsOffByOneToken) {
  LETHE_NEEDS_ANY_GPU();
  const testing::FamilyOfDevice family;
  Problem problem = one_head(2048, 64, Dtype::kBFloat16, Gate::kInitial, 19);
  const std::vector<double> grad = grad_values_of(problem, 99);
  const BackwardResult result = testing::run_backward(problem, grad);
  std::rotate(problem.log_forget.begin(), problem.log_forget.begin() + 1, problem.log_forget.end());
  for (const double error : errors(result, testing::double_gradients(problem, grad)))
    EXPECT_GT(error, 3 * budget(problem.dtype));
}

}  // namespace
}  // namespace lethe
