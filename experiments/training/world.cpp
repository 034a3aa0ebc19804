#include "experiments/training/world.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <charconv>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "experiments/training/rank_watch.hpp"
#ifdef USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#endif
#ifdef USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

namespace lethe {
namespace {

using torch::Tensor;

constexpr std::chrono::minutes kMargin{
    1};  // the watch ends an operation before the backend does, whose message names no rank

int number_in(const char* name, const char* text, int least) {
  const std::string_view found = text ? text : "none";
  int number = 0;
  const auto [end, error] = std::from_chars(found.data(), found.data() + found.size(), number);
  if (error != std::errc() || end != found.data() + found.size() || number < least)
    throw std::invalid_argument(std::string(name) + ": expected a whole number ≥ " + std::to_string(least) +
                                ", found " + std::string(found));
  return number;
}

// An error's message, without Torch's backtrace.
std::string text_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  if (!torch_error) return error.what();
  const std::string text = torch_error->what_without_backtrace();
  return text.substr(0, text.find('\n'));
}

c10::intrusive_ptr<c10d::Store> store_of(const RankPlace& place, std::chrono::milliseconds time_out) {
  c10d::TCPStoreOptions options;
  options.port = place.port;
  options.isServer = place.rank == 0 && !place.has_launcher_store;
  options.waitWorkers = false;
  options.timeout = time_out;
  try {
    return c10::make_intrusive<c10d::TCPStore>(place.host, options);
  } catch (const std::exception& error) {
    throw std::runtime_error("MASTER_ADDR: expected the ranks' store at " + place.host + ":" +
                             std::to_string(place.port) + ", found none (" + text_of(error) + ")");
  }
}

#ifdef USE_C10D_GLOO
std::shared_ptr<gloo::transport::Device> gloo_device(const std::string& host) {
  using Gloo = c10d::ProcessGroupGloo;
  return host == "127.0.0.1" || host == "localhost" ? Gloo::createDeviceForHostname("127.0.0.1")
                                                    : Gloo::createDefaultDevice();
}
#endif

using Backend = c10::intrusive_ptr<c10d::Backend>;
using BackendOf = Backend (*)(const c10::intrusive_ptr<c10d::Store>& store, const RankPlace& place,
                              std::chrono::milliseconds time_out);

// The factory of a device's backend.
BackendOf backend_of(torch::Device device) {
#ifdef USE_C10D_NCCL
  if (device.is_cuda())
    return
        [](const c10::intrusive_ptr<c10d::Store>& store, const RankPlace& place, std::chrono::milliseconds time_out) {
          auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
          options->timeout = time_out + kMargin;
          return Backend(c10::make_intrusive<c10d::ProcessGroupNCCL>(store, place.rank, place.size, options));
        };
#endif
#ifdef USE_C10D_GLOO
  if (device.is_cpu())
    return
        [](const c10::intrusive_ptr<c10d::Store>& store, const RankPlace& place, std::chrono::milliseconds time_out) {
          auto options = c10d::ProcessGroupGloo::Options::create(time_out + kMargin);
          options->devices.push_back(gloo_device(place.host));
          return Backend(c10::make_intrusive<c10d::ProcessGroupGloo>(store, place.rank, place.size, options));
        };
#endif
  throw std::invalid_argument(
      "device: expected one on which several processes of this build can train"
#ifdef USE_C10D_GLOO
      ", cpu"
#endif
#ifdef USE_C10D_NCCL
      ", cuda"
#endif
      ", found " +
      device.str());
}

}  // namespace

RankPlace RankPlace::in(const std::function<const char*(const char*)>& variable) {
  const auto number = [&](const char* name, int least) { return number_in(name, variable(name), least); };
  RankPlace place;
  if (variable("RANK") && variable("WORLD_SIZE")) {
    place.rank = number("RANK", 0), place.size = number("WORLD_SIZE", 1), place.local_rank = number("LOCAL_RANK", 0);
    const char* agent = variable("TORCHELASTIC_USE_AGENT_STORE");
    place.has_launcher_store = agent && std::string(agent) == "True";
    if (const char* attempt = variable("TORCHELASTIC_RESTART_COUNT")) place.attempt = attempt;
  } else if (variable("SLURM_PROCID") && variable("SLURM_STEP_NUM_TASKS")) {
    place.rank = number("SLURM_PROCID", 0), place.size = number("SLURM_STEP_NUM_TASKS", 1);
    place.local_rank = number("SLURM_LOCALID", 0);
  }
  if (place.rank >= place.size)
    throw std::invalid_argument("RANK: expected one below WORLD_SIZE " + std::to_string(place.size) + ", found " +
                                std::to_string(place.rank));
  if (place.size == 1) return place;
  const char* nodes = variable("SLURM_STEP_NUM_NODES");
  if (const char* host = variable("MASTER_ADDR")) place.host = host;
  else if (!nodes || number_in("SLURM_STEP_NUM_NODES", nodes, 1) > 1)
    throw std::invalid_argument("MASTER_ADDR: expected the address of rank 0's machine, found none");
  const int port = variable("MASTER_PORT") ? number("MASTER_PORT", 1) : c10d::TCPStoreOptions::kDefaultPort;
  if (port > UINT16_MAX)
    throw std::invalid_argument("MASTER_PORT: expected one below 65536, found " + std::to_string(port));
  place.port = static_cast<uint16_t>(port);
  return place;
}

