// Cross entropy of rows of logits, and its gradient in place.
//
//   loss = log Σ_{v<V} e^{l_v} − l_y,   l_v ← (e^{l_v}/Σ − 1_{v=y}) · scale
//
// A CTA owns a row. Its threads copy the row to shared memory, all 16-byte loads at once; each thread reads back what it copied itself, so nothing
// but the two reductions waits for other threads. One pass keeps a running maximum and sum a thread, a second writes the gradient. A row that does
// not fit in shared memory, or is not aligned, is read from global memory, twice where it gets a gradient. Sums are float32 in a fixed order.

#include <cfloat>
#include <numbers>
#include <stdexcept>

#include "optimized/cuda/layers/layers.hpp"
#include "optimized/cuda/layers/row.cuh"

namespace lethe::layers {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32, kCtas = 2;  // of an SM
constexpr int kStages = 4;                                        // in which a staged row arrives
constexpr float kLog2E = std::numbers::log2e_v<float>;

__device__ void copy_to_shared(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))), "l"(global)
               : "memory");
}

__device__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending of this thread's groups of copies are under way.
template <int kPending>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" : : "n"(kPending) : "memory");
}

// Σ e^{l_v} = sum · e^shift over the numbers so far, shift their maximum. It begins far below every logit that matters, but finite: the first
// step computes no ∞ − ∞.
struct RunningSum {
  float shift = -FLT_MAX / 2, sum = 0;
};

// The label's own logit, and whether another one is larger, or as large and before it.
struct Label {
  int index;  // −1 where it is none of the vocabulary
  float logit;
  bool beaten = false;
};

// Adds a piece's numbers at columns first …
template <int V>
__device__ void add(RunningSum& running, Label& label, float (&logits)[V], int first, int vocabulary) {
  if (first + V > vocabulary) {
#pragma unroll
    for (int i = 0; i < V; ++i)
      if (first + i >= vocabulary) logits[i] = -INFINITY;
  }
  float maximum = logits[0];
#pragma unroll
  for (int i = 1; i < V; ++i) maximum = fmaxf(maximum, logits[i]);
  if (maximum > label.logit) label.beaten = true;
  if (maximum == label.logit && first < label.index) {
#pragma unroll
    for (int i = 0; i < V; ++i)
      if (logits[i] == label.logit && first + i < label.index) label.beaten = true;
  }
  const float shift = fmaxf(running.shift, maximum);
  float sum = running.sum * exp2_approximate((running.shift - shift) * kLog2E);
#pragma unroll
  for (int i = 0; i < V; ++i) sum += exp2_approximate((logits[i] - shift) * kLog2E);
  running = {shift, sum};
}

// Of all threads, in every thread; called once in a kernel.
__device__ RunningSum sum_of_threads(RunningSum running) {
  __shared__ float shifts[kWarps], sums[kWarps];
  float shift = running.shift;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) shift = fmaxf(shift, __shfl_xor_sync(~0u, shift, offset));
  float sum = running.sum * exp2_approximate((running.shift - shift) * kLog2E);
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  if (threadIdx.x % 32 == 0) shifts[threadIdx.x / 32] = shift, sums[threadIdx.x / 32] = sum;
  __syncthreads();
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) shift = fmaxf(shift, shifts[warp]);
  sum = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sum += sums[warp] * exp2_approximate((shifts[warp] - shift) * kLog2E);
  return {shift, sum};
}

struct Parameters {
  int vocabulary, pitch;
  void* logits;
  const int64_t* labels;
  float* loss;
  bool* correct;
  bool gradient;
  float scale;
};

