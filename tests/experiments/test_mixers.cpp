// The mixers beside attention, each against the reference's rule, which shares nothing with it but the weights.

#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <ostream>

#include "experiments/models/fast_weights_layer.hpp"
#include "experiments/models/language_model.hpp"
#include "experiments/models/not_finite.hpp"
#include "tests/experiments/mixer_layer.hpp"
#include "tests/experiments/tiny.hpp"
#include "tests/support/matrices.hpp"

namespace lethe {

struct MixerCase {
  std::string name;
  ModelConfig model;
};
inline void PrintTo(const MixerCase& mixer, std::ostream* out) { *out << mixer.name; }

namespace {

using torch::Tensor;

// One layer in double: sums of 32 terms, a state of 17 tokens, and an ε of 1e-6 that the reference's norms don't have.
constexpr double kLayerBudget = 1e-10;

ModelConfig with(ModelConfig model, auto... changes) {
  (changes(model), ...);
  return model;
}
constexpr auto norm = [](ModelConfig& m) { m.attention_norm = true; };
constexpr auto sum_norm = [](ModelConfig& m) { m.sum_norm = true; };
constexpr auto rotated = [](ModelConfig& m) { m.rope = true; };

std::vector<MixerCase> every_state() {
  std::vector<MixerCase> cases;
  for (const auto& [mixer, name] :
       {std::pair{Mixer::kAdditive, "additive"}, std::pair{Mixer::kGated, "gated"}, std::pair{Mixer::kDelta, "delta"},
        std::pair{Mixer::kDecay, "decay"}, std::pair{Mixer::kGatedLinear, "gated_linear"},
        std::pair{Mixer::kGatedDelta, "gated_delta"}}) {
    cases.push_back({std::string(name) + ", linear", tiny_mixer(mixer, FeatureMap::kLinear)});
    cases.push_back({std::string(name) + ", ReLU", tiny_mixer(mixer, FeatureMap::kRelu)});
    if (mixer != Mixer::kDecay && mixer != Mixer::kGatedDelta)
      cases.push_back({std::string(name) + ", ReLU, attention norm", with(tiny_mixer(mixer, FeatureMap::kRelu), norm)});
  }
  const auto add = [&](const char* name, Mixer mixer, FeatureMap features, auto... changes) {
    cases.push_back({name, with(tiny_mixer(mixer, features), changes...)});
  };
  add("delta, ReLU, sum norm", Mixer::kDelta, FeatureMap::kRelu, sum_norm);
  add("delta, ReLU, both norms", Mixer::kDelta, FeatureMap::kRelu, sum_norm, norm);
  add("gated_delta, ReLU, sum norm", Mixer::kGatedDelta, FeatureMap::kRelu, sum_norm);
  add("decay, linear, rotated", Mixer::kDecay, FeatureMap::kLinear, rotated);
  add("gated, ReLU, rotated", Mixer::kGated, FeatureMap::kRelu, rotated);
  add("decay, linear, output gate and norm", Mixer::kDecay, FeatureMap::kLinear,
      [](auto& m) { m.output_gate = m.output_norm = true; });
  return cases;
}

// What FoX's gate and the maps without weights add to that.
std::vector<MixerCase> every_map_and_gate() {
  std::vector<MixerCase> cases;
  const auto add = [&](const char* name, Mixer mixer, FeatureMap features, auto... changes) {
    cases.push_back({name, with(tiny_mixer(mixer, features), changes...)});
  };
  const auto gate = [](ForgetGate kind) { return [kind](ModelConfig& m) { m.forget_gate = kind; }; };
  const auto nu = [](int64_t n) { return [n](ModelConfig& m) { m.dpfp_nu = n; }; };
  const auto both_outputs = [](auto& m) { m.output_gate = m.output_norm = true; };
  add("gated_linear, ELU + 1, norm", Mixer::kGatedLinear, FeatureMap::kEluPlusOne, norm);
  add("gated_linear, ELU + 1", Mixer::kGatedLinear, FeatureMap::kEluPlusOne);
  add("gated_linear, bias alone", Mixer::kGatedLinear, FeatureMap::kEluPlusOne, norm, gate(ForgetGate::kBiasOnly));
  add("gated_linear, fixed, rotated", Mixer::kGatedLinear, FeatureMap::kLinear, rotated, gate(ForgetGate::kFixed));
  add("gated_linear, output gate and norm", Mixer::kGatedLinear, FeatureMap::kEluPlusOne, norm, both_outputs);
  add("gated_linear, DPFP-2", Mixer::kGatedLinear, FeatureMap::kDpfp, nu(2));
  add("gated_linear, FAVOR+, norm", Mixer::kGatedLinear, FeatureMap::kPositiveRandom, norm);
  add("gated_linear, RFA", Mixer::kGatedLinear, FeatureMap::kRandomFourier);
  add("gated_delta, bias alone", Mixer::kGatedDelta, FeatureMap::kRelu, sum_norm, gate(ForgetGate::kBiasOnly));
  add("gated_delta, fixed", Mixer::kGatedDelta, FeatureMap::kRelu, sum_norm, gate(ForgetGate::kFixed));
  add("gated_delta, DPFP-1, sum norm", Mixer::kGatedDelta, FeatureMap::kDpfp, nu(1), sum_norm);
  add("gated_delta, ELU + 1, output gate and norm", Mixer::kGatedDelta, FeatureMap::kEluPlusOne, sum_norm,
      both_outputs);
  add("additive, ELU + 1, norm", Mixer::kAdditive, FeatureMap::kEluPlusOne, norm);
  add("additive, FAVOR+, norm, rotated", Mixer::kAdditive, FeatureMap::kPositiveRandom, norm, rotated);
  add("additive, RFA, norm", Mixer::kAdditive, FeatureMap::kRandomFourier, norm);
  add("gated, ELU + 1, norm", Mixer::kGated, FeatureMap::kEluPlusOne, norm);
  add("delta, DPFP-3, sum norm", Mixer::kDelta, FeatureMap::kDpfp, nu(3), sum_norm);
  add("decay, ELU + 1", Mixer::kDecay, FeatureMap::kEluPlusOne);
  add("decay, DPFP-1", Mixer::kDecay, FeatureMap::kDpfp, nu(1));
  return cases;
}

Tensor some_input(int64_t length) {
  torch::manual_seed(11);
  return torch::randn({2, length, 32}, torch::kFloat64);
}

class EveryState : public testing::TestWithParam<MixerCase> {};

TEST_P(EveryState, EqualsTheReferenceRule) {
  const Layer layer(GetParam().model);
  const Tensor x = some_input(17), values = layer.values(x);
  for (int64_t b = 0; b < 2; ++b)
    EXPECT_LT(relative_error(matrix_of(values[b]), expected_values(layer, matrix_of(x[b]))), kLayerBudget);
}

TEST_P(EveryState, DiffersFromTheReferenceRuleWithAnyWeightChangedByATenth) {
  const Layer layer(GetParam().model);
  const Tensor x = some_input(17);
  const Matrix<double> expected = expected_values(layer, matrix_of(x[0]));
  const torch::NoGradGuard no_gradient;
  const auto change = [&](const std::string& name, const Tensor& weight) {
    Tensor first = weight.flatten().narrow(0, 0, 1);
    first.add_(0.1);
    EXPECT_GT(relative_error(matrix_of(layer.values(x)[0]), expected), 3 * kLayerBudget) << name;
    first.sub_(0.1);
  };
  for (const auto& parameter : layer.root.named_parameters()) change(parameter.key(), parameter.value());
  for (const auto& buffer : layer.root.named_buffers()) change(buffer.key(), buffer.value());
}

TEST_P(EveryState, NeverLooksAhead) {
  const Layer layer(GetParam().model);
  const Tensor x = some_input(17), values = layer.values(x);
  Tensor other = x.clone();
  other.narrow(1, 9, 1).add_(1);
  const Tensor changed = layer.values(other);
  EXPECT_LT(distance(changed.narrow(1, 0, 9), values.narrow(1, 0, 9)), 1e-12);
  EXPECT_GT(distance(changed.narrow(1, 9, 1), values.narrow(1, 9, 1)), 1e-3);
}

TEST_P(EveryState, HasAGradientInEveryWeightThatIsTheCentralDifference) {
  const Layer layer(GetParam().model);
  const Tensor x = some_input(9), direction = torch::randn({2, 9, 32}, torch::kFloat64);
  const auto loss = [&] {
    const auto angles =
        rotation(9, layer.layer.config.query_dim(), layer.layer.config.rope_base, torch::dtype(torch::kFloat64));
    return (layer.layer.forward(x, angles, nullptr) * direction).sum();
  };
  loss().backward();
  const torch::NoGradGuard no_gradient;
  // Short, for maps with corners and normalizers near zero. Weights are float32, but what is taken is their exact difference.
  constexpr double kStep = 1e-5;
  for (auto& parameter : layer.root.named_parameters()) {
    const Tensor gradient = parameter.value().grad(), along = torch::randn_like(gradient);
    const Tensor before = parameter.value().clone();
    parameter.value().copy_(before + kStep * along);
    const Tensor forth = parameter.value().clone();
    const double upper = loss().item<double>();
    parameter.value().copy_(before - kStep * along);
    const Tensor taken = (forth - parameter.value()).to(torch::kFloat64);
    const double lower = loss().item<double>();
    parameter.value().copy_(before);
    const double expected = (gradient.to(torch::kFloat64) * taken).sum().item<double>();
    EXPECT_NEAR(upper - lower, expected,
                5e-3 * (std::abs(expected) + gradient.norm().item<double>() * taken.norm().item<double>()))
        << parameter.key();
  }
}

INSTANTIATE_TEST_SUITE_P(Mixers, EveryState, testing::ValuesIn(every_state()));
INSTANTIATE_TEST_SUITE_P(MapsAndGates, EveryState, testing::ValuesIn(every_map_and_gate()));

TEST(FastWeightsLayer, TellsItsLargestStateAndValue) {
  for (const ModelConfig& model :
       {tiny_mixer(Mixer::kDecay, FeatureMap::kLinear), tiny_mixer(Mixer::kGatedDelta, FeatureMap::kLinear),
        with(tiny_mixer(Mixer::kGatedLinear, FeatureMap::kEluPlusOne), norm)}) {
    const Layer layer(model);
    const Tensor x = some_input(17).narrow(0, 0, 1);
    AttentionTrace trace;
    const Tensor with_trace = layer.values(x, &trace);
    EXPECT_TRUE(with_trace.equal(layer.values(x)));
    double largest = 0;
    expected_values(layer, matrix_of(x[0]), &largest);
    EXPECT_NEAR(trace.largest_state.item<double>(), largest, 1e-10 * largest);
    EXPECT_GT(trace.largest_value.item<double>(), 0);
  }
}

TEST(FastWeightsLayer, InSixteenBitsIsNearThatOfThirtyTwoWithEveryMap) {
  for (const char* architecture : {"gated_linear", "gated_delta"})
    for (const FeatureMap map : {FeatureMap::kLinear, FeatureMap::kRelu, FeatureMap::kEluPlusOne, FeatureMap::kDpfp,
                                 FeatureMap::kPositiveRandom, FeatureMap::kRandomFourier}) {
      ModelConfig model = tiny_model(named_architecture(architecture));
      model.feature_map = map;
      // Features of both signs may sum to nothing.
      if (map == FeatureMap::kLinear || map == FeatureMap::kRandomFourier) model.sum_norm = false;
      if (map != FeatureMap::kEluPlusOne && map != FeatureMap::kPositiveRandom) model.attention_norm = false;
      LanguageModel wide(model);
      torch::manual_seed(2);
      const Tensor tokens = torch::randint(257, {2, 24}), expected = wide->forward(tokens);
      for (const auto& [dtype, budget] : {std::pair("bfloat16", 0.03), std::pair("float16", 0.004)}) {
        model.compute_dtype = dtype;
        LanguageModel narrow(model);  // seed 0, as the other
        const Tensor logits = narrow->forward(tokens).to(torch::kFloat32);
        const double error = ((logits - expected).norm() / expected.norm()).item<double>();
        EXPECT_LT(error, budget) << architecture << ' ' << dtype << ' ' << static_cast<int>(map);
        EXPECT_GT(error, 1e-6) << "the same computation";
        narrow->losses(tokens, tokens).mean().backward();
        for (const Tensor& parameter : narrow->parameters())
          EXPECT_TRUE(torch::isfinite(parameter.grad()).all().item<bool>());
      }
    }
}

TEST(FastWeightsLayer, CallsAnInputThatIsNotFiniteADivergence) {
  const Layer layer(tiny_mixer(Mixer::kGated, FeatureMap::kLinear));
  Tensor x = some_input(3);
  x[0][1][2] = NAN;
  EXPECT_THROW(layer.values(x), NotFinite);
}

TEST(FastWeightsLayer, WithAnEpsilonGivesZeroWhereNoFeatureIsThere) {
  ModelConfig model = tiny_mixer(Mixer::kAdditive, FeatureMap::kRelu);
  model.attention_norm = true;
  for (const double epsilon : {0.0, 1e-6}) {
    model.norm_epsilon = epsilon;
    const Layer layer(model);
    const torch::NoGradGuard no_gradient;
    layer.root.named_parameters()["attn.feature.bias"].fill_(-1e3);
    const Tensor values = layer.values(some_input(5));
    EXPECT_EQ(values.isnan().any().item<bool>(), epsilon == 0);
    if (epsilon > 0) {
      EXPECT_EQ(values.abs().max().item<double>(), 0);
    }
  }
}

}  // namespace
}  // namespace lethe
