// Times builds of the CUDA kernels in one process, in turn: the shipped one beside one without a gate, or beside another commit's.
//
// usage: benchmark_cuda_kernels MODULE.so… [Google Benchmark's arguments…]
//
// A time is that of one call between CUDA events, all kernels that the operator launches included, averaged over some 20 ms of calls in a
// row behind as many that are not timed. TFLOP/s are effective: 2·B·H·T²·D forward, 2.5 times that backward, whatever was pruned.
// `difference` is the relative difference of the values or of the query's gradient (backward) to the first module's.
// `forward` and `backward` are those of training: the residual of the values is kept and read. `inference` is a forward that keeps none.
// B·T = 32768, H·D = 1536, bfloat16, queries and keys RMS-normalised; gates `open` (mean log f = −1e-4) and `bimodal` (−0.1 in 70 % of
// the heads), the latter pruned.

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
#include <tuple>
#include <vector>

#include "optimized/benchmarks/cuda/module.hpp"

namespace {

constexpr int64_t kTokens = 32768, kWidth = 1536;
// Of calls in a row before a time is taken, and of those that it is taken of: these kernels run at the power limit, and a device that has
// rested or done something else runs at another clock for a while.
constexpr float kMilliseconds = 20;

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
    };
    find(forward_bytes, "lethe_forward_bytes");
    find(backward_bytes, "lethe_backward_bytes");
    find(forward, "lethe_forward");
    find(backward, "lethe_backward");
    find(plan, "lethe_plan");
  }
};

// A pool of random rows, copied over and over: 50 million normal variates take long on a CPU, and no kernel can tell.
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

// Inputs of one head dimension, and outputs and workspaces that every problem shares.
struct Tensors {
  std::shared_ptr<__nv_bfloat16> query, key, value, grad, values, residual, grad_query, grad_key, grad_value;
  std::map<std::string, std::shared_ptr<float>> log_forget;
  std::shared_ptr<float> log_normalizer, grad_log_forget;
  std::shared_ptr<int64_t> visited_pairs;

  explicit Tensors(int64_t dim)
      : query(random_tensor(dim, true, 1)), key(random_tensor(dim, true, 2)), value(random_tensor(dim, false, 3)),
        grad(random_tensor(dim, false, 4)) {
    for (auto* tensor : {&values, &residual, &grad_query, &grad_key, &grad_value})
      *tensor = device_memory<__nv_bfloat16>(kTokens * kWidth);
    const int64_t heads = kWidth / dim, gates = kTokens * heads;
    for (auto* tensor : {&log_normalizer, &grad_log_forget}) *tensor = device_memory<float>(gates);
    visited_pairs = device_memory<int64_t>(gates);
    std::mt19937 generator(5);
    std::uniform_real_distribution<float> uniform(0, 2);
    for (const char* name : {"open", "bimodal"}) {
      std::vector<float> host(gates);
      for (int64_t i = 0; i < gates; ++i)
        host[i] = uniform(generator) *
                  (std::string(name) == "bimodal" && i % heads < std::lround(0.7 * heads) ? -0.1f : -1e-4f);
      log_forget[name] = device_memory<float>(gates);
      require(cudaMemcpy(log_forget[name].get(), host.data(), gates * sizeof(float), cudaMemcpyHostToDevice));
    }
  }
};

struct Case {
  int64_t length, dim;
  std::string gate, direction;
};

const Tensors& tensors_of(int64_t dim) {
  static std::map<int64_t, Tensors> all;
  return all.try_emplace(dim, dim).first->second;
}

lethe_problem problem_of(const Case& c) {
  const Tensors& t = tensors_of(c.dim);
  return {kTokens / c.length,
          c.length,
          kWidth / c.dim,
          c.dim,
          1 / std::sqrt(double(c.dim)),
          c.gate == "open" ? -std::numeric_limits<double>::infinity() : -10.0,
          t.query.get(),
          t.key.get(),
          t.value.get(),
          t.grad.get(),
          t.log_forget.at(c.gate).get(),
          t.values.get(),
          t.log_normalizer.get(),
          t.visited_pairs.get(),
          t.grad_query.get(),
          t.grad_key.get(),
          t.grad_value.get(),
          t.grad_log_forget.get(),
          nullptr,
          nullptr,
          c.direction == "inference" ? nullptr : t.residual.get()};
}

