#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <torch/nn/utils/convert_parameters.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "tests/experiments/tiny.hpp"

namespace lethe {
namespace {

namespace fs = std::filesystem;

class KilledTraining : public TinyDatasetTest {
 protected:
  void SetUp() override {
    run.training.total_tokens = 256 * 60;
    run.training.checkpoint_tokens = 256 * 7;
    std::ofstream(folder.path() / "run.json") << nlohmann::json(run);
  }

  // Starts a training in another process.
  pid_t begin(const fs::path& root) {
    std::array<std::string, 4> texts{LETHE_TRAIN_ONCE, (folder.path() / "run.json").string(), dataset_folder.string(),
                                     root.string()};
    std::array<char*, 5> arguments{texts[0].data(), texts[1].data(), texts[2].data(), texts[3].data(), nullptr};
    pid_t child = 0;
    EXPECT_EQ(posix_spawn(&child, arguments[0], nullptr, nullptr, arguments.data(), environ), 0);
    return child;
  }

  static int end(pid_t child) {
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return status;
  }

  // The bytes of log.jsonl without its times, and whether its steps are 0, 1, 2, …
  std::string log(const fs::path& root) {
    std::ifstream file(root / artefact_name(run, dataset) / "log.jsonl");
    std::string text;
    int64_t step = 0;
    for (std::string line; std::getline(file, line); ++step) {
      auto json = nlohmann::json::parse(line);
      EXPECT_EQ(json.at("step"), step);
      json.erase("seconds");
      json.erase("tokens_per_second");
      text += json.dump() + "\n";
    }
    EXPECT_EQ(step, run.training.steps());
    return text;
  }

  torch::Tensor weights(const fs::path& root) {
    LanguageModel model = load_model({root / artefact_name(run, dataset), run});
    return torch::nn::utils::parameters_to_vector(model->parameters());
  }

  // The number of lines of a log that is being written.
  int64_t lines(const fs::path& root) {
    std::ifstream file(root / artefact_name(run, dataset) / "log.jsonl");
    int64_t count = 0;
    for (std::string line; std::getline(file, line);) ++count;
    return count;
  }

  lethe::Run run = tiny_run();
};

TEST_F(KilledTraining, EndsWithTheBitsOfOneThatWasNot) {
  const fs::path whole = folder.path() / "whole", killed = folder.path() / "killed";
  ASSERT_EQ(end(begin(whole)), 0);
  for (const int64_t step : {3, 17, 40}) {
    const pid_t child = begin(killed);
    while (lines(killed) < step && waitpid(child, nullptr, WNOHANG) == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ASSERT_EQ(kill(child, SIGKILL), 0);
    ASSERT_TRUE(WIFSIGNALED(end(child))) << "the training was over before it could be killed";
    ASSERT_FALSE(fs::exists(killed / artefact_name(run, dataset) / "done.json"));
  }
  ASSERT_EQ(end(begin(killed)), 0);
  EXPECT_TRUE(weights(killed).equal(weights(whole)));
  EXPECT_EQ(log(killed), log(whole));
}

// Returns this long after the draft of a checkpoint has appeared, or after the end of the process.
void sleep_until_a_checkpoint_is_written(const fs::path& files, pid_t child, std::chrono::microseconds after) {
  siginfo_t ended{};
  while (!fs::exists(files / "checkpoint.next.pt.new") && ended.si_pid == 0)
    waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOHANG | WNOWAIT);
  std::this_thread::sleep_for(after);
}

// Most of the time of these trainings goes into checkpoints. A kill comes at any moment: while Torch starts, while a checkpoint is
// read or written, between the renames.
TEST_F(KilledTraining, EndsWithTheSameBitsAtAnyMomentOfTheKill) {
  const int64_t kills = number_from("LETHE_KILLS", 5);
  run.training.checkpoint_tokens = 256;
  std::ofstream(folder.path() / "run.json") << nlohmann::json(run);
  const fs::path whole = folder.path() / "whole";
  const auto start = std::chrono::steady_clock::now();
  ASSERT_EQ(end(begin(whole)), 0);
  const std::chrono::duration<double> duration = std::chrono::steady_clock::now() - start;
  std::mt19937 random(static_cast<unsigned>(kills));
  int64_t done = 0, writing = 0;
  for (int round = 0; done < kills; ++round) {
    const fs::path killed = folder.path() / std::to_string(round), files = killed / artefact_name(run, dataset);
    while (!fs::exists(files / "done.json")) {
      const pid_t child = begin(killed);
      if (done < kills) {
        if (random() % 2 == 0) std::this_thread::sleep_for(duration * std::uniform_real_distribution(0.0, 1.0)(random));
        else sleep_until_a_checkpoint_is_written(files, child, std::chrono::microseconds(random() % 3000));
        kill(child, SIGKILL);
        if (!WIFSIGNALED(end(child))) continue;  // it was over before
        ++done;
        writing += fs::exists(files / "checkpoint.next.pt") || fs::exists(files / "checkpoint.next.pt.new");
      } else {
        ASSERT_EQ(end(child), 0);
      }
    }
    ASSERT_TRUE(weights(killed).equal(weights(whole))) << "round " << round;
    ASSERT_EQ(log(killed), log(whole)) << "round " << round;
    fs::remove_all(killed);
  }
  RecordProperty("kills", static_cast<int>(done));
  RecordProperty("kills_while_a_checkpoint_was_written", static_cast<int>(writing));
  std::cout << done << " kills, " << writing << " of them while a checkpoint was written\n";
}

TEST_F(KilledTraining, IsDoneOnceWhereTwoProcessesWantIt) {
  const fs::path alone = folder.path() / "alone", shared = folder.path() / "shared";
  const std::array children{begin(alone), begin(shared), begin(shared)};
  for (const pid_t child : children) EXPECT_EQ(end(child), 0);
  EXPECT_TRUE(weights(shared).equal(weights(alone)));
  EXPECT_EQ(log(shared), log(alone));
}

}  // namespace
}  // namespace lethe
