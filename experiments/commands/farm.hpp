#pragma once
// Several trainings at once, a process each.

#include <functional>
#include <string>
#include <vector>

#include "experiments/claims/job.hpp"
#include "experiments/commands/deadline.hpp"

namespace lethe {

/// The runs of a farm by the ends of their processes.
struct Harvest {
  std::vector<std::string> continues;  ///< stopped by the deadline, or not begun before it
  std::vector<std::string> failed;     ///< the process has written the reason to standard error
};

/// Works on the runs in their order, a process for each and one at a time in each place; the source of a conversion is finished before
/// the conversion begins. A failed run leaves the others going.
///
/// reads   places: e.g. the GPUs; command: the arguments of a run's process, which ends by itself at the deadline; watch: called twenty
///         times a second with the runs in progress; its exceptions end all processes, each after its checkpoint
Harvest farm(std::vector<AskedRun> runs, const std::vector<std::string>& places, const Deadline& deadline,
             const std::function<std::vector<std::string>(const AskedRun& run, const std::string& place)>& command,
             const std::function<void(const std::vector<AskedRun>& in_progress)>& watch);

/// The CUDA devices that this process may use, as CUDA_VISIBLE_DEVICES names them.
///
/// reads   count: of the first of them
/// throws  std::invalid_argument where there are fewer
std::vector<std::string> visible_gpus(int count);

}  // namespace lethe
