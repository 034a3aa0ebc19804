// Forgetting Attention on the CPU beside Torch's own attention: without a gate, and with the gate as a matrix.
//
//   gated         lethe::forgetting_attention
//   pruned        the same with log ε = −10, half of the heads forgetting within a few tokens, the others hardly at all
//   unpruned      the same inputs without pruning
//   torch         scaled_dot_product_attention, causal, no gate
//   torch_matrix  scaled_dot_product_attention with the bias matrix built from log f, and the gate's gradient through it
//
// Every implementation of the gate is first checked against the matrix form in float64; a wrong one is an error and not timed.
// Counters: memory_mib, the largest memory of one call beyond its inputs; pruned_share, of the causal pairs.
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <benchmark/benchmark.h>
#include <malloc.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <string>

#include "optimized/torch/forgetting_attention.hpp"

namespace {

constexpr double kLogTolerance = -10.0;
constexpr double kAllowedError = 1e-4;  // of float32 values; pruning's own e^−10 = 4.5e-5 included

struct Sizes {
  int64_t batch, heads, key_dim, length;
};

struct Inputs {
  at::Tensor query, key, value, log_forget, values_gradient;
};

enum class Gate { kInitial, kBimodal };

Inputs inputs_of(const Sizes& sizes, Gate gate) {
  at::manual_seed(0);
  const auto normal = [&] { return at::randn({sizes.batch, sizes.length, sizes.heads, sizes.key_dim}); };
  Inputs inputs{normal(), normal(), normal(), at::log_sigmoid(at::randn({sizes.batch, sizes.length, sizes.heads})),
                normal()};
  if (gate == Gate::kBimodal) {
    // Queries and keys normalised as by RMSNorm, so that their norms, and with these the bound, are those of a trained layer.
    for (at::Tensor* rows : {&inputs.query, &inputs.key}) *rows /= rows->square().mean({3}, true).sqrt();
    inputs.log_forget.slice(2, 0, sizes.heads / 2).mul_(1e-4);
  }
  return inputs;
}

at::Tensor by_head(const at::Tensor& tensor) { return tensor.transpose(1, 2); }

at::Tensor torch_attention(const Inputs& in) {
  return by_head(
      at::scaled_dot_product_attention(by_head(in.query), by_head(in.key), by_head(in.value), {}, 0.0, true));
}

at::Tensor torch_matrix_attention(const Inputs& in) {
  const at::Tensor prefix = by_head(at::cumsum(in.log_forget, 1));  // [B, H, T]
  const at::Tensor future = at::ones({in.query.size(1), in.query.size(1)}, at::kBool).triu(1);
  const at::Tensor bias = (prefix.unsqueeze(3) - prefix.unsqueeze(2)).masked_fill(future, -INFINITY);
  return by_head(at::scaled_dot_product_attention(by_head(in.query), by_head(in.key), by_head(in.value), bias));
}

at::Tensor gated_attention(const Inputs& in) {
  return lethe::forgetting_attention(in.query, in.key, in.value, in.log_forget);
}

at::Tensor pruned_attention(const Inputs& in) {
  return lethe::forgetting_attention(in.query, in.key, in.value, in.log_forget, std::nullopt, kLogTolerance,
                                     std::nullopt, std::nullopt, std::nullopt, /*prune_by_mass=*/false);
}

double pruned_share(const Inputs& in) {
  const auto visited = [&](std::optional<double> tolerance) {
    const auto statistics =
        lethe::forgetting_attention_with_statistics(in.query, in.key, in.value, in.log_forget, std::nullopt, tolerance,
                                                    std::nullopt, std::nullopt, std::nullopt, /*prune_by_mass=*/false);
    return std::get<2>(statistics).sum().item().toDouble();
  };
  return 1.0 - visited(kLogTolerance) / visited(std::nullopt);
}

// Relative error of the last head against the matrix form in float64.
double error_of(const at::Tensor& values, const Inputs& in) {
  const auto last_head = [](const at::Tensor& t) { return t.slice(0, 0, 1).slice(2, t.size(2) - 1).to(at::kDouble); };
  const at::Tensor expected = torch_matrix_attention(
      {last_head(in.query), last_head(in.key), last_head(in.value), last_head(in.log_forget), {}});
  return ((last_head(values) - expected).norm() / expected.norm()).item().toDouble();
}

// The process's memory in MiB: "VmRSS" now, or "VmHWM" at its highest since the last reset.
double memory(const std::string& what) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == what + ":") {
      double kibibytes = 0.0;
      status >> kibibytes;
      return kibibytes / 1024.0;
    }
  }
  return NAN;
}

using Attention = at::Tensor (*)(const Inputs&);

void measure(benchmark::State& state, Attention attention, Gate gate, bool gated, bool backward) {
  const Sizes sizes{state.range(0), state.range(1), state.range(2), state.range(3)};
  Inputs in = inputs_of(sizes, gate);
  if (gated) {
    const double error = error_of(attention(in), in);
    if (!(error <= kAllowedError)) {
      state.SkipWithError(("values: expected a relative error <= 1e-4, found " + std::to_string(error)).c_str());
      return;
    }
  }
  if (attention == pruned_attention) state.counters["pruned_share"] = pruned_share(in);
  const auto call = [&] {
    if (!backward) return attention(in);
    for (at::Tensor* tensor : {&in.query, &in.key, &in.value, &in.log_forget}) {
      tensor->requires_grad_();
      tensor->mutable_grad() = at::Tensor();
    }
    const at::Tensor values = attention(in);
    values.backward(in.values_gradient);
    return values;
  };
  malloc_trim(0);                               // freed memory of earlier benchmarks is not counted
  std::ofstream("/proc/self/clear_refs") << 5;  // forget the highest so far
  const double before = memory("VmRSS");
  benchmark::DoNotOptimize(call());
  state.counters["memory_mib"] = memory("VmHWM") - before;
  for (auto iteration : state) benchmark::DoNotOptimize(call());
}

void register_all(const Sizes& sizes) {
  const struct {
    const char* name;
    Attention attention;
    Gate gate;
    bool gated;
  } rows[] = {{"gated", gated_attention, Gate::kInitial, true},
              {"pruned", pruned_attention, Gate::kBimodal, true},
              {"unpruned", gated_attention, Gate::kBimodal, true},
              {"torch", torch_attention, Gate::kInitial, false},
              {"torch_matrix", torch_matrix_attention, Gate::kInitial, true}};
  for (const auto& row : rows) {
    for (const bool backward : {false, true}) {
      const std::string name = std::string(row.name) + (backward ? "/forward_backward" : "/forward");
      benchmark::RegisterBenchmark(
          name.c_str(),
          [row, backward](benchmark::State& state) { measure(state, row.attention, row.gate, row.gated, backward); })
          ->ArgNames({"B", "H", "D", "T"})
          ->Args({sizes.batch, sizes.heads, sizes.key_dim, sizes.length})
          ->Unit(benchmark::kMillisecond)
          ->UseRealTime();
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  register_all({1, 4, 64, 4096});  // the operator's target
  register_all({8, 4, 32, 256});   // training on two cores
  register_all({8, 4, 64, 1024});
  benchmark::AddCustomContext("torch_threads", std::to_string(at::get_num_threads()));
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
}
