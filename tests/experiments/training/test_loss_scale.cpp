// The loss's scale: a power of two that changes no bit of a step where nothing overflows.

#include <gtest/gtest.h>
#include <torch/nn/utils/convert_parameters.h>

#include "experiments/training/trainer.hpp"
#include "tests/experiments/tiny.hpp"

namespace lethe {
namespace {

using torch::Tensor;

class LossScaling : public TinyDatasetTest {
 protected:
  static lethe::Run run_of(const std::string& dtype, double loss_scale) {
    lethe::Run run = tiny_run();
    run.model.compute_dtype = dtype;
    run.training.loss_scale = loss_scale;
    return run;
  }
  static Tensor weights(Trainer& trainer) {
    return torch::nn::utils::parameters_to_vector(trainer.model()->parameters()).detach();
  }
};

TEST(LossScale, DoublesAfterStepsAndHalvesDownToOne) {
  LossScale scale(4);
  EXPECT_EQ(scale.value(), 4);
  for (int64_t step = 0; step + 1 < LossScale::kKept; ++step) scale.step_kept();
  EXPECT_EQ(scale.value(), 4);
  scale.step_kept();
  EXPECT_EQ(scale.value(), 8);
  for (const double next : {4, 2, 1}) {
    EXPECT_TRUE(scale.halve());
    EXPECT_EQ(scale.value(), next);
  }
  EXPECT_FALSE(scale.halve());
  EXPECT_EQ(scale.value(), 1);
}

TEST(LossScale, HalvingBeginsTheCountAnew) {
  LossScale scale(4);
  for (int64_t step = 0; step + 1 < LossScale::kKept; ++step) scale.step_kept();
  EXPECT_TRUE(scale.halve());
  scale.step_kept();
  EXPECT_EQ(scale.value(), 2);
}

TEST(LossScale, IsOneWhereItIsOff) {
  LossScale scale(0);
  for (int64_t step = 0; step < 2 * LossScale::kKept; ++step) scale.step_kept();
  EXPECT_EQ(scale.value(), 1);
  EXPECT_FALSE(scale.halve() || scale.is_on());
}

TEST(LossScale, IsAPowerOfTwo) {
  for (const double wrong : {-1.0, 0.5, 3.0, 0x1p25, std::nan("")}) {
    TrainingConfig config = tiny_run().training;
    config.loss_scale = wrong;
    EXPECT_EQ(refusal_of(config),
              "loss_scale: expected 0, or a power of two from 1 to 2^24, found " + std::to_string(wrong));
  }
  TrainingConfig config = tiny_run().training;
  for (const double right : {0.0, 1.0, 65536.0, 0x1p24}) {
    config.loss_scale = right;
    EXPECT_EQ(refusal_of(config), "no error");
  }
}

TEST_F(LossScaling, ChangesNoBitInFloat32) {
  lethe::Run run = run_of("float32", 0);
  run.training.clip_norm = 0.5;
  Trainer plain(run, dataset);
  run.training.loss_scale = 1024;
  Trainer scaled(run, dataset);
  for (int step = 0; step < 4; ++step) {
    const Trainer::Step expected = plain.step(), found = scaled.step();
    EXPECT_EQ(found.loss, expected.loss);
    EXPECT_EQ(found.gradient_norm, expected.gradient_norm);
  }
  EXPECT_TRUE(weights(scaled).equal(weights(plain)));
}

// At 2^24 the logits' gradients are beyond 65504 in the first step.
TEST_F(LossScaling, TakesAStepAgainWhoseGradientIsBeyondFloat16) {
  Trainer exact(run_of("float32", 0), dataset), high(run_of("float16", 0x1p24), dataset),
      low(run_of("float16", 256), dataset);
  for (int step = 0; step < 8; ++step) {
    const Trainer::Step expected = exact.step(), found = high.step(), without_overflow = low.step();
    EXPECT_NEAR(found.loss, expected.loss, 5e-3) << step;
    EXPECT_NEAR(found.loss, without_overflow.loss, 5e-3) << step;
    EXPECT_NEAR(found.gradient_norm, expected.gradient_norm, 0.02 * expected.gradient_norm) << step;
  }
  const int64_t exponent = high.snapshot({}).tensors.at("loss_scale")[0].item<int64_t>();
  EXPECT_LT(exponent, 24);
  EXPECT_GT(exponent, 8);
  EXPECT_EQ(low.snapshot({}).tensors.at("loss_scale")[0].item<int64_t>(), 8);
}

TEST_F(LossScaling, StaysWithItsCheckpoint) {
  const lethe::Run run = run_of("float16", 0x1p24);
  const auto path = folder.path() / "checkpoint.pt";
  Trainer first(run, dataset);
  for (int step = 0; step < 3; ++step) first.step();
  first.snapshot({}).write(path);
  Trainer second(run, dataset);
  ASSERT_TRUE(second.resume(path));
  const Tensor state = first.snapshot({}).tensors.at("loss_scale");
  EXPECT_TRUE(second.snapshot({}).tensors.at("loss_scale").equal(state));
  EXPECT_EQ(state[1].item<int64_t>(), 3);
  for (int step = 0; step < 3; ++step) EXPECT_EQ(second.step().loss, first.step().loss);
  EXPECT_TRUE(weights(second).equal(weights(first)));
}

TEST_F(LossScaling, IsPartOfTheIdentityWhereItIsOn) {
  EXPECT_FALSE(nlohmann::json::parse(identity(tiny_run(), dataset)).at("training").contains("loss_scale"));
  EXPECT_NE(artefact_name(run_of("float32", 2), dataset), artefact_name(tiny_run(), dataset));
}

}  // namespace
}  // namespace lethe
