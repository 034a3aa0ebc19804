#include "optimized/benchmarks/cuda/module.hpp"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>

#include "optimized/cuda/attention.hpp"

namespace {

lethe::Shape shape_of(const lethe_problem& p) { return {p.batch, p.length, p.length, p.heads, p.heads, p.dim, p.dim}; }

lethe::Operand operand(const lethe_problem& p, const void* data) {
  return {data, p.length * p.heads * p.dim, p.heads * p.dim, p.dim};
}

void plan(const lethe_problem& p, const lethe::GatePlan& arrays, bool boundary_given) {
  lethe::launch_gate_plan(
      {.shape = shape_of(p),
       .dtype = lethe::Dtype::kBFloat16,
       .scale = p.scale,
       .query = operand(p, p.query),
       .key = operand(p, p.key),
       .log_forget = p.log_forget,
       .gate_batch_stride = p.length * p.heads,
       .gate_token_stride = p.heads,
       .gate_head_stride = 1,
       .log_pruning_tolerance = boundary_given ? -std::numeric_limits<double>::infinity() : p.log_pruning_tolerance,
       .logit_bound = nullptr,
       .boundary_given = boundary_given,
       .plan = arrays,
       .stream = nullptr});
}

void forward(const lethe_problem& p) {
  const lethe::GatePlan arrays = lethe::gate_plan_in(p.forward_memory, shape_of(p));
  plan(p, arrays, false);
  lethe::ForwardArguments arguments{};
  arguments.shape = shape_of(p);
  arguments.dtype = lethe::Dtype::kBFloat16;
  arguments.scale = p.scale;
  arguments.query = operand(p, p.query);
  arguments.key = operand(p, p.key);
  arguments.value = operand(p, p.value);
  arguments.plan = arrays;
  arguments.values = p.values;
  arguments.residual = p.residual;
  arguments.log_normalizer = p.log_normalizer;
  arguments.visited_pairs = p.visited_pairs;
  lethe::launch_forward(arguments);
}

void backward(const lethe_problem& p) {
  const lethe::Shape shape = shape_of(p);
  lethe::GatePlan arrays = lethe::gate_plan_in(p.backward_memory, shape);
  arrays.first_key_block = lethe::gate_plan_in(p.forward_memory, shape).first_key_block;
  plan(p, arrays, true);
  lethe::BackwardArguments arguments{};
  arguments.shape = shape;
  arguments.dtype = lethe::Dtype::kBFloat16;
  arguments.scale = p.scale;
  arguments.query = operand(p, p.query);
  arguments.key = operand(p, p.key);
  arguments.value = operand(p, p.value);
  arguments.values = operand(p, p.values);
  arguments.residual = operand(p, p.residual);
  arguments.grad_values = operand(p, p.grad_values);
  arguments.log_normalizer = p.log_normalizer;
  arguments.plan = arrays;
  arguments.grad_query = p.grad_query;
  arguments.grad_key = p.grad_key;
  arguments.grad_value = p.grad_value;
  arguments.grad_log_forget = p.grad_log_forget;
  arguments.workspace = static_cast<char*>(p.backward_memory) + lethe::gate_plan_bytes(shape);
  arguments.float_sums = p.float_sums != 0;
  lethe::launch_backward(arguments);
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

uint64_t lethe_forward_bytes(const lethe_problem* problem) { return lethe::gate_plan_bytes(shape_of(*problem)); }

uint64_t lethe_backward_bytes(const lethe_problem* problem) {
  return lethe::gate_plan_bytes(shape_of(*problem)) + lethe::backward_workspace_bytes(shape_of(*problem));
}

void lethe_forward(const lethe_problem* problem) {
  aborting([&] { forward(*problem); });
}

void lethe_backward(const lethe_problem* problem) {
  aborting([&] { backward(*problem); });
}

void lethe_plan(const lethe_problem* problem) {
  aborting([&] { plan(*problem, lethe::gate_plan_in(problem->forward_memory, shape_of(*problem)), false); });
}
