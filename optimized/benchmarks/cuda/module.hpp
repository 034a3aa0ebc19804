#pragma once
// One build of the CUDA kernels as a shared module, so that several builds can be timed in turn by one process: of another commit, or
// without a gate. C functions and plain data: a module shares no type with the program that loads it.

#include <cstdint>

extern "C" {

/// One problem, all pointers on the device. Layouts as in optimized/cuda/attention.hpp, everything contiguous, bfloat16; Tq = Tk, Hq = H.
struct lethe_problem {
  int64_t batch, length, heads, dim;
  double scale, log_pruning_tolerance;
  const void *query, *key, *value, *grad_values;
  const float* log_forget;
  void* values;
  float* log_normalizer;
  int64_t* visited_pairs;
  void *grad_query, *grad_key, *grad_value;
  float* grad_log_forget;
  void *forward_memory, *backward_memory;  ///< lethe_forward_bytes and lethe_backward_bytes long, 256-byte aligned
  void* residual;                          ///< of the values, kept for the backward; null: none
  /// 1: the backward's sums of dS are of floats. Modules from before this field ignore it and sum in 16 bits
  int32_t float_sums;
};

uint64_t lethe_forward_bytes(const lethe_problem* problem);
uint64_t lethe_backward_bytes(const lethe_problem* problem);

/// The operator's launches of a forward pass: the gate's plan, then the kernel. On the default stream; throws nothing: prints and aborts.
void lethe_forward(const lethe_problem* problem);

/// The same for a backward pass after lethe_forward on the same problem.
void lethe_backward(const lethe_problem* problem);

/// The forward's plan alone.
void lethe_plan(const lethe_problem* problem);
}
