#include "experiments/commands/rank_options.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <stdexcept>

#include "experiments/commands/checks.hpp"
#include "experiments/commands/stop_signals.hpp"
#include "experiments/data/run_program.hpp"
#include "experiments/training/launch.hpp"
#include "experiments/training/training.hpp"

namespace lethe {
namespace {

// Without destructors: they would wait for ranks that have ended.
void end_process(const std::string& line) {
  std::string text = line;
  std::ranges::replace(text, '\n', ' ');
  std::cerr << (isatty(STDERR_FILENO) ? "\r\x1b[K" : "") << "lethe: " << text << std::endl;
  std::_Exit(1);
}

// The device of a rank: its own GPU where the run's is "cuda".
torch::Device device_of(const RankPlace& place, const std::string& device) {
  if (place.size == 1 || device == "cpu") return device_named(device);
  if (device != "cuda")
    throw std::invalid_argument("device: expected cpu or cuda for several processes, found " + device);
  return device_named("cuda:" + std::to_string(place.local_rank));
}

}  // namespace

void RankOptions::add_to(CLI::App& command) {
  command.add_option("--gpus", gpus_, "GPUs of this machine that train together, a process each")
      ->check(number_between(1, 1024));
  command.add_option("--processes", processes_, "Processes of this machine that train together")
      ->check(number_between(1, 1024));
}

void RankOptions::run(std::string& device, const std::function<void(World&)>& work) const {
  if (gpus_ > 0 && processes_ > 0 && gpus_ != processes_)
    throw std::invalid_argument("processes: expected one a GPU, " + std::to_string(gpus_) + ", found " +
                                std::to_string(processes_));
  if (gpus_ > 0) device = "cuda";
  const RankPlace place = RankPlace::in([](const char* name) { return std::getenv(name); });
  if (place.size > 1 && wanted() > 0 && wanted() != place.size)
    throw std::invalid_argument("processes: expected the launcher's " + std::to_string(place.size) + ", found " +
                                std::to_string(wanted()));
  if (place.size == 1 && wanted() > 1) {
    if (gpus_ == 0) expect_cores(wanted());
    for (RankPlace one{.size = wanted()}; one.local_rank < wanted(); ++one.local_rank) device_of(one, device);
    const StopSignals signals;
    return launch(own_arguments(), wanted(), StopSignals::check);
  }
  World world(place, device_of(place, device), {.end = end_process});
  if (world.size() == 1) return work(world);
  try {
    work(world);
  } catch (const Interrupted&) {
    if (world.is_first()) throw;  // all have stopped in good order
  } catch (const std::exception& error) {
    world.fail(error);
  }
}

}  // namespace lethe
