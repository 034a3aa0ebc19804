// The names of models that were trained before a configuration had more members.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

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

// Found with the mixers that there were before gated_linear: whoever changes one of these loses every model trained before.
TEST_F(Identity, OfEveryConfigurationStaysAsItWas) {
  const std::pair<const char*, const char*> kNames[] = {{"fox-pro", "29e2afa008807ab8"},
                                                        {"fox-llama", "f4ca079f31ff4495"},
                                                        {"transformer-pro", "77c125f20e3c6c0a"},
                                                        {"transformer-llama", "1e9b7f183c40f9c8"},
                                                        {"local", "1d6c896af7eec2ff"},
                                                        {"additive", "453c65db46fc1be5"},
                                                        {"gated", "042450123b9ebbb5"},
                                                        {"delta", "f55854c0b97c4ee7"},
                                                        {"decay", "ae4e60f79e078df6"}};
  for (const auto& [architecture, name] : kNames)
    EXPECT_EQ(name_of(tiny_model(named_architecture(architecture))), name) << architecture;

  lethe::Run source = tiny_run(), converted = source;
  source.model = tiny_model(named_architecture("transformer-llama"));
  converted.model = tiny_model(named_architecture("decay"));
  converted.conversion = std::make_shared<const Conversion>(Conversion{source});
  EXPECT_EQ(artefact_name(converted, dataset), "fc5ce92548a35641");
}

TEST_F(Identity, HasWhatAMixerReadsAndNothingElse) {
  const auto changes_name = [&](const char* architecture, auto prepare, auto change) {
    ModelConfig model = tiny_model(named_architecture(architecture));
    prepare(model);
    const std::string before = name_of(model);
    change(model);
    return name_of(model) != before;
  };
  const auto as_it_is = [](ModelConfig&) {};
  const auto nu = [](ModelConfig& m) { m.dpfp_nu = 2; };
  const auto size = [](ModelConfig& m) { m.state_size = 8; };
  const auto write = [](ModelConfig& m) { m.write_bias = -1; };
  const auto dpfp = [](ModelConfig& m) { m.feature_map = FeatureMap::kDpfp; };
  const auto random = [](ModelConfig& m) { m.feature_map = FeatureMap::kPositiveRandom; };
  EXPECT_FALSE(changes_name("gated_linear", as_it_is, nu));
  EXPECT_FALSE(changes_name("gated_linear", as_it_is, size)) << "ELU + 1 has as many features as a head has columns";
  EXPECT_FALSE(changes_name("gated_linear", as_it_is, write));
  EXPECT_FALSE(changes_name("gated_linear", dpfp, size));
  EXPECT_TRUE(changes_name("gated_linear", dpfp, nu));
  EXPECT_TRUE(changes_name("gated_linear", random, size));
  EXPECT_TRUE(changes_name("gated_linear", as_it_is, random));
  EXPECT_TRUE(changes_name("gated_linear", as_it_is, [](ModelConfig& m) { m.forget_gate = ForgetGate::kFixed; }));
  EXPECT_TRUE(changes_name("gated_delta", as_it_is, write));
  EXPECT_TRUE(changes_name("gated_delta", as_it_is, size));
  EXPECT_FALSE(changes_name("transformer-llama", as_it_is, dpfp));
}

}  // namespace
}  // namespace lethe
