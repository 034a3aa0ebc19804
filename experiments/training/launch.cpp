#include "experiments/training/launch.hpp"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "experiments/data/run_program.hpp"

extern char** environ;

namespace lethe {
namespace {

constexpr std::chrono::milliseconds kPoll{10};

pid_t start(const std::vector<std::string>& arguments) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  // A process group of its own: a terminal's signals reach the launcher alone.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pid_t child = 0;
  const int error = posix_spawnp(&child, argv[0], nullptr, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  if (error) throw std::runtime_error(arguments[0] + ": expected a program, found " + std::strerror(error));
  return child;
}

// The processes by their number; those that still run are ended with the object.
class Children {
 public:
  ~Children() {
    for (const auto& [child, rank] : ranks_) kill(child, SIGKILL);
    while (!ranks_.empty())
      if (!ended()) std::this_thread::sleep_for(kPoll);
  }
  void add(pid_t child, int rank) { ranks_[child] = rank; }
  bool empty() const { return ranks_.empty(); }
  void stop_first() const {
    for (const auto& [child, rank] : ranks_)
      if (rank == 0) kill(child, SIGTERM);
  }

  // One that has ended, if there is one: its rank and status.
  std::optional<std::pair<int, int>> ended() {
    for (const auto& [child, rank] : ranks_) {
      int status = 0;
      const pid_t found = waitpid(child, &status, WNOHANG);
      if (found == 0 || (found < 0 && errno == EINTR)) continue;
      const std::pair result{rank, status};
      ranks_.erase(child);
      return result;
    }
    return std::nullopt;
  }

 private:
  std::map<pid_t, int> ranks_;
};

}  // namespace

void launch(const std::vector<std::string>& arguments, int processes, const std::function<void()>& check) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  const c10d::TCPStore store("127.0.0.1", options);

  std::vector<std::string> variables{"env",
                                     "WORLD_SIZE=" + std::to_string(processes),
                                     "MASTER_ADDR=127.0.0.1",
                                     "MASTER_PORT=" + std::to_string(store.getPort()),
                                     "TORCHELASTIC_USE_AGENT_STORE=True",
                                     "TORCH_CPP_LOG_LEVEL=ERROR"};
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  if (!std::getenv("OMP_NUM_THREADS"))
    variables.push_back("OMP_NUM_THREADS=" + std::to_string(std::max(1, cores / processes)));
  Children children;
  for (int rank = 0; rank < processes; ++rank) {
    std::vector<std::string> call = variables;
    call.push_back("RANK=" + std::to_string(rank));
    call.push_back("LOCAL_RANK=" + std::to_string(rank));
    call.insert(call.end(), arguments.begin(), arguments.end());
    children.add(start(call), rank);
  }
  for (bool is_stopping = false; !children.empty();) {
    try {
      if (check && !is_stopping) check();
    } catch (const std::exception&) {
      is_stopping = true;
      children.stop_first();
    }
    const auto ended = children.ended();
    if (!ended) {
      std::this_thread::sleep_for(kPoll);
      continue;
    }
    const auto [rank, status] = *ended;
    const std::string name = "rank " + std::to_string(rank);
    if (WIFSIGNALED(status))
      throw std::runtime_error(name + ": ended by signal " + std::to_string(WTERMSIG(status)) + " (" +
                               strsignal(WTERMSIG(status)) + ")");
    if (WEXITSTATUS(status) != 0) throw ProgramFailed(name, WEXITSTATUS(status));
  }
}

}  // namespace lethe
