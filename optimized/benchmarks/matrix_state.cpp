// gated_state and delta_state on the CPU beside the same recurrence as a loop over tokens in Torch, in one process.
//
//   decay    a gate for each row and column of the state (T2FW's decay rule)
//   delta    the delta rule with a gate for each row
//   decode   the decay rule for one token, with the state
//
// Each is timed as the operator and as the loop, forward and with the gradients of every input. The operator's values are first checked
// against the loop in float64; where they are off, that is an error and not timed.
// Counters: input_mib, output_mib; saved_mib, the tensors that the graph holds of one call until its backward (inputs and outputs included where it
// keeps them); peak_mib, the largest tensor memory of one call with its gradients beyond its inputs, on one thread.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <benchmark/benchmark.h>
#include <c10/core/Allocator.h>

#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "optimized/torch/matrix_state.hpp"

namespace {

constexpr double kAllowedError = 1e-6;  // of float32 values, whose own rounding is 6e-8
constexpr double kMebibyte = 1024.0 * 1024.0;

struct Sizes {
  int64_t batch, length, heads, key_dim, value_dim;
};

struct Inputs {
  at::Tensor query, key, value, log_key_gate, log_value_gate, beta, state;
  std::vector<at::Tensor*> all() { return {&query, &key, &value, &log_key_gate, &log_value_gate, &beta, &state}; }
};

Inputs inputs_of(const Sizes& s) {
  at::manual_seed(0);
  const auto normal = [&](int64_t columns) { return at::randn({s.batch, s.length, s.heads, columns}); };
  const at::Tensor key = normal(s.key_dim);
  return {normal(s.key_dim),
          key / key.norm(2, {3}, true),
          normal(s.value_dim),
          at::log_sigmoid(normal(s.key_dim) + 2),
          at::log_sigmoid(normal(s.value_dim) + 2),
          at::rand({s.batch, s.length, s.heads}),
          at::randn({s.batch, s.heads, s.key_dim, s.value_dim})};
}

using Result = std::tuple<at::Tensor, at::Tensor>;
using Rule = Result (*)(const Inputs&);

// One token after the other: gate, write, read.
Result loop(const Inputs& in, bool delta) {
  const at::Tensor key_gate = in.log_key_gate.exp(), value_gate = delta ? at::Tensor() : in.log_value_gate.exp();
  at::Tensor state = in.state;
  std::vector<at::Tensor> rows;
  for (int64_t t = 0; t < in.query.size(1); ++t) {
    const at::Tensor key = in.key.select(1, t).unsqueeze(3);  // [B, H, K, 1]
    state = state * key_gate.select(1, t).unsqueeze(3);
    at::Tensor write = in.value.select(1, t).unsqueeze(2);  // [B, H, 1, V]
    if (delta) {
      write = in.beta.select(1, t).unsqueeze(2).unsqueeze(3) * (write - at::matmul(key.transpose(2, 3), state));
    } else {
      state = state * value_gate.select(1, t).unsqueeze(2);
    }
    state = state + key * write;
    rows.push_back(at::matmul(in.query.select(1, t).unsqueeze(2), state).squeeze(2));
  }
  return {at::stack(rows, 1) * (1.0 / std::sqrt(static_cast<double>(in.query.size(3)))), state};
}

Result decay_loop(const Inputs& in) { return loop(in, false); }
Result delta_loop(const Inputs& in) { return loop(in, true); }
Result decay(const Inputs& in) {
  return lethe::gated_state(in.query, in.key, in.value, in.log_key_gate, in.log_value_gate, in.state);
}
Result delta(const Inputs& in) {
  return lethe::delta_state(in.query, in.key, in.value, in.beta, in.log_key_gate, in.state);
}

double error_of(Rule rule, Rule expected_rule, Inputs in) {
  const at::Tensor values = std::get<0>(rule(in)).to(at::kDouble);
  for (at::Tensor* tensor : in.all()) *tensor = tensor->to(at::kDouble);
  const at::Tensor expected = std::get<0>(expected_rule(in));
  return ((values - expected).norm() / expected.norm()).item().toDouble();
}

// Bytes of tensors that exist now, and the most so far.
class MemoryCount : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
    const int64_t now = live_ += size;
    for (int64_t peak = peak_; peak < now && !peak_.compare_exchange_weak(peak, now);) {
    }
  }
  bool memoryProfilingEnabled() const override { return true; }
  double live() const { return static_cast<double>(live_) / kMebibyte; }
  double peak() const { return static_cast<double>(peak_) / kMebibyte; }

 private:
  std::atomic<int64_t> live_{0}, peak_{0};
};

