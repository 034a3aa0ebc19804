// Compiled once for each instruction set, as tile_kernels.cpp.
#include "optimized/cpu/layers/cross_entropy_kernels.hpp"

#include "optimized/cpu/exponential.hpp"

namespace lethe::cpu::LETHE_INSTRUCTION_SET {
namespace {

template <typename Scalar>
CrossEntropyRow<Scalar> exponentials(Scalar* __restrict row, int64_t vocabulary) {
  Scalar maximum = -__builtin_inf();
#pragma omp simd reduction(max : maximum)
  for (int64_t v = 0; v < vocabulary; ++v) maximum = maximum < row[v] ? row[v] : maximum;
  Scalar sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t v = 0; v < vocabulary; ++v) {
    const Scalar weight = exponential(row[v] - maximum);
    row[v] = weight;
    sum += weight;
  }
  return {maximum, sum};
}

template <typename Scalar>
void multiply(Scalar* __restrict row, int64_t vocabulary, Scalar factor) {
#pragma omp simd
  for (int64_t v = 0; v < vocabulary; ++v) row[v] *= factor;
}

template <typename Scalar>
bool contains(const Scalar* __restrict row, int64_t count, Scalar number) {
  int64_t found = 0;
#pragma omp simd reduction(+ : found)
  for (int64_t v = 0; v < count; ++v) found += row[v] == number;
  return found > 0;
}

}  // namespace

extern const CrossEntropyKernels<float> float_cross_entropy;
extern const CrossEntropyKernels<double> double_cross_entropy;
const CrossEntropyKernels<float> float_cross_entropy{exponentials<float>, multiply<float>, contains<float>};
const CrossEntropyKernels<double> double_cross_entropy{exponentials<double>, multiply<double>, contains<double>};

}  // namespace lethe::cpu::LETHE_INSTRUCTION_SET
