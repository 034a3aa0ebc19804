// The Torch model of every architecture against the reference's, which shares only the weights with it.

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <ostream>

#include "experiments/models/language_model.hpp"
#include "experiments/papers/forgetting_transformer/rows.hpp"
#include "reference/layers/language_model.hpp"
#include "tests/experiments/tiny.hpp"
#include "tests/support/matrices.hpp"

namespace lethe {

inline void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }

namespace {

using reference::layers::ForgettingLayerShape;
using reference::layers::NamedWeights;
using torch::Tensor;

// Two models of two layers in double, each product summed over at most 32 + 64 terms in another order.
constexpr double kDoubleBudget = 1e-10;
// The same in float: 2^-24 a rounding, a few hundred roundings on the way.
constexpr double kFloatBudget = 1e-4;

std::vector<Row> every_architecture() {
  std::vector<Row> rows = table_3();
  for (const char* base : {"fox-pro", "fox-llama"}) {
    ModelConfig bias_only = named_architecture(base), fixed = bias_only;
    bias_only.mixer.only<AttentionConfig>().forget_gate = ForgetGate::kBiasOnly;
    fixed.mixer.only<AttentionConfig>().forget_gate = ForgetGate::kFixed;
    rows.push_back({std::string(base) + ", bias-only gate", bias_only});
    rows.push_back({std::string(base) + ", fixed gate", fixed});
  }
  ModelConfig per_head = named_architecture("fox-pro");
  per_head.mixer.only<AttentionConfig>().qk_norm = QkNorm::kPerHead;
  rows.push_back({"fox-pro, a QK-norm a head", per_head});
  return rows;
}

LanguageModel model_of(const Row& row, const std::string& dtype) {
  ModelConfig config = tiny_model(row.architecture);
  config.compute_dtype = dtype;
  return LanguageModel(config);
}

// Weights unlike any initialization: norms that are not 1, biases that are not 0, logits of order 1.
void randomize(LanguageModel& model) {
  const torch::NoGradGuard no_gradient;
  torch::manual_seed(5);
  const auto draw = [](const std::string& name, Tensor& value) {
    const double deviation = value.dim() == 2 ? 1 / std::sqrt(static_cast<double>(value.size(1))) : 0.3;
    value.normal_(name.ends_with("norm.weight") ? 1.0 : 0.0, deviation);
  };
  for (auto& parameter : model->named_parameters()) draw(parameter.key(), parameter.value());
  for (auto& buffer : model->named_buffers()) draw(buffer.key(), buffer.value());
}

NamedWeights<double> weights_of(const LanguageModel& model) {
  NamedWeights<double> weights;
  const auto copy = [&](const std::string& name, const Tensor& value) {
    const Tensor wide = value.detach().to(torch::kFloat64).contiguous();
    weights[name] = Eigen::Map<const Matrix<double>>(wide.const_data_ptr<double>(), wide.dim() == 2 ? wide.size(0) : 1,
                                                     wide.size(-1));
  };
  for (const auto& parameter : model->named_parameters()) copy(parameter.key(), parameter.value());
  for (const auto& buffer : model->named_buffers()) copy(buffer.key(), buffer.value());
  return weights;
}

ForgettingLayerShape shape_of(const ModelConfig& config) {
  const auto& attention = config.mixer.only<AttentionConfig>();
  return {.heads = config.heads, .rope_base = attention.rope ? std::optional(attention.rope_base) : std::nullopt};
}

const std::vector<int64_t> kTokens{84, 104, 101, 32, 114, 105, 118, 101, 114, 32, 102, 111, 114, 103, 101, 116, 115};

Matrix<double> torch_logits(LanguageModel& model) {
  const torch::NoGradGuard no_gradient;
  // A batch of two: the other text must not change the result.
  const Tensor tokens = torch::tensor(kTokens).unsqueeze(0);
  const Tensor logits = model->forward(torch::cat({tokens, tokens.flip(1)}))[0].to(torch::kFloat64).contiguous();
  return Eigen::Map<const Matrix<double>>(logits.const_data_ptr<double>(), logits.size(0), logits.size(1));
}

Matrix<double> reference_logits(const LanguageModel& model, const NamedWeights<double>& weights) {
  return reference::layers::language_model<double>(kTokens, weights, shape_of(model->config()));
}

class EveryArchitecture : public testing::TestWithParam<Row> {};

TEST_P(EveryArchitecture, EqualsTheReferenceModelInDouble) {
  LanguageModel model = model_of(GetParam(), "float64");
  randomize(model);
  EXPECT_LT(relative_error(torch_logits(model), reference_logits(model, weights_of(model))), kDoubleBudget);
}

TEST_P(EveryArchitecture, EqualsTheReferenceModelInFloat) {
  LanguageModel model = model_of(GetParam(), "float32");
  randomize(model);
  const double error = relative_error(torch_logits(model), reference_logits(model, weights_of(model)));
  EXPECT_LT(error, kFloatBudget);
  EXPECT_GT(error, 1e-9) << "float arithmetic leaves a trace";
}

TEST_P(EveryArchitecture, DiffersFromTheReferenceModelWithAnyWeightChangedByATenth) {
  LanguageModel model = model_of(GetParam(), "float64");
  randomize(model);
  const Matrix<double> logits = torch_logits(model);
  for (const auto& [name, weight] : weights_of(model)) {
    NamedWeights<double> changed = weights_of(model);
    const Eigen::Index row = name == "model.embeddings.weight" ? kTokens.front() : 0;
    changed[name](row, 0) += 0.1;
    EXPECT_GT(relative_error(logits, reference_logits(model, changed)), 3 * kDoubleBudget) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EveryArchitecture, testing::ValuesIn(every_architecture()));

TEST(ReferenceModel, RotatesWhereAndOnlyWhereTheTorchModelDoes) {
  for (const char* name : {"transformer-pro", "fox-pro"}) {
    LanguageModel model = model_of({name, named_architecture(name)}, "float64");
    randomize(model);
    ForgettingLayerShape other = shape_of(model->config());
    other.rope_base = other.rope_base ? std::nullopt : std::optional(500000.0);
    const Matrix<double> otherwise = reference::layers::language_model<double>(kTokens, weights_of(model), other);
    EXPECT_GT(relative_error(torch_logits(model), otherwise), kClearlyWrong) << name;
  }
}

TEST(ForgetGateParameters, AreOneWeightVectorAndOneBiasAHeadInEveryLayer) {
  ModelConfig with_gate = tiny_model(), without_gate = with_gate;
  without_gate.mixer.only<AttentionConfig>().forget_gate = ForgetGate::kNone;
  EXPECT_EQ(count_parameters(with_gate).total - count_parameters(without_gate).total,
            with_gate.layers * with_gate.heads * (with_gate.width + 1));
}

}  // namespace
}  // namespace lethe
