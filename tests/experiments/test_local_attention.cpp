// Attention over a window, against the reference's, and in a model.

#include <gtest/gtest.h>

#include <cmath>

#include "experiments/models/language_model.hpp"
#include "experiments/models/mixers/local.hpp"
#include "experiments/models/mixers/segment.hpp"
#include "reference/local_attention.hpp"
#include "tests/experiments/mixer_layer.hpp"
#include "tests/experiments/tiny.hpp"
#include "tests/support/matrices.hpp"

namespace lethe {
namespace {

using torch::Tensor;

TEST(LocalAttention, EqualsTheReferenceAtEveryLengthAndWindow) {
  for (const int64_t length : {1, 2, 7, 16, 17, 33})
    for (const int64_t window : {1, 2, 5, 16, 64}) {
      torch::manual_seed(length);
      const Tensor q = torch::randn({2, length, 3, 8}, torch::kFloat64), k = torch::randn_like(q),
                   v = torch::randn_like(q);
      const Tensor values = local_attention(q, k, v, window);
      for (int64_t b = 0; b < 2; ++b)
        for (int64_t h = 0; h < 3; ++h) {
          const auto rows = [&](const Tensor& x) { return matrix_of(x[b].select(1, h)); };
          const Head head{
              .query = rows(q), .key = rows(k), .value = rows(v), .log_forget = {}, .scale = 1 / std::sqrt(8.0)};
          const auto expected = reference::local_attention::recurrent(head, window).values;
          EXPECT_LT(relative_error(rows(values), expected), 1e-12) << length << " tokens, window " << window;
          if (length <= window + 1) continue;
          const auto wider = reference::local_attention::recurrent(head, window + 1).values;
          EXPECT_GT(relative_error(rows(values), wider), kClearlyWrong);
        }
    }
}

TEST(LocalAttention, InAModelIsAttentionWhereTheWindowHoldsTheText) {
  ModelConfig attention = tiny_model(named_architecture("transformer-llama"));
  ModelConfig local = tiny_model(named_architecture("local"));
  attention.compute_dtype = local.compute_dtype = "float64";
  set(local, {{"window", 24}});
  LanguageModel whole(attention), window(local);  // both initialized with seed 0
  torch::manual_seed(1);
  const Tensor tokens = torch::randint(257, {1, 24});
  EXPECT_LT(distance(whole->forward(tokens), window->forward(tokens)), 1e-12);
  const Tensor longer = torch::randint(257, {1, 40});
  EXPECT_GT(distance(whole->forward(longer), window->forward(longer)), 1e-6);
}

/// The definition: every pair, one head.
Tensor segments_by_pairs(const Tensor& query, const Tensor& key, const Tensor& value, int64_t segment) {
  const int64_t length = query.size(0);
  Tensor values = torch::empty_like(value);
  for (int64_t i = 0; i < length; ++i) {
    const int64_t first = std::max<int64_t>(0, i / segment - 1) * segment, seen = i + 1 - first;
    const Tensor keys = key.narrow(0, first, seen);
    const Tensor weights = torch::mv(keys / keys.norm(2, 1, true), query[i]).softmax(0);
    values[i] = torch::mv(value.narrow(0, first, seen).t(), weights);
  }
  return values;
}

TEST(SegmentAttention, SeesItsSegmentAndTheOneBefore) {
  for (const int64_t length : {1, 5, 8, 16, 21})
    for (const int64_t segment : {1, 4, 8, 32}) {
      torch::manual_seed(length);
      const Tensor q = torch::randn({1, length, 2, 8}, torch::kFloat64), k = torch::randn_like(q),
                   v = torch::randn_like(q);
      const Tensor values = segment_attention(q, k, v, segment);
      for (int64_t h = 0; h < 2; ++h) {
        const auto head = [&](const Tensor& x) { return x[0].select(1, h); };
        EXPECT_LT(distance(head(values), segments_by_pairs(head(q), head(k), head(v), segment)), 1e-12)
            << length << " tokens, segments of " << segment;
        if (length <= 2 * segment) continue;
        EXPECT_GT(distance(head(values), segments_by_pairs(head(q), head(k), head(v), segment + 1)), 1e-3);
      }
    }
}

TEST(SegmentAttention, GivesThePastNoGradient) {
  const Tensor q = torch::randn({1, 12, 1, 4}, torch::kFloat64), k = torch::randn_like(q).requires_grad_(),
               v = torch::randn_like(q).requires_grad_();
  segment_attention(q, k, v, 4).narrow(1, 8, 4).sum().backward();
  for (const Tensor& x : {k, v}) {
    EXPECT_EQ(x.grad().narrow(1, 0, 8).abs().max().item<double>(), 0);
    EXPECT_GT(x.grad().narrow(1, 8, 4).abs().max().item<double>(), 0);
  }
}

}  // namespace
}  // namespace lethe
