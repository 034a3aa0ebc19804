#pragma once
// The options of a command that several processes can run together.

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "experiments/training/world.hpp"

namespace lethe {

/// One process, several that this one starts, or the rank of a launcher: torchrun --no-python, srun.
class RankOptions {
 public:
  /// Adds --gpus and --processes.
  void add_to(CLI::App& command);

  /// Calls `work` in the world of this process; or starts the processes, which call it, and waits for them. An error of several processes ends this
  /// one with one line.
  ///
  /// reads   device: of the run; --gpus makes it "cuda"
  /// throws  std::invalid_argument for options that contradict each other, the launcher or the machine; as `work` in a single process
  void run(std::string& device, const std::function<void(World&)>& work) const;

 private:
  int wanted() const { return gpus_ > 0 ? gpus_ : processes_; }

  int gpus_ = 0, processes_ = 0;
};

}  // namespace lethe
