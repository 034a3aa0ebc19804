// Parameters of the recurrent layers at the sizes that their papers name, counted from the published code of each.

#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>

#include "experiments/models/config.hpp"
#include "experiments/models/language_model.hpp"

namespace lethe::recurrent {
namespace {

struct Size {
  const char* name;
  int64_t layers, width, mlp, vocabulary, heads;
  int64_t published;  // with one matrix for the embedding and the output
};
void PrintTo(const Size& size, std::ostream* out) { *out << size.name; }

// Without the input embedding, as if it were the output's matrix.
int64_t parameters_of(const char* architecture, const Size& size) {
  ModelConfig config = named_architecture(architecture);
  config.layers = size.layers, config.width = size.width, config.heads = size.heads;
  config.vocabulary = size.vocabulary;
  if (size.mlp > 0) config.mlp_ratio = 1.5 * static_cast<double>(size.mlp) / static_cast<double>(size.width);
  EXPECT_EQ(config.mlp_width(), size.mlp);
  return count_parameters(config).non_embedding;
}

// ---- mamba_ssm's Mamba2, with 128 rows and inner heads of 64 columns in the models of its paper

int64_t mamba2_layer(int64_t width, int64_t inner_heads) {
  const int64_t inner = 2 * width, rows = 128;
  const int64_t convolution = 5 * (inner + 2 * rows);  // four weights and a bias
  return width * (2 * inner + 2 * rows + inner_heads) + convolution + 3 * inner_heads + inner + inner * width;
}

class Mamba2Size : public testing::TestWithParam<Size> {};

TEST_P(Mamba2Size, IsThatOfThePublishedModel) {
  const Size& size = GetParam();
  EXPECT_EQ(parameters_of("mamba2", size), size.published);
  EXPECT_EQ(size.layers * (mamba2_layer(size.width, size.width / 32) + size.width) + size.width * (1 + size.vocabulary),
            size.published);
}

// Dao & Gu 2024: 130M, 370M, 780M, 1.3B and 2.7B; 50277 tokens, filled up to a multiple of 16.
INSTANTIATE_TEST_SUITE_P(Published, Mamba2Size,
                         testing::Values(Size{"130M", 24, 768, 0, 50288, 12, 128'989'632},
                                         Size{"370M", 48, 1024, 0, 50288, 16, 368'346'624},
                                         Size{"780M", 48, 1536, 0, 50288, 24, 780'161'280},
                                         Size{"1.3B", 48, 2048, 0, 50288, 32, 1'343'757'312},
                                         Size{"2.7B", 64, 2560, 0, 50288, 40, 2'702'599'680}));

// ---- NVlabs/GatedDeltaNet, lit_gpt/gated_delta_net.py in a block of norms and a gated MLP

int64_t gated_deltanet(const Size& size, int64_t heads) {
  const int64_t width = size.width, keys = width * 3 / 4, values = width * 3 / 2;
  const int64_t projections = 2 * width * keys + 3 * width * values + 2 * width * heads + heads;  // β has a bias
  const int64_t small = 4 * (2 * keys + values) + 3 * heads + values / heads;  // convolutions; A, D, Δ's bias; norm
  return size.layers * (projections + small + 2 * width + 3 * width * size.mlp) + width * (1 + size.vocabulary);
}

TEST(GatedDeltaNetSize, IsThatOfThePublishedModelButForUnusedNumbers) {
  const Size size{"1.3B", 16, 2400, 5888, 32000, 15, 1'309'295'776};
  EXPECT_EQ(gated_deltanet(size, 9), size.published);
  // Its nine heads do not divide the width, as heads must here. It holds a D that it never reads, and β's bias.
  EXPECT_EQ(parameters_of("gated-deltanet", size), gated_deltanet(size, size.heads) - size.layers * 2 * size.heads);
}

// ---- microsoft/Samba: Mamba and a window in turn, each followed by an MLP

int64_t mamba_layer(int64_t width) {
  const int64_t inner = 2 * width, rank = width / 16, rows = 16;
  const int64_t step = inner * (rank + 2 * rows) + rank * inner + inner;
  return width * 2 * inner + 5 * inner + step + inner * rows + inner + inner * width;
}

class SambaSize : public testing::TestWithParam<Size> {};

TEST_P(SambaSize, IsThatOfThePublishedModelWithMamba2ForMamba) {
  const Size& size = GetParam();
  const int64_t block = 3 * size.width * size.mlp + 2 * size.width;
  EXPECT_EQ(size.layers / 2 * (mamba_layer(size.width) + 4 * size.width * size.width) + size.layers * block +
                size.width * (1 + size.vocabulary),
            size.published);
  // An inner head has the head dim of the window's heads.
  const int64_t more = mamba_layer(size.width) - mamba2_layer(size.width, 2 * size.heads);
  EXPECT_EQ(parameters_of("samba", size), size.published - size.layers / 2 * more);
  EXPECT_LT(static_cast<double>(more * size.layers / 2), 0.006 * static_cast<double>(size.published));
}

// Ren et al. 2024: 421M and 1.3B.
INSTANTIATE_TEST_SUITE_P(Published, SambaSize,
                         testing::Values(Size{"421M", 12, 1536, 4096, 32000, 12, 421'793'280},
                                         Size{"1.3B", 18, 2304, 6144, 32000, 18, 1'330'207'488}));

// ---- FoX Appendix E.5

TEST(WindowedTransformerSize, IsThatOfTheTransformer) {
  // "roughly 760M": a window has no parameters.
  EXPECT_EQ(parameters_of("local", {"760M", 24, 1536, 4096, 50257, 12, 0}), 756'747'264);
}

struct PublishedCount {
  const char *architecture, *size;
  int64_t heads, millions;
  double flops;
};

class RecurrentCount : public testing::TestWithParam<PublishedCount> {};

// FoX Table 4 ("parameters", without the input embedding, whole millions without rounding; FLOPs of the recurrent form).
TEST_P(RecurrentCount, IsThatOfFoxTable4) {
  const PublishedCount& row = GetParam();
  ModelConfig config = named_architecture(row.architecture);
  config.heads = row.heads;
  set_size(config, row.size);
  EXPECT_EQ(count_parameters(config).non_embedding / 1'000'000, row.millions);
  EXPECT_NEAR(training_flops_per_token(config, 16384), row.flops, 0.015 * row.flops);
}

INSTANTIATE_TEST_SUITE_P(Papers, RecurrentCount,
                         testing::Values(PublishedCount{"mamba2", "760m", 24, 780, 4.96e9},
                                         PublishedCount{"hgrn2", "760m", 12, 756, 4.63e9},
                                         PublishedCount{"deltanet", "760m", 12, 757, 4.64e9}));

TEST(GlaAndRetNet, HaveNearlyTheParametersOfTheirNames) {
  const auto millions = [](const char* architecture, int64_t width, int64_t heads, int64_t vocabulary) {
    ModelConfig config = named_architecture(architecture);
    config.layers = 24, config.width = width, config.heads = heads, config.vocabulary = vocabulary;
    return static_cast<double>(count_parameters(config).non_embedding) / 1e6;
  };
  // Yang 2023 ("340M", "1.3B": 24 layers, 4 heads, 32000 tokens), Sun 2023 ("1.3B": 24 layers, 8 heads). Neither paper has an exact number.
  EXPECT_NEAR(millions("gla", 1024, 4, 32000), 340, 5);
  EXPECT_NEAR(millions("gla", 2048, 4, 32000), 1300, 50);
  EXPECT_NEAR(millions("retnet", 2048, 8, 50257), 1300, 50);
}

TEST(Mamba2, HasBlocksWithoutMlpAndTwiceAsMany) {
  ModelConfig config = named_architecture("mamba2");
  set_size(config, "125m");
  EXPECT_EQ(config.layers, 24);
  EXPECT_EQ(config.mlp_width(), 0);
  LanguageModel model(config, torch::kMeta);
  EXPECT_FALSE(model->named_parameters().contains("model.layers.0.mlp_norm.weight"));
  EXPECT_FALSE(model->named_parameters().contains("model.layers.0.mlp.down_proj.weight"));
}

}  // namespace
}  // namespace lethe::recurrent
