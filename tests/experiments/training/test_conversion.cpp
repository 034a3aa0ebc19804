// The swap: the parameters that it keeps and scales, and the converted model as a run like any other.

#include <ATen/ops/linalg_pinv.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/convert_parameters.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "experiments/files.hpp"
#include "experiments/models/mixers/parts/state.hpp"
#include "experiments/models/not_finite.hpp"
#include "experiments/training/conversion.hpp"
#include "tests/experiments/mixer_layer.hpp"
#include "tests/experiments/tiny.hpp"

namespace lethe {
namespace {

using torch::Tensor;

lethe::Run softmax_run() {
  lethe::Run run = tiny_run();
  run.label = "source";
  run.model = tiny_model(named_architecture("transformer-llama"));
  run.training.total_tokens = 256 * 8;
  return run;
}

lethe::Run converted(const std::string& architecture, const Conversion& knobs = {}) {
  lethe::Run run = softmax_run();
  run.label = architecture;
  const std::string base = architecture == "attention" ? "transformer-llama" : architecture;
  run.model = tiny_model(named_architecture(base));
  if (nlohmann::json(run.model.mixer).contains("state_size")) set(run.model, {{"state_size", 6}});
  Conversion conversion = knobs;
  conversion.source = softmax_run();
  run.conversion = std::make_shared<const Conversion>(conversion);
  return run;
}

struct Swap {
  explicit Swap(const lethe::Run& run) : source(run.conversion->source.model), target(run.model) {
    source->initialize(7);
    target->initialize(run.training.seed);
    for (const auto& parameter : convert_weights(run, source, target)) fates[parameter.name] = parameter.fate;
  }
  Tensor theirs(const std::string& name) const { return source->named_parameters()[name]; }
  Tensor ours(const std::string& name) const { return target->named_parameters()[name]; }

