#include <gtest/gtest.h>
#include <torch/nn/utils/convert_parameters.h>

#include <any>
#include <cmath>
#include <map>
#include <set>

#include "experiments/models/language_model.hpp"
#include "experiments/papers/forgetting_transformer/rows.hpp"
#include "tests/experiments/tiny.hpp"

namespace lethe {
namespace {

using torch::Tensor;

// Copies the parameters that two models share; the projections of keys and values change their path with the KV-shift.
void copy_common(LanguageModel& from, LanguageModel& to) {
  const torch::NoGradGuard no_gradient;
  const auto plain = [](std::string name) {
    if (const auto at = name.find(".linear."); at != std::string::npos) name.erase(at, 7);
    return name;
  };
  std::map<std::string, Tensor> values;
  for (const auto& parameter : from->named_parameters()) values[plain(parameter.key())] = parameter.value();
  for (auto& parameter : to->named_parameters()) {
    const auto value = values.find(plain(parameter.key()));
    if (value != values.end()) parameter.value().copy_(value->second);
  }
}

class EveryRow : public testing::TestWithParam<Row> {};

TEST_P(EveryRow, GivesEveryParameterAGradient) {
  LanguageModel model(tiny_model(GetParam().architecture));
  expect_gradients(model);
}

TEST(Initialization, DrawsTheSameWeightsWithAnyNumberOfThreads) {
  const auto drawn = [](const std::string& row, int threads) {
    const int usual = at::get_num_threads();
    at::set_num_threads(threads);
    LanguageModel model(tiny_model(table_3_row(row).architecture), torch::kCPU, 5);
    at::set_num_threads(usual);
    std::map<std::string, Tensor> values;
    for (const auto& parameter : model->named_parameters()) values[parameter.key()] = parameter.value();
    return values;
  };
  const auto one = drawn("FoX (Pro)", 1), four = drawn("FoX (Pro)", 4), other = drawn("Transformer (Pro)", 2);
  for (const auto& [name, value] : one) EXPECT_TRUE(value.equal(four.at(name))) << name;
  const auto ahead = [](const std::map<std::string, Tensor>& values, const char* name) {
    return values.at(name).flatten().narrow(0, 0, 32);
  };
  EXPECT_FALSE(ahead(one, "model.embeddings.weight").equal(ahead(one, "lm_head.weight")));
  EXPECT_TRUE(other.at("lm_head.weight").equal(one.at("lm_head.weight")));
}

TEST_P(EveryRow, SeesNoTokenOfTheFuture) {
  LanguageModel model(tiny_model(GetParam().architecture));
  const torch::NoGradGuard no_gradient;
  const Tensor tokens = some_tokens(1, 16);
  Tensor changed = tokens.clone();
  changed[0][9] = (tokens[0][9] + 1) % 257;
  const Tensor before = model->forward(tokens), after = model->forward(changed);
  EXPECT_EQ(distance(before.narrow(1, 0, 9), after.narrow(1, 0, 9)), 0);
  EXPECT_GT(distance(before.narrow(1, 10, 6), after.narrow(1, 10, 6)), 1e-5);
}

TEST_P(EveryRow, ComputesNearlyTheSameInBfloat16) {
  ModelConfig config = tiny_model(GetParam().architecture);
  LanguageModel precise(config);
  config.compute_dtype = "bfloat16";
  const Tensor tokens = some_tokens(2, 16), labels = tokens.roll(1, 1);
  const Tensor expected = precise->losses(tokens, labels).detach();
  Tensor with_wide_residual;
  for (const bool narrow : {false, true}) {
    config.residual_in_compute_dtype = narrow;
    LanguageModel rounded(config);
    EXPECT_EQ(rounded->forward(tokens).scalar_type(), torch::kBFloat16);
    const Tensor losses = rounded->losses(tokens, labels).detach();
    const double difference = distance(expected, losses);
    EXPECT_LT(difference, narrow ? 0.04 : 0.02);
    EXPECT_GT(difference, 0);
    expect_gradients(rounded);
    if (narrow) EXPECT_GT(distance(with_wide_residual, losses), 0);
    with_wide_residual = losses;
  }
}

INSTANTIATE_TEST_SUITE_P(Table3, EveryRow, testing::ValuesIn(table_3()), [](const auto& info) {
  std::string name;
  for (const char letter : info.param.name)
    name += std::isalnum(letter) ? std::string(1, letter) : letter == '+' ? "With" : letter == '-' ? "Without" : "";
  return name;
});

TEST(LanguageModel, ChangesWithEverySwitch) {
  const Tensor tokens = some_tokens(1, 16);
  const std::vector<std::pair<const char*, void (*)(ModelConfig&)>> switches{
      {"rope", [](ModelConfig& c) { c.mixer.only<AttentionConfig>().rope = true; }},
      {"forget gate", [](ModelConfig& c) { c.mixer.only<AttentionConfig>().forget_gate = ForgetGate::kNone; }},
      {"QK-norm", [](ModelConfig& c) { c.mixer.only<AttentionConfig>().qk_norm = QkNorm::kNone; }},
      {"output gate", [](ModelConfig& c) { c.output_gate = false; }},
      {"output norm", [](ModelConfig& c) { c.output_norm = false; }},
      {"KV-shift", [](ModelConfig& c) { c.mixer.only<AttentionConfig>().kv_shift = false; }}};
  ModelConfig config = tiny_model();
  config.mlp_ratio = 4;  // so that the output gate changes nothing else
  LanguageModel pro(config);
  const torch::NoGradGuard no_gradient;
  const Tensor logits = pro->forward(tokens);
  for (const auto& [name, change] : switches) {
    ModelConfig changed = config;
    change(changed);
    LanguageModel other(changed);
    copy_common(pro, other);
    EXPECT_GT(distance(other->forward(tokens), logits), 1e-4) << name;
  }
  LanguageModel same(config);  // the negative control: with equal weights and equal switches the output is equal
  same->initialize(1);
  EXPECT_GT(distance(same->forward(tokens), logits), 1e-4);
  copy_common(pro, same);
  EXPECT_EQ(distance(same->forward(tokens), logits), 0);
}

TEST(LanguageModel, PerHeadNormsOfEqualWeightsAreSharedNorms) {
  ModelConfig config = tiny_model();
  LanguageModel shared(config);
  config.mixer.only<AttentionConfig>().qk_norm = QkNorm::kPerHead;
  LanguageModel per_head(config);
  const torch::NoGradGuard no_gradient;
  const Tensor tokens = some_tokens(1, 16);
  const auto equal = [&] {
    auto sources = shared->named_parameters(), targets = per_head->named_parameters();
    for (const auto& source : sources) {
      targets[source.key()].copy_(source.value().numel() < targets[source.key()].numel() ? source.value().repeat({2})
                                                                                         : source.value());
    }
    return distance(per_head->forward(tokens), shared->forward(tokens));
  };
  for (auto& parameter : shared->named_parameters()) {
    if (parameter.key().ends_with("q_norm.weight")) parameter.value().uniform_(0.5, 2);
  }
  EXPECT_LT(equal(), 1e-5);
}

TEST(LanguageModel, TrainsTheBiasOfABiasOnlyGateButNotAFixedOne) {
  ModelConfig config = tiny_model(named_architecture("fox-llama"));
  config.mixer.only<AttentionConfig>().forget_gate = ForgetGate::kBiasOnly;
  LanguageModel trained_gate(config);
  config.mixer.only<AttentionConfig>().forget_gate = ForgetGate::kFixed;
  LanguageModel fixed(config);
  const Tensor tokens = some_tokens(1, 16);
  trained_gate->losses(tokens, tokens.roll(1, 1)).mean().backward();
  fixed->losses(tokens, tokens.roll(1, 1)).mean().backward();

  const std::string name = "model.layers.0.attn.fgate_bias";
  EXPECT_GT(trained_gate->named_parameters()[name].grad().abs().min().item<double>(), 0);
  EXPECT_FALSE(fixed->named_parameters().contains(name));
  EXPECT_FALSE(fixed->named_buffers()[name].grad().defined());
  EXPECT_EQ(distance(fixed->named_buffers()[name], trained_gate->named_parameters()[name].detach()), 0);
}

TEST(LanguageModel, StartsFromNormalMatricesNormsOfOneAndBiasesOfZero) {
  LanguageModel model(tiny_model());
  for (const auto& parameter : model->named_parameters()) {
    const auto& [name, value] = parameter.pair();
    if (value.dim() == 2) {
      const double n = static_cast<double>(value.numel());
      EXPECT_NEAR(value.mean().item<double>(), 0, 5 * 0.02 / std::sqrt(n)) << name;
      EXPECT_NEAR(value.std().item<double>(), 0.02, 5 * 0.02 / std::sqrt(2 * n)) << name;
    } else {
      EXPECT_TRUE(value.eq(name.ends_with("bias") ? 0 : 1).all().item<bool>()) << name;
    }
  }
}

TEST(LanguageModel, StartsFromScaledMatricesOfMixersAndOutputProjections) {
  for (const char* architecture : {"fox-pro", "transformer-llama"}) {
    ModelConfig config = tiny_model(named_architecture(architecture));
    const LanguageModel usual(config);
    config.initialization = Initialization::kScaled;
    const LanguageModel scaled(config);
    const auto before = usual->named_parameters();
    for (const auto& item : scaled->named_parameters()) {
      const Tensor& value = item.value();
      if (item.key().find(".attn.") != std::string::npos && value.dim() == 2) {
        const double bound = std::sqrt(6.0 / static_cast<double>(value.size(0) + value.size(1)) / 32);
        EXPECT_LE(value.abs().max().item<double>(), bound) << item.key();
        EXPECT_NEAR(value.abs().mean().item<double>(), bound / 2, bound / 8) << item.key();
      } else if (item.key().ends_with("mlp.down_proj.weight")) {
        EXPECT_LT(distance(value, before[item.key()] / 2), 1e-8) << "two layers have four residuals";
      } else {
        EXPECT_TRUE(value.equal(before[item.key()])) << item.key();
      }
    }
  }
}

TEST(LanguageModel, HasTheWeightsOfItsSeed) {
  LanguageModel first(tiny_model()), second(tiny_model());
  const auto weights = [](LanguageModel& model) { return torch::nn::utils::parameters_to_vector(model->parameters()); };
  second->initialize(5);
  EXPECT_FALSE(weights(first).equal(weights(second)));
  first->initialize(5);
  EXPECT_TRUE(weights(first).equal(weights(second)));
}

TEST(LanguageModel, ComparesTheLabelOfAPositionWithItsOwnLogits) {
  ModelConfig config = tiny_model();
  config.compute_dtype = "float64";
  LanguageModel model(config);
  const torch::NoGradGuard no_gradient;
  const Tensor tokens = some_tokens(2, 16), labels = tokens.roll(-1, 1);
  const Tensor expected = -model->forward(tokens).log_softmax(-1).gather(2, labels.unsqueeze(2)).squeeze(2);
  EXPECT_LT(distance(model->losses(tokens, labels), expected), 1e-12);
  EXPECT_GT(distance(model->losses(tokens, tokens), expected), 1e-3);
}

TEST(LanguageModel, PredictsThePositionsWithALabelAlone) {
  ModelConfig config = tiny_model();
  config.compute_dtype = "float64";
  LanguageModel model(config);
  const Tensor tokens = some_tokens(2, 16), best = model->forward(tokens).argmax(-1);
  Tensor labels = torch::full_like(tokens, -1);
  labels[0][3] = best[0][3];
  labels[1][15] = (best[1][15] + 1) % 257;
  const Tensor asked = labels.ge(0), zero = torch::zeros({}, torch::kFloat64);
  const Tensor expected = model->losses(tokens, labels.clamp_min(0)).where(asked, zero);
  const auto recorded = model->predictions(tokens, labels);
  EXPECT_LT(distance(recorded.losses, expected), 1e-12);
  recorded.losses.sum().backward();
  EXPECT_GT(model->named_parameters()["model.embeddings.weight"].grad().abs().max().item<double>(), 0);
  const torch::NoGradGuard no_gradient;
  const auto found = model->predictions(tokens, labels);
  EXPECT_LT(distance(found.losses, expected), 1e-12);
  EXPECT_TRUE(found.correct.equal(labels.eq(best).logical_or(asked.logical_not())));
  EXPECT_FALSE(found.correct[1][15].item<bool>());
}

TEST(LanguageModel, GivesTheTracesOfItsLayersOneByOne) {
  LanguageModel model(tiny_model());
  const torch::NoGradGuard no_gradient;
  std::vector<std::any> together;
  model->forward(some_tokens(1, 16), &together);
  size_t layers = 0;
  model->traces(some_tokens(1, 16), [&](size_t layer, const std::any& trace) {
    EXPECT_EQ(layer, layers++);
    const auto gates = [](const std::any& of) { return std::any_cast<const AttentionTrace&>(of).log_forget; };
    EXPECT_TRUE(gates(trace).equal(gates(together.at(layer))));
  });
  EXPECT_EQ(layers, 2u);
}

TEST(LanguageModel, BoundsTheLogitsByTheWeightsOfItsNorms) {
  for (const QkNorm norm : {QkNorm::kShared, QkNorm::kPerHead}) {
    ModelConfig config = tiny_model();
    config.mixer.only<AttentionConfig>().qk_norm = norm;
    config.mixer.only<AttentionConfig>().rope = true;
    LanguageModel model(config);
    const torch::NoGradGuard no_gradient;
    torch::manual_seed(3);
    for (auto& parameter : model->named_parameters()) {
      if (parameter.key().ends_with("q_norm.weight") || parameter.key().ends_with("k_norm.weight")) {
        parameter.value().uniform_(-2, 2);
      }
    }
    std::vector<std::any> trace;
    model->forward(some_tokens(2, 64), &trace);
    ASSERT_EQ(trace.size(), 2u);
    for (const std::any& kept : trace) {
      const auto& layer = std::any_cast<const AttentionTrace&>(kept);
      const Tensor logits = torch::einsum("bihd,bjhd->bhij", {layer.query, layer.key}) / std::sqrt(16.0);
      EXPECT_TRUE(logits.abs().amax({0, 2, 3}).le(layer.logit_bound).all().item<bool>());
      EXPECT_TRUE(layer.logit_bound.le(2 * 2 * std::sqrt(16.0) * 1.01).all().item<bool>());
    }
  }
}

TEST(LanguageModel, HasTheSameLossWhenItPrunes) {
  for (const QkNorm norm : {QkNorm::kNone, QkNorm::kShared}) {
    ModelConfig config = tiny_model();
    config.mixer.only<AttentionConfig>().qk_norm = norm;
    LanguageModel whole(config);
    config.mixer.only<AttentionConfig>().log_pruning_tolerance = -10;
    LanguageModel pruning(config);
    const torch::NoGradGuard no_gradient;
    for (auto* model : {&whole, &pruning}) {
      for (auto& parameter : (*model)->named_parameters()) {
        if (parameter.key().ends_with("fgate_proj.bias")) parameter.value().fill_(-1);  // heads that forget fast
      }
    }
    const Tensor tokens = some_tokens(1, 2048), labels = tokens.roll(-1, 1);
    EXPECT_LT(distance(whole->losses(tokens, labels), pruning->losses(tokens, labels)), 1e-3);

    std::vector<std::any> trace;
    const auto visited_pairs = [&] { return std::any_cast<const AttentionTrace&>(trace[0]).visited_pairs; };
    pruning->forward(tokens, &trace);
    EXPECT_TRUE(visited_pairs().lt(2048 * 2049 / 2).all().item<bool>()) << "nothing was pruned";
    whole->forward(tokens, &trace);
    EXPECT_TRUE(visited_pairs().eq(2048 * 2049 / 2).all().item<bool>());
  }
}

}  // namespace
}  // namespace lethe
