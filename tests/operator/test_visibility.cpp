// A query does not depend on keys that it does not see: not even where those are NaN or ∞, or in unreadable memory.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "optimized/torch/forgetting_attention.hpp"
#include "tests/operator/problem_tensors.hpp"

namespace lethe {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

struct Example {
  at::Tensor query, key, value, log_forget, values_gradient;
};

Example random_example(int64_t length, Dtype dtype) {
  const Shape shape{.batch = 1,
                    .query_length = length,
                    .key_length = length,
                    .heads = 1,
                    .query_heads = 2,
                    .key_dim = 8,
                    .value_dim = 8};
  const ProblemTensors inputs = tensors_of(random_problem(shape, dtype, Gate::kOpen, 31));
  const ProblemTensors other = tensors_of(random_problem(shape, dtype, Gate::kOpen, 32));
  return {inputs.query, inputs.key, inputs.value, inputs.log_forget, other.query};
}

struct Options {
  std::optional<double> log_pruning_tolerance = {};
  std::optional<int64_t> window = {};
};

// values, and the gradients of query, key, value and log_forget
std::vector<at::Tensor> results_of(const Example& call, const Options& options = {}) {
  std::vector<at::Tensor> inputs;
  for (const at::Tensor& input : {call.query, call.key, call.value, call.log_forget})
    inputs.push_back(input.clone().requires_grad_());
  const auto bound = options.log_pruning_tolerance ? std::optional(at::full({inputs[3].size(2)}, 1.0)) : std::nullopt;
  const at::Tensor values = forgetting_attention(inputs[0], inputs[1], inputs[2], inputs[3], std::nullopt,
                                                 options.log_pruning_tolerance, bound, options.window);
  values.backward(call.values_gradient);
  std::vector<at::Tensor> results = {values.detach()};
  for (const at::Tensor& input : inputs) results.push_back(input.grad());
  return results;
}

void expect_equal_rows(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected, int64_t begin,
                       int64_t end) {
  for (size_t i = 0; i < actual.size(); ++i)
    EXPECT_TRUE(at::equal(actual[i].slice(1, begin, end), expected[i].slice(1, begin, end)))
        << "result " << i << ", rows " << begin << " to " << end;
}

bool any_finite(const at::Tensor& rows) { return rows.isfinite().any().item().toBool(); }

// Lengths for which keys are read in place, and for which they are copied; the position is in no tile's first or last row.
const std::pair<int64_t, Dtype> kExamples[] = {
    {700, Dtype::kFloat32}, {700, Dtype::kFloat64}, {700, Dtype::kBFloat16}, {2500, Dtype::kFloat32}};
constexpr int64_t kPosition = 350, kCutPosition = 420;

TEST(Visibility, KeepsANonFiniteKeyOrValueFromRowsThatDoNotSeeIt) {
  for (const auto& [length, dtype] : kExamples) {
    for (const bool cut : {false, true}) {
      Example clean = random_example(length, dtype);
      if (cut) clean.log_forget.select(1, kCutPosition).fill_(-kInfinite);
      const int64_t end = cut ? kCutPosition : length;  // of the rows that see the position
      clean.values_gradient.slice(1, kPosition, end).zero_();
      const std::vector<at::Tensor> expected = results_of(clean);
      for (const double number : {double{NAN}, kInfinite, -kInfinite}) {
        for (at::Tensor Example::*const input : {&Example::key, &Example::value}) {
          SCOPED_TRACE(dtype_name(dtype) + ", length " + std::to_string(length) + ", " + std::to_string(number));
          Example call = clean;
          call.*input = (call.*input).clone();
          (call.*input).select(1, kPosition).fill_(number);
          const std::vector<at::Tensor> actual = results_of(call);
          expect_equal_rows({actual[0]}, {expected[0]}, 0, kPosition);
          expect_equal_rows({actual[0]}, {expected[0]}, end, length);
          EXPECT_FALSE(any_finite(actual[0].select(1, kPosition)) && input == &Example::value);
          // No gradient comes from the rows that see it: none is changed.
          expect_equal_rows(actual, expected, 0, kPosition);
          expect_equal_rows(actual, expected, end, length);
          for (size_t i = 1; i < actual.size(); ++i)
            EXPECT_TRUE(actual[i].isfinite().all().item().toBool()) << "result " << i;
        }
      }
    }
  }
}

TEST(Visibility, KeepsANonFiniteRowsGradientFromWhatItDoesNotSee) {
  for (const auto& [length, dtype] : kExamples) {
    Example clean = random_example(length, dtype);
    constexpr int64_t kEarlierCut = 300;
    clean.log_forget.select(1, kEarlierCut).fill_(-kInfinite);
    clean.values_gradient.select(1, kPosition).zero_();
    const std::vector<at::Tensor> expected = results_of(clean);
    for (at::Tensor Example::*const input : {&Example::query, &Example::values_gradient}) {
      SCOPED_TRACE(dtype_name(dtype) + ", length " + std::to_string(length));
      Example call = clean;
      call.values_gradient = call.values_gradient.clone();
      call.values_gradient.select(1, kPosition).fill_(1.0);
      call.*input = (call.*input).clone();
      (call.*input).select(1, kPosition).fill_(NAN);
      const std::vector<at::Tensor> actual = results_of(call);
      expect_equal_rows(actual, expected, 0, kEarlierCut);
      expect_equal_rows(actual, expected, kPosition + 1, length);
      for (const size_t of_keys : {2, 3})
        EXPECT_FALSE(any_finite(actual[of_keys].slice(1, kEarlierCut, kPosition + 1))) << "result " << of_keys;
    }
  }
}

TEST(Visibility, KeepsSeveralNonFiniteRowsFromGatesThatNoneOfThemSeesAcross) {
  constexpr int64_t kLength = 900, kRows[] = {250, 500, 503, 800};
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBFloat16}) {
    for (const bool prunes : {false, true}) {
      SCOPED_TRACE(dtype_name(dtype) + (prunes ? ", pruned" : ", window of 5"));
      Example clean = random_example(kLength, dtype);
      if (prunes) clean.log_forget = at::full_like(clean.log_forget, -0.5);
      const Options options{prunes ? std::optional(-10.0) : std::nullopt,
                            prunes ? std::nullopt : std::optional<int64_t>(5)};
      Example call = clean;
      clean.values_gradient = clean.values_gradient.clone();
      call.values_gradient = call.values_gradient.clone();
      for (const int64_t row : kRows) {
        clean.values_gradient.select(1, row).zero_();
        call.values_gradient.select(1, row).fill_(row == 500 ? kInfinite : double{NAN});
      }
      const std::vector<at::Tensor> expected = results_of(clean, options), actual = results_of(call, options);
      const at::Tensor finite = actual[4].isfinite(), of_all = finite.all(2).squeeze(0);
      EXPECT_TRUE(at::equal(actual[4].masked_select(finite), expected[4].masked_select(finite)));
      for (int64_t t = 0; t < kLength; ++t) {
        const auto is_across = [&](int64_t row, int64_t reach) { return t <= row && t > row - reach; };
        const auto any = [&](int64_t reach) {
          return std::ranges::any_of(kRows, [&](int64_t row) { return is_across(row, reach); });
        };
        if (any(prunes ? 1 : 4)) EXPECT_FALSE(of_all[t].item().toBool()) << t;
        if (!any(prunes ? 220 : 4)) EXPECT_TRUE(of_all[t].item().toBool()) << t;  // pruned: 30 tokens, in blocks
      }
    }
  }
}

