// Compiled once for each instruction set, as tile_kernels.cpp.
#include "optimized/cpu/layers/swiglu_kernels.hpp"

#include "optimized/cpu/layers/sigmoid.hpp"
#include "optimized/cpu/layers/storage.hpp"

namespace lethe::cpu::LETHE_INSTRUCTION_SET {
namespace {

template <typename Stored>
void forward(const SwigluRows& rows, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const Stored* __restrict gate = static_cast<const Stored*>(rows.gate_and_up) + row * rows.pitch;
    const Stored* __restrict up = gate + rows.width;
    Stored* __restrict values = static_cast<Stored*>(rows.result) + row * rows.width;
#pragma omp simd
    for (int64_t i = 0; i < rows.width; ++i) {
      const Wide<Stored> a = widened(gate[i]);
      store(a * sigmoid(a) * widened(up[i]), values[i]);
    }
  }
}

template <typename Stored>
void backward(const SwigluRows& rows, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const Stored* __restrict gate = static_cast<const Stored*>(rows.gate_and_up) + row * rows.pitch;
    const Stored* __restrict up = gate + rows.width;
    const Stored* __restrict grad_values = static_cast<const Stored*>(rows.grad_values) + row * rows.grad_pitch;
    Stored* __restrict grad_gate = static_cast<Stored*>(rows.result) + row * 2 * rows.width;
    Stored* __restrict grad_up = grad_gate + rows.width;
#pragma omp simd
    for (int64_t i = 0; i < rows.width; ++i) {
      const Wide<Stored> a = widened(gate[i]), share = sigmoid(a), grad = widened(grad_values[i]);
      store(grad * widened(up[i]) * share * (1 + a * (1 - share)), grad_gate[i]);
      store(grad * a * share, grad_up[i]);
    }
  }
}

}  // namespace

extern const SwigluKernels swiglu_kernels;
const SwigluKernels swiglu_kernels{{forward<double>, forward<float>, forward<BFloat16>, forward<Float16>},
                                   {backward<double>, backward<float>, backward<BFloat16>, backward<Float16>}};

}  // namespace lethe::cpu::LETHE_INSTRUCTION_SET
