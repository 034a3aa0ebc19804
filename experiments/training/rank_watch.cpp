#include "experiments/training/rank_watch.hpp"

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <sstream>
#include <utility>

namespace lethe {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kBeat{500};
constexpr milliseconds kSilence{5000};       // of a rank, once an operation has failed: then it is dead
constexpr milliseconds kLongSilence{60000};  // of a rank while nothing has failed
constexpr milliseconds kToRead{2000};        // the others' time to read a failure before the store ends with rank 0
constexpr milliseconds kForLauncher{
    3000};  // a launcher's time to end the ranks that did not fail: one line instead of many
constexpr milliseconds kToLeave{30000};
constexpr const char* kFailure = "failure";
constexpr const char* kLeft = "left";

std::string name_of(int rank) { return "rank " + std::to_string(rank); }

int64_t operations_in(const std::string& status) {
  std::istringstream text(status);
  int64_t beats = 0, operations = 0;
  text >> beats >> operations;
  return operations;
}

}  // namespace

RankWatch::RankWatch(c10::intrusive_ptr<c10d::Store> store, const RankPlace& place, torch::Device device,
                     World::Watch watch)
    : store_(std::move(store)), place_(place), watch_(std::move(watch)),
      lives_(static_cast<size_t>(place.size), Life{"", Clock::now()}) {
  publish();
  wait_for_all();
  refresh();
  thread_ = std::thread([this, device] {
    const c10::DeviceGuard guard(device);  // or it would take up memory of the first GPU
    run();
  });
}

RankWatch::~RankWatch() {
  {
    const std::lock_guard lock(mutex_);
    is_leaving_ = true;
    latest_.reset();
  }
  changed_.notify_all();
  thread_.join();
  try {
    store_->set(key(place_.rank), kLeft);
    if (place_.rank > 0 || place_.has_launcher_store) return;
    const auto start = Clock::now();
    const auto has_left = [](const Life& life) { return life.status == kLeft; };
    for (refresh(); !std::ranges::all_of(lives_, has_left) && Clock::now() - start < kToLeave; refresh())
      std::this_thread::sleep_for(milliseconds(20));
  } catch (const std::exception&) {  // the store has ended, and no rank waits
  }
}

void RankWatch::wait_for_all() {
  const auto start = Clock::now();
  for (int rank = 0; rank < place_.size; ++rank)
    while (!store_->check({key(rank)})) {
      if (Clock::now() - start > watch_.time_out)
        throw std::runtime_error(name_of(rank) + ": expected to join within " +
                                 std::to_string(watch_.time_out.count() / 1000) + " s, found no sign of it");
      std::this_thread::sleep_for(milliseconds(20));
    }
}

void RankWatch::publish() {
  store_->set(key(place_.rank), std::to_string(++beats_) + " " + std::to_string(operations_));
}

void RankWatch::refresh() {
  for (int rank = 0; rank < place_.size; ++rank) {
    Life& life = lives_[static_cast<size_t>(rank)];
    std::string status = store_->get_to_str(key(rank));
    if (status == life.status) continue;
    life = {std::move(status), Clock::now()};
  }
}

void RankWatch::started(const c10::intrusive_ptr<c10d::Work>& work) {
  const std::lock_guard lock(mutex_);
  ++operations_;
  latest_ = work;
  latest_start_ = Clock::now();
}

void RankWatch::ended(const c10::intrusive_ptr<c10d::Work>& work) {
  const std::lock_guard lock(mutex_);
  if (latest_ == work) latest_.reset();
}

// Operations end in their order: where the latest is over, all are.
bool RankWatch::is_overdue() {
  const std::lock_guard lock(mutex_);
  if (latest_ && latest_->isCompleted()) latest_.reset();
  return latest_ && Clock::now() - latest_start_ > watch_.time_out;
}

void RankWatch::run() {
  try {
    for (std::unique_lock lock(mutex_); !changed_.wait_for(lock, kBeat, [this] { return is_leaving_; }); lock.lock()) {
      lock.unlock();
      look();
    }
  } catch (const std::exception&) {
    end_without_store();
  }
}

void RankWatch::look() {
  publish();
  if (std::string line = posted(); !line.empty()) end(std::move(line));
  if (is_overdue()) find_lost("an operation took more than " + std::to_string(watch_.time_out.count() / 1000) + " s");
  if (place_.rank > 0) return;
  refresh();
  for (int rank = 1; rank < place_.size; ++rank) {
    const Life& life = lives_[static_cast<size_t>(rank)];
    if (life.status != kLeft && Clock::now() - life.changed > kLongSilence)
      end(name_of(rank) + ": no sign of life for " + std::to_string(kLongSilence.count() / 1000) + " s");
  }
}

std::string RankWatch::posted() { return store_->check({kFailure}) ? store_->get_to_str(kFailure) : ""; }

void RankWatch::fail(const std::string& cause) {
  try {
    end(name_of(place_.rank) + ": " + cause);
  } catch (const std::exception&) {
    end_without_store();
  }
}

void RankWatch::find_lost(const std::string& symptom) {
  try {
    end(lost(symptom));
  } catch (const std::exception&) {
    end_without_store();
  }
}

// The rank that has posted a failure, or is silent, or has joined the fewest common operations.
std::string RankWatch::lost(const std::string& symptom) {
  std::vector<std::string> before;
  for (int rank = 0; rank < place_.size; ++rank) before.push_back(store_->get_to_str(key(rank)));
  for (const auto start = Clock::now(); Clock::now() - start < kSilence; std::this_thread::sleep_for(kBeat)) {
    if (std::string line = posted(); !line.empty()) return line;
    publish();
  }
  int behind = place_.rank;
  int64_t fewest = operations_;
  for (int rank = 0; rank < place_.size; ++rank) {
    const std::string status = store_->get_to_str(key(rank));
    if (status == kLeft || rank == place_.rank) continue;
    if (status == before[static_cast<size_t>(rank)])
      return name_of(rank) + ": died (no sign of life for " + std::to_string(kSilence.count() / 1000) + " s)";
    if (operations_in(status) < fewest) fewest = operations_in(status), behind = rank;
  }
  if (behind == place_.rank) return name_of(behind) + ": " + symptom;
  return name_of(behind) + ": expected to join operation " + std::to_string(fewest + 1) + ", found it busy (" +
         symptom + ")";
}

void RankWatch::end(std::string line) {
  const std::string first = store_->compareSet(kFailure, "", line);
  if (is_ending_.exchange(true))
    std::this_thread::sleep_for(std::chrono::hours(24));  // the other thread ends the process
  const bool is_ours = first.starts_with(name_of(place_.rank) + ":");
  const bool serves = place_.rank == 0 && !place_.has_launcher_store;
  if (!is_ours) std::this_thread::sleep_for(kForLauncher);
  else if (serves) std::this_thread::sleep_for(kToRead);
  watch_.end(first);
  std::abort();
}

void RankWatch::end_without_store() {
  if (is_ending_.exchange(true)) std::this_thread::sleep_for(std::chrono::hours(24));
  const std::string address = " (" + place_.host + ":" + std::to_string(place_.port) + ")";
  watch_.end((place_.has_launcher_store ? "launcher: died" : "rank 0: died") + address);
  std::abort();
}

}  // namespace lethe
