#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "experiments/models/config.hpp"
#include "experiments/models/footprint.hpp"
#include "experiments/models/language_model.hpp"
#include "experiments/models/mixers/attention.hpp"
#include "experiments/papers/forgetting_curve/llama.hpp"
#include "tests/experiments/tiny.hpp"

namespace lethe {
namespace {

template <class Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

struct Count {
  const char *architecture, *size;
  int64_t heads;
  QkNorm qk_norm;
  int64_t non_embedding;
};

class ParameterCount : public testing::TestWithParam<Count> {};

TEST_P(ParameterCount, IsThatOfTheOfficialCheckpoints) {
  const Count& row = GetParam();
  ModelConfig config = named_architecture(row.architecture);
  config.heads = row.heads;
  set_size(config, row.size);
  config.mixer.only<AttentionConfig>().qk_norm = row.qk_norm;
  const ParameterCounts counts = count_parameters(config);
  EXPECT_EQ(counts.non_embedding, row.non_embedding);
  EXPECT_EQ(counts.total, row.non_embedding + config.vocabulary * config.width);
}

INSTANTIATE_TEST_SUITE_P(Papers, ParameterCount,
                         testing::Values(Count{"fox-pro", "760m", 12, QkNorm::kShared, 758'117'664},
                                         Count{"fox-pro", "760m", 12, QkNorm::kPerHead, 758'185'248},
                                         Count{"fox-pro", "760m", 24, QkNorm::kShared, 759'441'984},
                                         Count{"fox-pro", "760m", 24, QkNorm::kPerHead, 759'512'640},
                                         Count{"transformer-pro", "760m", 12, QkNorm::kShared, 757'675'008},
                                         Count{"transformer-pro", "760m", 12, QkNorm::kPerHead, 757'742'592},
                                         Count{"transformer-pro", "760m", 24, QkNorm::kShared, 758'556'672},
                                         Count{"transformer-pro", "760m", 24, QkNorm::kPerHead, 758'627'328},
                                         Count{"fox-llama", "760m", 12, QkNorm::kNone, 757'189'920},
                                         Count{"fox-llama", "760m", 24, QkNorm::kNone, 757'632'576},
                                         Count{"transformer-llama", "760m", 12, QkNorm::kNone, 756'747'264},
                                         Count{"transformer-llama", "760m", 24, QkNorm::kNone, 756'747'264},
                                         Count{"fox-pro", "360m", 16, QkNorm::kPerHead, 367'339'904},
                                         Count{"transformer-pro", "360m", 16, QkNorm::kPerHead, 366'946'304},
                                         Count{"fox-llama", "360m", 16, QkNorm::kNone, 360'188'288},
                                         Count{"transformer-llama", "360m", 16, QkNorm::kNone, 359'794'688},
                                         Count{"fox-pro", "125m", 12, QkNorm::kPerHead, 123'910'800},
                                         Count{"transformer-pro", "125m", 12, QkNorm::kPerHead, 123'800'064},
                                         Count{"fox-llama", "125m", 12, QkNorm::kNone, 123'661'968},
                                         Count{"transformer-llama", "125m", 12, QkNorm::kNone, 123'551'232}));

TEST(ModelConfig, HasTheNamesOfTheOfficialCheckpoint) {
  LanguageModel model(tiny_model());
  const auto parameters = model->named_parameters();
  for (const char* name :
       {"model.embeddings.weight", "model.layers.1.attn_norm.weight", "model.layers.1.attn.q_proj.weight",
        "model.layers.1.attn.k_proj.linear.weight", "model.layers.1.attn.k_proj.shift_proj.weight",
        "model.layers.1.attn.v_proj.linear.weight", "model.layers.1.attn.v_proj.shift_proj.weight",
        "model.layers.1.attn.o_proj.weight", "model.layers.1.attn.fgate_proj.weight",
        "model.layers.1.attn.fgate_proj.bias", "model.layers.1.attn.ogate_proj.weight",
        "model.layers.1.attn.output_norm.weight", "model.layers.1.attn.q_norm.weight",
        "model.layers.1.attn.k_norm.weight", "model.layers.1.mlp_norm.weight", "model.layers.1.mlp.gate_proj.weight",
        "model.layers.1.mlp.down_proj.weight", "model.norm.weight", "lm_head.weight"}) {
    EXPECT_TRUE(parameters.contains(name)) << name;
  }
  EXPECT_EQ(parameters.size(), 3u + 2u * 16u);
}

TEST(ModelConfig, NarrowsTheMlpWhereAnOutputGatePaysForIt) {
  ModelConfig config;
  config.width = 1536;
  EXPECT_EQ(config.mlp_width(), 3584);
  config.output_gate = false;
  EXPECT_EQ(config.mlp_width(), 4096);
  config.mlp_ratio = 1;
  EXPECT_EQ(config.mlp_width(), 1024);
}

TEST(ModelConfig, IsTheSameAfterATripThroughJson) {
  ModelConfig config = tiny_model(named_architecture("transformer-pro"));
  auto& attention = config.mixer.only<AttentionConfig>();
  attention.qk_norm = QkNorm::kPerHead;
  attention.forget_gate = ForgetGate::kBiasOnly;
  attention.log_pruning_tolerance = -10;
  config.compute_dtype = "bfloat16";
  const nlohmann::json json = config;
  EXPECT_EQ(nlohmann::json(json.get<ModelConfig>()), json);
  EXPECT_EQ(json.at("mixer").at("qk_norm"), "per_head");
  EXPECT_TRUE(json.at("mlp_ratio").is_null());
}

TEST(ModelConfig, NamesAnUnknownKey) {
  const auto message = error_of([] { nlohmann::json{{"widht", 64}}.get<ModelConfig>(); });
  EXPECT_NE(message.find("found widht"), std::string::npos) << message;
}

TEST(ModelConfig, NamesTheValueOfAWrongType) {
  EXPECT_EQ(error_of([] {
              nlohmann::json{{"width", "64"}}.get<ModelConfig>();
            }),
            "model.width: expected a whole number, found \"64\"");
  EXPECT_EQ(error_of([] {
              nlohmann::json{{"width", 64.5}}.get<ModelConfig>();
            }),
            "model.width: expected a whole number, found 64.5");
  EXPECT_EQ(error_of([] {
              nlohmann::json{{"output_gate", 1}}.get<ModelConfig>();
            }),
            "model.output_gate: expected true or false, found 1");
  EXPECT_EQ(error_of([] {
              nlohmann::json{{"mixer", {{"name", "attention"}, {"forget_gate", "open"}}}}.get<ModelConfig>();
            }),
            "mixer.forget_gate: expected one of none, full, bias_only, fixed, found \"open\"");
}

TEST(ModelConfig, RefusesOptionsWithoutAModel) {
  const auto refused = [](auto change) {
    ModelConfig config = tiny_model();
    change(config);
    return error_of([&] { config.check(); });
  };
  EXPECT_EQ(refused([](ModelConfig&) {}), "no error");
  EXPECT_EQ(refused([](ModelConfig& c) { c.layers = 0; }), "layers: expected 1 … 1000, found 0");
  EXPECT_EQ(refused([](ModelConfig& c) { c.heads = 3; }), "heads: expected a divisor of width 32, found 3");
  EXPECT_EQ(refused([](ModelConfig& c) { c.compute_dtype = "int8"; }),
            "compute_dtype: expected float32, bfloat16, float16 or float64, found int8");
  EXPECT_NE(refused([](ModelConfig& c) { c.mixer.only<AttentionConfig>().log_pruning_tolerance = 1; }), "no error");
  EXPECT_NE(refused([](ModelConfig& c) { c.mixer.only<AttentionConfig>().decay_time_max = 1; }), "no error");
  EXPECT_EQ(refused([](ModelConfig& c) { c.mixer.only<AttentionConfig>().forget_bias = HUGE_VAL; }),
            "forget_bias: expected a finite number, found inf");
  EXPECT_NE(error_of([] { named_architecture("fox"); }), "no error");
  EXPECT_NE(error_of([] {
              ModelConfig c;
              set_size(c, "7b");
            }),
            "no error");
}

TEST(TrainingFlops, AreThoseOfThePapersTable4) {
  ModelConfig config = named_architecture("transformer-llama");
  set_size(config, "760m");
  EXPECT_NEAR(training_flops_per_token(config, 16384), 8.18e9, 0.03e9);
}

TEST(Footprint, CountsFourBytesAParameterAndTwiceThatForTheOptimizer) {
  const ModelConfig config = tiny_model();
  const Footprint cost = footprint(config, 1024);
  EXPECT_EQ(cost.parameters, 4 * count_parameters(config).total);
  EXPECT_EQ(cost.optimizer, 2 * cost.parameters);
  EXPECT_EQ(cost.total(), 4 * cost.parameters + cost.activations);
  EXPECT_EQ(footprint(config, 2048).activations, 2 * cost.activations);
}

TEST(Footprint, CountsWhatRoundingTookFromTheValuesOfAttentionIn16Bits) {
  ModelConfig attention = named_architecture("transformer-llama"), local = named_architecture("local");
  for (ModelConfig* config : {&attention, &local}) set_size(*config, "125m");
  for (const auto& [dtype, bytes] : {std::pair("float32", 0), std::pair("bfloat16", 2)}) {
    attention.compute_dtype = local.compute_dtype = dtype;
    EXPECT_EQ(footprint(attention, 64).activations - footprint(local, 64).activations,
              attention.layers * 64 * attention.width * bytes);
  }
}

TEST(Parameters, OfTheForgettingCurvesLlamaAreThePapers) {
  for (ModelConfig model : {llama_83m(), llama_xl(1024)}) {
    model.vocabulary = 32000;
    model.layers = 12;
    model.width = 512;
    model.heads = 8;
    EXPECT_EQ(model.mlp_width(), 2048);
    EXPECT_EQ(count_parameters(model).total, 83'112'448) << "segment recurrence has no parameters";
  }
}

}  // namespace
}  // namespace lethe
