#pragma once
// The micro-batches of a training, cut ahead of their use.

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "experiments/training/training.hpp"

namespace lethe {

/// The equal part of every batch's sequences that one of several ranks computes: consecutive ones, the first rank's first.
struct BatchShare {
  int64_t rank = 0, ranks = 1;

  /// Sequences of a step, and of each micro-batch: those of micro_batch_tokens, or all of the step's where they are fewer.
  ///
  /// throws  std::invalid_argument "name: expected …, found …" where the ranks can't share a batch equally
  int64_t sequences(const TrainingConfig& config) const;
  int64_t micro_sequences(const TrainingConfig& config) const;
};

/// The micro-batches of step first_step, then those of the next step, and so on without end: Dataset::training_batch of their positions, so that
/// their order and contents depend on nothing else. A thread cuts at most two ahead; for a GPU it cuts into pinned memory, from which next() starts a
/// copy without waiting for it.
///
/// reads    share: the part of each step's sequences; dataset, which outlives this object; of the configuration: batch_tokens, micro_batch_tokens,
///          context_length, seed, repeats, packs_documents, after check()
class Batches {
 public:
  Batches(const Dataset& dataset, const TrainingConfig& config, int64_t first_step, torch::Device device,
          const BatchShare& share = {});
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
  const double repeats_;
  const bool packs_;
  const torch::Device device_;
  const int64_t of_step_, of_others_;  // sequences of a step that are the share's, and that are not
  int64_t first_;                      // sequence of the next micro-batch that is cut
  int64_t cut_ = 0;                    // sequences of its step before it

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Dataset::Batch> ready_;
  std::exception_ptr failure_;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace lethe
