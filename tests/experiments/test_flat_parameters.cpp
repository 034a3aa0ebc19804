#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "experiments/models/mixers/attention.hpp"
#include "experiments/training/optimizer.hpp"
#include "experiments/training/trainer.hpp"
#include "tests/experiments/tiny.hpp"
#include "tests/support/torch_gpu.hpp"

namespace lethe {
namespace {

using torch::Tensor;

std::map<std::string, Tensor> gradients(LanguageModel& model) {
  std::map<std::string, Tensor> all;
  for (const auto& parameter : model->named_parameters()) all[parameter.key()] = parameter.value().grad().clone();
  return all;
}

double relative_distance(const Tensor& a, const Tensor& b) {
  return distance(a, b) / std::max(b.abs().max().item<double>(), 1e-12);
}

Tensor labels_of(const Tensor& tokens) { return tokens.roll(-1, 1); }

std::vector<std::string> all_names() {
  std::vector<std::string> names;
  for (const Architecture& row : named_architectures()) names.push_back(row.name);
  return names;
}

class FlatParametersOf : public testing::TestWithParam<std::string> {
 protected:
  ModelConfig config = tiny_model(named_architecture(GetParam()));
};

TEST_P(FlatParametersOf, KeepNamesAndValues) {
  LanguageModel model(config), flat(config);
  flat->flatten(true);
  const FlatParameters& buffers = flat->flat();
  const auto* begin = buffers.master.const_data_ptr<float>();
  for (const auto& parameter : model->named_parameters()) {
    const Tensor& moved = flat->named_parameters()[parameter.key()];
    EXPECT_TRUE(moved.equal(parameter.value())) << parameter.key();
    const int64_t offset = moved.const_data_ptr<float>() - begin;
    EXPECT_GE(offset, 0) << parameter.key();
    EXPECT_EQ(offset + moved.numel() <= buffers.matrices, moved.dim() == 2) << parameter.key();
    EXPECT_EQ(moved.grad().storage_offset(), offset) << parameter.key();
  }
}

TEST_P(FlatParametersOf, GetTheGradientOfAutograd) {
  LanguageModel model(config), flat(config);
  const Tensor tokens = some_tokens(3, 24), labels = labels_of(tokens);
  const double scale = 0.5;
  (model->losses(tokens, labels).sum() * scale).backward();
  flat->flatten(true);
  const Tensor losses = flat->accumulate_gradients(tokens, labels, scale);
  EXPECT_LT(distance(losses, model->losses(tokens, labels).detach()), 1e-5);
  const auto expected = gradients(model);
  for (const auto& [name, gradient] : gradients(flat))
    EXPECT_LT(relative_distance(gradient, expected.at(name)), 2e-5) << name;
}

TEST_P(FlatParametersOf, GetTheSameGradientByRecomputing) {
  const Tensor tokens = some_tokens(3, 24), labels = labels_of(tokens);
  const auto gradient_with = [&](Recompute recompute) {
    LanguageModel model(config);
    model->flatten(true);
    model->set_recompute(recompute);
    model->accumulate_gradients(tokens, labels, 1);
    return model->flat().gradient.clone();
  };
  const Tensor expected = gradient_with(Recompute::kNone);
  EXPECT_TRUE(gradient_with(Recompute::kActivations).equal(expected));
  EXPECT_TRUE(gradient_with(Recompute::kBlock).equal(expected));
}

TEST_P(FlatParametersOf, AddUpMicroBatches) {
  LanguageModel whole(config), parts(config);
  const Tensor tokens = some_tokens(4, 24), labels = labels_of(tokens);
  whole->flatten(true), parts->flatten(true);
  whole->accumulate_gradients(tokens, labels, 1);
  for (int64_t i = 0; i < 4; ++i) parts->accumulate_gradients(tokens.narrow(0, i, 1), labels.narrow(0, i, 1), 1);
  EXPECT_LT(relative_distance(parts->flat().gradient, whole->flat().gradient), 1e-5);
}

TEST_P(FlatParametersOf, AreToldOnceThatAGradientIsComplete) {
  LanguageModel flat(config);
  const FlatParameters& buffers = flat->flatten(true);
  std::map<size_t, Tensor> seen;
  const auto gradient_of = [&](size_t product) {
    const auto [begin, end] = buffers.products.at(product);
    return buffers.gradient.narrow(0, begin, end - begin);
  };
  buffers.watch->uses.assign(buffers.products.size(), 0);
  buffers.watch->complete = [&](size_t product) {
    EXPECT_TRUE(seen.emplace(product, gradient_of(product).clone()).second) << product;
  };
  const Tensor tokens = some_tokens(2, 24);
  flat->accumulate_gradients(tokens, labels_of(tokens), 1);
  EXPECT_EQ(seen.size(), buffers.products.size());
  for (const auto& [product, gradient] : seen) {
    EXPECT_GT(gradient.abs().max().item<double>(), 0) << product;
    EXPECT_TRUE(gradient.equal(gradient_of(product))) << product;
  }
}

TEST_P(FlatParametersOf, EvaluateToTheSameLosses) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    config.compute_dtype = dtype;
    LanguageModel model(config), flat(config);
    flat->flatten(false);
    const torch::NoGradGuard no_gradient;
    const Tensor tokens = some_tokens(2, 24);
    EXPECT_TRUE(flat->losses(tokens, labels_of(tokens)).equal(model->losses(tokens, labels_of(tokens)))) << dtype;
    EXPECT_TRUE(flat->forward(tokens).equal(model->forward(tokens))) << dtype;
  }
}

