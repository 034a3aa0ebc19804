#include "experiments/training/batches.hpp"

#include <c10/core/DeviceGuard.h>

#include <utility>

namespace lethe {
namespace {

constexpr size_t kAhead = 2;

int64_t micro_batch_tokens(const TrainingConfig& config) {
  return config.micro_batch_tokens > 0 ? config.micro_batch_tokens : config.batch_tokens;
}

}  // namespace

// A step's sequences follow the previous step's, so the micro-batches of all steps are one sequence of equal pieces.
Batches::Batches(const Dataset& dataset, const TrainingConfig& config, int64_t first_step, torch::Device device)
    : dataset_(dataset), length_(config.context_length), sequences_(micro_batch_tokens(config) / config.context_length),
      seed_(config.seed), device_(device), first_(first_step * (config.batch_tokens / config.context_length)),
      thread_([this](const std::stop_token& stop) { work(stop); }) {}

void Batches::work(const std::stop_token& stop) {
  try {
    const c10::DeviceGuard guard(device_);  // pinned memory belongs to the context of a device
    while (true) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, stop, [this] { return ready_.size() < kAhead; });
        if (stop.stop_requested()) return;
      }
      Dataset::Batch batch = dataset_.training_batch(first_, sequences_, length_, seed_);
      first_ += sequences_;
      if (device_.is_cuda()) batch = {batch.tokens.pin_memory(), batch.labels.pin_memory()};
      const std::scoped_lock lock(mutex_);
      ready_.push_back(std::move(batch));
      changed_.notify_all();
    }
  } catch (...) {
    const std::scoped_lock lock(mutex_);
    failure_ = std::current_exception();
    changed_.notify_all();
  }
}

Dataset::Batch Batches::next() {
  Dataset::Batch batch;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !ready_.empty() || failure_; });
    if (ready_.empty()) std::rethrow_exception(failure_);
    batch = std::move(ready_.front());
    ready_.pop_front();
    changed_.notify_all();
  }
  return {batch.tokens.to(device_, /*non_blocking=*/true), batch.labels.to(device_, /*non_blocking=*/true)};
}

}  // namespace lethe