void count_memory(benchmark::State& state, Inputs& in, Rule rule, bool delta_rule) {
  const auto mebibytes = [](const at::Tensor& tensor) { return static_cast<double>(tensor.nbytes()) / kMebibyte; };
  double input = 0.0;
  for (at::Tensor* tensor : in.all()) {
    if (tensor != (delta_rule ? &in.log_value_gate : &in.beta)) input += mebibytes(*tensor);
  }
  const int threads = at::get_num_threads();
  at::set_num_threads(1);  // the count is of this thread
  const auto count = std::make_shared<MemoryCount>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, count);
  const auto [values, last_state] = rule(in);
  state.counters["input_mib"] = input;
  state.counters["output_mib"] = mebibytes(values) + mebibytes(last_state);
  state.counters["saved_mib"] = input + count->live();
  values.backward(at::ones_like(values));
  state.counters["peak_mib"] = count->peak();
  at::set_num_threads(threads);
}

struct Row {
  const char* name;
  Rule rule, loop;
  bool delta;
};

void measure(benchmark::State& state, const Row& row, Rule rule, bool backward) {
  Inputs in = inputs_of({state.range(0), state.range(1), state.range(2), state.range(3), state.range(4)});
  const double error = error_of(rule, row.loop, in);
  if (rule == row.rule && !(error <= kAllowedError)) {
    state.SkipWithError(("values: expected a relative error <= 1e-6, found " + std::to_string(error)).c_str());
    return;
  }
  state.counters["error"] = error;
  if (backward) {
    for (at::Tensor* tensor : in.all()) tensor->requires_grad_();
    count_memory(state, in, rule, row.delta);
  }
  const at::Tensor gradient = at::ones(in.value.sizes());
  for (auto iteration : state) {
    auto [values, last_state] = rule(in);
    benchmark::DoNotOptimize(values);
    if (!backward) continue;
    for (at::Tensor* tensor : in.all()) tensor->mutable_grad() = at::Tensor();
    values.backward(gradient);
  }
}

void register_all(const Sizes& sizes, bool with_backward) {
  static const Row rows[] = {{"decay", decay, decay_loop, false}, {"delta", delta, delta_loop, true}};
  for (const Row& row : rows) {
    for (const bool operator_of_ours : {true, false}) {
      for (const bool backward : {false, true}) {
        if (backward && !with_backward) continue;
        const std::string name = std::string(row.name) + (sizes.length == 1 ? "_decode" : "") +
                                 (operator_of_ours ? "/operator" : "/loop") +
                                 (backward ? "/forward_backward" : "/forward");
        benchmark::RegisterBenchmark(
            name.c_str(),
            [=](benchmark::State& state) { measure(state, row, operator_of_ours ? row.rule : row.loop, backward); })
            ->ArgNames({"B", "T", "H", "K", "V"})
            ->Args({sizes.batch, sizes.length, sizes.heads, sizes.key_dim, sizes.value_dim})
            ->Unit(benchmark::kMillisecond)
            ->UseRealTime();
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  register_all({1, 1024, 4, 32, 64}, true);  // the operators' target
  register_all({8, 256, 4, 32, 32}, true);   // training on two cores
  register_all({1, 1, 12, 32, 64}, false);
  benchmark::AddCustomContext("torch_threads", std::to_string(at::get_num_threads()));
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
}
