// Heads and sequences of a batch are independent: a permutation of them in the inputs permutes values and gradients, bit by bit where rows begin at
// multiples of 32 bytes; elsewhere matrix products may sum in another order.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "optimized/torch/forgetting_attention.hpp"
#include "optimized/torch/matrix_state.hpp"

namespace lethe {
namespace {

// A length at which every head begins on a boundary of 64 bytes.
constexpr int64_t kBatch = 3, kLength = 160, kHeads = 4, kKeyDim = 12, kValueDim = 7, kWholeValueDim = 8;

using Tensors = std::vector<at::Tensor>;  // with the batch first and the heads third

Tensors inputs_with(const at::Tensor& last, int64_t value_dim = kValueDim) {
  at::manual_seed(3);
  const auto key = [] { return at::randn({kBatch, kLength, kHeads, kKeyDim}) / 4; };
  return {key(), key(), at::randn({kBatch, kLength, kHeads, value_dim}), last};
}

at::Tensor gates(at::IntArrayRef shape) { return at::log_sigmoid(at::randn(shape)); }

Tensors results_of(const std::function<at::Tensor(const Tensors&)>& call, const Tensors& given) {
  Tensors inputs;
  for (const at::Tensor& input : given) inputs.push_back(input.detach().clone().requires_grad_());
  const at::Tensor values = call(inputs);
  values.square().sum().backward();
  Tensors results{values.detach()};
  for (const at::Tensor& input : inputs) results.push_back(input.grad());
  return results;
}

void expect_permuted(const std::function<at::Tensor(const Tensors&)>& call, const Tensors& inputs, bool bits = true) {
  const at::Tensor heads = at::tensor({2, 0, 3, 1}, at::kLong), sequences = at::tensor({1, 2, 0}, at::kLong);
  const auto permuted = [&](const at::Tensor& t) { return t.index_select(0, sequences).index_select(2, heads); };
  Tensors moved;
  for (const at::Tensor& input : inputs) moved.push_back(permuted(input));
  const Tensors expected = results_of(call, inputs), actual = results_of(call, moved);
  for (size_t i = 0; i < expected.size(); ++i) {
    if (bits) EXPECT_TRUE(at::equal(actual[i], permuted(expected[i]))) << "result " << i;
    else EXPECT_TRUE(at::allclose(actual[i], permuted(expected[i]), 1e-5, 1e-5)) << "result " << i;
    EXPECT_FALSE(at::equal(actual[i], expected[i])) << "result " << i << " says nothing";
  }
}

TEST(Permutations, OfHeadsAndSequencesPermuteForgettingAttention) {
  const auto call = [](const Tensors& in) { return forgetting_attention(in[0], in[1], in[2], in[3]); };
  expect_permuted(call, inputs_with(gates({kBatch, kLength, kHeads}), kWholeValueDim));
  expect_permuted(call, inputs_with(gates({kBatch, kLength, kHeads})), false);
}

TEST(Permutations, OfHeadsAndSequencesPermuteAGatedState) {
  expect_permuted([](const Tensors& in) { return std::get<0>(gated_state(in[0], in[1], in[2], in[3], std::nullopt)); },
                  inputs_with(gates({kBatch, kLength, kHeads, kKeyDim})));
}

TEST(Permutations, OfHeadsAndSequencesPermuteADeltaState) {
  expect_permuted([](const Tensors& in) { return std::get<0>(delta_state(in[0], in[1], in[2], in[3])); },
                  inputs_with(at::sigmoid(at::randn({kBatch, kLength, kHeads}))));
}

}  // namespace
}  // namespace lethe
