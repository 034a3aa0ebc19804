// What a mixer costs, how it begins, and what its configuration refuses.

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>

#include "experiments/models/fast_weights_layer.hpp"
#include "experiments/models/footprint.hpp"
#include "experiments/models/language_model.hpp"
#include "tests/experiments/tiny.hpp"

namespace lethe {
namespace {

using torch::Tensor;

TEST(MixerParameters, AreThoseOfTheEquations) {
  const ModelConfig attention = tiny_model(named_architecture("transformer-llama"));
  const int64_t W = attention.width, H = attention.heads, D = attention.head_dim(), m = 6;
  const auto added = [&](Mixer mixer, FeatureMap features) {
    return (count_parameters(tiny_mixer(mixer, features)).total - count_parameters(attention).total) / attention.layers;
  };
  const int64_t linear = 2 * W * (H * m - W), relu = H * (m * D + m);
  EXPECT_EQ(added(Mixer::kLocal, FeatureMap::kLinear), 0);
  EXPECT_EQ(added(Mixer::kAdditive, FeatureMap::kLinear), linear);
  EXPECT_EQ(added(Mixer::kAdditive, FeatureMap::kRelu), relu);
  EXPECT_EQ(added(Mixer::kGated, FeatureMap::kRelu), relu + H * W);
  EXPECT_EQ(added(Mixer::kDelta, FeatureMap::kRelu), relu + H * (W + 1));
  EXPECT_EQ(added(Mixer::kDecay, FeatureMap::kLinear), linear + W * (W + 1) + H * m * (W + 1));
  EXPECT_EQ(added(Mixer::kGatedLinear, FeatureMap::kLinear), linear + H * (W + 1));
  EXPECT_EQ(added(Mixer::kGatedLinear, FeatureMap::kEluPlusOne), H * (W + 1));
  EXPECT_EQ(added(Mixer::kGatedLinear, FeatureMap::kDpfp), H * (W + 1));
  EXPECT_EQ(added(Mixer::kGatedLinear, FeatureMap::kPositiveRandom), H * (W + 1)) << "directions are no parameters";
  EXPECT_EQ(added(Mixer::kGatedDelta, FeatureMap::kRelu), relu + 2 * H * (W + 1));
}

TEST(MixerCosts, GrowWithTheStateAndNotWithTheContext) {
  ModelConfig decay = tiny_mixer(Mixer::kDecay, FeatureMap::kLinear), wider = decay;
  wider.state_size *= 2;
  EXPECT_EQ(training_flops_per_token(decay, 256), training_flops_per_token(decay, 4096));
  EXPECT_GT(training_flops_per_token(wider, 256), training_flops_per_token(decay, 256));
  const ModelConfig local = tiny_mixer(Mixer::kLocal, FeatureMap::kLinear);
  EXPECT_EQ(training_flops_per_token(local, 256), training_flops_per_token(local, 4096));
  EXPECT_LT(training_flops_per_token(local, 32), training_flops_per_token(local, 64));
  EXPECT_GT(footprint(wider, 1024).activations, footprint(decay, 1024).activations);
}

TEST(MixerCosts, AreThoseOfTheFeatures) {
  const auto model = [](FeatureMap features) { return tiny_mixer(Mixer::kGatedLinear, features); };
  const ModelConfig elu = model(FeatureMap::kEluPlusOne), random = model(FeatureMap::kPositiveRandom);
  ModelConfig dpfp = model(FeatureMap::kDpfp), as_wide = random, fourier = random;
  dpfp.dpfp_nu = 2;
  as_wide.state_size = elu.head_dim();
  fourier.feature_map = FeatureMap::kRandomFourier;
  EXPECT_EQ(elu.state_rows(), 16);
  EXPECT_EQ(dpfp.state_rows(), 64);
  EXPECT_EQ(random.state_rows(), 6);
  const auto flops = [](const ModelConfig& config) { return training_flops_per_token(config, 64); };
  // Layers × width × 3 multiply-adds (gate, write, read) a row, 6 FLOPs each with the backward pass.
  EXPECT_EQ(flops(dpfp) - flops(elu), 6 * 2 * 32 * 3 * (64 - 16));
  // Directions of query and key, forward and back to u: 4 FLOPs an entry and head.
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
  LanguageModel model(tiny_mixer(Mixer::kDecay, FeatureMap::kLinear));
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

TEST(MixerConfig, SaysWhatAMixerHasNoPlaceFor) {
  const auto message = [](Mixer mixer, auto change) -> std::string {
    ModelConfig config = tiny_mixer(mixer, FeatureMap::kLinear);
    change(config);
    return refusal_of(config);
  };
  for (const Mixer mixer : {Mixer::kLocal, Mixer::kAdditive, Mixer::kGated, Mixer::kDelta, Mixer::kDecay}) {
    EXPECT_EQ(message(mixer, [](ModelConfig&) {}), "no error");
    EXPECT_EQ(message(mixer, [](ModelConfig& c) { c.forget_gate = ForgetGate::kFull; }),
              "forget_gate: expected none with a mixer other than attention, gated_linear and gated_delta, found "
              "another value");
    EXPECT_NE(message(mixer, [](ModelConfig& c) { c.log_pruning_tolerance = -10; }), "no error");
  }
  EXPECT_NE(message(Mixer::kDecay, [](ModelConfig& c) { c.kv_shift = true; }), "no error");
  EXPECT_NE(message(Mixer::kDecay, [](ModelConfig& c) { c.attention_norm = true; }), "no error");
  EXPECT_NE(message(Mixer::kGated, [](ModelConfig& c) { c.sum_norm = true; }), "no error");
  EXPECT_EQ(message(Mixer::kGated, [](ModelConfig& c) { c.state_size = 1; }), "no error");
  EXPECT_EQ(message(Mixer::kDecay, [](ModelConfig& c) { c.state_size = 1; }), "state_size: expected ≥ 2, found 1");
  EXPECT_EQ(message(Mixer::kLocal, [](ModelConfig& c) { c.window = 0; }), "window: expected > 0, found 0");
  EXPECT_NE(message(Mixer::kDecay, [](ModelConfig& c) { c.gate_range = 1.5; }), "no error");
  EXPECT_NE(message(Mixer::kDecay, [](ModelConfig& c) { c.rope = true, c.state_size = 5; }), "no error");
}

TEST(MixerConfig, SaysWhatAStateWithFoxsGateHasNoPlaceForAndWhichSizesFeaturesCanHave) {
  const auto message = [](Mixer mixer, FeatureMap features, auto change) -> std::string {
    ModelConfig config = tiny_mixer(mixer, features);
    change(config);
    return refusal_of(config);
  };
  const auto as_it_is = [](ModelConfig&) {};
  const auto odd = [](ModelConfig& c) { c.state_size = 7; };
  for (const Mixer mixer : {Mixer::kGatedLinear, Mixer::kGatedDelta}) {
    for (const FeatureMap map : {FeatureMap::kLinear, FeatureMap::kRelu, FeatureMap::kEluPlusOne, FeatureMap::kDpfp,
                                 FeatureMap::kPositiveRandom, FeatureMap::kRandomFourier})
      EXPECT_EQ(message(mixer, map, as_it_is), "no error");
    EXPECT_EQ(message(mixer, FeatureMap::kRelu, [](ModelConfig& c) { c.forget_gate = ForgetGate::kNone; }),
              "forget_gate: expected full, bias_only or fixed with the mixer gated_linear or gated_delta, found none");
    EXPECT_NE(message(mixer, FeatureMap::kRelu, [](ModelConfig& c) { c.log_pruning_tolerance = -10; }), "no error");
    EXPECT_NE(message(mixer, FeatureMap::kRelu, [](ModelConfig& c) { c.kv_shift = true; }), "no error");
    EXPECT_EQ(message(mixer, FeatureMap::kPositiveRandom, odd), "no error");
    EXPECT_EQ(message(mixer, FeatureMap::kRandomFourier, odd),
              "state_size: expected an even number with the feature map random_fourier, a sine and a cosine a "
              "direction, found 7");
    EXPECT_EQ(message(mixer, FeatureMap::kDpfp, [](ModelConfig& c) { c.dpfp_nu = 0; }),
              "dpfp_nu: expected 1 … 2·head_dim = 32, found 0");
    EXPECT_EQ(message(mixer, FeatureMap::kEluPlusOne, [](ModelConfig& c) { c.state_size = 0; }), "no error");
    EXPECT_EQ(message(mixer, FeatureMap::kPositiveRandom, [](ModelConfig& c) { c.state_size = 0; }),
              "state_size: expected ≥ 1, found 0");
  }
  const auto norm = [](ModelConfig& c) { c.attention_norm = true; };
  EXPECT_EQ(message(Mixer::kGatedLinear, FeatureMap::kEluPlusOne, norm), "no error");
  EXPECT_EQ(message(Mixer::kGatedDelta, FeatureMap::kEluPlusOne, norm),
            "attention_norm: expected false with the mixer decay or gated_delta, found true");
  const auto sum_norm = [](ModelConfig& c) { c.sum_norm = true; };
  EXPECT_EQ(message(Mixer::kGatedDelta, FeatureMap::kEluPlusOne, sum_norm), "no error");
  EXPECT_EQ(message(Mixer::kGatedLinear, FeatureMap::kEluPlusOne, sum_norm),
            "sum_norm: expected false with a mixer other than delta or gated_delta, found true");
}

TEST(MixerConfig, HasANamedArchitectureForEveryMixer) {
  for (const char* name : {"local", "additive", "gated", "delta", "decay", "gated_linear", "gated_delta"}) {
    ModelConfig config = tiny_model(named_architecture(name));
    EXPECT_NO_THROW(config.check()) << name;
    EXPECT_EQ(nlohmann::json(config).at("mixer"), name);
  }
}

}  // namespace
}  // namespace lethe