  LanguageModel source, target;
  std::map<std::string, ConvertedParameter::Fate> fates;
};

const std::string kLayer = "model.layers.1.attn.";

TEST(Swap, KeepsAModelThatStaysAttention) {
  const Swap swap(converted("attention"));
  for (const auto& [name, fate] : swap.fates) EXPECT_EQ(fate, ConvertedParameter::kKept) << name;
  const Tensor tokens = torch::randint(257, {2, 20});
  LanguageModel source = swap.source, target = swap.target;
  EXPECT_TRUE(source->forward(tokens).equal(target->forward(tokens)));
}

TEST(Swap, ToAWindowThatHoldsTheTextChangesNothing) {
  lethe::Run run = converted("local");
  set(run.model, {{"window", 20}});
  Swap swap(run);
  EXPECT_LT(distance(swap.source->forward(torch::arange(20).unsqueeze(0)),
                     swap.target->forward(torch::arange(20).unsqueeze(0))),
            1e-5);
  EXPECT_GT(distance(swap.source->forward(torch::arange(60).unsqueeze(0)),
                     swap.target->forward(torch::arange(60).unsqueeze(0))),
            1e-5);
}

TEST(Swap, KeepsAllThatBothModelsHaveAndNamesTheRest) {
  for (const char* rule : {"additive", "gated", "delta", "decay"}) {
    const Swap swap(converted(rule));
    EXPECT_EQ(swap.fates.size(), swap.target->named_parameters().size()) << "nothing is dropped";
    for (const auto& parameter : swap.target->named_parameters()) {
      const std::string& name = parameter.key();
      const auto fate = swap.fates.at(name);
      if (fate == ConvertedParameter::kKept) {
        EXPECT_TRUE(parameter.value().equal(swap.theirs(name))) << name;
      }
      if (name.find("attn.") == std::string::npos || name.ends_with("o_proj.weight")) {
        EXPECT_EQ(fate, ConvertedParameter::kKept) << name;
      }
      if (name.find("gate_proj") != std::string::npos && name.find("mlp") == std::string::npos) {
        EXPECT_EQ(fate, ConvertedParameter::kNew) << name;
      }
    }
  }
}

TEST(Swap, ScalesTheRowsOfTheValuesByWhatTheirGatesForget) {
  const Swap swap(converted("decay"));
  const Tensor bias = swap.ours(kLayer + "value_gate_proj.bias");
  const Tensor expected = swap.theirs(kLayer + "v_proj.weight") * (1 - torch::sigmoid(bias)).unsqueeze(1);
  EXPECT_LT(distance(swap.ours(kLayer + "v_proj.weight"), expected), 1e-7);
  EXPECT_EQ(swap.fates.at(kLayer + "v_proj.weight"), ConvertedParameter::kScaled);
  EXPECT_GT(distance(swap.ours(kLayer + "v_proj.weight"), swap.theirs(kLayer + "v_proj.weight")), 1e-3);
}

TEST(Swap, OfTheDecayRulesOtherGatesBeginsAtTheSameStates) {
  const auto values = [](const nlohmann::json& options) {
    lethe::Run run = converted("decay");
    set(run.model, options);
    return Swap(run).ours(kLayer + "v_proj.weight");
  };
  const Swap swap(converted("decay"));
  EXPECT_LT(distance(values({{"sigmoid", false}}), values({{"sigmoid", true}})), 1e-7)
      << "biases are the gates themselves";
  EXPECT_EQ(distance(values({{"write_gate", true}}), swap.theirs(kLayer + "v_proj.weight")), 0);
}

TEST(Swap, ScalesTheAdditiveRulesValuesWhereNothingElseKeepsThemSmall) {
  const auto factor = [](const lethe::Run& run) {
    const Swap swap(run);
    return (swap.ours(kLayer + "v_proj.weight") / swap.theirs(kLayer + "v_proj.weight")).mean().item<double>();
  };
  lethe::Run run = converted("additive");
  EXPECT_NEAR(factor(run), 1.0 / 512, 1e-7);
  set(run.model, {{"attention_norm", true}});
  EXPECT_NEAR(factor(run), 1, 1e-6);
  set(run.model, {{"attention_norm", false}, {"feature_map", "relu"}});
  EXPECT_NEAR(factor(run), 1, 1e-6);
  EXPECT_NEAR(factor(converted("gated")), 1, 1e-6);
  Conversion knobs;
  knobs.value_scale = 0.25;
  EXPECT_NEAR(factor(converted("gated", knobs)), 0.25, 1e-6);
}

TEST(Swap, MultipliesQueriesAndKeysWithOneFeatureMatrixAHead) {
  Conversion knobs;
  knobs.feature_deviation = 0.25;
  const Swap swap(converted("decay", knobs));
  const auto map = [&](const std::string& name, int64_t head) {  // W_φ from W_φ W, [m,D]
    const Tensor product = swap.ours(kLayer + name).narrow(0, head * 6, 6);
    return torch::matmul(product, at::linalg_pinv(swap.theirs(kLayer + name).narrow(0, head * 16, 16)));
  };
  for (int64_t head = 0; head < 2; ++head) {
    EXPECT_LT(distance(map("q_proj.weight", head), map("k_proj.weight", head)), 1e-4);
    EXPECT_NEAR(map("q_proj.weight", head).std().item<double>(), 0.25, 0.06);
  }
  EXPECT_GT(distance(map("q_proj.weight", 0), map("q_proj.weight", 1)), 0.1);
  EXPECT_EQ(swap.fates.at(kLayer + "q_proj.weight"), ConvertedParameter::kProduct);
}

TEST(Swap, DrawsProjectionsAnewWhereItIsToldTo) {
  Conversion knobs;
  knobs.projections = Projections::kFresh;
  lethe::Run run = converted("decay", knobs);
  set(run.model, {{"state_size", 16}});  // the source's shape, but new weights
  const Swap swap(run);
  EXPECT_EQ(swap.fates.at(kLayer + "q_proj.weight"), ConvertedParameter::kNew);
  LanguageModel fresh(run.model);
  fresh->initialize(run.training.seed);
  EXPECT_TRUE(swap.ours(kLayer + "q_proj.weight").equal(fresh->named_parameters()[kLayer + "q_proj.weight"]));
}

TEST(Swap, KeepsQueriesAndKeysUnderAReluMap) {
  Conversion knobs;
  knobs.feature_deviation = 0.5;
  lethe::Run run = converted("gated", knobs);
  set(run.model, {{"feature_map", "relu"}});
  const Swap swap(run);
  EXPECT_EQ(swap.fates.at(kLayer + "q_proj.weight"), ConvertedParameter::kKept);
  EXPECT_NEAR(swap.ours(kLayer + "feature.weight").std().item<double>(), 0.5, 0.1);
  EXPECT_EQ(swap.ours(kLayer + "feature.bias").abs().max().item<double>(), 0);
}

// With gates at their biases and scaled rows every entry of the state is below the largest product of a key and an unscaled value.
TEST(Swap, BoundsTheDecayRulesStateAtTheBeginning) {
  lethe::Run run = converted("decay");
  set(run.model, {{"rope", false}});
  const Swap swap(run);
  const auto largest_state = [&](double scale_of_values) {
    const Layer layer(run.model);
    const torch::nn::Module& root = layer.root;
    const torch::NoGradGuard no_gradient;
    for (auto& parameter : root.named_parameters()) {
      parameter.value().copy_(swap.ours("model.layers.1." + parameter.key()));
      if (parameter.key().ends_with("gate_proj.weight")) parameter.value().zero_();
    }
    const Tensor bias = swap.ours(kLayer + "value_gate_proj.bias");
    if (scale_of_values != 1)
      root.named_parameters()["attn.v_proj.weight"].div_((1 - torch::sigmoid(bias)).unsqueeze(1));
    // A single repeated token: its sum grows fastest.
    torch::manual_seed(2);
    const Tensor x = torch::randn({1, 1, 32}).expand({1, 400, 32}).contiguous();
    std::any kept;
    layer.forward(x, &kept);
    const Tensor key = torch::matmul(root.named_parameters()["attn.k_proj.weight"], x[0][0]).view({2, 6});
    const Tensor value = torch::matmul(swap.theirs(kLayer + "v_proj.weight"), x[0][0]).view({2, 16});
    const double bound = (key.abs().amax(1) * value.abs().amax(1)).max().item<double>();
    return std::any_cast<const StateTrace&>(kept).largest_state.item<double>() / bound;
  };
  EXPECT_LE(largest_state(1), 1);
  EXPECT_GT(largest_state(0), 1) << "unscaled values exceed the bound";
}

TEST(ConvertedRun, IsTheSameAfterATripThroughJson) {
  Conversion knobs;
  knobs.value_scale = 0.5;
  const lethe::Run run = converted("decay", knobs);
  const nlohmann::json json = run;
  EXPECT_EQ(nlohmann::json(json.get<lethe::Run>()), json);
  EXPECT_EQ(json.at("conversion").at("source").at("label"), "source");
  EXPECT_THROW(nlohmann::json({{"sourc", 1}}).get<Conversion>(), std::invalid_argument);
}

TEST(ConvertedRun, SaysWhySomethingCannotBeConverted) {
  const auto message = [](auto change) -> std::string {
    lethe::Run run = converted("decay");
    Conversion conversion = *run.conversion;
    change(run, conversion);
    run.conversion = std::make_shared<const Conversion>(conversion);
    try {
      check_conversion(run);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "no error";
  };
  using lethe::Run;
  EXPECT_EQ(message([](Run&, Conversion&) {}), "no error");
  EXPECT_EQ(message([](Run& run, Conversion&) { run.model.layers = 3; }), "layers: expected the source's, 2, found 3");
  EXPECT_NE(message([](Run&, Conversion& c) { c.source.model = tiny_model(); }), "no error");
  EXPECT_EQ(message([](Run& run, Conversion&) { run.model.mixer = MixerConfig("local"); }),
            "mixer: expected one that softmax attention can become: with no KV-shift or QK-norm, and attention with no "
            "forget gate, found local");
  EXPECT_EQ(message([](Run& run, Conversion&) { run.training.corpus = "the same data at another place"; }), "no error");
  EXPECT_EQ(message([](Run& run, Conversion&) { run.training.tokenizer = "gpt2"; }),
            "tokenizer: expected the source's, bytes, found gpt2");
  EXPECT_NE(message([](Run&, Conversion& c) { c.value_scale = 0; }), "no error");
  EXPECT_NE(message([](Run&, Conversion& c) { c.feature_deviation = -1; }), "no error");
}

lethe::Run continued(const ModelConfig& model) {
  lethe::Run run = softmax_run();
  run.model = model;
  Conversion conversion{.source = run};
  run.training.seed = 8;
  run.conversion = std::make_shared<const Conversion>(conversion);
  return run;
}

TEST(Continuation, OfAnyModelKeepsItsWeightsAndDirections) {
  ModelConfig drawn = tiny_model(named_architecture("gated_linear"));
  set(drawn, {{"feature_map", "random_fourier"}, {"state_size", 6}});
  for (const ModelConfig& model : {tiny_model(), drawn}) {
    const lethe::Run run = continued(model);
    check_conversion(run);
    Swap swap(run);
    for (const auto& [name, fate] : swap.fates) EXPECT_EQ(fate, ConvertedParameter::kKept) << name;
    const Tensor tokens = some_tokens(2, 20);
    EXPECT_TRUE(swap.source->forward(tokens).equal(swap.target->forward(tokens)));
  }
}

class ConvertedTraining : public TinyDatasetTest {
 protected:
  static Tensor weights(LanguageModel model) {
    return torch::nn::utils::parameters_to_vector(model->parameters()).detach();
  }
};

TEST_F(ConvertedTraining, NamesAnArtefactAfterItsSourceAndItsKnobs) {
  const lethe::Run run = converted("decay");
  const std::string name = artefact_name(run, dataset);
  const auto other = [&](auto change) {
    lethe::Run changed = run;
    Conversion conversion = *run.conversion;
    change(changed, conversion);
    changed.conversion = std::make_shared<const Conversion>(conversion);
    return artefact_name(changed, dataset) != name;
  };
  EXPECT_FALSE(other([](lethe::Run&, Conversion& c) { c.source.label = "another"; }));
  EXPECT_FALSE(other([](lethe::Run& r, Conversion&) { r.training.divergence_is_a_result = true; }));
  EXPECT_TRUE(other([](lethe::Run&, Conversion& c) { c.source.training.seed = 1; }));
  EXPECT_TRUE(other([](lethe::Run&, Conversion& c) { c.projections = Projections::kFresh; }));
  EXPECT_TRUE(other([](lethe::Run&, Conversion& c) { c.feature_deviation = 0.1; }));
  EXPECT_TRUE(other([](lethe::Run& r, Conversion&) { set(r.model, {{"gate_range", 8}}); }));
  EXPECT_TRUE(other([](lethe::Run& r, Conversion&) { set(r.model, {{"state_size", 8}}); }));
  lethe::Run from_a_seed = run;
  from_a_seed.conversion.reset();
  EXPECT_NE(artefact_name(from_a_seed, dataset), name);
}

TEST_F(ConvertedTraining, FromASourceOfOtherDataNeedsItThere) {
  lethe::Run run = continued(tiny_model());
  const std::string same_data = artefact_name(run, dataset);
  Conversion conversion = *run.conversion;
  conversion.source_data = std::string(64, 'a');
  run.conversion = std::make_shared<const Conversion>(conversion);
  EXPECT_NE(artefact_name(run, dataset), same_data);
  EXPECT_THROW(trained(run, dataset, models), std::invalid_argument);
  conversion.source_data = dataset.content_hash();
  run.conversion = std::make_shared<const Conversion>(conversion);
  EXPECT_EQ(artefact_name(run, dataset), same_data);
}

TEST_F(ConvertedTraining, TrainsItsSourceWhereItIsMissingAndStartsFromIt) {
  lethe::Run run = converted("attention");
  const Artefact artefact = trained(run, dataset, models);
  const Artefact source{models / artefact_name(softmax_run(), dataset), softmax_run()};
  ASSERT_TRUE(std::filesystem::exists(source.folder / "done.json"));
  const auto last = nlohmann::json::parse(read_whole(source.folder / "done.json")).at("training_loss").get<double>();
  std::ifstream log(artefact.folder / "log.jsonl");
  std::string line;
  std::getline(log, line);
  EXPECT_LT(nlohmann::json::parse(line).at("loss"), last) << "the last of eight steps is below their mean";
}

TEST_F(ConvertedTraining, LooksAtItsStateAndGoesOnWhereItWasStopped) {
  lethe::Run run = converted("decay");
  run.training.total_tokens = 256 * 20;
  run.training.checkpoint_tokens = 256 * 5;
  const Artefact whole = trained(run, dataset, folder.path() / "whole");
  struct Stop {};
  EXPECT_THROW(trained(run, dataset, models,
                       [](const Progress& p) {
                         if (p.step == 13) throw Stop();
                       }),
               Stop);
  const Artefact stopped = trained(run, dataset, models);
  EXPECT_TRUE(weights(load_model(stopped)).equal(weights(load_model(whole))));
  std::ifstream log(stopped.folder / "log.jsonl");
  int64_t step = 0, looks = 0;
  for (std::string line; std::getline(log, line); ++step) {
    const auto json = nlohmann::json::parse(line);
    EXPECT_EQ(json.contains("largest_state"), step % 2 == 0);
    if (!json.contains("largest_state")) continue;
    ++looks;
    EXPECT_GT(json.at("largest_value").get<double>(), 0);
  }
  EXPECT_EQ(step, 20);
  EXPECT_EQ(looks, 10);
  EXPECT_GT(nlohmann::json::parse(read_whole(stopped.folder / "done.json")).at("largest_state").get<double>(), 0);
}

TEST_F(ConvertedTraining, EndsWhereItDivergesAndSaysSoWhereThatIsAResult) {
  lethe::Run run = converted("additive");
  run.training.learning_rate = 1e30;
  EXPECT_THROW(trained(run, dataset, models), NotFinite);
  run.training.divergence_is_a_result = true;
  const Artefact artefact = trained(run, dataset, models);
  const auto done = nlohmann::json::parse(read_whole(artefact.folder / "done.json"));
  EXPECT_NE(done.at("diverged").get<std::string>().find("finite"), std::string::npos);
  EXPECT_LT(done.at("steps"), run.training.steps());
  EXPECT_NO_THROW(trained(run, dataset, models)) << "a result, found again";
  run.training.divergence_is_a_result = false;
  EXPECT_THROW(trained(run, dataset, models), NotFinite) << "the same artefact, asked for as an error";
}

}  // namespace
}  // namespace lethe
