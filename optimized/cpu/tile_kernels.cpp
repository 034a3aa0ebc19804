// Compiled once for each instruction set, with LETHE_INSTRUCTION_SET naming the namespace. Nothing here may be shared between those
// compilations: no standard library, everything local but the one table, or the linker could hand AVX-512 code to a processor without.
#include "optimized/cpu/tile_kernels.hpp"

#include <cstring>

namespace lethe::cpu::LETHE_INSTRUCTION_SET {
namespace {

template <typename Scalar>
struct Format;
template <>
struct Format<float> {
  using Bits = int32_t;
  static constexpr int kMantissa = 23, kTerms = 7;
  static constexpr float kRounder = 0x1.8p23f, kLowest = -87.0f, kLog2High = 0x1.62e4p-1f, kLog2Low = 0x1.7f7d1cp-20f;
};
template <>
struct Format<double> {
  using Bits = int64_t;
  static constexpr int kMantissa = 52, kTerms = 13;
  static constexpr double kRounder = 0x1.8p52, kLowest = -708.0, kLog2High = 0x1.62e42fefap-1,
                          kLog2Low = 0x1.cf79abc9e3b39p-40;
};

template <typename Scalar>
constexpr Scalar inverse_factorial(int n) {
  double factorial = 1.0;
  for (int i = 2; i <= n; ++i) factorial *= i;
  return static_cast<Scalar>(1.0 / factorial);
}

// e^x for x ≤ 0 and not much above, by e^x = 2^n e^r with |r| ≤ ln 2 / 2 and Taylor's polynomial; NaN stays NaN. Below kLowest the
// result would be subnormal, which costs a hundred times more to compute with: such weights become e^kLowest, nothing beside
// the softmax's sum ≥ 1.
template <typename Scalar>
inline __attribute__((always_inline)) Scalar exponential(Scalar x) {
  using F = Format<Scalar>;
  using Bits = typename F::Bits;
  x = x < F::kLowest ? F::kLowest : x;
  const Scalar shifted = x * static_cast<Scalar>(1.4426950408889634) + F::kRounder;  // its low bits hold n
  const Scalar n = shifted - F::kRounder;
  const Scalar r = (x - n * F::kLog2High) - n * F::kLog2Low;
  Scalar polynomial = inverse_factorial<Scalar>(F::kTerms);
#pragma GCC unroll 16
  for (int term = F::kTerms - 1; term >= 0; --term) polynomial = polynomial * r + inverse_factorial<Scalar>(term);
  Bits bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  const Scalar one = 1;
  Bits one_bits;
  std::memcpy(&one_bits, &one, sizeof one_bits);
  const Bits power_bits = static_cast<Bits>(static_cast<Bits>(bits << F::kMantissa) + one_bits);
  Scalar power;
  std::memcpy(&power, &power_bits, sizeof power);
  return polynomial * power;
}

template <typename Scalar>
void zero(Scalar* row, int64_t begin, int64_t end) {
  for (int64_t j = begin; j < end; ++j) row[j] = 0;
}

template <typename Scalar>
void softmax(const SoftmaxTile<Scalar>& tile) {
  const Scalar scale = tile.scale;
  const Scalar* __restrict column_bias = tile.column_bias;
  for (int64_t i = 0; i < tile.rows; ++i) {
    Scalar* __restrict row = tile.weights + i * tile.stride;
    const int64_t begin = tile.begin[i], end = tile.end[i];
    tile.rescale[i] = 1;
    if (end <= begin) {
      zero(row, 0, tile.columns);
      continue;
    }
    const Scalar row_bias = tile.row_bias[i];
    const Scalar before = tile.maximum[i];
    Scalar maximum = before;
#pragma omp simd reduction(max : maximum)
    for (int64_t j = begin; j < end; ++j) {
      const Scalar logit = scale * row[j] + (row_bias + column_bias[j]);
      row[j] = logit;
      maximum = maximum < logit ? logit : maximum;
    }
    Scalar sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = begin; j < end; ++j) {
      const Scalar weight = exponential(row[j] - maximum);
      row[j] = weight;
      sum += weight;
    }
    zero(row, 0, begin);
    zero(row, end, tile.columns);
    if (maximum != before) {
      tile.rescale[i] = exponential(before - maximum);
      tile.maximum[i] = maximum;
    }
    tile.sum[i] = tile.sum[i] * tile.rescale[i] + sum;
  }
}

template <typename Scalar>
void gradient(const GradientTile<Scalar>& tile) {
  const Scalar scale = tile.scale;
  const Scalar* __restrict column_bias = tile.column_bias;
  double* __restrict column_sum = tile.column_sum;
  for (int64_t i = 0; i < tile.rows; ++i) {
    Scalar* __restrict weights = tile.weights + i * tile.stride;
    Scalar* __restrict gradients = tile.gradients + i * tile.stride;
    const int64_t begin = tile.begin[i], end = tile.end[i];
    const int64_t visible_begin = end <= begin ? 0 : begin, visible_end = end <= begin ? 0 : end;
    const Scalar row_bias = tile.row_bias[i], log_normalizer = tile.log_normalizer[i], delta = tile.delta[i];
    Scalar sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = visible_begin; j < visible_end; ++j) {
      const Scalar weight = exponential(scale * weights[j] + (row_bias + column_bias[j]) - log_normalizer);
      const Scalar derivative = weight * (gradients[j] - delta);
      weights[j] = weight;
      gradients[j] = derivative;
      column_sum[j] += derivative;
      sum += derivative;
    }
    tile.row_sum[i] += sum;
    zero(weights, 0, visible_begin);
    zero(weights, visible_end, tile.columns);
    zero(gradients, 0, visible_begin);
    zero(gradients, visible_end, tile.columns);
  }
}

}  // namespace

extern const TileKernels<float> float_kernels;
extern const TileKernels<double> double_kernels;
const TileKernels<float> float_kernels{softmax<float>, gradient<float>};
const TileKernels<double> double_kernels{softmax<double>, gradient<double>};

}  // namespace lethe::cpu::LETHE_INSTRUCTION_SET
