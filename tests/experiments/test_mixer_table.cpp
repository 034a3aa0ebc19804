// Properties of every row of the table of mixers, and of stacks of several mixers.

#include <gtest/gtest.h>

#include <any>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "experiments/models/footprint.hpp"
#include "experiments/models/language_model.hpp"
#include "experiments/models/mixers/attention.hpp"
#include "experiments/models/mixers/parts/state.hpp"
#include "tests/experiments/tiny.hpp"

namespace lethe {
namespace {

using nlohmann::json;
using torch::Tensor;

std::string error_of(const json& mixer) {
  try {
    mixer.get<MixerStack>();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

class EveryMixer : public testing::TestWithParam<std::string> {
 protected:
  MixerConfig mixer{GetParam()};
  ModelConfig model = tiny_model(llama(mixer));
};

TEST_P(EveryMixer, GivesEveryParameterAGradient) {
  LanguageModel made(model);
  expect_gradients(made);
}

TEST_P(EveryMixer, SeesTokensOfThePastAndNoneOfTheFuture) {
  LanguageModel made(model);
  const torch::NoGradGuard no_gradient;
  const Tensor tokens = some_tokens(1, 16);
  Tensor changed = tokens.clone();
  changed[0][9] = (tokens[0][9] + 1) % 257;
  const Tensor before = made->forward(tokens), after = made->forward(changed);
  EXPECT_EQ(distance(before.narrow(1, 0, 9), after.narrow(1, 0, 9)), 0);
  EXPECT_GT(distance(before.narrow(1, 10, 1), after.narrow(1, 10, 1)), 1e-6);
}

TEST_P(EveryMixer, ComputesNearlyTheSameInBfloat16) {
  LanguageModel precise(model);
  model.compute_dtype = "bfloat16";
  LanguageModel rounded(model);
  const torch::NoGradGuard no_gradient;
  const Tensor tokens = some_tokens(2, 16), labels = tokens.roll(1, 1);
  const double difference = distance(precise->losses(tokens, labels), rounded->losses(tokens, labels));
  EXPECT_LT(difference, 0.02);
  EXPECT_GT(difference, 0);
}

TEST_P(EveryMixer, KeepsEveryOptionThroughJson) {
  const json defaults = mixer;
  EXPECT_EQ(defaults.at("name"), GetParam());
  for (const auto& [name, value] : defaults.items()) {
    json changed = defaults;
    if (value.is_boolean()) changed[name] = !value.get<bool>();
    if (value.is_number()) changed[name] = value.get<double>() + 1;
    if (value.is_number_integer()) changed[name] = value.get<int64_t>() + 1;
    if (value.is_null()) changed[name] = 3.5;
    EXPECT_EQ(json(changed.get<MixerConfig>()), changed) << name;
    EXPECT_EQ(changed != defaults, !value.is_string()) << name;
  }
}

TEST_P(EveryMixer, RefusesAnOptionThatItDoesNotHave) {
  json options = mixer;
  options["no_such_option"] = 1;
  const std::string message = error_of(options);
  EXPECT_EQ(message.find("mixer: expected keys among "), 0u) << message;
  EXPECT_TRUE(message.ends_with(", found no_such_option")) << message;
}

TEST_P(EveryMixer, CountsAtLeastItsMatricesAndItsOutput) {
  LanguageModel made(model, torch::kMeta);
  double matrices = 0;
  for (const auto& parameter : made->named_parameters())
    if (parameter.key().find("layers.0.attn.") != std::string::npos && parameter.value().dim() == 2)
      matrices += static_cast<double>(parameter.value().numel());
  EXPECT_GT(matrices, 0);
  EXPECT_GE(mixer.row().flops(model, mixer.options(), 64), 6 * matrices);
  EXPECT_GE(mixer.row().activation_bytes(model, mixer.options()), 4 * model.width);
}

TEST_P(EveryMixer, LeavesTheTraceOfAStateWhereItHasOne) {
  LanguageModel made(model);
  std::vector<std::any> trace;
  made->forward(some_tokens(1, 8), &trace);
  const bool has_state = mixer.row().state_rows(model, mixer.options()) > 0;
  EXPECT_EQ(std::any_cast<StateTrace>(&trace.at(1)) != nullptr, has_state);
  EXPECT_EQ(model.has_state(), has_state);
}

TEST_P(EveryMixer, HasNamedArchitecturesThatGiveModels) {
  const auto rows = mixer.row().architectures();
  EXPECT_FALSE(rows.empty());
  for (const Architecture& architecture : rows) {
    EXPECT_EQ(refusal_of(tiny_model(architecture.model)), "no error") << architecture.name;
    EXPECT_EQ(architecture.model.mixer.of(0).row().name, GetParam());
    EXPECT_EQ(json(named_architecture(architecture.name)), json(architecture.model)) << "a name of two architectures";
  }
}

std::vector<std::string> names_of_mixers() {
  std::vector<std::string> names;
  for (const Mixer& row : mixers()) names.push_back(row.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Mixers, EveryMixer, testing::ValuesIn(names_of_mixers()));

TEST(MixerConfig, RefusesANameThatTheTableDoesNotHave) {
  for (const json& mixer : {json{{"name", "mamba"}}, json::object()}) {
    const std::string message = error_of(mixer), found = mixer.empty() ? "none" : "mamba";
    EXPECT_EQ(message.find("mixer.name: expected one of attention, local, "), 0u) << message;
    EXPECT_TRUE(message.ends_with(", found " + found)) << message;
  }
}

// A stack of attention, a window and a rule with a state, rotated over heads of 16 and of 6.
ModelConfig hybrid() {
  ModelConfig model = tiny_model(llama(MixerStack()));
  model.layers = 5;
  model.mixer = json::parse(R"([{"name": "local", "window": 4, "rope": true},
                                {"name": "gated_delta", "state_size": 6, "rope": true}])")
                    .get<MixerStack>();
  return model;
}

TEST(Hybrid, RepeatsItsMixersFromTheFirstLayerOn) {
  LanguageModel model(hybrid(), torch::kMeta);
  for (int64_t layer = 0; layer < 5; ++layer)
    EXPECT_EQ(model->named_parameters().contains("model.layers." + std::to_string(layer) + ".attn.gate_proj.weight"),
              layer % 2 == 1);
}

TEST(Hybrid, GivesEveryParameterAGradient) {
  LanguageModel model(hybrid());
  expect_gradients(model);
}

TEST(Hybrid, CostsWhatItsLayersCost) {
  ModelConfig both = hybrid(), first = both, second = both;
  both.layers = first.layers = second.layers = 2;
  first.mixer = both.mixer.of(0), second.mixer = both.mixer.of(1);
  const auto is_the_mean = [&](auto cost) { EXPECT_EQ(2 * cost(both), cost(first) + cost(second)); };
  is_the_mean([](const ModelConfig& model) { return count_parameters(model).total; });
  is_the_mean([](const ModelConfig& model) { return training_flops_per_token(model, 64); });
  is_the_mean([](const ModelConfig& model) { return footprint(model, 64).activations; });
  EXPECT_NE(count_parameters(first).total, count_parameters(second).total);
}

TEST(Hybrid, OfTheSameMixerTwiceIsThatMixer) {
  ModelConfig once = tiny_model(named_architecture("fox-pro")), twice = once;
  twice.mixer = std::vector{once.mixer.of(0), once.mixer.of(0)};
  LanguageModel a(once), b(twice);
  const Tensor tokens = some_tokens(1, 16);
  EXPECT_TRUE(a->forward(tokens).equal(b->forward(tokens)));
}

TEST(Hybrid, IsAListInJson) {
  const json model = hybrid();
  ASSERT_TRUE(model.at("mixer").is_array());
  EXPECT_EQ(model.at("mixer").at(0).at("window"), 4);
  EXPECT_EQ(json(model.get<ModelConfig>()), model);
  EXPECT_TRUE(json(tiny_model()).at("mixer").is_object());
  EXPECT_EQ(error_of(json::array()), "mixer: expected an object, or a list of some, found []");
  EXPECT_EQ(error_of("delta"), "mixer: expected an object, or a list of some, found \"delta\"");
}

TEST(Hybrid, NeedsALayerForEveryMixer) {
  ModelConfig model = hybrid();
  EXPECT_EQ(refusal_of(model), "no error");
  model.layers = 1;
  EXPECT_EQ(refusal_of(model), "mixer: expected at most one a layer, 1, found 2");
  EXPECT_THROW(model.mixer.only<AttentionConfig>(), std::invalid_argument);
}

}  // namespace
}  // namespace lethe
