// Packed documents: a row of several has the losses and gradients of each by itself, in every mixer that keeps them apart.

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "experiments/training/trainer.hpp"
#include "tests/experiments/packed.hpp"

namespace lethe {
namespace {

using torch::Tensor;

constexpr int64_t kRows = 2, kLength = 70;
const std::vector<int64_t> kStarts{0, 1, 30, kLength, kLength + 41, kRows* kLength};

ModelConfig in_double(ModelConfig model) {
  model.compute_dtype = "float64";
  return model;
}

// The models of a mixer: with all switches at the defaults of its architectures, and rotated.
std::vector<ModelConfig> models_of(const Mixer& row) {
  std::vector<ModelConfig> models;
  for (const Architecture& architecture : row.architectures()) {
    models.push_back(in_double(tiny_model(architecture.model)));
    if (nlohmann::json(models.back().mixer).contains("rope")) {
      models.push_back(models.back());
      set(models.back(), {{"rope", true}});
    }
  }
  return models;
}

TEST(PackedModel, HasTheLossesAndGradientsOfEachDocumentAlone) {
  const Tensor tokens = some_tokens(kRows, kLength), labels = tokens.roll(-1, 1), cu_seqlens = torch::tensor(kStarts);
  int64_t models = 0;
  for (const Mixer& row : mixers()) {
    if (!row.packs) continue;
    for (const ModelConfig& config : models_of(row)) {
      SCOPED_TRACE(nlohmann::json(config.mixer).dump());
      for (const Recompute recompute : {Recompute::kNone, Recompute::kBlock}) {
        const nlohmann::json mixer = config.mixer;
        if (recompute != Recompute::kNone && mixer.is_object() && mixer.value("rope", false)) continue;
        LanguageModel model(config);
        model->flatten(true);
        model->set_recompute(recompute);
        const LossesAndGradient packed = gradients_of(model, tokens, labels, cu_seqlens),
                                alone = of_each_alone(model, tokens, labels, kStarts);
        EXPECT_LT(distance(packed.losses, alone.losses), 1e-9);
        EXPECT_LT(distance(packed.gradient, alone.gradient),
                  1e-4 * alone.gradient.abs().max().item<double>());  // float32
        const LossesAndGradient whole = gradients_of(model, tokens, labels);
        EXPECT_GT(distance(whole.losses, packed.losses), 1e-6) << "documents in one row are seen by one another";
        const torch::NoGradGuard no_gradient;
        EXPECT_LT(distance(model->losses(tokens, labels, cu_seqlens), packed.losses.view({kRows, kLength})), 1e-9);
        ++models;
      }
    }
  }
  EXPECT_GT(models, 35);
}

class PackedDataset : public TinyDatasetTest {};

TEST_F(PackedDataset, BeginsADocumentAtEachBeginTokenAndRow) {
  const auto batch = dataset.packed(dataset.training_batch(0, 64, 512, 3));
  const Tensor tokens = batch.tokens.flatten(), starts = batch.cu_seqlens;
  EXPECT_EQ(starts[0].item<int64_t>(), 0);
  EXPECT_EQ(starts[-1].item<int64_t>(), tokens.size(0));
  Tensor expected = tokens.eq(dataset.begin_token());
  for (int64_t row = 0; row < 64; ++row) expected[row * 512] = true;
  EXPECT_TRUE(expected.nonzero().squeeze(1).equal(starts.narrow(0, 0, starts.size(0) - 1)));
  EXPECT_GT(starts.size(0), 64 + 2) << "no document begins within a row";
}

// Trained steps: packed rows are those of the same text, documents apart.
TEST_F(PackedDataset, TrainsAndIsPartOfTheIdentity) {
  lethe::Run run = tiny_run();
  const std::string name = artefact_name(run, dataset);
  EXPECT_FALSE(nlohmann::json::parse(identity(run, dataset)).at("training").contains("packs_documents"));
  run.training.packs_documents = true;
  EXPECT_NE(artefact_name(run, dataset), name);
  Trainer packed(run, dataset);
  run.training.packs_documents = false;
  Trainer whole(run, dataset);
  double difference = 0;
  for (int step = 0; step < 6; ++step) difference += std::abs(packed.step().loss - whole.step().loss);
  EXPECT_GT(difference, 0) << "of 48 rows none has a second document";
}

TEST_F(PackedDataset, IsRefusedWhereAMixerHasSegmentsOfItsOwn) {
  lethe::Run run = tiny_run();
  run.model = tiny_model(named_architecture("segment"));
  run.training.packs_documents = true;
  try {
    Trainer trainer(run, dataset);
    ADD_FAILURE() << "expected an error, found none";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "packs_documents: expected mixers that keep sequences apart, found segment");
  }
}

}  // namespace
}  // namespace lethe
