// A gate of 0 erases a matrix state and ends the gradient that reaches it, NaN and ∞ included.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "optimized/torch/matrix_state.hpp"

namespace lethe {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr int64_t kTokens = 100, kRows = 9, kColumns = 40, kErased = 3;

struct ErasureInputs {
  at::Tensor query, key, value, log_key_gate, log_value_gate, beta, state;
};

struct ErasureResults {
  at::Tensor values, state;
  std::vector<at::Tensor> gradients;  // those with positions
};

using StateOperator = std::function<std::tuple<at::Tensor, at::Tensor>(const ErasureInputs&)>;
const std::pair<const char*, StateOperator> kStateOperators[] = {
    {"scalar gate",
     [](const ErasureInputs& in) {
       return gated_state(in.query, in.key, in.value, in.log_key_gate.select(3, 0), std::nullopt, in.state);
     }},
    {"key gate",
     [](const ErasureInputs& in) {
       return gated_state(in.query, in.key, in.value, in.log_key_gate, std::nullopt, in.state);
     }},
    {"both gates",
     [](const ErasureInputs& in) {
       return gated_state(in.query, in.key, in.value, in.log_key_gate, in.log_value_gate, in.state);
     }},
    {"delta", [](const ErasureInputs& in) {
       return delta_state(in.query, in.key, in.value, in.beta, in.log_key_gate, in.state);
     }}};

ErasureInputs erasure_inputs(at::ScalarType dtype) {
  at::manual_seed(5);
  const auto normal = [&](int64_t dim) { return at::randn({1, kTokens, 2, dim}, dtype); };
  const at::Tensor key = normal(kRows);
  return {normal(kRows),
          key / key.norm(2, {3}, true),
          normal(kColumns),
          at::log_sigmoid(normal(kRows)),
          at::log_sigmoid(normal(kColumns)),
          at::sigmoid(normal(1).squeeze(3)),
          at::randn({1, 2, kRows, kColumns}, dtype)};
}

ErasureResults erasure_results(const StateOperator& call, ErasureInputs in, const at::Tensor& values_gradient) {
  std::vector<at::Tensor*> with_positions = {&in.query,          &in.key, &in.value, &in.log_key_gate,
                                             &in.log_value_gate, &in.beta};
  for (at::Tensor* input : with_positions) *input = input->clone().requires_grad_();
  const auto [values, state] = call(in);
  (values.mul(values_gradient).sum() + state.sum()).backward();
  ErasureResults results{values.detach(), state.detach(), {}};
  for (at::Tensor* input : with_positions)
    if (input->grad().defined()) results.gradients.push_back(input->grad());
  return results;
}

TEST(MatrixStateErasure, LeavesNothingOfANonFiniteStateAfterAGateOfZero) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (const auto& [name, call] : kStateOperators) {
      for (const int64_t cut : {0, 40, 64, 99}) {  // chunks begin at 32, 64 and 96
        SCOPED_TRACE(std::string(name) + ", cut at " + std::to_string(cut));
        ErasureInputs clean = erasure_inputs(dtype);
        clean.log_key_gate.select(1, cut).fill_(-kInfinite);
        at::Tensor values_gradient = at::randn({1, kTokens, 2, kColumns}, dtype);
        values_gradient.slice(1, 0, cut).zero_();
        const ErasureResults expected = erasure_results(call, clean, values_gradient);
        for (const double number : {double{NAN}, kInfinite}) {
          ErasureInputs in = clean;
          in.state = at::full_like(clean.state, number);
          if (cut > 0) in.value = clean.value.clone();
          if (cut > 0) in.value.select(1, cut - 1).fill_(number);
          const ErasureResults actual = erasure_results(call, in, values_gradient);
          EXPECT_FALSE(actual.values.slice(1, 0, cut).isfinite().any().item().toBool());
          EXPECT_TRUE(at::equal(actual.values.slice(1, cut), expected.values.slice(1, cut)));
          EXPECT_TRUE(at::equal(actual.state, expected.state));
          for (size_t i = 0; i < expected.gradients.size(); ++i)
            EXPECT_TRUE(at::equal(actual.gradients[i].slice(1, cut), expected.gradients[i].slice(1, cut))) << i;
        }
      }
    }
  }
}

TEST(MatrixStateErasure, LetsNoNonFiniteGradientBackThroughAGateOfZero) {
  for (const auto& [name, call] : kStateOperators) {
    for (const int64_t cut : {40, 64, 99}) {
      SCOPED_TRACE(std::string(name) + ", cut at " + std::to_string(cut));
      ErasureInputs in = erasure_inputs(at::kFloat);
      in.log_key_gate.select(1, cut).fill_(-kInfinite);
      at::Tensor values_gradient = at::randn({1, kTokens, 2, kColumns});
      const ErasureResults expected = erasure_results(call, in, values_gradient);
      values_gradient.select(1, 99).fill_(NAN);
      const ErasureResults actual = erasure_results(call, in, values_gradient);
      EXPECT_FALSE(actual.gradients[2].slice(1, cut).isfinite().any().item().toBool()) << "value's gradient";
      for (size_t i = 0; i < expected.gradients.size(); ++i)
        EXPECT_TRUE(at::equal(actual.gradients[i].slice(1, 0, cut), expected.gradients[i].slice(1, 0, cut))) << i;
      EXPECT_EQ(actual.gradients[3].select(1, cut).abs().sum().item().toDouble(), 0.0) << "log_key_gate's gradient";
    }
  }
}

// Some rows of the state, or some columns, are not finite, and only those are erased.
TEST(MatrixStateErasure, ErasesOnlyTheRowsAndColumnsWhoseGatesAreZero) {
  constexpr int64_t kCut = 40;
  for (const bool rows : {true, false}) {
    ErasureInputs clean = erasure_inputs(at::kFloat);
    (rows ? clean.log_key_gate : clean.log_value_gate).select(1, kCut).slice(2, 0, kErased).fill_(-kInfinite);
    const at::Tensor values_gradient = at::ones({1, kTokens, 2, kColumns});
    const StateOperator& call = kStateOperators[2].second;
    const ErasureResults expected = erasure_results(call, clean, values_gradient);
    EXPECT_GT(expected.state.abs().min().item().toDouble(), 0.0);
    ErasureInputs in = clean;
    at::Tensor& spoilt = rows ? in.key : in.value;
    spoilt = spoilt.clone();
    spoilt.select(1, 20).slice(2, 0, kErased).fill_(kInfinite);
    const ErasureResults actual = erasure_results(call, in, values_gradient);
    EXPECT_FALSE(actual.values.select(1, 20).isfinite().all().item().toBool());
    EXPECT_TRUE(at::equal(actual.values.slice(1, kCut), expected.values.slice(1, kCut)));
    EXPECT_TRUE(at::equal(actual.state, expected.state));
  }
}

}  // namespace
}  // namespace lethe
