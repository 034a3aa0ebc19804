// Packed documents on a GPU, in bfloat16: a row of several has the losses and gradients of each by itself, but for rounding.

#include "tests/experiments/packed.hpp"
#include "tests/support/torch_gpu.hpp"

namespace lethe {
namespace {

constexpr int64_t kRows = 2, kLength = 200;
const std::vector<int64_t> kStarts{0, 1, 130, kLength, kLength + 64, kRows* kLength};

double relative(const torch::Tensor& a, const torch::Tensor& b) { return ((a - b).norm() / b.norm()).item<double>(); }

TEST(PackedModelGpu, HasTheLossesAndGradientsOfEachDocumentAlone) {
  LETHE_NEEDS_TORCH_GPU();
  const auto tokens = some_tokens(kRows, kLength).cuda(), labels = tokens.roll(-1, 1),
             cu_seqlens = torch::tensor(kStarts).cuda();
  int64_t models = 0;
  for (const Mixer& row : mixers()) {
    if (!row.packs) continue;
    for (const Architecture& architecture : row.architectures()) {
      ModelConfig config = tiny_model(architecture.model);
      config.width = 128;
      config.compute_dtype = "bfloat16";
      SCOPED_TRACE(nlohmann::json(config.mixer).dump());
      LanguageModel model(config, torch::kCUDA);
      model->flatten(true);
      const LossesAndGradient packed = gradients_of(model, tokens, labels, cu_seqlens),
                              alone = of_each_alone(model, tokens, labels, kStarts),
                              whole = gradients_of(model, tokens, labels);
      const double of_losses = relative(packed.losses, alone.losses),
                   of_gradient = relative(packed.gradient, alone.gradient);
      EXPECT_LT(of_losses, 5e-3);
      EXPECT_LT(of_gradient, 3e-2);
      // Rounding is small beside what documents that see one another change.
      EXPECT_GT(relative(whole.losses, alone.losses), 3 * of_losses);
      EXPECT_GT(relative(whole.gradient, alone.gradient), 3 * of_gradient);
      ++models;
    }
  }
  EXPECT_GT(models, 15);
}

}  // namespace
}  // namespace lethe
