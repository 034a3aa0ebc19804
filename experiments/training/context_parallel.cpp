#include "experiments/training/context_parallel.hpp"

#include <torch/csrc/autograd/custom_function.h>

#include <stdexcept>
#include <string>

#include "optimized/torch/forgetting_attention.hpp"

namespace lethe {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

// [B, 2·size·C, …], chunk after chunk, to [size, B, 2·C, …], the chunks of each rank.
Tensor by_rank(const Tensor& whole, int64_t size) {
  const Tensor chunks = whole.unflatten(1, {2 * size, -1}).transpose(0, 1);  // [2·size, B, C, …]
  return torch::cat({chunks.narrow(0, 0, size), chunks.narrow(0, size, size).flip(0)}, 2);
}

// The inverse.
Tensor in_order(const Tensor& ranks) {
  const int64_t chunk = ranks.size(2) / 2;
  return torch::cat({ranks.narrow(2, 0, chunk), ranks.narrow(2, chunk, chunk).flip(0)}).transpose(0, 1).flatten(1, 2);
}

// All ranks' chunks in their order; the backward pass sums the gradients of a rank's chunks over the ranks.
struct Gather : torch::autograd::Function<Gather> {
  static Tensor forward(AutogradContext* context, const Tensor& own, World* world) {
    context->saved_data["world"] = reinterpret_cast<int64_t>(world);
    std::vector<int64_t> sizes{world->size()};
    sizes.insert(sizes.end(), own.sizes().begin(), own.sizes().end());
    const Tensor ranks = torch::empty(sizes, own.options());
    world->all_gather(ranks.flatten(0, 1), own.contiguous()).wait();
    return in_order(ranks);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    auto* world = reinterpret_cast<World*>(context->saved_data["world"].toInt());
    const Tensor ranks = by_rank(gradients[0], world->size()).contiguous();
    const Tensor own = torch::empty_like(ranks[0]);
    world->reduce_scatter(own, ranks.flatten(0, 1)).wait();
    return {own, Tensor()};
  }
};

}  // namespace

Tensor own_chunks(const World& world, const Tensor& whole) {
  const int64_t chunks = 2 * world.size();
  if (whole.size(1) % chunks != 0)
    throw std::invalid_argument("length: expected a multiple of " + std::to_string(chunks) + ", found " +
                                std::to_string(whole.size(1)));
  return by_rank(whole, world.size())[world.rank()];
}

Tensor context_parallel_attention(World& world, const Tensor& query, const Tensor& key, const Tensor& value,
                                  const Tensor& log_forget, std::optional<double> scale,
                                  std::optional<double> log_pruning_tolerance) {
  const Tensor keys = Gather::apply(key, &world), values = Gather::apply(value, &world),
               gates = Gather::apply(log_forget, &world);
  const int64_t chunk = query.size(1) / 2;
  const auto of_chunk = [&](int64_t place, int64_t number) {
    const int64_t end = (number + 1) * chunk;
    return forgetting_attention(query.narrow(1, place * chunk, chunk), keys.narrow(1, 0, end), values.narrow(1, 0, end),
                                gates.narrow(1, 0, end), scale, log_pruning_tolerance);
  };
  return torch::cat({of_chunk(0, world.rank()), of_chunk(1, 2 * world.size() - 1 - world.rank())}, 1);
}

}  // namespace lethe
