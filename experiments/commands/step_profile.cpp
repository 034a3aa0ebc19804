#include "experiments/commands/step_profile.hpp"

#include <ATen/record_function.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

namespace lethe {
namespace {

using Clock = std::chrono::steady_clock;

thread_local int depth = 0;

}  // namespace

struct StepProfile::Collector {
  // A point in the device's stream, or in time.
  struct Point {
    std::optional<c10::Event> event;
    Clock::time_point time;
  };

  static Point point_on(c10::Device device) {
    Point point;
    if (device.is_cpu()) {
      point.time = Clock::now();
    } else {
      point.event.emplace(device.type(), c10::EventFlag::BACKEND_DEFAULT);
      point.event->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    }
    return point;
  }

  static double microseconds_between(const Point& begin, const Point& end) {
    if (begin.event) return begin.event->elapsedTime(*end.event) * 1e3;
    return std::chrono::duration<double, std::micro>(end.time - begin.time).count();
  }

  struct Call : at::ObserverContext {
    std::string name;
    Point begin, end;
  };

  static inline Collector* current = nullptr;
  c10::Device device;
  at::CallbackHandle handle = 0;
  std::mutex mutex;
  std::vector<Call> calls;

  explicit Collector(c10::Device of) : device(of) {}

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    if (depth++ > 0) return nullptr;
    auto call = std::make_unique<Call>();
    constexpr std::string_view kEngine = "autograd::engine::evaluate_function: ";
    const std::string_view name = function.name();
    call->name = name.starts_with(kEngine) ? "backward of " + std::string(name.substr(kEngine.size())) : std::string(name);
    call->begin = point_on(current->device);
    return call;
  }

  static void end(const at::RecordFunction&, at::ObserverContext* context) {
    if (--depth > 0 || context == nullptr) return;
    Call& call = *static_cast<Call*>(context);
    call.end = point_on(current->device);
    const std::lock_guard<std::mutex> lock(current->mutex);
    current->calls.push_back(std::move(call));
  }
};

StepProfile::StepProfile(c10::Device device) : collector_(std::make_unique<Collector>(device)) {
  Collector::current = collector_.get();
  collector_->handle =
      at::addGlobalCallback(at::RecordFunctionCallback(Collector::begin, Collector::end)
                                .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

StepProfile::~StepProfile() {
  at::removeCallback(collector_->handle);
  Collector::current = nullptr;
}

std::map<std::string, StepProfile::Entry> StepProfile::entries() {
  const std::lock_guard<std::mutex> lock(collector_->mutex);
  std::map<std::string, Entry> entries;
  for (Collector::Call& call : collector_->calls) {
    if (call.end.event) call.end.event->synchronize();
    Entry& entry = entries[call.name];
    entry.microseconds += Collector::microseconds_between(call.begin, call.end);
    ++entry.calls;
  }
  return entries;
}

}  // namespace lethe