template <int V, bool kStaged, typename T>
__global__ void __launch_bounds__(kThreads, kCtas) cross_entropy(const __grid_constant__ Parameters p) {
  extern __shared__ uint4 staged[];
  T* const logits = static_cast<T*>(p.logits) + int64_t{blockIdx.x} * p.pitch;
  const T* const source = kStaged ? reinterpret_cast<const T*>(staged) : logits;
  const int pieces = (p.vocabulary + V - 1) / V;
  const int of_stage = kStaged ? (pieces + kStages - 1) / kStages : pieces;
  if constexpr (kStaged) {
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      for (int i = stage * of_stage + threadIdx.x; i < min((stage + 1) * of_stage, pieces); i += kThreads)
        copy_to_shared(staged + i, logits + i * V);
      commit_copies();
    }
  }
  const int64_t given = p.labels[blockIdx.x];
  const bool known = given >= 0 && given < p.vocabulary;
  Label label{known ? static_cast<int>(given) : -1, known ? widened(logits[given]) : NAN};

  RunningSum running;
  const auto add_stage = [&](int stage) {
    for (int i = stage * of_stage + threadIdx.x; i < min((stage + 1) * of_stage, pieces); i += kThreads) {
      float numbers[V];
      const int first = i * V;
      widen(load<V>(source + first), numbers);
      add(running, label, numbers, first, p.vocabulary);
    }
  };
  if constexpr (kStaged) {
    wait_for_copies<3>();
    add_stage(0);
    wait_for_copies<2>();
    add_stage(1);
    wait_for_copies<1>();
    add_stage(2);
    wait_for_copies<0>();
    add_stage(3);
  } else {
    add_stage(0);
  }
  const bool beaten = __syncthreads_or(label.beaten);  // after it, the label's logit may be overwritten
  running = sum_of_threads(running);
  if (threadIdx.x == 0) {
    const float loss = (running.shift - label.logit) + logf(running.sum);
    p.loss[blockIdx.x] = loss;
    if (p.correct != nullptr) p.correct[blockIdx.x] = !beaten && loss == loss;
  }
  if (!p.gradient) return;
  const float factor = known ? p.scale / running.sum : NAN;
  for (int i = threadIdx.x; i < p.pitch / V; i += kThreads) {
    const int first = i * V;
    float numbers[V] = {};
    if (i < pieces) widen(load<V>(source + first), numbers);
#pragma unroll
    for (int k = 0; k < V; ++k) numbers[k] = exp2_approximate((numbers[k] - running.shift) * kLog2E) * factor;
    if (label.index >= first && label.index < first + V) {
#pragma unroll
      for (int k = 0; k < V; ++k)
        if (label.index == first + k) numbers[k] -= p.scale;
    }
    if (first + V > p.vocabulary) {
#pragma unroll
      for (int k = 0; k < V; ++k)
        if (first + k >= p.vocabulary) numbers[k] = 0;
    }
    store(narrow<T>(numbers), logits + first);
  }
}

template <int V, bool kStaged, typename T>
void launch(const CrossEntropyRows& call, int shared_bytes) {
  const auto kernel = cross_entropy<V, kStaged, T>;
  if (kStaged)
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
               "cross_entropy_rows");
  const Parameters parameters{static_cast<int>(call.vocabulary),
                              static_cast<int>(call.pitch),
                              call.logits,
                              call.labels,
                              call.loss,
                              call.correct,
                              call.gradient,
                              call.scale};
  kernel<<<static_cast<unsigned>(call.rows), kThreads, shared_bytes, call.stream>>>(parameters);
  check_launch("cross_entropy_rows");
}

// Bytes of shared memory that a CTA may have beside its static arrays.
int64_t shared_memory() {
  int device, bytes;
  cuda_check(cudaGetDevice(&device), "cross_entropy_rows");
  cuda_check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "cross_entropy_rows");
  return bytes - 256;
}

}  // namespace

void cross_entropy_rows(const CrossEntropyRows& call) {
  if (call.rows == 0) return;
  with_element(call.dtype, [&]<typename T>(T*) {
    if constexpr (sizeof(T) == 8) {
      throw std::invalid_argument("logits: expected float32, bfloat16 or float16, found float64");
    } else {
      constexpr int V = kPieceElements<T>;
      if (!holds_pieces<V>(static_cast<const T*>(call.logits), call.pitch)) return launch<1, false, T>(call, 0);
      const int64_t bytes = (call.vocabulary + V - 1) / V * 16;
      if (bytes > shared_memory()) return launch<V, false, T>(call, 0);
      launch<V, true, T>(call, static_cast<int>(bytes));
    }
  });
}

}  // namespace lethe::layers
