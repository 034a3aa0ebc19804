#include "reference/layers/language_model.hpp"

#include "reference/layers/rms_norm.hpp"
#include "tests/support/random_weights.hpp"

namespace lethe::reference::layers {
namespace {

constexpr ForgettingLayerShape kShape{.heads = 2, .rope_base = 500000.0};
const std::vector<int64_t> kTokens{3, 1, 4, 1, 5, 9, 2, 6};

NamedWeights<double> small_model(int64_t blocks, uint64_t seed) { return random_model(10, blocks, 8, 2, 12, seed); }

std::string message_of(const std::vector<int64_t>& tokens, const NamedWeights<double>& weights) {
  try {
    language_model<double>(tokens, weights, kShape);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "nothing thrown";
}

TEST(LanguageModel, WithoutBlocksNormsTheEmbeddingAndProjectsIt) {
  NamedWeights<double> weights{{"model.embeddings.weight", Matrix<double>{{3, 4}, {6, 8}, {0, 0}}},
                               {"model.norm.weight", Matrix<double>{{1, 2}}},
                               {"lm_head.weight", Matrix<double>{{1, 0}, {0, 1}, {1, 1}}}};
  const double root = std::sqrt(12.5 + 1e-6), twice = std::sqrt(50 + 1e-6);
  const Matrix<double> expected{{0, 0, 0}, {3 / root, 8 / root, 11 / root}, {6 / twice, 16 / twice, 22 / twice}};
  EXPECT_LT(relative_error(language_model<double>({2, 0, 1}, weights, kShape), expected), kExact);
}

TEST(LanguageModel, ABlockWhoseProjectionsGiveZeroLeavesTheResidualStreamAlone) {
  NamedWeights<double> weights = small_model(2, 1);
  weights["model.layers.1.attn.o_proj.weight"].setZero();
  NamedWeights<double> attention_off = weights;
  weights["model.layers.1.mlp.down_proj.weight"].setZero();
  NamedWeights<double> one_block = weights;
  std::erase_if(one_block, [](const auto& named) { return named.first.starts_with("model.layers.1."); });
  const Matrix<double> logits = language_model<double>(kTokens, weights, kShape);
  EXPECT_TRUE(bit_equal(logits, language_model<double>(kTokens, one_block, kShape)));
  EXPECT_GT(relative_error(language_model<double>(kTokens, attention_off, kShape), logits), kClearlyWrong);
}

TEST(LanguageModel, EarlierLogitsNeverChangeWithALaterToken) {
  const NamedWeights<double> weights = small_model(2, 2);
  const Matrix<double> logits = language_model<double>(kTokens, weights, kShape);
  for (Eigen::Index t = 0; t < logits.rows(); ++t) {
    std::vector<int64_t> other = kTokens;
    other[t] = 7;
    const Matrix<double> changed = language_model<double>(other, weights, kShape);
    EXPECT_TRUE(bit_equal(changed.topRows(t), logits.topRows(t)));
    EXPECT_GT(relative_error(changed.row(t), logits.row(t)), kClearlyWrong);
    EXPECT_GT(relative_error(changed.row(7), logits.row(7)), 1e-6) << "the last row sees every token";
  }
}

TEST(LanguageModel, ATextsBeginningGivesTheSameLogitsAlone) {
  const NamedWeights<double> weights = small_model(2, 3);
  const Matrix<double> logits = language_model<double>(kTokens, weights, kShape);
  const Matrix<double> beginning =
      language_model<double>(std::vector<int64_t>(kTokens.begin(), kTokens.begin() + 5), weights, kShape);
  EXPECT_LT(relative_error(beginning, logits.topRows(5)), kExact);
}

TEST(LanguageModel, FloatFollowsDouble) {
  const NamedWeights<double> weights = small_model(2, 4);
  NamedWeights<float> rounded;
  for (const auto& [name, weight] : weights) rounded[name] = weight.cast<float>();
  const Matrix<double> found = language_model<float>(kTokens, rounded, kShape).cast<double>();
  const double error = relative_error(found, language_model<double>(kTokens, weights, kShape));
  EXPECT_LT(error, 1e-5);
  EXPECT_GT(error, 1e-9) << "float arithmetic leaves a trace";
}

TEST(LanguageModel, RefusesAMissingAForeignAndAMisshapenWeightByName) {
  NamedWeights<double> weights = small_model(1, 5);
  EXPECT_EQ(message_of(kTokens, weights), "nothing thrown");
  NamedWeights<double> missing = weights;
  missing.erase("model.layers.0.mlp_norm.weight");
  EXPECT_EQ(message_of(kTokens, missing), "weights: expected \"model.layers.0.mlp_norm.weight\", found no such name");
  NamedWeights<double> foreign = weights;
  foreign["model.layers.0.attn.qnorm.weight"] = Matrix<double>::Ones(1, 4);
  EXPECT_EQ(message_of(kTokens, foreign),
            "weights: expected only names of the model, found \"model.layers.0.attn.qnorm.weight\"");
  NamedWeights<double> misshapen = weights;
  misshapen["lm_head.weight"].setOnes(10, 7);
  EXPECT_EQ(message_of(kTokens, misshapen), "lm_head.weight: expected 8 columns, found 7");
}

TEST(LanguageModel, RefusesATokenOutsideTheVocabulary) {
  const NamedWeights<double> weights = small_model(1, 6);
  EXPECT_EQ(message_of({0, 10}, weights), "tokens: expected values in [0, 10), found 10");
  EXPECT_EQ(message_of({-1}, weights), "tokens: expected values in [0, 10), found -1");
}

}  // namespace
}  // namespace lethe::reference::layers
