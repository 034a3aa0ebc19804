// Compiled once for each instruction set, as tile_kernels.cpp.
#include "optimized/cpu/layers/gated_output_kernels.hpp"

#include "optimized/cpu/layers/sigmoid.hpp"
#include "optimized/cpu/layers/storage.hpp"

namespace lethe::cpu::LETHE_INSTRUCTION_SET {
namespace {

// The arrays of one head of one row; those that the call lacks are never read.
template <typename Stored>
struct Part {
  int64_t size;
  const Stored* __restrict o, * __restrict gate;
  const Wide<Stored>* __restrict norm;
};

// Absent arrays stay null, whatever the offset.
template <typename Element, typename Pointer>
LETHE_INLINE Element* at(Pointer* array, int64_t offset) {
  return array ? static_cast<Element*>(array) + offset : nullptr;
}

template <typename Stored>
LETHE_INLINE Part<Stored> part_of(const GatedOutputRows& rows, int64_t row, int64_t head) {
  const int64_t column = head * rows.head_dim;
  return {rows.head_dim, at<const Stored>(rows.o, row * rows.heads * rows.head_dim + column),
          at<const Stored>(rows.gate, row * rows.gate_pitch + column), at<const Wide<Stored>>(rows.norm, column)};
}

// (mean o² + ε)^(−1/2), 1 without a norm.
template <bool has_norm, typename Stored>
LETHE_INLINE Wide<Stored> rstd_of(const Part<Stored>& part, double epsilon) {
  if constexpr (!has_norm) return 1;
  Wide<Stored> squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < part.size; ++i) squares += widened(part.o[i]) * widened(part.o[i]);
  return 1 / __builtin_sqrt(squares / part.size + epsilon);
}

template <bool has_norm, bool has_gate, typename Stored>
LETHE_INLINE void write_values(const Part<Stored>& part, double epsilon, Stored* __restrict values) {
  const Wide<Stored> rstd = rstd_of<has_norm>(part, epsilon);
#pragma omp simd
  for (int64_t i = 0; i < part.size; ++i) {
    Wide<Stored> value = widened(part.o[i]);
    if constexpr (has_norm) value *= rstd * part.norm[i];
    if constexpr (has_gate) value *= sigmoid(widened(part.gate[i]));
    store(value, values[i]);
  }
}

// With n = o · rstd, s = σ(gate), u = dy ∘ s: dgate = u ∘ n w ∘ (1 − s), dw += n ∘ u, do = rstd (w ∘ u − n · mean(n ∘ w ∘ u)).
template <bool has_norm, bool has_gate, typename Stored>
LETHE_INLINE void write_gradients(const Part<Stored>& part, double epsilon, const Stored* __restrict grad_values,
                                  Stored* __restrict grad_o, Stored* __restrict grad_gate,
                                  Wide<Stored>* __restrict grad_norm, Wide<Stored>* __restrict scratch) {
  using Number = Wide<Stored>;
  const Number rstd = rstd_of<has_norm>(part, epsilon);
  Number dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t i = 0; i < part.size; ++i) {
    const Number n = widened(part.o[i]) * rstd;
    Number product = widened(grad_values[i]), closed = 0;
    if constexpr (has_gate) {
      const Number share = sigmoid(widened(part.gate[i]));
      product *= share;
      closed = 1 - share;
    }
    if constexpr (has_norm) {
      grad_norm[i] += n * product;
      product *= part.norm[i];
      dot += n * product;
      scratch[i] = product;
    } else {
      store(product, grad_o[i]);
    }
    if constexpr (has_gate) store(product * n * closed, grad_gate[i]);
  }
  if constexpr (has_norm) {
    const Number mean = dot / part.size;
#pragma omp simd
    for (int64_t i = 0; i < part.size; ++i) store(rstd * (scratch[i] - widened(part.o[i]) * rstd * mean), grad_o[i]);
  }
}

// run<has norm, has gate>()
template <typename Run>
LETHE_INLINE void with_parts(const GatedOutputRows& rows, const Run& run) {
  if (rows.norm) rows.gate ? run.template operator()<true, true>() : run.template operator()<true, false>();
  else rows.gate ? run.template operator()<false, true>() : run.template operator()<false, false>();
}

template <typename Stored>
void forward(const GatedOutputRows& rows, int64_t begin, int64_t end) {
  const int64_t width = rows.heads * rows.head_dim;
  with_parts(
      rows, [&]<bool has_norm, bool has_gate>() __attribute__((always_inline)) {
        for (int64_t row = begin; row < end; ++row)
          for (int64_t head = 0; head < rows.heads; ++head)
            write_values<has_norm, has_gate>(part_of<Stored>(rows, row, head), rows.epsilon,
                                             at<Stored>(rows.values, row * width + head * rows.head_dim));
      });
}

template <typename Stored>
void backward(const GatedOutputRows& rows, int64_t begin, int64_t end, void* grad_norm, void* scratch) {
  using Number = Wide<Stored>;
  const int64_t width = rows.heads * rows.head_dim;
  with_parts(
      rows, [&]<bool has_norm, bool has_gate>() __attribute__((always_inline)) {
        for (int64_t row = begin; row < end; ++row) {
          for (int64_t column = 0; column < width; column += rows.head_dim)
            write_gradients<has_norm, has_gate>(part_of<Stored>(rows, row, column / rows.head_dim), rows.epsilon,
                                                at<const Stored>(rows.grad_values, row * rows.grad_pitch + column),
                                                at<Stored>(rows.grad_o, row * width + column),
                                                at<Stored>(rows.grad_gate, row * width + column),
                                                at<Number>(grad_norm, column), static_cast<Number*>(scratch));
        }
      });
}

}  // namespace

extern const GatedOutputKernels gated_output_kernels;
const GatedOutputKernels gated_output_kernels{
    {forward<double>, forward<float>, forward<BFloat16>, forward<Float16>},
    {backward<double>, backward<float>, backward<BFloat16>, backward<Float16>}};

}  // namespace lethe::cpu::LETHE_INSTRUCTION_SET
