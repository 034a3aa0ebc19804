// Row and column sums of dS as the backward's main kernel stores them, each by itself: the gate's gradient is a sum over many of them, in which one
// in another's place may go unseen.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>

#include "tests/cuda/backward.hpp"
#include "tests/cuda/every_kernel.hpp"
#include "tests/cuda/gate_sums.hpp"
#include "tests/cuda/rounded_gradients.hpp"

namespace lethe {
namespace {

using testing::DeviceArray;
using testing::GateSums;
using testing::slice;

/// The sums of dS_ij = P_ij dP_ij: the main kernel reads o = 0, and so Δ = 0. With the true Δ a row's sum would be 0, but for rounding.
template <typename Element>
GateSums sums_without_delta(const Problem& problem, const std::vector<double>& grad_values, bool float_sums,
                            bool deterministic) {
  const Shape& s = problem.shape;
  const testing::DeviceProblem<Element> device(problem, {});
  const int64_t rows = s.batch * s.query_heads;
  const std::vector<float> log_normalizer = [&] {
    const std::vector<double> numbers = device.forward().log_normalizer;
    return std::vector<float>(numbers.begin(), numbers.end());
  }();
  const DeviceArray<float> normalizer(log_normalizer);
  const DeviceArray<Element> zeros(testing::to_element<Element>(std::vector<float>(grad_values.size()))),
      grad(testing::to_element<Element>(grad_values));
  const DeviceArray<Element> key(s.batch * s.heads * s.key_length * s.key_dim), value(key.size());
  const DeviceArray<char> memory(testing::HopperKernels::backward_passes_bytes(s));
  const auto like_query = [&](const DeviceArray<Element>& array) {
    return Operand{array.data(), s.query_length * s.query_heads * s.key_dim, s.query_heads * s.key_dim, s.key_dim};
  };
  BackwardArguments arguments{};
  arguments.shape = s;
  arguments.dtype = problem.dtype;
  arguments.scale = problem.scale;
  arguments.query = device.query();
  arguments.key = device.key();
  arguments.value = device.value();
  arguments.values = arguments.residual = like_query(zeros);
  arguments.grad_values = like_query(grad);
  arguments.log_normalizer = normalizer.data();
  const Plan plan = device.backward_plan();
  const auto like_key = [&](const DeviceArray<Element>& array) {
    return MutableOperand{array.data(), s.key_length * s.heads * s.key_dim, s.heads * s.key_dim, s.key_dim};
  };
  arguments.grad_key = like_key(key);
  arguments.grad_value = like_key(value);
  arguments.float_sums = float_sums;
  arguments.deterministic = deterministic;
  Workspace cut(memory.data());
  const BackwardWorkspace workspace = backward_workspace_in(cut, s);
  launch_backward_prepare(arguments, workspace, plan);
  testing::poison_shared_memory();
  launch_backward_tiles(arguments, workspace, plan);

  const std::vector<float> slices = testing::download(workspace.grad_query, testing::slice_of(s, rows, 0));
  const std::vector<float> columns = testing::download(workspace.column_sums, testing::column_sum_at(s, rows, 0));
  GateSums sums;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t query = 0; query < s.query_length; ++query) {
      if (!testing::in_float(s, float_sums) || testing::rows_apart(problem, row, query)) {
        sums.of_rows.push_back(slices[testing::row_sum_at(s, row, query)]);
      } else {
        double sum = 0;
        for (const int64_t part : testing::parts_at(s, row, query)) sum += slices[part];
        sums.of_rows.push_back(sum);
      }
    }
    const auto first = columns.begin() + testing::column_sum_at(s, row, 0);
    sums.of_columns.insert(sums.of_columns.end(), first, first + s.key_length);
  }
  return sums;
}

// In a block of 128 tokens log f sum to −5 where the gate is strong, and to −0.1 where it is weak: rows of dS are summed apart, or 64 in one.
Problem problem_of(Dtype dtype, const Shape& shape, const std::function<bool(int64_t block)>& is_strong) {
  Problem problem = random_problem(shape, dtype, Gate::kInitial, 31);
  const auto token_of = [&](size_t i) { return int64_t(i) / shape.query_heads % shape.key_length; };
  for (size_t i = 0; i < problem.log_forget.size(); ++i)  // no weight is near the least float
    problem.log_forget[i] =
        static_cast<float>(problem.log_forget[i] / (is_strong(token_of(i) / kGateBlock) ? 16 : 1000));
  return problem;
}

