#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <cmath>

#include "experiments/models/cross_entropy.hpp"
#include "experiments/models/layers.hpp"
#include "experiments/models/mixers/parts/forget_gate.hpp"
#include "experiments/models/parameters.hpp"
#include "optimized/torch/linear_cross_entropy.hpp"

namespace lethe {
namespace {

using torch::Tensor;

constexpr auto kDouble = torch::kFloat64;

Tensor random(torch::IntArrayRef sizes) { return torch::randn(sizes, kDouble); }

TEST(Rotate, LeavesTheFirstPositionAndEveryLength) {
  const Tensor x = random({1, 9, 2, 6});
  const Tensor y = rotate(x, rotation(9, 6, 10000, kDouble));
  EXPECT_EQ(distance(y.select(1, 0), x.select(1, 0)), 0);
  EXPECT_LT(distance(y.square().sum(-1), x.square().sum(-1)), 1e-12);
  EXPECT_GT(distance(y.select(1, 1), x.select(1, 1)), 0.1);
}

TEST(Rotate, LetsProductsDependOnTheDistanceAlone) {
  const Tensor q = random({8}).expand({1, 9, 1, 8}), k = random({8}).expand({1, 9, 1, 8});
  const auto angles = rotation(9, 8, 100, kDouble);
  const Tensor products = torch::mm(rotate(q, angles).view({9, 8}), rotate(k, angles).view({9, 8}).t());
  for (int64_t offset = -8; offset <= 8; ++offset) {
    const Tensor diagonal = products.diagonal(offset);
    EXPECT_LT((diagonal - diagonal[0]).abs().max().item<double>(), 1e-12);
  }
}

TEST(Rotate, TurnsTheHalvesOfAHeadAgainstEachOther) {
  const Tensor x = torch::tensor({1.0, 0.0, 0.0, 0.0}, kDouble).expand({1, 2, 1, 4});
  const Tensor y = rotate(x, rotation(2, 4, 10000, kDouble))[0][1][0];
  EXPECT_LT(distance(y, torch::tensor({std::cos(1.0), 0.0, std::sin(1.0), 0.0}, kDouble)), 1e-12);
}

TEST(Swiglu, TakesTheGateFromTheFirstHalf) {
  const Tensor y = swiglu(torch::tensor({2.0, 3.0}, kDouble));
  EXPECT_NEAR(y.item<double>(), 2 / (1 + std::exp(-2.0)) * 3, 1e-12);
}

TEST(LongInit, ForgetsOverTimesThatAreLogSpacedOverTheHeads) {
  ForgetGateConfig config;
  config.decay_time_min = 2;
  config.decay_time_max = 16;
  const Tensor gate = long_init(config, 4).sigmoid();
  for (int64_t head = 0; head < 4; ++head) {
    EXPECT_NEAR(gate[head].item<double>(), std::exp(-1 / std::exp2(head + 1.0)), 1e-6);
  }
}

TEST(Weights, MakeTheModulesOfAPathOnce) {
  torch::nn::Module root;
  const Weights weights = Weights(root, torch::kCPU).below("attn");
  weights.parameter("k_proj.linear.weight", {2, 3}, normal());
  weights.parameter("k_proj.shift_proj.weight", {1, 3}, normal());
  EXPECT_EQ(root.named_parameters().keys(),
            (std::vector<std::string>{"attn.k_proj.linear.weight", "attn.k_proj.shift_proj.weight"}));
  EXPECT_EQ(root.named_children().size(), 1u);
}

TEST(Weights, BeginAsTheyWereRegistered) {
  torch::nn::Module root;
  const Weights weights(root, torch::kCPU);
  const Tensor bias = weights.parameter("bias", {8}, constant(3));
  const Tensor drawn = weights.parameter("weight", {100, 100}, normal(0.5));
  weights.initialize(1);
  EXPECT_TRUE(bias.eq(3).all().item<bool>());
  EXPECT_NEAR(drawn.std().item<double>(), 0.5, 0.02);
  const Tensor before = drawn.detach().clone();
  weights.initialize(2);
  EXPECT_FALSE(drawn.equal(before));
  weights.initialize(1);
  EXPECT_TRUE(drawn.equal(before));
}

TEST(CrossEntropy, EqualsTorchsInValueAndGradientOverSeveralChunks) {
  const int64_t rows = 7, width = 3, vocabulary = 11, chunk = 35;  // three rows a chunk
  const Tensor labels = torch::randint(vocabulary, {rows}), upstream = random({rows});
  const auto run = [&](auto&& loss_of) {
    const Tensor hidden = (torch::arange(rows * width, kDouble).view({rows, width}) / 7).sin().requires_grad_();
    const Tensor weight = torch::arange(vocabulary * width, kDouble).view({vocabulary, width}).cos().requires_grad_();
    const Tensor loss = loss_of(hidden, weight);
    (loss * upstream).sum().backward();
    return std::tuple(loss.detach(), hidden.grad(), weight.grad());
  };
  const auto [loss, hidden_gradient, weight_gradient] =
      run([&](const Tensor& hidden, const Tensor& weight) { return cross_entropy(hidden, weight, labels, chunk); });
  const auto [expected, expected_hidden, expected_weight] = run([&](const Tensor& hidden, const Tensor& weight) {
    return torch::cross_entropy_loss(torch::mm(hidden, weight.t()), labels, {}, at::Reduction::None);
  });
  EXPECT_LT(distance(loss, expected), 1e-12);
  EXPECT_LT(distance(hidden_gradient, expected_hidden), 1e-12);
  EXPECT_LT(distance(weight_gradient, expected_weight), 1e-12);
}

TEST(CrossEntropy, IsTheOneWhoseGradientsAreMadeInOnePass) {
  for (const auto& [vocabulary, padded] : {std::pair{97, 104}, {50257, 50304}}) {
    const Tensor hidden = random({9, 5}).requires_grad_(), padded_weight = random({padded, 5});
    const Tensor weight = padded_weight.narrow(0, 0, vocabulary).clone().requires_grad_();
    const Tensor labels = torch::randint(vocabulary, {9});
    const Tensor expected = cross_entropy(hidden, weight, labels);
    (expected.sum() * 0.25).backward();
    Tensor weight_gradient = torch::zeros_like(padded_weight);
    const auto found =
        linear_cross_entropy_with_gradients(hidden, padded_weight, labels, vocabulary, 0.25, weight_gradient);
    EXPECT_LT(distance(found.losses, expected), 1e-12);
    EXPECT_LT(distance(found.grad_hidden, hidden.grad()), 1e-12);
    EXPECT_LT(distance(weight_gradient.narrow(0, 0, vocabulary), weight.grad()), 1e-12);
  }
}

}  // namespace
}  // namespace lethe
