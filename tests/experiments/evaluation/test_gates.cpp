// Half-lives of gates that are set by hand.

#include <gtest/gtest.h>

#include "experiments/evaluation/evaluation.hpp"
#include "experiments/evaluation/gates.hpp"
#include "experiments/models/mixers/attention.hpp"
#include "tests/experiments/tiny.hpp"

namespace lethe {
namespace {

class Gates : public TinyDatasetTest {
 protected:
  Evaluated run(LanguageModel model, const nlohmann::json& more = nlohmann::json::object()) const {
    nlohmann::json settings = {{"length", 64}, {"sequences", 2}};
    settings.update(more);
    return evaluation_named("gates").run(model, dataset, settings, {});
  }
};

double logit(double gate) { return std::log(gate / (1 - gate)); }
double gate_of_half_life(double tokens) { return std::exp2(-1 / tokens); }

/// FoX with the same gate everywhere: σ(bias).
LanguageModel with_bias(double bias) {
  ModelConfig config = tiny_model();
  config.mixer.only<AttentionConfig>().forget_gate = ForgetGate::kFixed;
  config.compute_dtype = "float64";
  LanguageModel model(config);
  for (auto& buffer : model->named_buffers())
    if (buffer.key().ends_with("fgate_bias")) buffer.value().fill_(bias);
  return model;
}

double of(const Evaluated& found, const std::string& metric) {
  for (const Record& record : found.records)
    if (record.metric == metric) return record.value;
  return std::nan("");
}

TEST_F(Gates, OfAConstantGateHaveItsHalfLife) {
  for (const double tokens : {0.5, 10.0, 1000.0}) {
    const Evaluated found = run(with_bias(logit(gate_of_half_life(tokens))));
    EXPECT_NEAR(of(found, "half_life"), tokens, 1e-4 * tokens);
    EXPECT_NEAR(found.value("median_half_life"), tokens, 1e-4 * tokens);
    EXPECT_EQ(found.value("local_heads"), tokens <= 32 ? 1 : 0);
    EXPECT_EQ(found.value("global_heads"), tokens >= 64 ? 1 : 0);
    for (const Point& point : found.points) {
      const double expected = -point.x / tokens * std::log(2.0);
      if (point.quantity == "sum_log_gate_at_distance") {
        EXPECT_NEAR(point.value, expected, 1e-4 * point.x / tokens);
      } else if (point.quantity == "retention_at_distance") {
        EXPECT_NEAR(point.value, std::exp(expected), 1e-4);
      }
    }
  }
}

TEST_F(Gates, ThatAreClosedForgetAllAtOnce) {
  const Evaluated found = run(with_bias(-100));
  EXPECT_NEAR(of(found, "half_life"), std::log(2.0) / 100, 1e-6);
  EXPECT_EQ(found.value("local_heads"), 1);
  for (const double kept : found.curve("retention_at_distance")) EXPECT_LT(kept, 1e-40);
}

TEST_F(Gates, ThatAreOpenForgetNothing) {
  const Evaluated found = run(with_bias(1000));
  EXPECT_EQ(of(found, "half_life"), kLongestHalfLife);
  EXPECT_EQ(found.value("global_heads"), 1);
  for (const double kept : found.curve("retention_at_distance")) EXPECT_EQ(kept, 1);
}

TEST_F(Gates, OfARowAndAColumnMultiply) {
  LanguageModel model(tiny_mixer("decay"));
  const torch::NoGradGuard no_gradient;
  for (auto& parameter : model->named_parameters()) {
    if (parameter.key().ends_with("gate_proj.weight")) parameter.value().zero_();
    if (parameter.key().ends_with("key_gate_proj.bias")) parameter.value().fill_(logit(gate_of_half_life(20)));
    if (parameter.key().ends_with("value_gate_proj.bias")) parameter.value().fill_(logit(gate_of_half_life(30)));
  }
  EXPECT_NEAR(of(run(model), "half_life"), 12, 1e-3) << "1/20 + 1/30 = 1/12";
}

TEST_F(Gates, AreFoundInEveryMixerThatHasThem) {
  for (const char* mixer : {"gated", "gated_linear", "gated_delta", "decay"})
    EXPECT_EQ(run(LanguageModel(tiny_mixer(mixer))).curve("half_life_of_text_at_head").size(), 2u * 4) << mixer;
  for (const char* architecture : {"transformer-pro", "additive", "local"})
    EXPECT_THROW(run(LanguageModel(tiny_model(named_architecture(architecture)))), std::invalid_argument)
        << architecture;
}

}  // namespace
}  // namespace lethe