// The sums' largest error, relative to the sum of their terms' magnitudes.
double error_of_sums(const Problem& problem, bool float_sums, bool deterministic) {
  const Dtype dtype = problem.dtype;
  const Shape& s = problem.shape;
  const std::vector<double> grad_values = testing::grad_values_of(problem, 32);
  const GateSums sums = dtype == Dtype::kBFloat16
                            ? sums_without_delta<__nv_bfloat16>(problem, grad_values, float_sums, deterministic)
                            : sums_without_delta<__half>(problem, grad_values, float_sums, deterministic);
  double worst = 0;
  for (int64_t row = 0; row < s.batch * s.query_heads; ++row) {
    const int64_t batch = row / s.query_heads, query_head = row % s.query_heads;
    const Head head = head_of(problem, batch, query_head);
    const std::vector<double> grad = slice(grad_values, s.query_length, s.query_heads, s.value_dim, batch, query_head);
    const Matrix<double> weights = testing::Exponentials(head).weights();
    const Matrix<double> grad_weights =
        Eigen::Map<const Matrix<double>>(grad.data(), s.query_length, s.value_dim) * head.value.transpose();
    const Matrix<double> grad_logits = weights.cwiseProduct(grad_weights);
    // a dP may be a small difference of large products, each exact to its own float error alone
    const Matrix<double> magnitudes = weights.cwiseProduct(grad_weights.cwiseAbs().cwiseMax(1));
    const auto note = [&](float sum, double expected, double magnitude) {
      const double error = std::abs(sum - expected) / magnitude;
      worst = error <= worst ? worst : error;  // NaN, too
    };
    for (int64_t i = 0; i < s.query_length; ++i) {
      int64_t first = i, count = 1;
      if (testing::in_float(s, float_sums) && !testing::rows_apart(problem, row, i)) {
        first = i / testing::kRowsOfGroup * testing::kRowsOfGroup;
        count = std::min(testing::kRowsOfGroup, s.query_length - first);
      }
      note(sums.of_rows[row * s.query_length + i], grad_logits.middleRows(first, count).sum(),
           magnitudes.middleRows(first, count).sum());
    }
    for (int64_t j = 0; j < s.key_length; ++j)
      note(sums.of_columns[row * s.key_length + j], grad_logits.col(j).sum(), magnitudes.col(j).sum());
  }
  std::printf("sums of dS in %s: off by at most %.2g of their terms\n", float_sums ? "float" : "16 bits", worst);
  return worst;
}

constexpr double kFloatError = 3e-5;

bool everywhere(int64_t) { return true; }
bool nowhere(int64_t) { return false; }
bool in_every_fourth_block(int64_t block) { return block % 4 == 1; }

class BackwardSums : public testing::EveryKernel {
 protected:
  double error(bool float_sums, bool (*is_strong)(int64_t) = everywhere, int64_t queries = 333,
               int64_t keys = 333) const {
    const Problem problem = problem_of(dtype(), shape(2, queries, keys, 1, 2), is_strong);
    return std::max(error_of_sums(problem, float_sums, false), error_of_sums(problem, float_sums, true));
  }
};

// Sums of numbers rounded to 16 bits are off by at most 2⁻⁸ (bfloat16) or 2⁻¹¹ (float16) of the terms' magnitudes.
TEST_P(BackwardSums, OfEachRowAndColumnAreOfItsOwnNumbers) {
  EXPECT_LE(error(false), (dtype() == Dtype::kBFloat16 ? 1 / 256. : 1 / 2048.) + kFloatError);
}

// The first row and the last column have one term, and rounding may change it by 2⁻⁸ or 2⁻¹¹: far more than is allowed here.
TEST_P(BackwardSums, InFloatAreOfNumbersThatAreNotRounded) { EXPECT_LE(error(true), kFloatError); }

TEST_P(BackwardSums, InFloatAreOfGroupsOfRowsWhereTheGateHardlyDecays) { EXPECT_LE(error(true, nowhere), kFloatError); }

// Tiles of either kind follow one another, where they begin with blocks and where they don't.
TEST_P(BackwardSums, InFloatAreOfEachRowInTheTilesWhereTheGateDecays) {
  EXPECT_LE(error(true, in_every_fourth_block, 700, 700), kFloatError);
  EXPECT_LE(error(true, in_every_fourth_block, 700, 740), kFloatError);
  EXPECT_LE(error(
                true, [](int64_t block) { return block == 3; }, 700, 740),
            kFloatError);
}

// The warp that adds rows' sums reads for 32 query tiles at a time whether rows are apart. A gate that is strong in the last block alone leaves its
// rows some weight on the first keys.
TEST_P(BackwardSums, InFloatAreOfEachRowInTilesAfter32Others) {
  const int64_t length = 32 * testing::rows_of_tile(shape(1, 1, 1, 1, 1)) + 2 * kGateBlock;
  const Problem problem = problem_of(dtype(), shape(1, length, length, 1, 1),
                                     [&](int64_t block) { return block == length / kGateBlock - 1; });
  ASSERT_TRUE(testing::rows_apart(problem, 0, length - 1));
  EXPECT_LE(error_of_sums(problem, true, false), kFloatError);
}

INSTANTIATE_TEST_SUITE_P(EveryKernel, BackwardSums, testing::hopper_instances(), testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(OfWindows, BackwardSums, testing::window_instances(), testing::name_of_instance);

}  // namespace
}  // namespace lethe
