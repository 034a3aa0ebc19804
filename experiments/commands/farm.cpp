#include "experiments/commands/farm.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <torch/cuda.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "experiments/data/run_program.hpp"

namespace lethe {
namespace {

struct Worker {
  AskedRun run;
  std::string place;
};

/// The processes in progress. The destructor sends them SIGTERM and waits for them.
class Workers {
 public:
  Workers() = default;
  ~Workers() {
    for (const auto& [process, _] : in_progress_) kill(process, SIGTERM);
    for (const auto& [process, _] : in_progress_)
      while (waitpid(process, nullptr, 0) < 0 && errno == EINTR) {
      }
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  void start(const std::vector<std::string>& arguments, Worker worker) {
    in_progress_.emplace(start_program(arguments), std::move(worker));
  }

  std::vector<AskedRun> runs() const {
    std::vector<AskedRun> runs;
    for (const auto& [_, worker] : in_progress_) runs.push_back(worker.run);
    return runs;
  }

  /// One that has ended, and its exit status; 128 + the signal where a signal ended it.
  std::optional<std::pair<Worker, int>> ended() {
    for (auto& [process, worker] : in_progress_) {
      int status = 0;
      if (waitpid(process, &status, WNOHANG) != process) continue;
      std::pair found{std::move(worker), WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status)};
      in_progress_.erase(process);
      return found;
    }
    return std::nullopt;
  }

 private:
  std::map<pid_t, Worker> in_progress_;
};

/// The first of the waiting runs whose source neither waits nor is in progress.
std::vector<AskedRun>::iterator next_ready(std::vector<AskedRun>& waiting, const std::vector<AskedRun>& in_progress) {
  return std::ranges::find_if(waiting, [&](const AskedRun& run) {
    return std::ranges::count(waiting, run.source, &AskedRun::name) == 0 &&
           std::ranges::count(in_progress, run.source, &AskedRun::name) == 0;
  });
}

}  // namespace

Harvest farm(std::vector<AskedRun> waiting, const std::vector<std::string>& places, const Deadline& deadline,
             const std::function<std::vector<std::string>(const AskedRun&, const std::string&)>& command,
             const std::function<void(const std::vector<AskedRun>&)>& watch) {
  Harvest harvest;
  Workers workers;
  std::vector<std::string> free(places.rbegin(), places.rend());
  while (true) {
    if (deadline.left() == 0) {
      for (const AskedRun& run : waiting) harvest.continues.push_back(run.what);
      waiting.clear();
    }
    for (auto next = next_ready(waiting, workers.runs()); next != waiting.end() && !free.empty();
         next = next_ready(waiting, workers.runs())) {
      workers.start(command(*next, free.back()), {*next, free.back()});
      free.pop_back();
      waiting.erase(next);
    }
    if (workers.runs().empty()) return harvest;
    watch(workers.runs());
    while (const auto ended = workers.ended()) {
      const auto& [worker, status] = *ended;
      free.push_back(worker.place);
      if (status == kContinues) harvest.continues.push_back(worker.run.what);
      else if (status != 0) harvest.failed.push_back(worker.run.what);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

std::vector<std::string> visible_gpus(int count) {
  const auto there = static_cast<int>(torch::cuda::device_count());
  if (count > there)
    throw std::invalid_argument("--gpus: expected at most the " + std::to_string(there) +
                                " CUDA devices that this build and this machine have, found " + std::to_string(count));
  std::vector<std::string> names;
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) {
    std::istringstream list(visible);
    for (std::string name; std::getline(list, name, ',');) names.push_back(name);
  }
  for (auto number = std::ssize(names); number < count; ++number) names.push_back(std::to_string(number));
  names.resize(static_cast<size_t>(count));
  return names;
}

}  // namespace lethe
