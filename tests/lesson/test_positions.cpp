// Positional information in attention without position embeddings, with and without the gate.

#include "reference/decay_bias.hpp"
#include "reference/softmax_attention.hpp"
#include "tests/lesson/by_hand.hpp"

namespace lethe::lesson {
namespace {

namespace forgetting_attention = reference::forgetting_attention;
namespace softmax_attention = reference::softmax_attention;

constexpr Eigen::Index kTokens = 12;
constexpr Eigen::Index kLast = kTokens - 1;

// Swaps tokens a and b with everything that a model computes from them.
Head with_swapped_tokens(Head head, Eigen::Index a, Eigen::Index b) {
  for (Matrix<double>* rows : {&head.query, &head.key, &head.value}) rows->row(a).swap(rows->row(b));
  std::swap(head.log_forget[a], head.log_forget[b]);
  return head;
}

// Keys and values of all tokens before the last in reverse order, gates where they were.
Head with_reversed_past(Head head) {
  head.key.topRows(kLast) = head.key.topRows(kLast).colwise().reverse().eval();
  head.value.topRows(kLast) = head.value.topRows(kLast).colwise().reverse().eval();
  return head;
}

TEST(PositionalInformation, TheGateAddsRecencyToSoftmaxAttention) {
  const Head head = random_head(kTokens, 4, 3, Gate::kInitial, 1);
  const auto change_of_last_row = [&](const auto& attention, const Head& from) {
    return relative_error(attention(with_reversed_past(from)).row(kLast), attention(from).row(kLast));
  };
  const auto softmax = [](const Head& h) { return softmax_attention::parallel(h).values; };
  const auto forgetting = [](const Head& h) { return forgetting_attention::parallel(h).values; };
  EXPECT_LT(change_of_last_row(softmax, head), kExact);
  EXPECT_GT(change_of_last_row(forgetting, head), kClearlyWrong);
  Head open = head;
  open.log_forget.setZero();
  EXPECT_LT(change_of_last_row(forgetting, open), kExact) << "the invariance returns with f = 1";
}

TEST(PositionalInformation, OnlyTheGateTellsTwoSwappedEarlierTokensApart) {
  const Head head = random_head(kTokens, 4, 3, Gate::kInitial, 2);
  const Head swapped = with_swapped_tokens(head, 2, 7);
  EXPECT_LT(relative_error(softmax_attention::parallel(swapped).values.row(kLast),
                           softmax_attention::parallel(head).values.row(kLast)),
            kExact);
  EXPECT_GT(relative_error(forgetting_attention::parallel(swapped).values.row(kLast),
                           forgetting_attention::parallel(head).values.row(kLast)),
            kClearlyWrong);
}

TEST(PositionalInformation, TheCausalMaskAloneBreaksTheSymmetryOfPermutations) {
  const Head head = random_head(kTokens, 4, 3, Gate::kZero, 3);
  const Head swapped = with_swapped_tokens(head, 2, 7);
  const auto token_after_swap = [](const Matrix<double>& values) { return values.row(2); };
  EXPECT_GT(relative_error(token_after_swap(softmax_attention::parallel(swapped).values),
                           softmax_attention::parallel(head).values.row(7)),
            kClearlyWrong)
      << "token 7, moved to place 2, sees fewer tokens";

  const Matrix<double> everything = Matrix<double>::Ones(kTokens, kTokens);  // no mask
  EXPECT_LT(relative_error(token_after_swap(ratio_form(swapped, everything)), ratio_form(head, everything).row(7)),
            kExact);
}

TEST(PositionalInformation, OneLayerTellsNoPositionsApartAmongEqualTokens) {
  Head head = random_head(kTokens, 4, 3, Gate::kInitial, 4);
  head.query = head.query.row(0).replicate(kTokens, 1).eval();
  head.key = head.key.row(0).replicate(kTokens, 1).eval();
  head.value = head.value.row(0).replicate(kTokens, 1).eval();
  EXPECT_LT(relative_error(softmax_attention::parallel(head).values, head.value), kExact);
  EXPECT_LT(relative_error(forgetting_attention::parallel(head).values, head.value), kExact);

  head.value.row(0) *= 2.0;  // one different token, such as a begin-of-text token, makes positions distinguishable
  const Matrix<double> values = softmax_attention::parallel(head).values;
  for (Eigen::Index t = 1; t < kTokens; ++t) {
    EXPECT_GT(relative_error(values.row(t), values.row(t - 1)), kClearlyWrong) << t;
  }
}

TEST(PositionalInformation, KeepMassDependsOnTheGatesInBetween) {
  const Vector<double> log_forget = random_head(kTokens, 1, 1, Gate::kInitial, 5).log_forget;
  const reference::DecayBias<double> bias(log_forget);
  const auto with_token_between = [&](double forget) {  // after token 5
    Vector<double> longer(kTokens + 1);
    longer << log_forget.head(6), std::log(forget), log_forget.tail(kTokens - 6);
    return reference::DecayBias<double>(longer)(kTokens, 3);
  };
  EXPECT_NEAR(with_token_between(0.1) - bias(kLast, 3), std::log(0.1), kExact);
  EXPECT_NEAR(with_token_between(1.0), bias(kLast, 3), kExact) << "a longer gap, the same keep mass";
  EXPECT_LT(bias(kLast, 3), bias(kLast, 4)) << "a longer gap, less keep mass";
  EXPECT_GT(std::abs(bias(6, 3) - bias(9, 6)), kClearlyWrong) << "equal gaps, other content";
}

}  // namespace
}  // namespace lethe::lesson
