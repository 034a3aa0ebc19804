// Models with FoX's gate on a state, and with every feature map: trained, stored, and converted from trained ones.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "experiments/models/mixers/parts/forget_gate.hpp"
#include "experiments/models/mixers/parts/state.hpp"
#include "experiments/training/conversion.hpp"
#include "experiments/training/trainer.hpp"
#include "tests/experiments/tiny.hpp"

namespace lethe {
namespace {

using torch::Tensor;

lethe::Run run_of(const ModelConfig& architecture) {
  lethe::Run run = tiny_run();
  run.model = tiny_model(architecture);
  return run;
}

ModelConfig with(const char* architecture, const nlohmann::json& options) {
  ModelConfig model = named_architecture(architecture);
  set(model, options);
  return model;
}

ModelConfig with_map(const char* architecture, const std::string& map) {
  return with(architecture, {{"feature_map", map}});
}

class MixerTraining : public TinyDatasetTest {
 protected:
  // The mean loss of the last two of 16 steps is more than 1 nat below that of the first two.
  void expect_learns(const ModelConfig& architecture, const std::string& name) {
    Trainer trainer(run_of(architecture), dataset);
    std::vector<double> losses;
    while (losses.size() < 16) losses.push_back(trainer.step().loss);
    EXPECT_NEAR(losses.front(), std::log(257.0), 0.2) << name;
    EXPECT_LT(losses[14] + losses[15], losses[0] + losses[1] - 2 * 1.0) << name;
  }
};

TEST_F(MixerTraining, LowersTheLossWithFoxsGateOnAState) {
  for (const char* name : {"gated_linear", "gated_delta"}) {
    expect_learns(named_architecture(name), name);
    for (const char* gate : {"bias_only", "fixed"})
      expect_learns(with(name, {{"forget_gate", gate}}), name + std::string(", gate without x"));
  }
}

TEST_F(MixerTraining, LowersTheLossWithEveryFeatureMap) {
  for (const std::string map : {"linear", "relu", "dpfp", "positive_random", "random_fourier"}) {
    // Sums of features of both signs, or of small products, are too near zero for a division.
    const bool norm = map == "positive_random";
    expect_learns(with("gated_linear", {{"feature_map", map}, {"attention_norm", norm}}), "feature map " + map);
  }
  expect_learns(with_map("gated_delta", "dpfp"), "gated_delta, DPFP");
  expect_learns(with_map("delta", "elu_plus_one"), "delta, ELU + 1");
}

TEST_F(MixerTraining, LowersTheLossOfAHybridAndLooksAtItsState) {
  ModelConfig hybrid = named_architecture("local");
  hybrid.mixer = std::vector{named_architecture("local").mixer.of(0), named_architecture("gated_delta").mixer.of(0)};
  expect_learns(hybrid, "local, gated_delta");
  Trainer alone(run_of(named_architecture("gated_delta")), dataset), both(run_of(hybrid), dataset);
  EXPECT_GT(both.extremes().state, 0);
  EXPECT_NE(both.extremes().state, alone.extremes().state);
}

TEST_F(MixerTraining, DrawsDirectionsWithTheSeedKeepsThemAndNeverTrainsThem) {
  lethe::Run run = run_of(with_map("gated_linear", "positive_random"));
  run.training.total_tokens = 256 * 10;
  const auto directions = [](LanguageModel model) {
    return model->named_buffers()["model.layers.1.attn.feature.directions"].clone();
  };
  LanguageModel fresh(run.model);
  fresh->initialize(run.training.seed);
  const Tensor drawn = directions(fresh);
  EXPECT_EQ(drawn.sizes(), (std::vector<int64_t>{16, 16}));
  EXPECT_NEAR(drawn.std().item<double>(), 1, 0.2);
  EXPECT_FALSE(drawn.equal(fresh->named_buffers()["model.layers.0.attn.feature.directions"]));
  LanguageModel loaded = load_model(trained(run, dataset, models));
  EXPECT_TRUE(directions(loaded).equal(drawn));
  EXPECT_FALSE(loaded->parameters().front().equal(fresh->parameters().front())) << "the others were trained";

  fresh->initialize(run.training.seed + 1);
  EXPECT_FALSE(directions(fresh).equal(drawn));
}

TEST_F(MixerTraining, LeavesTheWeightsThatASeedMeansAsTheyAreWithoutDirections) {
  LanguageModel elu(tiny_model(with_map("gated_linear", "elu_plus_one")));
  LanguageModel random(tiny_model(with_map("gated_linear", "positive_random")));
  for (const auto& parameter : elu->named_parameters())
    EXPECT_TRUE(parameter.value().equal(random->named_parameters()[parameter.key()])) << parameter.key();
}

TEST_F(MixerTraining, BeginsWithTheGatesThatTheConfigurationSays) {
  const auto bias = [](const char* architecture, const std::string& gate, const std::string& name) {
    LanguageModel made(tiny_model(with(architecture, {{"forget_gate", gate}})));
    const std::string path = "model.layers.0.attn." + name;
    return gate == "fixed" ? made->named_buffers()[path] : made->named_parameters()[path].detach();
  };
  const Tensor times = long_init(ForgetGateConfig{}, tiny_model().heads);
  for (const char* name : {"gated_linear", "gated_delta"}) {
    EXPECT_EQ(bias(name, "full", "fgate_proj.bias").abs().max().item<double>(), 0);
    EXPECT_TRUE(bias(name, "bias_only", "fgate_bias").equal(times));
    EXPECT_TRUE(bias(name, "fixed", "fgate_bias").equal(times));
  }
  EXPECT_EQ(bias("gated_delta", "full", "gate_proj.bias").abs().max().item<double>(), 0);
  for (const char* name : {"fox-llama", "gated_linear", "gated_delta"}) {
    LanguageModel open(tiny_model(with(name, {{"forget_bias", 4}})));
    EXPECT_TRUE(open->named_parameters()["model.layers.1.attn.fgate_proj.bias"].eq(4).all().item<bool>()) << name;
  }
}

TEST_F(MixerTraining, GoesOnFromATrainedSoftmaxModel) {
  lethe::Run source = run_of(named_architecture("transformer-llama"));
  source.training.total_tokens = 256 * 8;
  for (const char* name : {"gated_linear", "gated_delta"}) {
    lethe::Run run = source;
    run.model = tiny_model(named_architecture(name));
    run.conversion = std::make_shared<const Conversion>(Conversion{source});
    EXPECT_NO_THROW(check_conversion(run)) << name;
    LanguageModel before(source.model), after(run.model);
    before->initialize(7);
    std::map<std::string, ConvertedParameter::Fate> fates;
    for (const auto& parameter : convert_weights(run, before, after)) fates[parameter.name] = parameter.fate;
    const std::string layer = "model.layers.1.attn.";
    for (const char* kept : {"q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"})
      EXPECT_EQ(fates.at(layer + kept), ConvertedParameter::kKept) << name << ' ' << kept;
    for (const char* made : {"fgate_proj.weight", "fgate_proj.bias"})
      EXPECT_EQ(fates.at(layer + made), ConvertedParameter::kNew) << name << ' ' << made;
    EXPECT_TRUE(std::ranges::none_of(fates, [](const auto& f) { return f.second == ConvertedParameter::kDropped; }));
    const Artefact artefact = trained(run, dataset, models);
    EXPECT_TRUE(std::filesystem::exists(artefact.folder / "done.json"));
  }
}

}  // namespace
}  // namespace lethe
