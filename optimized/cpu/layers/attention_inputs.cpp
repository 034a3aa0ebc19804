#include "optimized/cpu/layers/attention_inputs.hpp"

#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "optimized/cpu/instruction_set.hpp"
#include "optimized/cpu/layers/attention_inputs_kernels.hpp"

namespace lethe::cpu {

LETHE_CHOICE(AttentionInputsKernels, attention_inputs_kernels)

namespace {

using layers::AttentionInputs;
using layers::HeadRows;

int64_t chunk_count(const AttentionInputs& call) {
  return call.batch * ((call.length + kAttentionInputsChunk - 1) / kAttentionInputsChunk);
}

// Chunks that pay for another thread.
int64_t grain(const AttentionInputs& call) {
  constexpr int64_t kNumbers = 32768;
  return std::max<int64_t>(1, kNumbers / (kAttentionInputsChunk * call.heads * (call.head_dim + 8)));
}

int64_t norm_size(const AttentionInputs& call, const HeadRows& part) {
  if (!part.product.data || !part.norm) return 0;
  return part.norm_per_head ? call.heads * call.head_dim : call.head_dim;
}

template <typename Number>
void add_up(const std::vector<Number>& sums, const ChunkSums& places, int64_t place, void* total, int64_t size) {
  Number* numbers = static_cast<Number*>(total);
  std::fill_n(numbers, size, Number(0));
  for (size_t chunk = 0; chunk < sums.size(); chunk += places.size) {
    for (int64_t i = 0; i < size; ++i) numbers[i] += sums[chunk + place + i];
  }
}

template <typename Number>
void backward_of(const AttentionInputs& call) {
  ChunkSums places{};
  for (int i = 0; i < 3; ++i) {
    places.norms[i] = places.bias;
    places.bias += norm_size(call, call.parts[i]);
  }
  const int64_t bias_size = call.gate_bias ? call.heads : 0;
  places.size = std::max<int64_t>(1, places.bias + bias_size);
  std::vector<Number> sums(chunk_count(call) * places.size);
  const auto kernel = attention_inputs_kernels().backward[static_cast<int>(call.dtype)];
  at::parallel_for(0, chunk_count(call), grain(call), [&](int64_t begin, int64_t end) {
    std::vector<Number> scratch((2 + call.heads) * call.head_dim);
    kernel(call, begin, end, scratch.data(), places, sums.data());
  });
  for (int i = 0; i < 3; ++i) {
    const int64_t size = norm_size(call, call.parts[i]);
    if (size > 0) add_up(sums, places, places.norms[i], call.parts[i].grad_norm, size);
  }
  if (bias_size > 0) add_up(sums, places, places.bias, call.grad_gate_bias, bias_size);
}

}  // namespace

void attention_inputs(const AttentionInputs& call) {
  const auto kernel = attention_inputs_kernels().forward[static_cast<int>(call.dtype)];
  at::parallel_for(0, chunk_count(call), grain(call), [&](int64_t begin, int64_t end) {
    std::vector<double> scratch(call.head_dim);
    kernel(call, begin, end, scratch.data());
  });
}

void attention_inputs_backward(const AttentionInputs& call) {
  if (call.dtype == Dtype::kFloat64) return backward_of<double>(call);
  backward_of<float>(call);
}

}  // namespace lethe::cpu
