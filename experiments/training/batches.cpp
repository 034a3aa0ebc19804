#include "experiments/training/batches.hpp"

#include <c10/core/DeviceGuard.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace lethe {
namespace {

constexpr size_t kAhead = 2;

}  // namespace

int64_t BatchShare::sequences(const TrainingConfig& config) const {
  const int64_t all = config.batch_tokens / config.context_length;
  if (all % ranks != 0)
    throw std::invalid_argument("processes: expected a number that divides the " + std::to_string(all) +
                                " sequences of a batch, found " + std::to_string(ranks));
  return all / ranks;
}

int64_t BatchShare::micro_sequences(const TrainingConfig& config) const {
  const int64_t own = sequences(config), micro = config.micro_batch_tokens / config.context_length;
  if (micro == 0 || micro >= own) return own;
  if (own % micro != 0)
    throw std::invalid_argument("micro_batch_tokens: expected a number that divides a process's " +
                                std::to_string(own * config.context_length) + " tokens of a batch, found " +
                                std::to_string(config.micro_batch_tokens));
  return micro;
}

Batches::Batches(const Dataset& dataset, const TrainingConfig& config, int64_t first_step, torch::Device device,
                 const BatchShare& share)
    : dataset_(dataset), length_(config.context_length), sequences_(share.micro_sequences(config)), seed_(config.seed),
      repeats_(config.repeats), packs_(config.packs_documents), device_(device), of_step_(share.sequences(config)),
      of_others_((share.ranks - 1) * of_step_), first_((first_step * share.ranks + share.rank) * of_step_),
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
      Dataset::Batch batch = dataset_.training_batch(first_, sequences_, length_, seed_, repeats_);
      if (packs_) batch = dataset_.packed(std::move(batch));
      first_ += sequences_;
      cut_ += sequences_;
      if (cut_ == of_step_) first_ += of_others_, cut_ = 0;
      if (device_.is_cuda())
        for (torch::Tensor* tensor : {&batch.tokens, &batch.labels, &batch.cu_seqlens})
          if (tensor->defined()) *tensor = tensor->pin_memory();
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
  for (torch::Tensor* tensor : {&batch.tokens, &batch.labels, &batch.cu_seqlens})
    if (tensor->defined()) *tensor = tensor->to(device_, /*non_blocking=*/true);
  return batch;
}

}  // namespace lethe
