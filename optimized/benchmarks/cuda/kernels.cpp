// Times builds of the CUDA kernels in one process, in turn: the shipped one beside one without a gate, or beside another commit's.
//
// usage: benchmark_cuda_kernels MODULE.so… [--milliseconds=N] [Google Benchmark's arguments…]
//
// One benchmark is one problem, timed on all modules. In each round every module has two stretches of calls in a row, about N milliseconds long
// (default 10), the first in the order of the modules, the second in the reverse. A repetition has as many rounds as take 0.2 s, at least one. A time
// is that of one call between CUDA events, including all kernels that the operator launches; the benchmark's own is the first module's. `ms/MODULE`
// is each module's, `ratio_to/MODULE` the first module's over that, `difference/MODULE` the relative difference of its values, or of the query's
// gradient, from the first one's: where a gate forgets, a build without one computes different results. The report requires the build with a gate
// first.
//
// Where log f = 0 all modules must compute the same. So that no build is fast because it is wrong, values and all gradients but the gate's are
// compared before any timing; where they differ by more than 1 % nothing is timed.
//
// These kernels run at the power limit, where the clock varies by some per cent with a period of about a second. Short stretches all meet the same
// clock: their ratio is that of cycles. With a second or more each module runs at the clock that its own power allows.
//
// `forward` and `backward` are those of training: the residual of the values is kept and read. `inference` is a forward without one.
// `backward_16_bit_sums`, with open gates alone, is a backward whose gate's gradient is computed from sums of dS rounded to 16 bits, not of floats
// (BackwardArguments::float_sums; an earlier module computes 16-bit sums in both, one without a gate none). `plan` is the forward's plan
// alone. TFLOP/s are effective: 2·B·H·T²·D forward, 2.5 times that backward, regardless of pruning.
// B·T = 32768, H·D = 1536, bfloat16, queries and keys RMS-normalised; gates `open` (mean log f = −1e-4), `bimodal` (−0.1 in 70 % of the
// heads), which alone is pruned, and at T = 16384 `strong` (−8: every block is strong, kStrongSum).

#include <benchmark/benchmark.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "optimized/benchmarks/cuda/module.hpp"

namespace {

constexpr int64_t kTokens = 32768, kWidth = 1536, kMostHeads = kWidth / 64;
constexpr const char* kGates[] = {"open", "bimodal", "strong"};
constexpr const char* kNoGate = "none";
constexpr const char* kBackward16BitSums = "backward_16_bit_sums";
constexpr double kAgreement = 0.01;  // two results in bfloat16, each off by some 0.3 %
constexpr std::string_view kStretchOption = "--milliseconds=";
// Milliseconds: of a repetition's rounds; and, at least, of calls before them, since a device after a rest runs at another clock.
constexpr float kRepetition = 200, kLeadIn = 50;

void require(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(status));
  std::exit(1);
}

template <typename T>
std::shared_ptr<T> device_memory(size_t count) {
  T* data;
  require(cudaMalloc(&data, count * sizeof(T)));
  return {data, [](T* pointer) { cudaFree(pointer); }};
}

struct Module {
  std::string name;
  decltype(&lethe_forward_bytes) forward_bytes, backward_bytes;
  decltype(&lethe_forward) forward, backward, plan;

  explicit Module(const std::filesystem::path& path) : name(path.stem()) {
    void* handle = dlopen(std::filesystem::absolute(path).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
      std::fprintf(stderr, "module: expected a library, found %s\n", dlerror());
      std::exit(1);
    }
    const auto find = [&](auto& function, const char* symbol) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(handle, symbol));
      if (!function) {
        std::fprintf(stderr, "module: expected %s in %s, found none\n", symbol, path.c_str());
        std::exit(1);
      }
    };
    find(forward_bytes, "lethe_forward_bytes");
    find(backward_bytes, "lethe_backward_bytes");
    find(forward, "lethe_forward");
    find(backward, "lethe_backward");
    find(plan, "lethe_plan");
  }
};

