#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/nn/utils/convert_parameters.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numbers>

#include "experiments/files.hpp"
#include "experiments/models/mixers/attention.hpp"
#include "experiments/training/trainer.hpp"
#include "tests/experiments/tiny.hpp"
#include "tests/support/torch_gpu.hpp"

namespace lethe {
namespace {

using torch::Tensor;

Tensor weights(LanguageModel model) { return torch::nn::utils::parameters_to_vector(model->parameters()).detach(); }

std::vector<nlohmann::json> log_lines(const Artefact& artefact) {
  std::ifstream file(artefact.folder / "log.jsonl");
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

TEST(LearningRate, RisesFromZeroAndFallsAlongACosine) {
  TrainingConfig config;
  config.learning_rate = 8;
  config.final_learning_rate = 2;
  config.warmup_tokens = 100;
  config.total_tokens = 500;
  EXPECT_EQ(learning_rate_at(config, 0), 0);
  EXPECT_EQ(learning_rate_at(config, 25), 2);
  EXPECT_EQ(learning_rate_at(config, 100), 8);
  EXPECT_NEAR(learning_rate_at(config, 200), 2 + 3 * (1 + std::numbers::sqrt2 / 2), 1e-12);
  EXPECT_NEAR(learning_rate_at(config, 300), 5, 1e-12);
  EXPECT_NEAR(learning_rate_at(config, 500), 2, 1e-12);
  EXPECT_NEAR(learning_rate_at(config, 600), 2, 1e-12);
  config.warmup_tokens = 0;
  EXPECT_EQ(learning_rate_at(config, 0), 8);
}

TEST(LearningRate, StaysConstantUntilTheDecayTokens) {
  TrainingConfig config;
  config.learning_rate = 8;
  config.final_learning_rate = 2;
  config.warmup_tokens = 100;
  config.total_tokens = 500;
  config.decay_tokens = 100;
  EXPECT_EQ(learning_rate_at(config, 50), 4);
  for (const int64_t tokens : {100, 250, 400}) EXPECT_EQ(learning_rate_at(config, tokens), 8) << tokens;
  EXPECT_EQ(learning_rate_at(config, 450), 5);
  EXPECT_EQ(learning_rate_at(config, 500), 2);
  EXPECT_EQ(learning_rate_at(config, 600), 2);
}

TEST(TrainingConfig, IsTheSameAfterATripThroughJson) {
  const nlohmann::json json = tiny_run();
  EXPECT_EQ(nlohmann::json(json.get<lethe::Run>()), json);
}

TEST(TrainingConfig, NamesWhatIsWrong) {
  const auto message = [](auto change) -> std::string {
    TrainingConfig config = tiny_run().training;
    change(config);
    return refusal_of(config);
  };
  EXPECT_EQ(message([](TrainingConfig&) {}), "no error");
  EXPECT_EQ(message([](TrainingConfig& c) { c.batch_tokens = 100; }),
            "batch_tokens: expected a multiple of context_length 32, found 100");
  EXPECT_EQ(message([](TrainingConfig& c) { c.micro_batch_tokens = 96; }),
            "micro_batch_tokens: expected 0, or a multiple of context_length that divides batch_tokens, found 96");
  EXPECT_NE(message([](TrainingConfig& c) { c.learning_rate = NAN; }), "no error");
  EXPECT_NE(message([](TrainingConfig& c) { c.warmup_tokens = c.total_tokens + 1; }), "no error");
  EXPECT_NE(message([](TrainingConfig& c) { c.clip_norm = 0; }), "no error");
  EXPECT_NE(message([](TrainingConfig& c) { c.repeats = 1.5; }), "no error");
  EXPECT_NE(message([](TrainingConfig& c) { c.decay_tokens = c.total_tokens - c.warmup_tokens + 1; }), "no error");
  EXPECT_EQ(message([](TrainingConfig& c) { c.device = "cuda:1"; }), "no error");
  EXPECT_EQ(message([](TrainingConfig& c) { c.device = "cuda:"; }),
            "device: expected cpu, cuda or cuda:N, found cuda:");
  EXPECT_THROW(nlohmann::json({{"learning_rat", 1}}).get<TrainingConfig>(), std::invalid_argument);
}

TEST(Device, IsRefusedWhereTheMachineHasItNot) {
  EXPECT_EQ(lethe::device_named("cpu"), torch::kCPU);
  const std::string beyond = "cuda:" + std::to_string(torch::cuda::device_count());
  EXPECT_THROW(lethe::device_named(beyond), std::invalid_argument);
}

#ifdef LETHE_CUDA
TEST(Device, IsOfTorchsCudaLibrariesWhichThisProgramLoads) { EXPECT_TRUE(at::globalContext().hasCUDART()); }
#endif

class Training : public TinyDatasetTest {};

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// What may stay: a batch has 4 KiB, the parameters of this model 80 KiB, a checkpoint, at every tenth step, three times as much.
TEST_F(Training, TakesNoMoreMemoryWithItsSteps) {
  constexpr int64_t kWarm = 100, kSteps = 900;
  lethe::Run run = tiny_run();
  run.model.layers = 1;
  run.training.total_tokens = kSteps * run.training.batch_tokens;
  run.training.checkpoint_tokens = 10 * run.training.batch_tokens;
  int64_t warm = 0, end = 0;
  trained(run, dataset, models, [&](const Progress& progress) {
    if (progress.step == kWarm) warm = resident_bytes();
    if (progress.step == kSteps) end = resident_bytes();
  });
  RecordProperty("bytes_of_growth", static_cast<int>(end - warm));
  EXPECT_LT(end - warm, 2 << 20) << "bytes over " << kSteps - kWarm << " steps";
}

TEST_F(Training, IsTheSameModelWhereverItIsTrained) {
  lethe::Run run = tiny_run();
  const std::string name = artefact_name(run, dataset);
  run.training.device = "cuda";
  EXPECT_EQ(artefact_name(run, dataset), name);
}

TEST_F(Training, GoesOnTheGpuAsOnTheCpu) {
  LETHE_NEEDS_TORCH_GPU();
  lethe::Run run = tiny_run();
  Trainer here(run, dataset);
  run.training.device = "cuda";
  Trainer there(run, dataset);
  EXPECT_TRUE(there.model()->device().is_cuda());
  for (int step = 0; step < 8; ++step) EXPECT_NEAR(there.step().loss, here.step().loss, 1e-3) << "step " << step;
}

TEST_F(Training, LeavesTheWeightsAloneInTheFirstStepWhoseRateIsZero) {
  Trainer trainer(tiny_run(), dataset);
  const Tensor before = weights(trainer.model());
  EXPECT_EQ(trainer.step().learning_rate, 0);
  EXPECT_TRUE(weights(trainer.model()).equal(before));
  EXPECT_GT(trainer.step().learning_rate, 0);
  EXPECT_FALSE(weights(trainer.model()).equal(before));
}

TEST_F(Training, StartsAtTheLossOfKnowingNothing) {
  Trainer trainer(tiny_run(), dataset);
  EXPECT_NEAR(trainer.step().loss, std::log(257), 0.05);
}

TEST_F(Training, StepsAlikeWithTheBatchInPieces) {
  lethe::Run run = tiny_run();
  Trainer whole(run, dataset);
  run.training.micro_batch_tokens = 64;
  Trainer pieces(run, dataset);
  run.training.seed = 1;
  Trainer other(run, dataset);
  double difference_of_seeds = 0;
  for (int step = 0; step < 8; ++step) {
    const auto expected = whole.step(), found = pieces.step(), control = other.step();
    EXPECT_NEAR(found.loss, expected.loss, 1e-4);
    EXPECT_NEAR(found.gradient_norm, expected.gradient_norm, 1e-3 * expected.gradient_norm);
    difference_of_seeds += std::abs(control.loss - expected.loss);
  }
  EXPECT_GT(difference_of_seeds, 1e-2);
}

TEST_F(Training, ClipsTheGradientToItsNorm) {
  lethe::Run run = tiny_run();
  run.training.clip_norm = 0.1;
  Trainer trainer(run, dataset);
  EXPECT_GT(trainer.step().gradient_norm, 0.1);
  double squares = 0;
  for (const Tensor& parameter : trainer.model()->parameters())
    squares += parameter.grad().square().sum().item<double>();
  EXPECT_NEAR(std::sqrt(squares), 0.1, 1e-4);
}

TEST_F(Training, LearnsAText) {
  const Artefact artefact = trained(tiny_run(), dataset, models);
  const auto done = nlohmann::json::parse(read_whole(artefact.folder / "done.json"));
  EXPECT_LT(done.at("training_loss"), 3.2);
  EXPECT_LT(done.at("validation_loss"), 3.2);
  EXPECT_EQ(done.at("data"), dataset.content_hash());
  EXPECT_EQ(done.at("seed"), 0);
  EXPECT_TRUE(done.contains("commit") && done.contains("machine") && done.at("versions").contains("torch"));
  EXPECT_GT(done.at("seconds"), 0);

  const auto lines = log_lines(artefact);
  ASSERT_EQ(lines.size(), 30u);
  for (int64_t step = 0; step < 30; ++step) {
    EXPECT_EQ(lines[step].at("step"), step);
    EXPECT_EQ(lines[step].at("tokens"), (step + 1) * 256);
    EXPECT_EQ(lines[step].at("learning_rate"), learning_rate_at(tiny_run().training, step * 256));
  }
}

TEST_F(Training, TellsItsProgress) {
  std::vector<Progress> told;
  trained(tiny_run(), dataset, models, [&](const Progress& progress) {
    if (progress.notice.empty()) told.push_back(progress);
  });
  ASSERT_EQ(told.size(), 30u);
  EXPECT_EQ(told[0].step, 1);
  EXPECT_EQ(told[0].steps, 30);
  EXPECT_GT(told[0].seconds_left, told[29].seconds_left);
  EXPECT_EQ(told[29].seconds_left, 0);
  EXPECT_GT(told[29].tokens_per_second, 0);
  EXPECT_LT(told[29].loss, told[0].loss);
}

TEST_F(Training, FindsWhatIsTrainedAlready) {
  const Artefact first = trained(tiny_run(), dataset, models);
  const auto written = std::filesystem::last_write_time(first.folder / "checkpoint.pt");
  lethe::Run again = tiny_run();
  again.label = "another label";
  again.training.checkpoint_tokens = 0;
  const Artefact second = trained(again, dataset, models, [](const Progress&) { FAIL() << "trained again"; });
  EXPECT_EQ(second.folder, first.folder);
  EXPECT_EQ(std::filesystem::last_write_time(first.folder / "checkpoint.pt"), written);
}

TEST_F(Training, NamesAnArtefactAfterAllThatItDependsOn) {
  const std::string name = artefact_name(tiny_run(), dataset);
  const auto other = [&](auto change) {
    lethe::Run run = tiny_run();
    change(run);
    return artefact_name(run, dataset) != name;
  };
  EXPECT_FALSE(other([](lethe::Run& run) { run.label = "another"; }));
  EXPECT_FALSE(other([](lethe::Run& run) { run.training.checkpoint_tokens = 0; }));
  EXPECT_FALSE(other([](lethe::Run& run) { run.training.corpus = "another place"; }));
  EXPECT_TRUE(other([](lethe::Run& run) { run.model.mixer.only<AttentionConfig>().rope = true; }));
  EXPECT_TRUE(other([](lethe::Run& run) { run.model.mixer.only<AttentionConfig>().log_pruning_tolerance = -10; }));
  EXPECT_TRUE(other([](lethe::Run& run) { run.training.seed = 1; }));
  EXPECT_TRUE(other([](lethe::Run& run) { run.training.learning_rate *= 1 + 1e-15; }));

  std::ofstream(folder.path() / "text" / "0.txt", std::ios::app) << "one more line\n";
  const Dataset longer(prepared_dataset((folder.path() / "text").string(), "bytes", folder.path() / "more"));
  EXPECT_NE(artefact_name(tiny_run(), longer), name);
}

TEST_F(Training, GivesTheSameBitsForTheSameSeed) {
  const auto bits = [&](const char* place, uint64_t seed) {
    lethe::Run run = tiny_run();
    run.training.seed = seed;
    return weights(load_model(trained(run, dataset, folder.path() / place)));
  };
  const Tensor first = bits("first", 3);
  EXPECT_TRUE(bits("second", 3).equal(first));
  EXPECT_FALSE(bits("second", 4).equal(first));
}

TEST_F(Training, GoesOnWhereItWasStoppedAsIfItNeverWas) {
  const Artefact whole = trained(tiny_run(), dataset, folder.path() / "whole");
  struct Stop {};
  const auto stop_at = [&](int64_t step) {
    EXPECT_THROW(trained(tiny_run(), dataset, models,
                         [&](const Progress& progress) {
                           if (progress.step == step) throw Stop();
                         }),
                 Stop);
  };
  stop_at(3);   // before the first checkpoint
  stop_at(13);  // three steps after the second
  int64_t first = 0;
  const Artefact stopped = trained(tiny_run(), dataset, models, [&](const Progress& progress) {
    if (first == 0) first = progress.step;
  });
  EXPECT_EQ(first, 11);
  EXPECT_TRUE(weights(load_model(stopped)).equal(weights(load_model(whole))));
  const auto lines = log_lines(stopped), expected = log_lines(whole);
  ASSERT_EQ(lines.size(), expected.size());
  for (size_t step = 0; step < lines.size(); ++step) {
    for (const char* key : {"step", "tokens", "loss", "gradient_norm"}) {
      EXPECT_EQ(lines[step].at(key), expected[step].at(key));
    }
  }
}

TEST_F(Training, NeverGoesOnFromTheCheckpointOfAnotherRun) {
  const Artefact foreign = trained(tiny_run(), dataset, folder.path() / "foreign");
  lethe::Run run = tiny_run();
  run.training.learning_rate = 1e-3;
  const auto place = models / artefact_name(run, dataset);
  std::filesystem::create_directories(models);
  std::filesystem::copy(foreign.folder, place, std::filesystem::copy_options::recursive);
  const Tensor expected = weights(load_model(trained(run, dataset, folder.path() / "clean")));
  EXPECT_THROW(trained(run, dataset, models), std::runtime_error);
  for (const char* name : {"checkpoint.pt", "checkpoint.previous.pt"}) std::filesystem::remove(place / name);
  EXPECT_TRUE(weights(load_model(trained(run, dataset, models))).equal(expected));
}

TEST_F(Training, SaysAtWhichStepTrainingLeavesTheFiniteNumbers) {
  lethe::Run run = tiny_run();
  run.model = tiny_model(named_architecture("transformer-llama"));
  run.training.learning_rate = 1e30;
  try {
    trained(run, dataset, models);
    FAIL() << "expected an error";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find(": expected a finite number at step"), std::string::npos);
  }
  EXPECT_FALSE(std::filesystem::exists(models / artefact_name(run, dataset) / "done.json"));
}

TEST_F(Training, RefusesDataWithTokensThatTheModelLacks) {
  lethe::Run run = tiny_run();
  run.model.vocabulary = 100;
  EXPECT_THROW(trained(run, dataset, models), std::invalid_argument);
}

}  // namespace
}  // namespace lethe
