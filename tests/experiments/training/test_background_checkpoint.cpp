// Checkpoints are written while the training goes on.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "tests/experiments/tiny.hpp"

namespace lethe {
namespace {

using namespace std::chrono_literals;

TEST_F(TinyDatasetTest, StepsGoOnWhileACheckpointIsWrittenAndTheNextWaits) {
  lethe::Run run = tiny_run();
  run.training.checkpoint_tokens = 5 * run.training.batch_tokens;
  const auto folder = models / artefact_name(run, dataset);
  std::filesystem::create_directories(folder);
  // A disk that takes nothing before it is read: a pipe in the place of the next checkpoint.
  const auto next = folder / "checkpoint.next.pt";
  ASSERT_EQ(mkfifo(next.c_str(), 0600), 0);
  const int disk = open(next.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(disk, 0);
  fcntl(disk, F_SETPIPE_SZ, 4096);

  std::atomic<int64_t> step = 0, step_while_writing = 0;
  std::atomic<bool> ended = false;
  std::jthread reader([&] {
    const auto limit = std::chrono::steady_clock::now() + 60s;
    while (step < 9 && std::chrono::steady_clock::now() < limit) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(200ms);
    step_while_writing = step.load();
    std::array<char, 65536> bytes;
    while (!ended)
      if (read(disk, bytes.data(), bytes.size()) <= 0) std::this_thread::sleep_for(1ms);
  });
  trained(run, dataset, models, [&](const Progress& progress) { step = progress.step; });
  ended = true;
  reader.join();
  close(disk);
  EXPECT_EQ(step_while_writing, 9) << "the second checkpoint is due after step 10, before its report";
  EXPECT_TRUE(std::filesystem::is_regular_file(folder / "checkpoint.pt"));
}

}  // namespace
}  // namespace lethe
