// Compiled once for each instruction set, as tile_kernels.cpp.
#include "optimized/cpu/layers/add_rms_norm_kernels.hpp"

#include "optimized/cpu/layers/storage.hpp"

namespace lethe::cpu::LETHE_INSTRUCTION_SET {
namespace {

// The sum of a row where there is a branch, and Σ sum²; of the stored numbers, as the gradient sees them.
template <typename Residual, typename Branch>
LETHE_INLINE Wide<Residual> add(int64_t width, const Residual* __restrict residual, const Branch* __restrict branch,
                                Residual* __restrict sum) {
  Wide<Residual> squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < width; ++i) {
    store(widened(residual[i]) + widened(branch[i]), sum[i]);
    squares += widened(sum[i]) * widened(sum[i]);
  }
  return squares;
}

template <typename Residual>
LETHE_INLINE Wide<Residual> sum_of_squares(int64_t width, const Residual* __restrict row) {
  Wide<Residual> squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < width; ++i) squares += widened(row[i]) * widened(row[i]);
  return squares;
}

template <typename Residual, typename Branch>
void forward(const AddRmsNormRows& rows, int64_t begin, int64_t end) {
  using Number = Wide<Branch>;
  const int64_t width = rows.width;
  const Number* __restrict weight = static_cast<const Number*>(rows.weight);
  for (int64_t row = begin; row < end; ++row) {
    const Residual* sum = static_cast<const Residual*>(rows.residual) + row * width;
    Number squares;
    if (rows.branch) {
      Residual* const to = static_cast<Residual*>(rows.sum) + row * width;
      squares = add(width, sum, static_cast<const Branch*>(rows.branch) + row * width, to);
      sum = to;
    } else {
      squares = sum_of_squares(width, sum);
    }
    const Number rstd = 1 / __builtin_sqrt(squares / width + rows.epsilon);
    static_cast<Number*>(rows.rstd)[row] = rstd;
    Branch* __restrict normed = static_cast<Branch*>(rows.normed) + row * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) store(widened(sum[i]) * rstd * weight[i], normed[i]);
  }
}

// One row's g = grad_sum + rstd · (w ∘ dy − n · mean), to the gradients of residual and branch.
template <bool has_grad_sum, bool has_branch, typename Residual, typename Branch>
LETHE_INLINE void write_gradients(int64_t width, const Residual* __restrict sum, const Residual* __restrict grad_sum,
                                  const Branch* __restrict grad_normed, const Wide<Branch>* __restrict weight,
                                  Wide<Branch> rstd, Wide<Branch> mean, Residual* __restrict grad_residual,
                                  Branch* __restrict grad_branch) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    Wide<Branch> gradient = rstd * (widened(grad_normed[i]) * weight[i] - widened(sum[i]) * rstd * mean);
    if constexpr (has_grad_sum) gradient += widened(grad_sum[i]);
    store(gradient, grad_residual[i]);
    if constexpr (has_branch) store(gradient, grad_branch[i]);
  }
}

template <typename Residual, typename Branch>
void backward(const AddRmsNormGradientRows& rows, int64_t begin, int64_t end, void* grad_weight_memory) {
  using Number = Wide<Branch>;
  const int64_t width = rows.width;
  const Number* __restrict weight = static_cast<const Number*>(rows.weight);
  Number* __restrict grad_weight = static_cast<Number*>(grad_weight_memory);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t first = row * width;
    const Residual* __restrict sum = static_cast<const Residual*>(rows.sum) + first;
    const Branch* __restrict grad_normed = static_cast<const Branch*>(rows.grad_normed) + first;
    const Number rstd = static_cast<const Number*>(rows.rstd)[row];
    Number dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t i = 0; i < width; ++i) {
      const Number product = widened(sum[i]) * rstd * widened(grad_normed[i]);
      grad_weight[i] += product;
      dot += product * weight[i];
    }
    const auto write = [&]<bool has_grad_sum, bool has_branch>() __attribute__((always_inline)) {
      write_gradients<has_grad_sum, has_branch>(
          width, sum, static_cast<const Residual*>(rows.grad_sum) + (has_grad_sum ? first : 0), grad_normed, weight,
          rstd, dot / width, static_cast<Residual*>(rows.grad_residual) + first,
          static_cast<Branch*>(rows.grad_branch) + (has_branch ? first : 0));
    };
    if (rows.grad_sum)
      rows.grad_branch ? write.template operator()<true, true>() : write.template operator()<true, false>();
    else rows.grad_branch ? write.template operator()<false, true>() : write.template operator()<false, false>();
  }
}

}  // namespace

extern const AddRmsNormKernels add_rms_norm_kernels;
const AddRmsNormKernels add_rms_norm_kernels{
    {{forward<double, double>, forward<float, float>, forward<float, BFloat16>, forward<float, Float16>},
     {forward<double, double>, forward<float, float>, forward<BFloat16, BFloat16>, forward<Float16, Float16>}},
    {{backward<double, double>, backward<float, float>, backward<float, BFloat16>, backward<float, Float16>},
     {backward<double, double>, backward<float, float>, backward<BFloat16, BFloat16>, backward<Float16, Float16>}}};

}  // namespace lethe::cpu::LETHE_INSTRUCTION_SET
