// The output head and its loss on a GPU: its own kernel for 16 bits and float32, ATen's formulas for float64.
#include <ATen/Functions.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <cmath>
#include <string>

#include "tests/operator/output_head.hpp"
#include "tests/support/torch_gpu.hpp"

namespace lethe {
namespace {

using at::Tensor;

struct Case {
  at::ScalarType dtype;
  double budget;
};
constexpr Case kCases[] = {{at::kDouble, 1e-12}, {at::kFloat, 1e-5}, {at::kBFloat16, 5e-3}, {at::kHalf, 1e-3}};

TEST(LinearCrossEntropyOnCuda, AgreesWithItsDefinition) {
  LETHE_NEEDS_TORCH_GPU();
  for (const auto [dtype, budget] : kCases) {
    for (const auto& [vocabulary, padded] : {std::pair{97, 104}, {97, 97}, {50257, 50304}}) {
      SCOPED_TRACE(std::string(toString(dtype)) + ", V = " + std::to_string(vocabulary));
      const OutputHead head = random_output_head(300, 64, vocabulary, padded, dtype, at::kCUDA);
      const OutputHeadResult expected = definition_of(head);
      for (const int64_t rows_at_once : {0, 128}) {
        const OutputHeadResult found = result_of(head, rows_at_once);
        EXPECT_LT(relative_error(found.losses, expected.losses), budget);
        EXPECT_LT(relative_error(found.grad_hidden, expected.grad_hidden), budget);
        EXPECT_LT(relative_error(found.weight_gradient, expected.weight_gradient), budget);
        EXPECT_EQ(found.weight_gradient.slice(0, vocabulary).ne(0).sum().item<int64_t>(), 0) << "padding";
        EXPECT_TRUE(budget > 1e-4 || found.correct.cpu().equal(expected.correct));  // 16 bits make ties
      }
    }
  }
}

TEST(LinearCrossEntropyOnCuda, SpoilsOnlyTheRowsOfUnknownLabels) {
  LETHE_NEEDS_TORCH_GPU();
  for (const auto [dtype, budget] : kCases) {
    OutputHead head = random_output_head(6, 64, 97, 104, dtype, at::kCUDA);
    const OutputHeadResult good = result_of(head);
    head.labels[2] = 97;
    const OutputHeadResult found = result_of(head);
    EXPECT_TRUE(found.losses.isnan().cpu().equal(at::arange(6).eq(2))) << dtype;
    EXPECT_FALSE(found.correct[2].item<bool>()) << dtype;
    EXPECT_TRUE(found.grad_hidden[2].isnan().all().item<bool>()) << dtype;
    EXPECT_TRUE(found.grad_hidden.slice(0, 3).equal(good.grad_hidden.slice(0, 3))) << dtype;
  }
}

TEST(LinearCrossEntropyOnCuda, HasNoLossBesideALogitOfInfinity) {
  LETHE_NEEDS_TORCH_GPU();
  for (const auto [dtype, budget] : kCases) {
    OutputHead head = random_output_head(6, 64, 97, 104, dtype, at::kCUDA);
    head.hidden.abs_();
    head.hidden[4].neg_();  // its logit is −∞
    head.weight[50].fill_(INFINITY);
    head.labels.fill_(3);
    EXPECT_TRUE(result_of(head).losses.isnan().cpu().equal(at::arange(6).ne(4))) << dtype;
  }
}

// Logits are exact in float32, and so rounded to the same 16 bits in any order of sums.
TEST(LinearCrossEntropyOnCuda, AccumulatesMicroBatchesToTheWholeGradient) {
  LETHE_NEEDS_TORCH_GPU();
  const Tensor hidden = at::randint(-1, 2, {1024, 64}).to(at::kCUDA, at::kBFloat16);
  const Tensor weight = at::randint(-4, 5, {50304, 64}).div(8).to(at::kCUDA, at::kBFloat16);
  const OutputHead head{hidden, weight, at::randint(50257, {1024}, at::kLong).to(at::kCUDA), 50257};
  const Tensor whole = result_of(head).weight_gradient;
  for (const int64_t pieces : {2, 4}) {
    Tensor sum = at::zeros_like(whole);
    for (int64_t piece = 0; piece < pieces; ++piece) {
      const auto part = [&](const Tensor& tensor) { return tensor.chunk(pieces)[piece]; };
      linear_cross_entropy_with_gradients(part(hidden), weight, part(head.labels), head.vocabulary, head.scale, sum);
    }
    EXPECT_LT(relative_error(sum, whole), 1e-5) << pieces;
  }
}

TEST(LinearCrossEntropyOnCuda, GivesEqualBitsAndHoldsOneChunkOfLogits) {
  LETHE_NEEDS_TORCH_GPU();
  const OutputHead head = random_output_head(64, 64, 50257, 50304, at::kBFloat16, at::kCUDA);
  const auto repeat = [](const Tensor& tensor) { return at::cat(std::vector<Tensor>(512, tensor)); };
  const OutputHead long_head{repeat(head.hidden), head.weight, repeat(head.labels), head.vocabulary};
  const auto bytes = [] {
    return c10::cuda::CUDACachingAllocator::getDeviceStats(c10::cuda::current_device()).allocated_bytes[0];
  };
  const OutputHeadResult first = result_of(long_head);
  c10::cuda::CUDACachingAllocator::resetPeakStats(c10::cuda::current_device());
  const int64_t before = bytes().current;
  const OutputHeadResult second = result_of(long_head);
  EXPECT_LT(bytes().peak - before, int64_t{600} << 20) << "32768 rows are 3.1 GiB";
  EXPECT_TRUE(first.losses.equal(second.losses) && first.grad_hidden.equal(second.grad_hidden) &&
              first.weight_gradient.equal(second.weight_gradient));
  const auto evaluated = linear_cross_entropy(long_head.hidden, head.weight, long_head.labels, head.vocabulary);
  EXPECT_TRUE(evaluated.losses.equal(first.losses) && evaluated.correct.equal(first.correct));
}

}  // namespace
}  // namespace lethe
