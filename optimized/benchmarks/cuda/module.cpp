#include "optimized/benchmarks/cuda/module.hpp"

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "optimized/cuda/hopper/attention.hpp"

namespace {

lethe::Shape shape_of(const lethe_problem& p) { return {p.batch, p.length, p.length, p.heads, p.heads, p.dim, p.dim}; }

const lethe::AttentionFamily& family() { return lethe::attention_families().front(); }

lethe::Operand operand(const lethe_problem& p, const void* data) {
  return {data, p.length * p.heads * p.dim, p.heads * p.dim, p.dim};
}

lethe::MutableOperand written(const lethe_problem& p, void* data) {
  return {data, p.length * p.heads * p.dim, p.heads * p.dim, p.dim};
}

// A forward's memory: its workspace, then the boundary that its backward reads.
int32_t* boundary(const lethe_problem& p) {
  return reinterpret_cast<int32_t*>(static_cast<char*>(p.forward_memory) +
                                    family().forward_workspace_bytes(shape_of(p)));
}

lethe::Gates gates(const lethe_problem& p) { return {p.log_forget, p.length * p.heads, p.heads, 1}; }

lethe::ForwardArguments forward_of(const lethe_problem& p) {
  return {.shape = shape_of(p),
          .dtype = lethe::Dtype::kBFloat16,
          .scale = p.scale,
          .query = operand(p, p.query),
          .key = operand(p, p.key),
          .value = operand(p, p.value),
          .gates = gates(p),
          .log_pruning_tolerance = p.log_pruning_tolerance,
          .logit_bound = nullptr,
          .values = p.values,
          .residual = p.residual,
          .log_normalizer = p.log_normalizer,
          .visited_pairs = p.visited_pairs,
          .first_key_block = boundary(p),
          .workspace = p.forward_memory,
          .stream = nullptr};
}

void backward(const lethe_problem& p) {
  family().backward({.shape = shape_of(p),
                     .dtype = lethe::Dtype::kBFloat16,
                     .scale = p.scale,
                     .query = operand(p, p.query),
                     .key = operand(p, p.key),
                     .value = operand(p, p.value),
                     .gates = gates(p),
                     .values = operand(p, p.values),
                     .residual = operand(p, p.residual),
                     .grad_values = operand(p, p.grad_values),
                     .log_normalizer = p.log_normalizer,
                     .first_key_block = boundary(p),
                     .grad_query = written(p, p.grad_query),
                     .grad_key = written(p, p.grad_key),
                     .grad_value = written(p, p.grad_value),
                     .grad_log_forget = p.grad_log_forget,
                     .workspace = p.backward_memory,
                     .deterministic = false,
                     .float_sums = p.float_sums != 0,
                     .stream = nullptr});
}

template <typename Call>
void aborting(Call call) {
  try {
    call();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::abort();
  }
}

}  // namespace

uint64_t lethe_forward_bytes(const lethe_problem* problem) {
  const lethe::Shape shape = shape_of(*problem);
  return family().forward_workspace_bytes(shape) +
         shape.batch * shape.query_heads * lethe::gate_blocks(shape.query_length) * sizeof(int32_t);
}

uint64_t lethe_backward_bytes(const lethe_problem* problem) {
  return family().backward_workspace_bytes(shape_of(*problem));
}

void lethe_forward(const lethe_problem* problem) {
  aborting([&] { family().forward(forward_of(*problem)); });
}

void lethe_backward(const lethe_problem* problem) {
  aborting([&] { backward(*problem); });
}

void lethe_plan(const lethe_problem* problem) {
  aborting([&] { lethe::hopper::forward_gate_alone(forward_of(*problem)); });
}
