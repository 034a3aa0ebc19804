// rank TASK …: one process of several that the tests start.
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "experiments/training/context_parallel.hpp"
#include "experiments/training/training.hpp"
#include "experiments/training/world.hpp"
#include "optimized/torch/forgetting_attention.hpp"

namespace {

using lethe::World;
using torch::Tensor;
using Arguments = std::vector<std::string>;

const char* const kDevice = std::getenv("LETHE_RANK_DEVICE") ? std::getenv("LETHE_RANK_DEVICE") : "cpu";

Tensor counted(int64_t count) {
  return torch::arange(count, torch::TensorOptions(torch::Device(kDevice)).dtype(torch::kFloat32));
}

void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("expected " + what);
}

double distance(const Tensor& found, const Tensor& expected) {
  return ((found - expected).norm() / expected.norm()).item<double>();
}

void collectives(World& world, const Arguments&) {
  const int64_t n = world.size(), rank = world.rank();
  const Tensor own = counted(4 * n) + static_cast<double>(rank);
  const Tensor all = n * counted(4 * n) + static_cast<double>(n * (n - 1) / 2);
  const Tensor sum = own.clone();
  world.sum(sum).wait();
  expect(sum.equal(all), "the sum of all ranks");
  const Tensor values = own.clone(), part = values.narrow(0, 4 * rank, 4);
  world.reduce_scatter(part, values).wait();
  expect(part.equal(all.narrow(0, 4 * rank, 4)), "the rank's part of the sum, in its place");
  world.all_gather(values, part).wait();
  expect(values.equal(all), "all parts of the sum");
  const Tensor first = own.clone();
  world.broadcast(first).wait();
  expect(first.equal(counted(4 * n)), "rank 0's values");
  for (const int64_t value : {7, -1}) expect(world.from_first(rank == 0 ? value : 3) == value, "rank 0's number");
}

void train(World& world, const Arguments& arguments) {
  const auto run = nlohmann::json::parse(std::ifstream(arguments.at(0))).get<lethe::Run>();
  const lethe::Dataset dataset{std::filesystem::path(arguments.at(1))};
  const auto progress = [&](const lethe::Progress&) { expect(world.is_first(), "progress of the first rank alone"); };
  lethe::trained(run, dataset, arguments.at(2), progress, world);
}

// The whole sequences on every rank; values, then the gradients of query, key, value and log f.
std::vector<Tensor> attention_of(const std::vector<Tensor>& inputs, const Tensor& gradient,
                                 std::optional<double> tolerance, World* world) {
  std::vector<Tensor> leaves;
  for (const Tensor& input : inputs)
    leaves.push_back((world ? lethe::own_chunks(*world, input) : input).detach().clone().requires_grad_());
  const Tensor values =
      world ? lethe::context_parallel_attention(*world, leaves[0], leaves[1], leaves[2], leaves[3], {}, tolerance)
            : lethe::forgetting_attention(leaves[0], leaves[1], leaves[2], leaves[3], {}, tolerance);
  values.backward(world ? lethe::own_chunks(*world, gradient) : gradient);
  std::vector<Tensor> results{values.detach()};
  for (const Tensor& leaf : leaves) results.push_back(leaf.grad());
  return results;
}

void attention(World& world, const Arguments&) {
  const bool is_on_cpu = std::string(kDevice) == "cpu";
  const torch::Dtype dtype = is_on_cpu ? torch::kFloat64 : torch::kBFloat16;
  const int64_t batch = 2, length = 512, heads = 4, head_dim = 64;
  torch::manual_seed(5);
  const auto random = [&] {
    return torch::randn({batch, length, heads, head_dim}, torch::kFloat64).to(torch::Device(kDevice), dtype);
  };
  const Tensor openness = torch::tensor({9.0, 2.0, 0.0, -2.0}, torch::kFloat64) +
                          0.3 * torch::randn({batch, length, heads}, torch::kFloat64);
  const Tensor gate =
      torch::log_sigmoid(openness).to(torch::Device(kDevice), is_on_cpu ? torch::kFloat64 : torch::kFloat32);
  const std::vector<Tensor> inputs{random(), random(), random(), gate};
  const Tensor gradient = random();
  const double budget = is_on_cpu ? 1e-13 : 2e-2;
  for (const std::optional<double> tolerance : {std::optional<double>(), std::optional<double>(-10)}) {
    const auto whole = attention_of(inputs, gradient, tolerance, nullptr),
               parts = attention_of(inputs, gradient, tolerance, &world);
    for (size_t i = 0; i < whole.size(); ++i) {
      const Tensor expected = lethe::own_chunks(world, whole[i]).to(torch::kFloat64);
      const double error = distance(parts[i].to(torch::kFloat64), expected);
      expect(error <= budget, "result " + std::to_string(i) + " of one device to " + std::to_string(budget) +
                                  ", found " + std::to_string(error));
    }
  }
}

[[noreturn]] void work_on(World& world) {
  for (const Tensor value = counted(1);; std::this_thread::sleep_for(std::chrono::milliseconds(5)))
    world.sum(value).wait();
}

void fails(World& world, const Arguments&) {
  if (world.rank() != 1) work_on(world);
  world.sum(counted(1)).wait();
  throw std::runtime_error("disk: expected space, found none");
}

void dies(World& world, const Arguments&) {
  if (world.rank() != 1) work_on(world);
  world.sum(counted(1)).wait();
  raise(SIGKILL);
}

void stops(World& world, const Arguments&) {
  if (world.rank() != 1) work_on(world);
  world.sum(counted(1)).wait();
  std::this_thread::sleep_for(std::chrono::minutes(5));
}

void end_process(const std::string& line) {
  std::cerr << line << std::endl;
  std::_Exit(1);
}

}  // namespace

int main(int count, char** texts) {
  const std::map<std::string, void (*)(World&, const Arguments&)> tasks{{"collectives", collectives},
                                                                        {"train", train},
                                                                        {"attention", attention},
                                                                        {"fails", fails},
                                                                        {"dies", dies},
                                                                        {"stops", stops}};
  const Arguments arguments(texts + 2, texts + count);
  const auto place = lethe::RankPlace::in([](const char* name) { return std::getenv(name); });
  const bool is_on_cpu = std::string(kDevice) == "cpu";
  const torch::Device own(is_on_cpu ? "cpu" : kDevice + (":" + std::to_string(place.local_rank)));
  const std::chrono::seconds time_out(std::string(texts[1]) == "stops" ? 2 : 120);
  World world(place, own, {.end = end_process, .time_out = time_out});
  try {
    tasks.at(texts[1])(world, arguments);
  } catch (const std::exception& error) {
    world.fail(error);
  }
}