// Heads of the size that the GPU's kernels take. A tensor's error is its distance's norm over its norm: 2 %, or what bfloat16 alone costs on the CPU
// where that is more (features of a ReLU change their sign by a rounding).
TEST_P(FlatParametersOf, GetTheGradientOfTheCpuOnAGpu) {
  LETHE_NEEDS_TORCH_GPU();
  config.width = 128;
  const Tensor tokens = some_tokens(4, 192), labels = labels_of(tokens);
  const auto gradients_of = [&](const char* dtype, torch::Device device) {
    config.compute_dtype = dtype;
    LanguageModel model(config, device);
    model->flatten(true);
    model->accumulate_gradients(tokens.to(device), labels.to(device), 1e-3);
    return gradients(model);
  };
  const auto expected = gradients_of("float32", torch::kCPU), rounded = gradients_of("bfloat16", torch::kCPU);
  const auto found = gradients_of("bfloat16", torch::kCUDA);
  for (const auto& [name, gradient] : expected) {
    const auto error = [&, &of = gradient](const Tensor& other) {
      return (other.cpu() - of).norm().item<double>() / of.norm().item<double>();
    };
    EXPECT_LT(error(found.at(name)), std::max(0.02, 1.5 * error(rounded.at(name)))) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(AllArchitectures, FlatParametersOf, testing::ValuesIn(all_names()), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(FlatParameters, KeepTheirGradientsOfLosses) {
  LanguageModel model(tiny_model()), flat(tiny_model());
  flat->flatten(true);
  const Tensor tokens = some_tokens(2, 24);
  for (LanguageModel* each : {&model, &flat}) (*each)->losses(tokens, labels_of(tokens)).sum().backward();
  const auto expected = gradients(model);
  for (const auto& [name, gradient] : gradients(flat))
    EXPECT_LT(relative_distance(gradient, expected.at(name)), 2e-5) << name;
}

TEST(FlatParameters, AreCutIntoEqualParts) {
  LanguageModel model(tiny_model());
  EXPECT_EQ(model->flatten(true, 7).gradient.size(0) % (7 * 64), 0);
}

TEST(FlatParameters, RefuseToAccumulateWithoutGradients) {
  LanguageModel model(tiny_model());
  EXPECT_THROW(model->accumulate_gradients(some_tokens(1, 8), some_tokens(1, 8), 1), std::logic_error);
}

TEST(FlatParameters, AreReadAgainAfterARefresh) {
  ModelConfig config = tiny_model();
  config.compute_dtype = "bfloat16";
  LanguageModel model(config);
  model->flatten(false);
  const torch::NoGradGuard no_gradient;
  const Tensor tokens = some_tokens(1, 8), before = model->forward(tokens);
  for (auto& parameter : model->named_parameters()) parameter.value().mul_(1.5);
  model->flat().refresh();
  EXPECT_GT(distance(model->forward(tokens), before), 0);
}

// The same training by Torch's optimizer and clipping.
TEST(AdamW, TakesTheStepsOfTorch) {
  TrainingConfig config = tiny_run().training;
  config.clip_norm = 0.5;
  LanguageModel expected(tiny_model()), model(tiny_model());
  std::vector<Tensor> matrices, vectors;
  for (const Tensor& parameter : expected->parameters())
    (parameter.dim() == 2 ? matrices : vectors).push_back(parameter);
  const auto group = [&](const std::vector<Tensor>& parameters, double decay) {
    auto options = std::make_unique<torch::optim::AdamWOptions>(1e-2);
    options->betas({config.beta1, config.beta2}).eps(config.epsilon).weight_decay(decay);
    return torch::optim::OptimizerParamGroup(parameters, std::move(options));
  };
  torch::optim::AdamW torch_optimizer(
      std::vector<torch::optim::OptimizerParamGroup>{group(matrices, config.weight_decay), group(vectors, 0)});
  model->flatten(true);
  AdamW optimizer(model->flat(), config);
  for (int64_t step = 0; step < 5; ++step) {
    const Tensor tokens = some_tokens(2, 24).roll(step, 1);
    torch_optimizer.zero_grad();
    const Tensor loss = expected->losses(tokens, labels_of(tokens)).mean();
    loss.backward();
    const double norm = torch::nn::utils::clip_grad_norm_(expected->parameters(), config.clip_norm);
    EXPECT_GT(norm, config.clip_norm);
    torch_optimizer.step();
    const StepFigures figures = take_step(model, optimizer, 1e-2, 1, [&](int64_t) {
      return Dataset::Batch{tokens, labels_of(tokens)};
    });
    EXPECT_NEAR(figures.gradient_norm.item<double>(), norm, 1e-5 * norm);
    EXPECT_NEAR(figures.loss.item<double>(), loss.item<double>(), 1e-5);
  }
  for (const auto& parameter : expected->named_parameters())
    EXPECT_LT(distance(model->named_parameters()[parameter.key()], parameter.value()), 2e-5) << parameter.key();
}

TEST(AdamW, LeavesEverythingWhereTheGradientIsNotFinite) {
  LanguageModel model(tiny_model());
  FlatParameters& flat = model->flatten(true);
  AdamW optimizer(flat, tiny_run().training);
  const Tensor one = torch::ones({}, torch::kFloat64);
  flat.gradient.fill_(0.1);
  optimizer.step(1e-2, one);
  const Tensor before = flat.master.clone(), steps = optimizer.steps().clone();
  flat.gradient.fill_(0.1)[7] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(std::isfinite(optimizer.step(1e-2, one).item<double>()));
  flat.gradient.fill_(0.1);
  optimizer.step(1e-2, one * std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(flat.master.equal(before));
  EXPECT_TRUE(optimizer.steps().equal(steps));
}

}  // namespace
}  // namespace lethe
