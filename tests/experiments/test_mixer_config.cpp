// A mixer's cost, its initialization, and the checks of its configuration.

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>

#include "experiments/models/footprint.hpp"
#include "experiments/models/language_model.hpp"
#include "experiments/models/mixers/decay.hpp"
#include "tests/experiments/tiny.hpp"

namespace lethe {
namespace {

using nlohmann::json;
using torch::Tensor;

TEST(MixerParameters, AreThoseOfTheEquations) {
  const ModelConfig attention = tiny_model(named_architecture("transformer-llama"));
  const int64_t W = attention.width, H = attention.heads, D = attention.head_dim(), m = 6;
  const auto added = [&](const char* mixer, const json& options = json::object()) {
    return (count_parameters(tiny_mixer(mixer, options)).total - count_parameters(attention).total) / attention.layers;
  };
  const auto map = [](const char* name) { return json{{"feature_map", name}}; };
  const int64_t linear = 2 * W * (H * m - W), relu = H * (m * D + m);
  EXPECT_EQ(added("local"), 0);
  EXPECT_EQ(added("additive"), linear);
  EXPECT_EQ(added("additive", map("relu")), relu);
  EXPECT_EQ(added("gated", map("relu")), relu + H * W);
  EXPECT_EQ(added("delta", map("relu")), relu + H * (W + 1));
  EXPECT_EQ(added("decay"), linear + W * (W + 1) + H * m * (W + 1));
  EXPECT_EQ(added("gated_linear"), linear + H * (W + 1));
  EXPECT_EQ(added("gated_linear", map("elu_plus_one")), H * (W + 1));
  EXPECT_EQ(added("gated_linear", map("dpfp")), H * (W + 1));
  EXPECT_EQ(added("gated_linear", map("positive_random")), H * (W + 1)) << "directions are no parameters";
  EXPECT_EQ(added("gated_delta", map("relu")), relu + 2 * H * (W + 1));
}

TEST(MixerCosts, GrowWithTheStateAndNotWithTheContext) {
  const ModelConfig decay = tiny_mixer("decay"), wider = tiny_mixer("decay", {{"state_size", 12}});
  EXPECT_EQ(training_flops_per_token(decay, 256), training_flops_per_token(decay, 4096));
  EXPECT_GT(training_flops_per_token(wider, 256), training_flops_per_token(decay, 256));
  const ModelConfig local = tiny_mixer("local");
  EXPECT_EQ(training_flops_per_token(local, 256), training_flops_per_token(local, 4096));
  EXPECT_LT(training_flops_per_token(local, 32), training_flops_per_token(local, 64));
  EXPECT_GT(footprint(wider, 1024).activations, footprint(decay, 1024).activations);
}

TEST(MixerCosts, AreThoseOfTheFeatures) {
  const auto model = [](const json& options) { return tiny_mixer("gated_linear", options); };
  const ModelConfig elu = model({{"feature_map", "elu_plus_one"}}),
                    random = model({{"feature_map", "positive_random"}});
  const ModelConfig dpfp = model({{"feature_map", "dpfp"}, {"dpfp_nu", 2}});
  const ModelConfig as_wide = model({{"feature_map", "positive_random"}, {"state_size", elu.head_dim()}});
  const ModelConfig fourier = model({{"feature_map", "random_fourier"}});
  const auto rows = [](const ModelConfig& config) {
    const MixerConfig& mixer = config.mixer.of(0);
    return mixer.row().state_rows(config, mixer.options());
  };
  EXPECT_EQ(rows(elu), 16);
  EXPECT_EQ(rows(dpfp), 64);
  EXPECT_EQ(rows(random), 6);
  const auto flops = [](const ModelConfig& config) { return training_flops_per_token(config, 64); };
  // Layers × width × 3 multiply-adds (gate, write, read) a row, 6 FLOPs each with the backward pass.
  EXPECT_EQ(flops(dpfp) - flops(elu), 6 * 2 * 32 * 3 * (64 - 16));
  // Directions for query and key, forward and backward to u: 4 FLOPs an entry and head.
  EXPECT_EQ(flops(as_wide) - flops(elu), 4 * 2 * 2 * 2 * 16 * 16);
  EXPECT_EQ(flops(random) - flops(fourier), 4 * 2 * 2 * 2 * 3 * 16);
  EXPECT_EQ(footprint(dpfp, 64).activations - footprint(elu, 64).activations, 2 * 64 * 2 * 2 * (64 - 16) * 8);
}

TEST(UniformGateInitialisation, FillsItsRange) {
  const auto gates = [](double n) {
    return torch::sigmoid(uniform_gate_bias(20000, n, at::make_generator<at::CPUGeneratorImpl>(1)));
  };
  for (const double n : {2.5, 4.0, 32.0}) {
    const Tensor gate = gates(n);
    EXPECT_GE(gate.min().item<double>(), 1 / n - 1e-6);
    EXPECT_LE(gate.max().item<double>(), 1 - 1 / n + 1e-6);
    EXPECT_LT(gate.min().item<double>(), 1 / n + 0.01 * (1 - 2 / n));
    EXPECT_NEAR(gate.mean().item<double>(), 0.5, 0.01);
  }
  EXPECT_NEAR(gates(2).std().item<double>(), 0, 1e-6);
}

TEST(UniformGateInitialisation, TakesAHeadsNumberOfGatesForItsRange) {
  LanguageModel model(tiny_mixer("decay"));
  const auto parameters = model->named_parameters();
  const auto range_of = [&](const char* name) {
    const Tensor gate = torch::sigmoid(parameters[std::string("model.layers.1.attn.") + name]);
    return std::pair(gate.min().item<double>(), gate.max().item<double>());
  };
  const auto [lowest_f, highest_f] = range_of("key_gate_proj.bias");
  EXPECT_GE(lowest_f, 1.0 / 6 - 1e-6);
  EXPECT_LE(highest_f, 5.0 / 6 + 1e-6);
  const auto [lowest_z, highest_z] = range_of("value_gate_proj.bias");
  EXPECT_GE(lowest_z, 1.0 / 16 - 1e-6);
  EXPECT_LE(highest_z, 15.0 / 16 + 1e-6);
  EXPECT_GT(highest_z, highest_f);
}

// The error of a mixer's options, or "no error".
std::string refusal(const char* mixer, const json& options) {
  try {
    return refusal_of(tiny_mixer(mixer, options));
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
}

TEST(MixerConfig, RefusesOptionsOfOtherMixers) {
  const auto refuses = [](const char* mixer, const json& options) {
    const std::string message = refusal(mixer, options);
    EXPECT_EQ(message.find("mixer: expected keys among "), 0u) << message;
    EXPECT_TRUE(message.ends_with(", found " + options.begin().key())) << message;
  };
  for (const char* mixer : {"local", "additive", "gated", "delta", "decay"}) refuses(mixer, {{"forget_gate", "full"}});
  for (const char* mixer : {"local", "decay", "gated_linear", "gated_delta"})
    refuses(mixer, {{"log_pruning_tolerance", -10}});
  for (const char* mixer : {"decay", "gated_linear", "gated_delta"}) refuses(mixer, {{"kv_shift", true}});
  for (const char* mixer : {"decay", "gated_delta"}) refuses(mixer, {{"attention_norm", true}});
  for (const char* mixer : {"gated", "gated_linear"}) refuses(mixer, {{"sum_norm", true}});
}

TEST(MixerConfig, RefusesSizesThatFeaturesCannotHave) {
  EXPECT_EQ(refusal("gated", {{"state_size", 1}}), "no error");
  EXPECT_EQ(refusal("decay", {{"state_size", 1}}), "state_size: expected 2 … 1048576, found 1");
  EXPECT_EQ(refusal("local", {{"window", 0}}), "window: expected 1 … 1099511627776, found 0");
  EXPECT_EQ(refusal("decay", {{"gate_range", 1.5}}), "gate_range: expected ≥ 2 and finite, or absent, found 1.500000");
  EXPECT_EQ(refusal("decay", {{"rope", true}, {"state_size", 5}}),
            "state_size: expected an even number where queries are rotated, found 5");
  for (const char* mixer : {"gated_linear", "gated_delta"}) {
    const auto with = [&](const char* map, const json& options = json::object()) {
      json all = options;
      all["feature_map"] = map;
      return refusal(mixer, all);
    };
    for (const auto& [_, map] : EnumNames<FeatureMap>::names) EXPECT_EQ(with(map.c_str()), "no error");
    EXPECT_EQ(with("relu", {{"forget_gate", "none"}}),
              "forget_gate: expected full, bias_only or fixed with a state, found none");
    EXPECT_EQ(with("positive_random", {{"state_size", 7}}), "no error");
    EXPECT_EQ(with("random_fourier", {{"state_size", 7}}),
              "state_size: expected an even number with the feature map random_fourier, a sine and a cosine a "
              "direction, found 7");
    EXPECT_EQ(with("dpfp", {{"dpfp_nu", 0}}), "dpfp_nu: expected 1 … 2·head_dim = 32, found 0");
    EXPECT_EQ(with("elu_plus_one", {{"state_size", 0}}), "no error");
    EXPECT_EQ(with("positive_random", {{"state_size", 0}}), "state_size: expected 1 … 1048576, found 0");
  }
}

}  // namespace
}  // namespace lethe