// A pool of random rows, copied over and over: 50 million normal variates take long on a CPU, and the kernels' time does not depend on it.
std::shared_ptr<__nv_bfloat16> random_tensor(int64_t dim, bool normalised, unsigned seed) {
  constexpr int64_t kPool = 1 << 20;
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<__nv_bfloat16> pool(kPool);
  std::vector<float> row(dim);
  for (int64_t begin = 0; begin < kPool; begin += dim) {
    float squares = 0;
    for (float& x : row) {
      x = normal(generator);
      squares += x * x;
    }
    for (int64_t i = 0; i < dim; ++i)
      pool[begin + i] = __float2bfloat16(normalised ? row[i] / std::sqrt(squares / dim) : row[i]);
  }
  const int64_t size = kTokens * kWidth;
  auto tensor = device_memory<__nv_bfloat16>(size);
  for (int64_t begin = 0; begin < size; begin += kPool)
    require(cudaMemcpy(tensor.get() + begin, pool.data(), std::min(kPool, size - begin) * sizeof(__nv_bfloat16),
                       cudaMemcpyHostToDevice));
  return tensor;
}

// Inputs of one head dimension.
struct Inputs {
  std::shared_ptr<__nv_bfloat16> query, key, value, grad;
  std::map<std::string, std::shared_ptr<float>> log_forget;

  explicit Inputs(int64_t dim)
      : query(random_tensor(dim, true, 1)), key(random_tensor(dim, true, 2)), value(random_tensor(dim, false, 3)),
        grad(random_tensor(dim, false, 4)) {
    const int64_t heads = kWidth / dim, gates = kTokens * heads;
    std::mt19937 generator(5);
    std::uniform_real_distribution<float> uniform(0, 2);
    const int64_t local_heads = std::lround(0.7 * heads);
    std::vector<std::string> names(std::begin(kGates), std::end(kGates));
    names.push_back(kNoGate);
    for (const std::string& name : names) {
      std::vector<float> host(gates);
      for (int64_t i = 0; i < gates; ++i) {
        const bool local = name == "bimodal" && i % heads < local_heads;
        host[i] = name == kNoGate ? 0 : uniform(generator) * (name == "strong" ? -8 : local ? -0.1f : -1e-4f);
      }
      log_forget[name] = device_memory<float>(gates);
      require(cudaMemcpy(log_forget[name].get(), host.data(), gates * sizeof(float), cudaMemcpyHostToDevice));
    }
  }
};

// One set per module, shared by its problems one after the other: a backward reads the results of the same module's forward.
struct Outputs {
  std::shared_ptr<__nv_bfloat16> values, residual, grad_query, grad_key, grad_value;
  std::shared_ptr<float> log_normalizer, grad_log_forget;
  std::shared_ptr<int64_t> visited_pairs;

  Outputs() {
    for (auto* tensor : {&values, &residual, &grad_query, &grad_key, &grad_value})
      *tensor = device_memory<__nv_bfloat16>(kTokens * kWidth);
    for (auto* tensor : {&log_normalizer, &grad_log_forget}) *tensor = device_memory<float>(kTokens * kMostHeads);
    visited_pairs = device_memory<int64_t>(kTokens * kMostHeads);
  }
};

struct Case {
  int64_t length, dim;
  std::string gate, direction;
};

bool is_backward(const std::string& direction) { return direction == "backward" || direction == kBackward16BitSums; }

const Inputs& inputs_of(int64_t dim) {
  static std::map<int64_t, Inputs> all;
  return all.try_emplace(dim, dim).first->second;
}

lethe_problem problem_of(const Case& c, const Outputs& outputs) {
  const Inputs& inputs = inputs_of(c.dim);
  return {kTokens / c.length,
          c.length,
          kWidth / c.dim,
          c.dim,
          1 / std::sqrt(double(c.dim)),
          c.gate == "bimodal" ? -10.0 : -std::numeric_limits<double>::infinity(),
          inputs.query.get(),
          inputs.key.get(),
          inputs.value.get(),
          inputs.grad.get(),
          inputs.log_forget.at(c.gate).get(),
          outputs.values.get(),
          outputs.log_normalizer.get(),
          outputs.visited_pairs.get(),
          outputs.grad_query.get(),
          outputs.grad_key.get(),
          outputs.grad_value.get(),
          outputs.grad_log_forget.get(),
          nullptr,
          nullptr,
          c.direction == "inference" ? nullptr : outputs.residual.get(),
          c.direction == "backward"};
}

