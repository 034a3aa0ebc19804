// The mixers with a state, each against the reference's rule, which shares only the weights with it.

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <ostream>

#include "experiments/models/language_model.hpp"
#include "experiments/models/mixers/parts/state.hpp"
#include "experiments/models/mixers/parts/unbounded_state.hpp"
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

// One layer in double: sums of 32 terms, a state of 17 tokens, and an ε of 1e-6 that is absent from the reference's norms.
constexpr double kLayerBudget = 1e-10;

// Every rule of the reference with its default options, and with each of its norms and maps.
std::vector<MixerCase> every_rule() {
  std::vector<MixerCase> cases;
  for (const auto& [name, _] : reference_rules()) {
    cases.push_back({name + ", linear", tiny_mixer(name)});
    cases.push_back({name + ", ReLU", tiny_mixer(name, {{"feature_map", "relu"}})});
    for (const char* norm : {"attention_norm", "sum_norm"})
      if (nlohmann::json(MixerConfig(name)).contains(norm))
        cases.push_back({name + ", ReLU, " + norm, tiny_mixer(name, {{"feature_map", "relu"}, {norm, true}})});
  }
  return cases;
}

// The same with rotations, FoX's gate, the maps without weights and the end of the layer.
std::vector<MixerCase> every_map_and_gate() {
  const std::pair<const char*, const char*> kCases[] = {
      {"delta", R"({"feature_map": "relu", "sum_norm": true, "attention_norm": true})"},
      {"decay", R"({"rope": true})"},
      {"gated", R"({"feature_map": "relu", "rope": true})"},
      {"gated_linear", R"({"feature_map": "elu_plus_one", "attention_norm": true})"},
      {"gated_linear", R"({"feature_map": "elu_plus_one"})"},
      {"gated_linear", R"({"feature_map": "elu_plus_one", "attention_norm": true, "forget_gate": "bias_only"})"},
      {"gated_linear", R"({"rope": true, "forget_gate": "fixed"})"},
      {"gated_linear", R"({"feature_map": "dpfp", "dpfp_nu": 2})"},
      {"gated_linear", R"({"feature_map": "positive_random", "attention_norm": true})"},
      {"gated_linear", R"({"feature_map": "random_fourier"})"},
      {"gated_delta", R"({"feature_map": "relu", "sum_norm": true, "forget_gate": "bias_only"})"},
      {"gated_delta", R"({"feature_map": "relu", "sum_norm": true, "forget_gate": "fixed"})"},
      {"gated_delta", R"({"feature_map": "dpfp", "dpfp_nu": 1, "sum_norm": true})"},
      {"additive", R"({"feature_map": "elu_plus_one", "attention_norm": true})"},
      {"additive", R"({"feature_map": "positive_random", "attention_norm": true, "rope": true})"},
      {"additive", R"({"feature_map": "random_fourier", "attention_norm": true})"},
      {"gated", R"({"feature_map": "elu_plus_one", "attention_norm": true})"},
      {"delta", R"({"feature_map": "dpfp", "dpfp_nu": 3, "sum_norm": true})"},
      {"decay", R"({"feature_map": "elu_plus_one"})"},
      {"decay", R"({"feature_map": "dpfp", "dpfp_nu": 1})"},
      {"decay", R"({"write_gate": true})"},
      {"decay", R"({"sigmoid": false})"},
      {"decay", R"({"rope": true, "write_gate": true, "sigmoid": false})"},
  };
  std::vector<MixerCase> cases;
  for (const auto& [name, options] : kCases)
    cases.push_back({name + std::string(options), tiny_mixer(name, nlohmann::json::parse(options))});
  for (const auto& [name, options] :
       {std::pair("decay", R"({})"),
        std::pair("gated_linear", R"({"feature_map": "elu_plus_one", "attention_norm": true})"),
        std::pair("gated_delta", R"({"feature_map": "elu_plus_one", "sum_norm": true})")}) {
    ModelConfig model = tiny_mixer(name, nlohmann::json::parse(options));
    model.output_gate = model.output_norm = true;
    cases.push_back({name + std::string(options) + ", output gate and norm", model});
  }
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
  const auto loss = [&] { return (layer.forward(x) * direction).sum(); };
  loss().backward();
  const torch::NoGradGuard no_gradient;
  // A short step, for maps with corners and normalizers near zero. Weights are float32, but their difference is exact.
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

INSTANTIATE_TEST_SUITE_P(Rules, EveryState, testing::ValuesIn(every_rule()));
INSTANTIATE_TEST_SUITE_P(MapsAndGates, EveryState, testing::ValuesIn(every_map_and_gate()));

TEST(StateLayer, ReturnsItsLargestStateAndValue) {
  for (const ModelConfig& model :
       {tiny_mixer("decay"), tiny_mixer("gated_delta"),
        tiny_mixer("gated_linear", {{"feature_map", "elu_plus_one"}, {"attention_norm", true}})}) {
    const Layer layer(model);
    const Tensor x = some_input(17).narrow(0, 0, 1);
    std::any kept;
    const Tensor with_trace = layer.values(x, &kept);
    const auto& trace = std::any_cast<const StateTrace&>(kept);
    EXPECT_TRUE(with_trace.equal(layer.values(x)));
    double largest = 0;
    expected_values(layer, matrix_of(x[0]), &largest);
    EXPECT_NEAR(trace.largest_state.item<double>(), largest, 1e-10 * largest);
    EXPECT_GT(trace.largest_value.item<double>(), 0);
  }
}

TEST(UnboundedState, ContinuesAStateAndKeepsPackedSequencesApart) {
  torch::manual_seed(5);
  const auto some = [](int64_t size) { return torch::randn({1, 11, 2, size}, torch::kFloat64); };
  const Tensor q = some(3), k = some(3), v = some(4), f = 1.3 * some(3), g = 1.3 * some(4);
  const auto of = [&](int64_t begin, int64_t length, const std::optional<Tensor>& state = std::nullopt) {
    const auto cut = [&](const Tensor& x) { return x.narrow(1, begin, length); };
    return unbounded_state(cut(q), cut(k), cut(v), cut(f), cut(g), state, std::nullopt);
  };
  const auto [values, state] = of(0, 11);
  const auto [early, middle] = of(0, 5);
  const auto [late, end] = of(5, 6, middle);
  EXPECT_LT(distance(values, torch::cat({early, late}, 1)), 1e-10);
  EXPECT_LT(distance(state, end), 1e-10);
  const Tensor sequences = torch::tensor({0, 5, 5, 11}, torch::kInt64);
  const Tensor packed = std::get<0>(unbounded_state(q, k, v, f, g, std::nullopt, sequences));
  EXPECT_LT(distance(packed, torch::cat({early, std::get<0>(of(5, 6))}, 1)), 1e-10);
  EXPECT_GT(distance(packed, values), 1e-3);
}

TEST(UnboundedState, HasTheGradientsOfItsRecurrence) {
  torch::manual_seed(5);
  const auto some = [](torch::IntArrayRef sizes) { return torch::randn(sizes, torch::kFloat64).requires_grad_(); };
  const std::vector<Tensor> in{some({2, 7, 2, 3}), some({2, 7, 2, 3}), some({2, 7, 2, 4}),
                               some({2, 7, 2, 3}), some({2, 7, 2, 4}), some({2, 2, 3, 4})};
  const Tensor direction = torch::randn({2, 7, 2, 4}, torch::kFloat64),
               last = torch::randn({2, 2, 3, 4}, torch::kFloat64);
  const auto [values, state] = unbounded_state(in[0], in[1], in[2], in[3], in[4], in[5], std::nullopt);
  const auto found = torch::autograd::grad({(values * direction).sum() + (state * last).sum()}, in);
  Tensor step = in[5], sum = torch::zeros({}, torch::kFloat64);
  for (int64_t t = 0; t < 7; ++t) {
    const auto at = [&](size_t i) { return in[i].select(1, t); };
    step = at(3).unsqueeze(-1) * step * at(4).unsqueeze(-2) + at(1).unsqueeze(-1) * at(2).unsqueeze(-2);
    sum = sum + ((step * at(0).unsqueeze(-1)).sum(-2) * direction.select(1, t)).sum();
  }
  const auto expected = torch::autograd::grad({sum + (step * last).sum()}, in);
  for (size_t i = 0; i < in.size(); ++i) EXPECT_LT(distance(found[i], expected[i]), 1e-10) << i;
}

TEST(StateLayer, InSixteenBitsIsNearThatOfThirtyTwoWithEveryMap) {
  for (const char* architecture : {"gated_linear", "gated_delta"})
    for (const auto& [_, map] : EnumNames<FeatureMap>::names) {
      ModelConfig model = tiny_model(named_architecture(architecture));
      set(model, {{"feature_map", map}});
      const nlohmann::json options = model.mixer;
      // Features of both signs may sum to zero.
      if (options.contains("sum_norm") && (map == "linear" || map == "random_fourier"))
        set(model, {{"sum_norm", false}});
      if (options.contains("attention_norm") && map != "elu_plus_one" && map != "positive_random")
        set(model, {{"attention_norm", false}});
      LanguageModel wide(model);
      torch::manual_seed(2);
      const Tensor tokens = torch::randint(257, {2, 24}), expected = wide->forward(tokens);
      for (const auto& [dtype, budget] : {std::pair("bfloat16", 0.03), std::pair("float16", 0.004)}) {
        model.compute_dtype = dtype;
        LanguageModel narrow(model);  // seed 0, like the other
        const Tensor logits = narrow->forward(tokens).to(torch::kFloat32);
        const double error = ((logits - expected).norm() / expected.norm()).item<double>();
        EXPECT_LT(error, budget) << architecture << ' ' << dtype << ' ' << map;
        EXPECT_GT(error, 1e-6) << "the same computation";
        narrow->losses(tokens, tokens).mean().backward();
        for (const Tensor& parameter : narrow->parameters())
          EXPECT_TRUE(torch::isfinite(parameter.grad()).all().item<bool>());
      }
    }
}

TEST(StateLayer, CallsAnInputThatIsNotFiniteADivergence) {
  const Layer layer(tiny_mixer("gated"));
  Tensor x = some_input(3);
  x[0][1][2] = NAN;
  EXPECT_THROW(layer.values(x), NotFinite);
}

TEST(StateLayer, WithAnEpsilonGivesZeroWhereNoFeatureIsThere) {
  for (const double epsilon : {0.0, 1e-6}) {
    const Layer layer(
        tiny_mixer("additive", {{"feature_map", "relu"}, {"attention_norm", true}, {"norm_epsilon", epsilon}}));
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