TEST(Visibility, CancelsALargeRowFromGatesThatItDoesNotSeeAcross) {
  const Options options{.window = 5};
  Example call = random_example(200, Dtype::kFloat32);
  const at::Tensor small = results_of(call, options)[4];
  call.values_gradient = call.values_gradient.clone();
  call.values_gradient.select(1, 190).mul_(1e6);
  const at::Tensor large = results_of(call, options)[4];
  EXPECT_LT(at::sub(large, small).slice(1, 0, 186).abs().max().item().toDouble(), 1e-6);
  EXPECT_GT(at::sub(large, small).slice(1, 187, 191).abs().max().item().toDouble(), 1e3);
}

TEST(Visibility, GivesAWeightTooSmallToStoreNoShareOfAGreatValue) {
  for (const auto& [dtype, greatest] : {std::pair(at::kFloat, 3e38), std::pair(at::kDouble, 1e308)}) {
    const at::Tensor zeros = at::zeros({1, 40, 1, 4}, dtype), log_forget = at::full({1, 40, 1}, -20.0, dtype);
    at::Tensor value = at::ones({1, 40, 1, 1}, dtype);
    value[0][0] = greatest;  // weighs e^−780 in the last row
    EXPECT_EQ(forgetting_attention(zeros, zeros, value, log_forget)[0][39].item().toDouble(), 1.0);
  }
}

// [1, length, 1, dim] whose rows before `readable` are on pages that end the program when read.
class PartlyReadable {
 public:
  PartlyReadable(int64_t length, int64_t dim, int64_t readable, double number)
      : size_(length * dim * sizeof(float)),
        memory_(mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    TORCH_CHECK(memory_ != MAP_FAILED, "memory: expected ", size_, " bytes, found none");
    tensor = at::from_blob(memory_, {1, length, 1, dim}, at::kFloat).fill_(number);
    const int64_t unreadable = readable * dim * static_cast<int64_t>(sizeof(float)) / kPage * kPage;
    TORCH_CHECK(unreadable > 0 && mprotect(memory_, unreadable, PROT_NONE) == 0, "pages: expected some, found none");
  }
  ~PartlyReadable() { munmap(memory_, size_); }
  PartlyReadable(const PartlyReadable&) = delete;
  PartlyReadable& operator=(const PartlyReadable&) = delete;

  at::Tensor tensor;

 private:
  static constexpr int64_t kPage = 4096;
  size_t size_;
  void* memory_;
};

TEST(Visibility, ReadsNeitherKeysNorValuesNorGatesBeforeTheBoundary) {
  constexpr int64_t kLength = 16384, kDim = 16;
  for (const bool cut : {false, true}) {
    for (const int64_t queries : {1, 300}) {
      const int64_t readable = kLength - 1024;
      const double log_f = cut ? -0.001 : -1.0;
      const PartlyReadable key(kLength, kDim, readable, 0.5), value(kLength, kDim, readable, 2.0);
      const PartlyReadable gates(kLength, 1, readable, log_f);
      const at::Tensor log_forget = gates.tensor.squeeze(3);
      const int64_t begin = kLength - 512;
      if (cut) log_forget.select(1, begin).fill_(-kInfinite);
      const auto tolerance = cut ? std::nullopt : std::optional<double>(-10.0);
      const auto bound = cut ? std::nullopt : std::optional<at::Tensor>(at::full({1}, 10.0));
      const auto [values, normalizer, visited] = forgetting_attention_with_statistics(
          at::ones({1, queries, 1, kDim}), key.tensor, value.tensor, log_forget, std::nullopt, tolerance, bound);
      EXPECT_TRUE(at::allclose(values, at::full_like(values, 2.0)));
      EXPECT_LT(visited.item().toLong(), queries * 1024);
    }
  }
}

}  // namespace
}  // namespace lethe
