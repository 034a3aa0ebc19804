#pragma once
// The processes that train one model together.

#include <torch/types.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

namespace lethe {

/// A collective operation that has been started.
class Pending {
 public:
  Pending() = default;
  explicit Pending(std::function<void()> wait) : wait_(std::move(wait)) {}

  /// Orders all later work after the operation: on CPUs it returns at the operation's end, on CUDA the current stream waits.
  ///
  /// throws  LostRank
  void wait() const {
    if (wait_) wait_();
  }

 private:
  std::function<void()> wait_;
};

/// A collective operation failed: the cause is usually another rank's.
struct LostRank : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A process's place among the ranks, and the address of their store.
struct RankPlace {
  int rank = 0, size = 1;
  int local_rank = 0;  ///< among the ranks of its machine: the number of its GPU
  std::string host = "127.0.0.1";
  uint16_t port = 0;
  bool has_launcher_store = false;  ///< the launcher serves the store; otherwise rank 0 does
  std::string attempt = "0";        ///< of a launcher that starts all ranks anew after a failure

  /// The place that torchrun, lethe train --processes (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_USE_AGENT_STORE) or srun
  /// (SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, and MASTER_ADDR where there are several machines) gives a process; else the only rank's.
  ///
  /// reads   variable: the value of an environment variable, or null
  /// throws  std::invalid_argument "NAME: expected …, found …"
  static RankPlace in(const std::function<const char*(const char*)>& variable);
};

/// The ranks of one training, their collective operations, and a watch over them: c10d's ProcessGroupNCCL on CUDA, ProcessGroupGloo on CPUs. A single
/// process has no store, no backend and no cost.
///
/// Every rank calls the collective operations in the same order. A rank that fails, dies or stops ends all: each reports that rank and the cause.
class World {
 public:
  struct Watch {
    /// Ends this process with one line, "rank R: cause"; does not return. Called on any thread.
    std::function<void(const std::string& line)> end;
    std::chrono::milliseconds time_out =
        std::chrono::minutes(10);  ///< for an operation that some ranks have not joined
  };

  /// A single process.
  World();

  /// Joins the ranks of `place`. A GPU becomes the current device: what is on "cuda" is on the rank's own.
  ///
  /// reads   device: of this rank, cpu or cuda:N
  /// throws  std::invalid_argument where this build has no backend for the device; std::runtime_error where a rank does not join in time
  World(const RankPlace& place, torch::Device device, const Watch& watch);

  /// Leaves the ranks; the rank that serves the store waits for the others.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// The world of a process on its own.
  static World& alone();

  int rank() const;
  int size() const;
  bool is_first() const { return rank() == 0; }

  /// values ← the sum of all ranks' values.
  Pending sum(const torch::Tensor& values);
  /// part ← the rank's 1/size of the sum of all ranks' values. part may be that place in values.
  Pending reduce_scatter(const torch::Tensor& part, const torch::Tensor& values);
  /// values ← all ranks' parts, one after the other. part may be its place in values.
  Pending all_gather(const torch::Tensor& values, const torch::Tensor& part);
  /// values ← rank 0's values.
  Pending broadcast(const torch::Tensor& values);

  /// Rank 0's number. The other ranks wait for it, without a time-out: rank 0 may prepare data, or wait for a lock.
  int64_t from_first(int64_t value = 0);

  /// Ends all ranks after an error of this one, by Watch::end; does not return. For a LostRank it finds the rank that was lost.
  ///
  /// reads  a world of several ranks
  [[noreturn]] void fail(const std::exception& error);

 private:
  struct State;
  std::unique_ptr<State> state_;
  int64_t numbers_ = 0;  // that rank 0 has sent
};

}  // namespace lethe
