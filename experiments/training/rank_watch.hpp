#pragma once
// Finds the rank that failed, died or stopped: a collective operation's own error does not name it. Part of world.cpp.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "experiments/training/world.hpp"

namespace lethe {

/// Every rank publishes a counter of its life and of its operations twice a second. The first failure is posted, and a thread of every rank looks for
/// one: a process that waits for a GPU cannot.
class RankWatch {
 public:
  /// Waits until all ranks are there.
  ///
  /// reads   store: a client of its own, for the watch alone; device: of this rank, whose operations the watch asks for
  /// throws  std::runtime_error naming a rank that is not there in time
  RankWatch(c10::intrusive_ptr<c10d::Store> store, const RankPlace& place, torch::Device device, World::Watch watch);

  /// Publishes that this rank leaves; where it serves the store, waits for the others.
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  /// Counts an operation, and watches its time unless it is over before.
  void started(const c10::intrusive_ptr<c10d::Work>& work);
  void ended(const c10::intrusive_ptr<c10d::Work>& work);

  /// Posts a failure of this rank, or finds the lost rank after a failure of an operation; ends the process with the failure posted first.
  [[noreturn]] void fail(const std::string& cause);
  [[noreturn]] void find_lost(const std::string& symptom);

 private:
  using Clock = std::chrono::steady_clock;
  struct Life {
    std::string status;  // "<beats> <operations>", or "left"
    Clock::time_point changed;
  };

  std::string key(int rank) const { return "rank/" + std::to_string(rank); }
  void publish();
  void refresh();
  void wait_for_all();
  void run();
  void look();
  bool is_overdue();
  std::string posted();
  std::string lost(const std::string& symptom);
  [[noreturn]] void end(std::string line);
  [[noreturn]] void end_without_store();

  c10::intrusive_ptr<c10d::Store> store_;
  RankPlace place_;
  World::Watch watch_;
  std::vector<Life> lives_;
  std::atomic<int64_t> beats_ = 0, operations_ = 0;
  std::atomic<bool> is_ending_ = false;

  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  bool is_leaving_ = false;
  c10::intrusive_ptr<c10d::Work> latest_;
  Clock::time_point latest_start_;
  std::thread thread_;
};

}  // namespace lethe
