#include "experiments/training/batches.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>

#include "tests/experiments/tiny.hpp"
#include "tests/support/torch_gpu.hpp"

namespace lethe {
namespace {

class BatchesTest : public TinyDatasetTest {
 protected:
  /// Expects the micro-batches of three steps from `first_step` on, in order.
  void expect_batches(const TrainingConfig& config, int64_t first_step, torch::Device device) {
    Batches batches(dataset, config, first_step, device);
    const int64_t length = config.context_length;
    const int64_t tokens = config.micro_batch_tokens > 0 ? config.micro_batch_tokens : config.batch_tokens;
    for (int64_t token = first_step * config.batch_tokens; token < (first_step + 3) * config.batch_tokens;
         token += tokens) {
      const auto expected = dataset.training_batch(token / length, tokens / length, length, config.seed);
      const auto found = batches.next();
      EXPECT_EQ(found.tokens.device().type(), device.type());
      EXPECT_TRUE(found.tokens.cpu().equal(expected.tokens)) << token;
      EXPECT_TRUE(found.labels.cpu().equal(expected.labels)) << token;
    }
  }
};

TEST_F(BatchesTest, AreThoseOfTheStepsInOrder) {
  TrainingConfig config = tiny_run().training;
  for (const int64_t micro_batch_tokens : {0, 64, 256}) {
    config.micro_batch_tokens = micro_batch_tokens;
    for (const int64_t first_step : {0, 5}) expect_batches(config, first_step, torch::kCPU);
  }
}

TEST_F(BatchesTest, ArriveOnTheGpuAsOnTheCpu) {
  LETHE_NEEDS_TORCH_GPU();
  TrainingConfig config = tiny_run().training;
  config.micro_batch_tokens = 64;
  expect_batches(config, 1, torch::kCUDA);
}

TEST_F(BatchesTest, MayEndAtAnyMoment) {
  TrainingConfig config = tiny_run().training;
  config.micro_batch_tokens = 32;
  for (int round = 0; round < 100; ++round) {
    Batches batches(dataset, config, 0, torch::kCPU);
    for (int taken = 0; taken < round % 5; ++taken) batches.next();
    if (round % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(round));
  }
}

TEST_F(BatchesTest, HandOverTheExceptionOfTheirThread) {
  TrainingConfig config = tiny_run().training;
  config.context_length = config.batch_tokens = int64_t{1} << 40;  // more than the split has
  Batches batches(dataset, config, 0, torch::kCPU);
  for (int call = 0; call < 2; ++call) EXPECT_THROW(batches.next(), std::invalid_argument);
}

}  // namespace
}  // namespace lethe
