// The backward kernels against the reference, per head, over every dtype, head dim and feature.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "reference/agreement.hpp"
#include "reference/forgetting_attention.hpp"
#include "tests/cuda/backward.hpp"
#include "tests/cuda/rounded_gradients.hpp"

namespace lethe {
namespace {

using testing::BackwardResult;
using testing::grad_values_of;

/// Column `head` of [B, T, heads, width] at `batch`, flat [T, width].
std::vector<double> slice(const std::vector<double>& tensor, int64_t length, int64_t heads, int64_t width,
                          int64_t batch, int64_t head) {
  std::vector<double> result;
  for (int64_t t = 0; t < length; ++t) {
    const auto begin = tensor.begin() + ((batch * length + t) * heads + head) * width;
    result.insert(result.end(), begin, begin + width);
  }
  return result;
}

constexpr std::array kGradientNames = {"query", "key", "value", "log_forget"};

/// Of one (batch, head of keys): the gradients of query and log_forget for each query head, of key and value summed over the group.
using Tensors = std::array<std::vector<double>, 4>;

std::vector<double> flat(const auto& matrix) { return {matrix.data(), matrix.data() + matrix.size()}; }

/// `gradients_of(head, grad_values)` for the heads of one group, as Tensors.
template <typename Function>
Tensors group_gradients(const Problem& problem, const std::vector<double>& grad_values, int64_t batch, int64_t head,
                        Function gradients_of) {
  const Shape& s = problem.shape;
  const int64_t group = s.query_heads / s.heads;
  Tensors tensors;
  Matrix<double> key = Matrix<double>::Zero(s.key_length, s.key_dim),
                 value = Matrix<double>::Zero(s.key_length, s.value_dim);
  for (int64_t h = head * group; h < (head + 1) * group; ++h) {
    const std::vector<double> grad = slice(grad_values, s.query_length, s.query_heads, s.value_dim, batch, h);
    const Matrix<double> grad_matrix = Eigen::Map<const Matrix<double>>(grad.data(), s.query_length, s.value_dim);
    const Gradients gradients = gradients_of(head_of(problem, batch, h), grad_matrix);
    for (const auto& [which, part] : {std::pair{0, flat(gradients.query)}, {3, flat(gradients.log_forget)}})
      tensors[which].insert(tensors[which].end(), part.begin(), part.end());
    key += gradients.key;
    value += gradients.value;
  }
  tensors[1] = flat(key);
  tensors[2] = flat(value);
  return tensors;
}

/// The share of what is allowed that the worst head uses, of query, key, value, log_forget. Allowed is the budget. Of fewer than 64 keys
/// a gradient may hang on a few small differences, of which 16-bit P and dS leave less: there three times what that storage alone
/// costs is allowed where it is more, for its rounding errors are others than the kernel's. Gradients that vanish in exact arithmetic
/// have no relative error, and are measured against a hundredth of ‖dO‖.
using Shares = std::array<double, 4>;

Shares worst_shares(const Problem& problem, const std::vector<double>& grad_values, const BackwardResult& result) {
  const Shape& s = problem.shape;
  const int64_t group = s.query_heads / s.heads;
  Shares worst{};
  for (int64_t batch = 0; batch < s.batch; ++batch)
    for (int64_t head = 0; head < s.heads; ++head) {
      const auto gradients = [&](auto function) {
        return group_gradients(problem, grad_values, batch, head, function);
      };
      const Tensors expected = gradients(
          [](const Head& h, const Matrix<double>& g) { return reference::forgetting_attention::gradients(h, g); });
      const Tensors rounded = gradients(
          [&](const Head& h, const Matrix<double>& g) { return testing::rounded_gradients(h, g, problem.dtype); });
      Tensors actual;
      actual[1] = slice(result.key, s.key_length, s.heads, s.key_dim, batch, head);
      actual[2] = slice(result.value, s.key_length, s.heads, s.value_dim, batch, head);
      for (int64_t h = head * group; h < (head + 1) * group; ++h) {
        for (const auto& [which, part] :
             {std::pair{0, slice(result.query, s.query_length, s.query_heads, s.key_dim, batch, h)},
              {3, slice(result.log_forget, s.key_length, s.query_heads, 1, batch, h)}})
          actual[which].insert(actual[which].end(), part.begin(), part.end());
      }
      const std::vector<double> grad =
          slice(grad_values, s.query_length, s.query_heads, s.value_dim, batch, head * group);
      const double floor = 0.01 * Eigen::Map<const Vector<double>>(grad.data(), grad.size()).norm();
      for (int i = 0; i < 4; ++i) {
        const double storage = s.key_length < 64 ? 3 * compare(rounded[i], expected[i], 1, floor).error : 0;
        const double allowed = std::max(budget(problem.dtype), storage);
        worst[i] = std::max(worst[i], compare(actual[i], expected[i], allowed, floor).share());
      }
    }
  return worst;
}

Shares shares_of(const Problem& problem, const testing::PlanOptions& options = {}, bool deterministic = false) {
  const std::vector<double> grad = grad_values_of(problem, 99);
  return worst_shares(problem, grad, testing::run_backward(problem, grad, deterministic, options));
}

void expect_agreement(const Problem& problem, const testing::PlanOptions& options = {}, bool deterministic = false) {
  const Shares worst = shares_of(problem, options, deterministic);
  for (int i = 0; i < 4; ++i) EXPECT_LE(worst[i], 1) << kGradientNames[i];
}

class Backward : public ::testing::TestWithParam<std::tuple<Dtype, int64_t>> {
 protected:
  void SetUp() override { LETHE_NEEDS_GPU(); }
  Dtype dtype() const { return std::get<0>(GetParam()); }
  Shape shape(int64_t batch, int64_t queries, int64_t keys, int64_t heads, int64_t query_heads) const {
    return {batch, queries, keys, heads, query_heads, std::get<1>(GetParam()), std::get<1>(GetParam())};
  }
};

TEST_P(Backward, EqualsTheReferenceAtEveryLengthAroundATile) {
  for (const int64_t length : {1, 2, 17, 63, 64, 65, 127, 128, 129, 255, 257, 640}) {
    SCOPED_TRACE(length);
    expect_agreement(random_problem(shape(2, length, length, 3, 3), dtype(), Gate::kInitial, length));
  }
}

TEST_P(Backward, EqualsTheReferenceForEveryGate) {
  for (const Gate gate : {Gate::kOpen, Gate::kInitial, Gate::kStrong, Gate::kSpiky, Gate::kZero, Gate::kCutting}) {
    SCOPED_TRACE(gate_name(gate));
    expect_agreement(random_problem(shape(1, 900, 900, 2, 2), dtype(), gate, 5));
  }
}

TEST_P(Backward, AlignsFewerQueriesAtTheEnd) {
  for (const auto& [queries, keys] :
       {std::pair<int64_t, int64_t>{1, 300}, {5, 128}, {100, 700}, {130, 131}, {256, 640}, {300, 333}}) {
    SCOPED_TRACE(std::to_string(queries) + " of " + std::to_string(keys));
    expect_agreement(random_problem(shape(2, queries, keys, 2, 2), dtype(), Gate::kCutting, 7));
    expect_agreement(random_problem(shape(1, queries, keys, 1, 1), dtype(), Gate::kInitial, 8));
  }
}

TEST_P(Backward, KeepsToOneCutWhereverItLiesInABlock) {
  for (const int64_t offset : {0, 100})
    for (const int64_t cut : {1, 127, 128, 129, 256, 384}) {
      SCOPED_TRACE(cut);
      Problem problem = random_problem(shape(1, 640 - offset, 640, 1, 1), dtype(), Gate::kOpen, 22);
      problem.log_forget[cut] = -INFINITY;
      expect_agreement(problem);
    }
}

TEST_P(Backward, KeepsAGateThatIsNoNumberToTheQueriesThatSeeItsBlock) {
  constexpr int64_t kKeys = 1500, kHeads = 4, kHead = 2, kToken = 700, kBlock = kToken / kGateBlock * kGateBlock;
  for (const int64_t queries : {kKeys, kKeys - 37}) {  // then a tile's queries stand in two blocks
    SCOPED_TRACE(queries);
    Problem problem = random_problem(shape(2, queries, kKeys, kHeads, kHeads), dtype(), Gate::kInitial, 13);
    const std::vector<double> grad = grad_values_of(problem, 99);
    const BackwardResult clean = testing::run_backward(problem, grad, false, {});
    problem.log_forget[kToken * kHeads + kHead] = std::numeric_limits<double>::quiet_NaN();  // of the first batch entry
    const BackwardResult result = testing::run_backward(problem, grad, false, {});
    const int64_t dim = problem.shape.key_dim;
    for (int64_t i = 0; i < int64_t(clean.query.size()); ++i) {
      const int64_t head = i / dim % kHeads, query = i / dim / kHeads % queries, position = query + kKeys - queries,
                    batch = i / dim / kHeads / queries;
      const bool of_head = batch == 0 && head == kHead;
      if (of_head && position >= kToken) {
        ASSERT_TRUE(std::isnan(result.query[i])) << "query " << query;
      } else if (!of_head || position < kBlock) {
        ASSERT_NEAR(result.query[i], clean.query[i], 0.02) << batch << ", " << head << ", " << query;
      }
    }
    for (const auto& [found, expected] :
         {std::pair{&result.key, &clean.key}, {&result.value, &clean.value}, {&result.log_forget, &clean.log_forget}}) {
      const int64_t width = found == &result.log_forget ? 1 : dim;
      for (int64_t i = 0; i < int64_t(found->size()); ++i) {
        if (i / width / kHeads / kKeys == 0 && i / width % kHeads == kHead) continue;
        ASSERT_NEAR((*found)[i], (*expected)[i], 0.05) << i;
      }
    }
  }
}

TEST_P(Backward, SumsOverAGroupOfQueryHeads) {
  expect_agreement(random_problem(shape(2, 333, 400, 2, 6), dtype(), Gate::kInitial, 9));
}

TEST_P(Backward, HoldsForManyTiles) {
  expect_agreement(random_problem(shape(1, 1500, 1500, 2, 2), dtype(), Gate::kOpen, 10));
}

TEST_P(Backward, TakesAnyScale) {
  for (const double scale : {-0.125, 0.0, 1e-30}) {  // the kernels divide the bias by it
    SCOPED_TRACE(scale);
    Problem problem = random_problem(shape(1, 300, 300, 1, 1), dtype(), Gate::kInitial, 11);
    problem.scale = scale;
    expect_agreement(problem);
  }
}

TEST_P(Backward, GivesTheSameBitsTwiceInTheFixedOrder) {
  for (const double tolerance : {-std::numeric_limits<double>::infinity(), -10.0}) {
    const Problem problem = random_problem(shape(1, 900, 1100, 2, 4), dtype(), Gate::kInitial, 12);
    const testing::PlanOptions options{.log_pruning_tolerance = tolerance};
    const std::vector<double> grad = grad_values_of(problem, 99);
    const BackwardResult first = testing::run_backward(problem, grad, true, options),
                         second = testing::run_backward(problem, grad, true, options);
    EXPECT_EQ(first.query, second.query);
    EXPECT_EQ(first.key, second.key);
    EXPECT_EQ(first.value, second.value);
    EXPECT_EQ(first.log_forget, second.log_forget);
    expect_agreement(problem, options, true);
  }
}

TEST_P(Backward, AgreesWithTheReferenceWhenPruned) {
  for (const Gate gate : {Gate::kInitial, Gate::kSpiky, Gate::kCutting}) {
    SCOPED_TRACE(gate_name(gate));
    expect_agreement(random_problem(shape(1, 1100, 1300, 2, 4), dtype(), gate, 14), {.log_pruning_tolerance = -12});
  }
}

TEST_P(Backward, RefusesWhatAWrongFormulaWouldGive) {
  Problem problem = random_problem(shape(1, 512, 512, 1, 1), dtype(), Gate::kInitial, 16);
  const std::vector<double> grad = grad_values_of(problem, 99);
  BackwardResult result = testing::run_backward(problem, grad);
  std::rotate(problem.log_forget.begin(), problem.log_forget.begin() + 1,
              problem.log_forget.end());  // gate off by one token
  for (const double share : worst_shares(problem, grad, result)) EXPECT_GT(share, 3);
  std::rotate(problem.log_forget.rbegin(), problem.log_forget.rbegin() + 1, problem.log_forget.rend());
  std::rotate(result.log_forget.begin(), result.log_forget.begin() + 1,
              result.log_forget.end());  // its gradient off by one
  EXPECT_GT(worst_shares(problem, grad, result)[3], 3);
}

INSTANTIATE_TEST_SUITE_P(EveryKernel, Backward,
                         ::testing::Combine(::testing::Values(Dtype::kBFloat16, Dtype::kFloat16),
                                            ::testing::Values(64, 128)),
                         [](const auto& info) {
                           return dtype_name(std::get<0>(info.param)) + "_" + std::to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace lethe
