// The inputs of a trained model's name.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "experiments/training/conversion.hpp"
#include "tests/experiments/tiny.hpp"

namespace lethe {
namespace {

class Identity : public TinyDatasetTest {
 protected:
  std::string name_of(const ModelConfig& model) const {
    lethe::Run run = tiny_run();
    run.model = model;
    return artefact_name(run, dataset);
  }
};

TEST_F(Identity, HasTheOptionsOfTheModelsMixer) {
  const auto changes_name = [&](const char* architecture, const nlohmann::json& options) {
    ModelConfig model = tiny_model(named_architecture(architecture));
    const std::string before = name_of(model);
    EXPECT_EQ(name_of(model), before);
    set(model, options);
    return name_of(model) != before;
  };
  EXPECT_TRUE(changes_name("gated_linear", {{"feature_map", "positive_random"}}));
  EXPECT_TRUE(changes_name("gated_linear", {{"forget_gate", "fixed"}}));
  EXPECT_TRUE(changes_name("gated_linear", {{"forget_bias", 3}}));
  EXPECT_FALSE(changes_name("gated_linear", {{"forget_bias", 0}})) << "models keep their names";
  EXPECT_TRUE(changes_name("gated_delta", {{"write_bias", -1}}));
  EXPECT_TRUE(changes_name("decay", {{"write_gate", true}}));
  EXPECT_TRUE(changes_name("decay", {{"sigmoid", false}}));
  EXPECT_FALSE(changes_name("decay", {{"write_gate", false}, {"sigmoid", true}})) << "models keep their names";
  EXPECT_TRUE(changes_name("deltanet", {{"sum_norm", true}}));
  EXPECT_TRUE(changes_name("delta", {{"sum_norm", false}}));
  for (const auto& [architecture, has] : {std::pair("deltanet", false), std::pair("delta", true)}) {
    lethe::Run run = tiny_run();
    run.model = tiny_model(named_architecture(architecture));
    const auto mixer = nlohmann::json::parse(identity(run, dataset)).at("model").at("mixer");
    EXPECT_EQ(mixer.contains("sum_norm"), has) << architecture << ": models keep their names";
  }
  EXPECT_TRUE(changes_name("gated_delta", {{"state_size", 8}}));
  EXPECT_FALSE(changes_name("gated_delta", {{"state_size", 16}})) << "the default";
}

TEST_F(Identity, HasTheResidualsDtype) {
  ModelConfig model = tiny_model(named_architecture("gated_linear"));
  const std::string wide = name_of(model);
  model.residual_in_compute_dtype = true;
  EXPECT_NE(name_of(model), wide);
}

TEST_F(Identity, HasAnInitializationThatIsNotTheUsualOne) {
  ModelConfig model = tiny_model();
  EXPECT_FALSE(nlohmann::json(model).contains("initialization")) << "models and measurements keep their names";
  const std::string usual = name_of(model);
  model.initialization = Initialization::kScaled;
  EXPECT_NE(name_of(model), usual);
  EXPECT_EQ(nlohmann::json(model).get<ModelConfig>().initialization, Initialization::kScaled);
}

TEST_F(Identity, HasDecayAndRepeatsWhereTheyAreUsed) {
  lethe::Run run = tiny_run();
  const auto id = nlohmann::json::parse(identity(run, dataset)).at("training");
  EXPECT_FALSE(id.contains("repeats") || id.contains("decay_tokens")) << "models keep their names";
  std::set<std::string> names{artefact_name(run, dataset)};
  run.training.repeats = 0.5;
  names.insert(artefact_name(run, dataset));
  run.training.decay_tokens = 256;
  names.insert(artefact_name(run, dataset));
  EXPECT_EQ(names.size(), 3u);
}

TEST_F(Identity, IsTheSameByMeasuredAndDefaultGemms) {
  lethe::Run run = tiny_run();
  const std::string measured = artefact_name(run, dataset);
  run.training.gemms = "default";
  EXPECT_EQ(artefact_name(run, dataset), measured);
  run.training.gemms = "fastest";
  EXPECT_THROW(run.training.check(), std::invalid_argument);
}

TEST_F(Identity, HasTheOrderOfMixers) {
  ModelConfig model = tiny_model(llama(MixerConfig("local")));
  std::set<std::string> names{name_of(model)};
  const MixerConfig local("local"), delta("delta");
  for (const std::vector<MixerConfig>& mixers :
       {std::vector{delta}, std::vector{local, delta}, std::vector{delta, local}}) {
    model.mixer = mixers;
    names.insert(name_of(model));
  }
  EXPECT_EQ(names.size(), 4u);
}

// A stored run of the format in which the model had the options of all mixers.
TEST_F(Identity, OfAnotherFormatIsRefusedInOneLine) {
  nlohmann::json old = tiny_run();
  EXPECT_EQ(nlohmann::json(old.get<lethe::Run>()), old);
  old.erase("format");
  old["model"]["mixer"] = "attention";
  const auto refusal = [](const nlohmann::json& stored) -> std::string {
    try {
      stored.get<lethe::Run>();
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(refusal(old), "run.format: expected 2 (train the model anew), found 1");
  nlohmann::json newer = tiny_run();
  newer["format"] = 3;
  newer["a member of the future"] = true;
  EXPECT_EQ(refusal(newer), "run.format: expected 2 (a newer lethe wrote it: update this one), found 3");
}

TEST_F(Identity, OfALongChainOfSourcesStaysShort) {
  lethe::Run run = tiny_run();
  std::set<std::string> names;
  for (uint64_t link = 0; link < 24; ++link) {
    EXPECT_TRUE(names.insert(artefact_name(run, dataset)).second);
    EXPECT_LT(identity(run, dataset).size(), 4000u) << link;
    run.conversion = std::make_shared<const Conversion>(Conversion{.source = run});
  }
}

}  // namespace
}  // namespace lethe