std::vector<float> sample(const void* tensor) {
  constexpr int64_t kSample = 1 << 20;
  std::vector<__nv_bfloat16> host(kSample);
  require(cudaMemcpy(host.data(), static_cast<const __nv_bfloat16*>(tensor) + kTokens * kWidth - kSample,
                     kSample * sizeof(__nv_bfloat16), cudaMemcpyDeviceToHost));
  std::vector<float> numbers;
  for (const __nv_bfloat16 x : host) numbers.push_back(__bfloat162float(x));
  return numbers;
}

void run(benchmark::State& state, const Module& module, const Case& c) {
  lethe_problem problem = problem_of(c);
  const auto forward_memory = device_memory<char>(module.forward_bytes(&problem)),
             backward_memory = device_memory<char>(module.backward_bytes(&problem));
  problem.forward_memory = forward_memory.get();
  problem.backward_memory = backward_memory.get();
  const auto call = c.direction == "backward" ? module.backward : c.direction == "plan" ? module.plan : module.forward;
  module.forward(&problem);  // what backward starts from; and warms up
  call(&problem);
  cudaEvent_t begin, end;
  require(cudaEventCreate(&begin));
  require(cudaEventCreate(&end));
  const auto milliseconds_of = [&](int calls) {
    require(cudaEventRecord(begin));
    for (int i = 0; i < calls; ++i) call(&problem);
    require(cudaEventRecord(end));
    require(cudaEventSynchronize(end));
    float milliseconds;
    require(cudaEventElapsedTime(&milliseconds, begin, end));
    return milliseconds;
  };
  const int calls = static_cast<int>(std::clamp(kMilliseconds / milliseconds_of(1), 4.0f, 1000.0f));
  for (auto iteration : state) {
    milliseconds_of(calls);
    state.SetIterationTime(milliseconds_of(calls) * 1e-3 / calls);
  }
  require(cudaEventDestroy(begin));
  require(cudaEventDestroy(end));
  if (c.direction == "plan") return;
  const double flops = 2.0 * kTokens * c.length * kWidth * (c.direction == "backward" ? 2.5 : 1);
  state.counters["TFLOP/s"] = benchmark::Counter(flops * 1e-12 * state.iterations(), benchmark::Counter::kIsRate);
  static std::map<std::tuple<int64_t, int64_t, std::string, std::string>, std::vector<float>> firsts;
  const std::vector<float> numbers = sample(c.direction == "backward" ? problem.grad_query : problem.values);
  const std::vector<float>& first = firsts.try_emplace({c.length, c.dim, c.gate, c.direction}, numbers).first->second;
  double squares = 0, differences = 0;
  for (size_t i = 0; i < numbers.size(); ++i) {
    squares += double{first[i]} * first[i];
    differences += (double{numbers[i]} - first[i]) * (double{numbers[i]} - first[i]);
  }
  state.counters["difference"] = std::sqrt(differences / squares);
}

}  // namespace

int main(int count, char** arguments) {
  benchmark::Initialize(&count, arguments);
  std::vector<Module> modules(arguments + 1, arguments + count);
  if (modules.empty()) {
    std::fprintf(stderr, "usage: benchmark_cuda_kernels MODULE.so… [Google Benchmark's arguments…]\n");
    return 2;
  }
  for (const int64_t dim : {64, 128})
    for (const int64_t length : {4096, 16384})
      for (const char* gate : {"open", "bimodal"})
        for (const char* direction : {"inference", "forward", "backward", "plan"})
          for (const Module& module : modules) {
            const Case c{length, dim, gate, direction};
            const std::string name = c.direction + "/D:" + std::to_string(dim) + "/T:" + std::to_string(length) + "/" +
                                     gate + "/" + module.name;
            benchmark::RegisterBenchmark(name.c_str(), [&module, c](benchmark::State& state) { run(state, module, c); })
                ->UseManualTime()
                ->Iterations(1)
                ->Unit(benchmark::kMillisecond);
          }
  benchmark::RunSpecifiedBenchmarks();
}
