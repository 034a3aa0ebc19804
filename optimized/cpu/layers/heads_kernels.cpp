// Compiled once for each instruction set, as tile_kernels.cpp.
#include "optimized/cpu/layers/heads_kernels.hpp"

#include "optimized/cpu/layers/sigmoid.hpp"
#include "optimized/cpu/layers/storage.hpp"

namespace lethe::cpu::LETHE_INSTRUCTION_SET {
namespace {

// Of every head of the rows from `begin` to `end`: run(the first of its numbers, the head's place among all rows' heads, the head).
template <typename Rows, typename Run>
LETHE_INLINE void for_heads(const Rows& rows, int64_t begin, int64_t end, const Run& run) {
  for (int64_t row = begin; row < end; ++row)
    for (int64_t head = 0; head < rows.heads; ++head) {
      const int64_t place = row * rows.heads + head;
      run(place * rows.head_dim, place, head);
    }
}

template <typename Stored>
void scaled_forward(const ScaledHeadsRows& rows, int64_t begin, int64_t end) {
  for_heads(
      rows, begin, end, [&](int64_t first, int64_t place, int64_t) __attribute__((always_inline)) {
        const Wide<Stored> scale = static_cast<const Wide<Stored>*>(rows.scale)[place];
        const Stored* __restrict x = static_cast<const Stored*>(rows.x) + first;
        Stored* __restrict values = static_cast<Stored*>(rows.values) + first;
#pragma omp simd
        for (int64_t i = 0; i < rows.head_dim; ++i) store(widened(x[i]) * scale, values[i]);
      });
}

template <typename Stored>
void scaled_backward(const ScaledHeadsRows& rows, int64_t begin, int64_t end) {
  for_heads(
      rows, begin, end, [&](int64_t first, int64_t place, int64_t) __attribute__((always_inline)) {
        using Number = Wide<Stored>;
        const Number scale = static_cast<const Number*>(rows.scale)[place];
        const Stored* __restrict x = static_cast<const Stored*>(rows.x) + first;
        const Stored* __restrict dy = static_cast<const Stored*>(rows.grad_values) + first;
        Stored* __restrict dx = static_cast<Stored*>(rows.grad_x) + first;
        Number dot = 0;
#pragma omp simd reduction(+ : dot)
        for (int64_t i = 0; i < rows.head_dim; ++i) {
          dot += widened(x[i]) * widened(dy[i]);
          store(widened(dy[i]) * scale, dx[i]);
        }
        static_cast<Number*>(rows.grad_scale)[place] = dot;
      });
}

template <typename Stored>
void skip_forward(const GatedSkipRows& rows, int64_t begin, int64_t end) {
  for_heads(
      rows, begin, end, [&](int64_t first, int64_t, int64_t head) __attribute__((always_inline)) {
        using Number = Wide<Stored>;
        const Number skip = static_cast<const Number*>(rows.skip)[head];
        const Stored* __restrict o = static_cast<const Stored*>(rows.o) + first;
        const Stored* __restrict x = static_cast<const Stored*>(rows.x) + first;
        const Stored* __restrict gate = static_cast<const Stored*>(rows.gate) + first;
        Stored* __restrict values = static_cast<Stored*>(rows.values) + first;
#pragma omp simd
        for (int64_t i = 0; i < rows.head_dim; ++i) {
          const Number logit = widened(gate[i]);
          store((widened(o[i]) + skip * widened(x[i])) * (logit * sigmoid(logit)), values[i]);
        }
      });
}

// With r = o + skip · x, s = σ(gate): do = dy gate s, dx = skip do, dskip = Σ do x, dgate = dy r s (1 + gate (1 − s)).
template <typename Stored>
void skip_backward(const GatedSkipRows& rows, int64_t begin, int64_t end, void* grad_skip) {
  for_heads(
      rows, begin, end, [&](int64_t first, int64_t, int64_t head) __attribute__((always_inline)) {
        using Number = Wide<Stored>;
        const Number skip = static_cast<const Number*>(rows.skip)[head];
        const Stored* __restrict o = static_cast<const Stored*>(rows.o) + first;
        const Stored* __restrict x = static_cast<const Stored*>(rows.x) + first;
        const Stored* __restrict gate = static_cast<const Stored*>(rows.gate) + first;
        const Stored* __restrict dy = static_cast<const Stored*>(rows.grad_values) + first;
        Stored* __restrict grad_o = static_cast<Stored*>(rows.grad_o) + first;
        Stored* __restrict dx = static_cast<Stored*>(rows.grad_x) + first;
        Stored* __restrict grad_gate = static_cast<Stored*>(rows.grad_gate) + first;
        Number dot = 0;
#pragma omp simd reduction(+ : dot)
        for (int64_t i = 0; i < rows.head_dim; ++i) {
          const Number logit = widened(gate[i]), open = sigmoid(logit), silu = logit * open;
          const Number arriving = widened(dy[i]), read = arriving * silu, given = widened(x[i]);
          dot += read * given;
          store(read, grad_o[i]);
          store(read * skip, dx[i]);
          store(arriving * (widened(o[i]) + skip * given) * (open + silu * (1 - open)), grad_gate[i]);
        }
        static_cast<Number*>(grad_skip)[head] += dot;
      });
}

}  // namespace

extern const HeadsKernels heads_kernels;
const HeadsKernels heads_kernels{
    {scaled_forward<double>, scaled_forward<float>, scaled_forward<BFloat16>, scaled_forward<Float16>},
    {scaled_backward<double>, scaled_backward<float>, scaled_backward<BFloat16>, scaled_backward<Float16>},
    {skip_forward<double>, skip_forward<float>, skip_forward<BFloat16>, skip_forward<Float16>},
    {skip_backward<double>, skip_backward<float>, skip_backward<BFloat16>, skip_backward<Float16>}};

}  // namespace lethe::cpu::LETHE_INSTRUCTION_SET