// The first tokens of all, and the last: all queries see the first keys, the last queries see all keys.
std::vector<float> sample(const void* tensor) {
  constexpr int64_t kSample = 1 << 19, kEnd = kTokens * kWidth;
  std::vector<__nv_bfloat16> host(2 * kSample);
  for (const int64_t part : {0, 1})
    require(cudaMemcpy(host.data() + part * kSample,
                       static_cast<const __nv_bfloat16*>(tensor) + part * (kEnd - kSample),
                       kSample * sizeof(__nv_bfloat16), cudaMemcpyDeviceToHost));
  std::vector<float> numbers;
  for (const __nv_bfloat16 x : host) numbers.push_back(__bfloat162float(x));
  return numbers;
}

double relative_difference(const std::vector<float>& numbers, const std::vector<float>& expected) {
  double squares = 0, differences = 0;
  for (size_t i = 0; i < numbers.size(); ++i) {
    squares += double{expected[i]} * expected[i];
    differences += (double{numbers[i]} - expected[i]) * (double{numbers[i]} - expected[i]);
  }
  return std::sqrt(differences / squares);
}

// A module with its problem and its call.
struct Runner {
  const Module& module;
  lethe_problem problem;
  std::shared_ptr<char> forward_memory, backward_memory;
  decltype(Module::forward) call;
  int calls = 1;  // of a stretch
  double milliseconds = 0;

  Runner(const Module& m, const Case& c, const Outputs& outputs, float stretch_milliseconds)
      : module(m), problem(problem_of(c, outputs)), forward_memory(device_memory<char>(m.forward_bytes(&problem))),
        backward_memory(device_memory<char>(m.backward_bytes(&problem))), call(is_backward(c.direction) ? m.backward
                                                                               : c.direction == "plan"  ? m.plan
                                                                                                        : m.forward) {
    problem.forward_memory = forward_memory.get();
    problem.backward_memory = backward_memory.get();
    m.forward(&problem);  // a backward reads its results; then two calls: tools/gpu_profile counts them
    call(&problem);
    calls = static_cast<int>(std::clamp(stretch_milliseconds / time_of(1), 1.0f, 1e6f));
  }

  // Milliseconds a call, of so many in a row.
  float time_of(int count) const {
    static cudaEvent_t begin = nullptr, end = nullptr;
    if (!begin) {
      require(cudaEventCreate(&begin));
      require(cudaEventCreate(&end));
    }
    require(cudaEventRecord(begin));
    for (int i = 0; i < count; ++i) call(&problem);
    require(cudaEventRecord(end));
    require(cudaEventSynchronize(end));
    float sum;
    require(cudaEventElapsedTime(&sum, begin, end));
    return sum / count;
  }

  // The same of a stretch, after calls that are not timed: those meet the other module's data in L2, and its clock.
  float time_of_stretch() const {
    time_of((calls + 3) / 4);
    return time_of(calls);
  }
};

// Whether all modules compute the same of a problem without a gate; prints where they don't.
bool agree(const std::vector<Module>& modules, int64_t dim, int64_t length, const std::string& direction) {
  bool good = true;
  std::vector<std::vector<float>> expected;
  for (const Module& module : modules) {
    const Outputs outputs;
    const Runner runner(module, {length, dim, kNoGate, direction}, outputs, 1);
    size_t number = 0;
    for (const auto& [name, tensor] : {std::pair{"values", &outputs.values},
                                       {"the query's gradient", &outputs.grad_query},
                                       {"the key's gradient", &outputs.grad_key},
                                       {"the value's gradient", &outputs.grad_value}}) {
      std::vector<float> numbers = sample(tensor->get());
      if (&module == &modules.front()) {
        expected.push_back(std::move(numbers));
        continue;
      }
      const double difference = relative_difference(numbers, expected[number++]);
      if (difference <= kAgreement) continue;
      std::fprintf(stderr,
                   "%s: expected %s of %s within %g where log f = 0, %s, head dim %d, T = %d, found them %g apart\n",
                   module.name.c_str(), name, modules.front().name.c_str(), kAgreement, direction.c_str(),
                   static_cast<int>(dim), static_cast<int>(length), difference);
      good = false;
    }
  }
  return good;
}

