#pragma once
// The micro-batches of a training, cut ahead of their use.

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "experiments/training/training.hpp"

namespace lethe {

/// The micro-batches of step first_step, then those of the next step, and so on without end: Dataset::training_batch of their positions, so that their
/// order and contents depend on nothing else. A thread cuts at most two ahead; for a GPU it cuts into pinned memory, from which next() starts a copy
/// without waiting for it.
///
/// reads    dataset, which outlives this object; of the configuration: batch_tokens, micro_batch_tokens, context_length, seed, after check()
class Batches {
 public:
  Batches(const Dataset& dataset, const TrainingConfig& config, int64_t first_step, torch::Device device);
  Batches(const Batches&) = delete;
  Batches& operator=(const Batches&) = delete;
  ~Batches() = default;  ///< joins the thread, which ends at the latest when its batch is cut

  /// The next micro-batch, on the device. Called from one thread at a time.
  ///
  /// throws  the thread's exception, once the batches before it are taken, and at every later call
  Dataset::Batch next();

 private:
  void work(const std::stop_token& stop);

  const Dataset& dataset_;
  const int64_t length_, sequences_;  // of a micro-batch
  const uint64_t seed_;
  const torch::Device device_;
  int64_t first_;  // sequence of the next micro-batch that is cut

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Dataset::Batch> ready_;
  std::exception_ptr failure_;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace lethe
