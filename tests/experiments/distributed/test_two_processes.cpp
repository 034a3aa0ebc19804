// One training by several processes on CPUs.

#include <chrono>
#include <thread>

#include "experiments/models/safetensors.hpp"
#include "experiments/training/checkpoint.hpp"
#include "tests/experiments/distributed/training.hpp"

namespace lethe {
namespace {

constexpr double kBudget = 1e-6;  // of the order of sums in float32

class TwoProcesses : public TrainingByProcesses {
 protected:
  void SetUp() override {
    run.model.compute_dtype = "float64";
    run.training.learning_rate = 2e-3;  // rounding errors grow with it
  }

  // Kills the processes of a training after `steps` steps.
  void stop_after(const std::string& name, int size, size_t steps) {
    Ranks ranks = begin(name, size);
    while (log(name).size() < steps) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    ranks.end_now();
    ASSERT_FALSE(std::filesystem::exists(root(name) / artefact_name(run, dataset) / "done.json"));
  }
};

TEST_F(TwoProcesses, TrainAsOneWithTheWholeBatch) {
  trained(run, dataset, root("alone"));
  begin("both", 2).expect_success();
  expect_equal("both", "alone", kBudget);
  const auto done = nlohmann::json::parse(read_whole(root("both") / artefact_name(run, dataset) / "done.json"));
  EXPECT_EQ(done.at("processes"), 2);
}

TEST_F(TwoProcesses, TrainAsOneWithSharedMoments) {
  trained(run, dataset, root("alone"));
  run.training.zero = true;
  begin("both", 2).expect_success();
  expect_equal("both", "alone", kBudget);
}

TEST_F(TwoProcesses, TrainAsOneInMicroBatches) {
  run.training.micro_batch_tokens = 64;
  trained(run, dataset, root("alone"));
  begin("both", 2).expect_success();
  expect_equal("both", "alone", kBudget);
}

TEST_F(TwoProcesses, GoOnWhereOneHasStopped) {
  run.training.total_tokens = 256 * 48;
  trained(run, dataset, root("alone"));
  stop_after("resumed", 1, 12);
  run.training.zero = true;
  begin("resumed", 2).expect_success();
  expect_equal("resumed", "alone", kBudget);
}

TEST_F(TwoProcesses, StopWhereOneGoesOn) {
  run.training.total_tokens = 256 * 48;
  trained(run, dataset, root("alone"));
  run.training.zero = true;
  stop_after("resumed", 2, 12);
  begin("resumed", 1).expect_success();
  expect_equal("resumed", "alone", kBudget);
}

TEST_F(TwoProcesses, EndTogetherWhereTrainingDiverges) {
  run.model = tiny_model(named_architecture("transformer-llama"));
  run.training.learning_rate = 1e30;
  run.training.divergence_is_a_result = true;
  begin("both", 2).expect_success();
  const auto done = nlohmann::json::parse(read_whole(root("both") / artefact_name(run, dataset) / "done.json"));
  EXPECT_TRUE(done.at("diverged").is_string());
}

// At 2^24 the first steps' gradients are beyond float16, on both or on neither.
TEST_F(TwoProcesses, TakeAStepAgainTogether) {
  run.model.compute_dtype = "float16";
  run.training.loss_scale = 0x1p24;
  trained(run, dataset, root("alone"));
  begin("both", 2).expect_success();
  expect_equal("both", "alone", 1e-3);
  for (const char* name : {"both", "alone"}) {
    const auto path = root(name) / artefact_name(run, dataset) / "checkpoint.pt";
    const std::string tensors = read_checkpoint(path).tensors;
    const int64_t exponent =
        parse_safetensors(tensors, path.string()).tensors.at("loss_scale").copy()[0].item<int64_t>();
    EXPECT_TRUE(exponent > 8 && exponent < 24) << exponent;
  }
}

TEST_F(TwoProcesses, RefuseABatchThatTheyCannotShare) {
  Ranks ranks = begin("three", 3);
  EXPECT_NE(ranks.status(0), 0);
  EXPECT_NE(ranks.errors(0).find("processes: expected a number that divides the 8 sequences of a batch, found 3"),
            std::string::npos)
      << ranks.errors(0);
}

}  // namespace
}  // namespace lethe