void run(benchmark::State& state, const std::vector<Module>& modules, const Case& c, float stretch) {
  static std::map<const Module*, Outputs> outputs;
  std::vector<Runner> runners;
  for (const Module& module : modules) runners.emplace_back(module, c, outputs[&module], stretch);
  const int rounds = std::max(1, static_cast<int>(kRepetition / (2 * stretch * modules.size())));
  for (auto iteration : state) {
    runners.back().time_of(static_cast<int>(std::ceil(runners.back().calls * std::max(1.0f, kLeadIn / stretch))));
    for (Runner& runner : runners) runner.milliseconds = 0;
    for (int round = 0; round < rounds; ++round) {
      for (Runner& runner : runners) runner.milliseconds += runner.time_of_stretch() / (2 * rounds);
      for (auto runner = runners.rbegin(); runner != runners.rend(); ++runner)
        runner->milliseconds += runner->time_of_stretch() / (2 * rounds);
    }
    state.SetIterationTime(runners[0].milliseconds * 1e-3);
  }
  const double first = runners[0].milliseconds;
  for (const Runner& runner : runners) state.counters["ms/" + runner.module.name] = runner.milliseconds;
  for (size_t i = 1; i < runners.size(); ++i)
    state.counters["ratio_to/" + runners[i].module.name] = first / runners[i].milliseconds;
  if (c.direction == "plan") return;
  const double flops = 2.0 * kTokens * c.length * kWidth * (is_backward(c.direction) ? 2.5 : 1);
  state.counters["TFLOP/s"] = flops * 1e-9 / first;
  const auto result = [&](const Runner& runner) {
    return sample(is_backward(c.direction) ? runner.problem.grad_query : runner.problem.values);
  };
  const std::vector<float> expected = runners.size() > 1 ? result(runners[0]) : std::vector<float>{};
  for (size_t i = 1; i < runners.size(); ++i)
    state.counters["difference/" + runners[i].module.name] = relative_difference(result(runners[i]), expected);
}

}  // namespace

int main(int count, char** arguments) {
  std::string program = std::filesystem::path(arguments[0]).filename();  // the results hold its name, not its path
  arguments[0] = program.data();
  benchmark::Initialize(&count, arguments);
  std::string milliseconds = "10";
  std::vector<Module> modules;
  for (int i = 1; i < count; ++i) {
    const std::string_view argument = arguments[i];
    if (argument.starts_with(kStretchOption)) {
      milliseconds = argument.substr(kStretchOption.size());
      continue;
    }
    if (argument.starts_with("--")) {
      std::fprintf(stderr, "argument: expected a module or %sN, found %s\n", kStretchOption.data(), arguments[i]);
      return 2;
    }
    modules.emplace_back(argument);
    if (std::ranges::count(modules, modules.back().name, &Module::name) > 1) {
      std::fprintf(stderr, "module: expected one of each name, found another %s\n", modules.back().name.c_str());
      return 2;
    }
  }
  char* behind = nullptr;
  const float stretch = std::strtof(milliseconds.c_str(), &behind);
  if (milliseconds.empty() || *behind || !std::isfinite(stretch) || stretch <= 0) {
    std::fprintf(stderr, "milliseconds: expected a number above 0, found %s\n", milliseconds.c_str());
    return 2;
  }
  if (modules.empty()) {
    std::fprintf(stderr,
                 "usage: benchmark_cuda_kernels MODULE.so… [--milliseconds=N] [Google Benchmark's arguments…]\n");
    return 2;
  }
  for (const int64_t dim : {64, 128})
    for (const int64_t length : {4096, 16384})
      for (const char* direction : {"backward", kBackward16BitSums})
        if (!agree(modules, dim, length, direction)) return 1;
  benchmark::AddCustomContext("milliseconds", milliseconds);
  for (const int64_t dim : {64, 128})
    for (const int64_t length : {4096, 16384})
      for (const char* gate : kGates)
        for (const char* direction : {"inference", "forward", "backward", kBackward16BitSums, "plan"}) {
          if (std::string_view(gate) == "strong" && length < 16384) continue;
          if (std::string_view(direction) == kBackward16BitSums && std::string_view(gate) != "open") continue;
          const Case c{length, dim, gate, direction};
          const std::string name =
              c.direction + "/D:" + std::to_string(dim) + "/T:" + std::to_string(length) + "/" + gate;
          benchmark::RegisterBenchmark(
              name.c_str(), [&modules, c, stretch](benchmark::State& state) { run(state, modules, c, stretch); })
              ->UseManualTime()
              ->Iterations(1)
              ->Unit(benchmark::kMillisecond);
        }
  benchmark::RunSpecifiedBenchmarks();
}