struct World::State {
  State(const RankPlace& in, torch::Device device, BackendOf backend_of, const Watch& watch)
      : place(in), client(store_of(in, watch.time_out)),
        store(c10::make_intrusive<c10d::PrefixStore>("lethe/" + in.attempt, client)),
        ranks(c10::make_intrusive<c10d::PrefixStore>("lethe/" + in.attempt, client->clone()), in, device, watch),
        is_on_cpu(device.is_cpu()) {
    try {
      backend = backend_of(c10::make_intrusive<c10d::PrefixStore>("backend", store), in, watch.time_out);
    } catch (const std::exception& error) {
      ranks.find_lost(text_of(error));
    }
  }

  // Starts an operation of the backend.
  template <class Operation>
  Pending start(Operation&& operation) {
    try {
      const c10::intrusive_ptr<c10d::Work> work = operation(*backend);
      ranks.started(work);
      return Pending([this, work] { wait(work); });
    } catch (const std::exception& error) {
      throw LostRank(text_of(error));
    }
  }

  void wait(const c10::intrusive_ptr<c10d::Work>& work) {
    try {
      work->wait();
    } catch (const std::exception& error) {
      throw LostRank(text_of(error));
    }
    if (is_on_cpu) ranks.ended(work);
  }

  RankPlace place;
  c10::intrusive_ptr<c10d::Store> client, store;
  RankWatch ranks;
  Backend backend;
  bool is_on_cpu;
};

World::World(const RankPlace& place, torch::Device device, const Watch& watch) {
  if (place.size == 1) return;
  const BackendOf backend = backend_of(device);
  if (device.has_index()) c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
  state_ = std::make_unique<State>(place, device, backend, watch);
}

World::World() = default;

World::~World() {
  if (state_) state_->backend->shutdown();
}

World& World::alone() {
  static World alone;
  return alone;
}

int World::rank() const { return state_ ? state_->place.rank : 0; }
int World::size() const { return state_ ? state_->place.size : 1; }

Pending World::sum(const Tensor& values) {
  if (!state_) return {};
  return state_->start(
      [tensors = std::vector{values}](c10d::Backend& backend) mutable { return backend.allreduce(tensors); });
}

Pending World::broadcast(const Tensor& values) {
  if (!state_) return {};
  return state_->start(
      [tensors = std::vector{values}](c10d::Backend& backend) mutable { return backend.broadcast(tensors); });
}

Pending World::reduce_scatter(const Tensor& part, const Tensor& values) {
  if (!state_) return part.copy_(values), Pending();
  return state_->start(
      [out = part, in = values](c10d::Backend& backend) mutable { return backend._reduce_scatter_base(out, in); });
}

Pending World::all_gather(const Tensor& values, const Tensor& part) {
  if (!state_) return values.copy_(part), Pending();
  return state_->start(
      [out = values, in = part](c10d::Backend& backend) mutable { return backend._allgather_base(out, in); });
}

int64_t World::from_first(int64_t value) {
  if (!state_) return value;
  const std::string key = "number/" + std::to_string(numbers_++);
  try {
    if (is_first()) return state_->store->set(key, std::to_string(value)), value;
    while (!state_->store->check({key})) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return std::stoll(state_->store->get_to_str(key));
  } catch (const std::exception& error) {
    throw LostRank(text_of(error));
  }
}

void World::fail(const std::exception& error) {
  if (dynamic_cast<const LostRank*>(&error)) state_->ranks.find_lost(error.what());
  state_->ranks.fail(text_of(error));
}

}  // namespace lethe
