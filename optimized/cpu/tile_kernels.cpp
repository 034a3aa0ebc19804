// Compiled once for each instruction set, with LETHE_INSTRUCTION_SET naming the namespace. Nothing here may be shared between those
// compilations: no standard library, everything local but the one table, or the linker could hand AVX-512 code to a processor without.
#include "optimized/cpu/tile_kernels.hpp"

#include "optimized/cpu/exponential.hpp"

namespace lethe::cpu::LETHE_INSTRUCTION_SET {
namespace {

template <typename Scalar>
void zero(Scalar* row, int64_t begin, int64_t end) {
  for (int64_t j = begin; j < end; ++j) row[j] = 0;
}

#if defined(__AVX512F__)
constexpr int kBytes = 64;
#elif defined(__AVX__)
constexpr int kBytes = 32;
#else
constexpr int kBytes = 16;
#endif
template <typename Scalar>
constexpr int64_t kLanes = kBytes / sizeof(Scalar);

// The last columns of a row, less than a vector of them, as a whole vector: a short sequence has little else.
template <typename Scalar>
inline __attribute__((always_inline)) void load_tail(const Scalar* __restrict from, int64_t count, Scalar rest,
                                                     Scalar* __restrict tail) {
#pragma omp simd
  for (int64_t j = 0; j < kLanes<Scalar>; ++j) tail[j] = j < count ? from[j] : rest;
}

template <typename Scalar>
inline __attribute__((always_inline)) void store_tail(const Scalar* __restrict tail, int64_t count,
                                                      Scalar* __restrict to) {
#pragma omp simd
  for (int64_t j = 0; j < kLanes<Scalar>; ++j)
    if (j < count) to[j] = tail[j];
}

template <typename Scalar>
constexpr Scalar kNoWeight = -__builtin_inf();  // as a bias

template <typename Scalar>
inline __attribute__((always_inline)) Scalar make_logits(Scalar* __restrict row, const Scalar* __restrict column_bias,
                                                         int64_t count, Scalar scale, Scalar row_bias, Scalar maximum) {
#pragma omp simd reduction(max : maximum)
  for (int64_t j = 0; j < count; ++j) {
    const Scalar logit = scale * row[j] + (row_bias + column_bias[j]);
    row[j] = logit;
    maximum = maximum < logit ? logit : maximum;
  }
  return maximum;
}

template <typename Scalar>
inline __attribute__((always_inline)) Scalar make_weights(Scalar* __restrict row, int64_t count, Scalar maximum) {
  Scalar sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < count; ++j) {
    const Scalar weight = exponential(row[j] - maximum);
    row[j] = weight;
    sum += weight;
  }
  return sum;
}

template <typename Scalar>
void softmax(const SoftmaxTile<Scalar>& tile) {
  for (int64_t i = 0; i < tile.rows; ++i) {
    Scalar* row = tile.weights + i * tile.stride;
    const int64_t begin = tile.begin[i], end = tile.end[i];
    tile.rescale[i] = 1;
    if (end <= begin) {
      zero(row, 0, tile.columns);
      continue;
    }
    const int64_t rest = (end - begin) % kLanes<Scalar>, tail_begin = end - rest;
    const Scalar row_bias = tile.row_bias[i];
    const Scalar before = tile.maximum[i];
    Scalar maximum =
        make_logits(row + begin, tile.column_bias + begin, tail_begin - begin, tile.scale, row_bias, before);
    Scalar tail[kLanes<Scalar>], tail_bias[kLanes<Scalar>];
    if (rest > 0) {
      load_tail(row + tail_begin, rest, Scalar(0), tail);
      load_tail(tile.column_bias + tail_begin, rest, kNoWeight<Scalar>, tail_bias);
      maximum = make_logits(tail, tail_bias, kLanes<Scalar>, tile.scale, row_bias, maximum);
    }
    // Logits that are all −∞ have no weight, but a later tile's may.
    const Scalar subtracted = maximum == kNoWeight<Scalar> ? Scalar(0) : maximum;
    Scalar sum = make_weights(row + begin, tail_begin - begin, subtracted);
    if (rest > 0) {
      sum += make_weights(tail, kLanes<Scalar>, subtracted);
      store_tail(tail, rest, row + tail_begin);
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
struct GradientRow {
  Scalar scale, row_bias, log_normalizer, delta;
};

// P and dS of `count` columns; returns the sum of dS.
template <typename Scalar>
inline __attribute__((always_inline)) Scalar make_gradients(Scalar* __restrict weights, Scalar* __restrict gradients,
                                                            const Scalar* __restrict column_bias,
                                                            double* __restrict column_sum, int64_t count,
                                                            const GradientRow<Scalar>& row) {
  Scalar sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < count; ++j) {
    const Scalar weight = exponential(row.scale * weights[j] + (row.row_bias + column_bias[j]) - row.log_normalizer);
    const Scalar derivative = weight * (gradients[j] - row.delta);
    weights[j] = weight;
    gradients[j] = derivative;
    column_sum[j] += derivative;
    sum += derivative;
  }
  return sum;
}

template <typename Scalar>
void gradient(const GradientTile<Scalar>& tile) {
  for (int64_t i = 0; i < tile.rows; ++i) {
    Scalar *weights = tile.weights + i * tile.stride, *gradients = tile.gradients + i * tile.stride;
    const int64_t begin = tile.begin[i], end = tile.end[i];
    const int64_t visible_begin = end <= begin ? 0 : begin, visible_end = end <= begin ? 0 : end;
    const int64_t rest = (visible_end - visible_begin) % kLanes<Scalar>, tail_begin = visible_end - rest;
    const GradientRow<Scalar> row{tile.scale, tile.row_bias[i], tile.log_normalizer[i], tile.delta[i]};
    Scalar sum = make_gradients(weights + visible_begin, gradients + visible_begin, tile.column_bias + visible_begin,
                                tile.column_sum + visible_begin, tail_begin - visible_begin, row);
    if (rest > 0) {
      Scalar tail_weights[kLanes<Scalar>], tail_gradients[kLanes<Scalar>], tail_bias[kLanes<Scalar>];
      double tail_sums[kLanes<Scalar>] = {};
      load_tail(weights + tail_begin, rest, Scalar(0), tail_weights);
      load_tail(gradients + tail_begin, rest, Scalar(0), tail_gradients);
      load_tail(tile.column_bias + tail_begin, rest, kNoWeight<Scalar>, tail_bias);
      sum += make_gradients(tail_weights, tail_gradients, tail_bias, tail_sums, kLanes<Scalar>, row);
      store_tail(tail_weights, rest, weights + tail_begin);
      store_tail(tail_gradients, rest, gradients + tail_begin);
      for (int64_t j = 0; j < rest; ++j) tile.column_sum[tail_begin + j] += tail_sums[j];
    }
    tile.row_sum[i] += sum;
    zero(weights, 0, visible_begin);
    zero(weights, visible_end, tile.columns);
    zero(gradients, 0, visible_begin);
    zero(gradients, visible_end, tile.columns);
  }
}

template <typename Scalar>
bool all_finite(int64_t rows, int64_t columns, const Scalar* matrix, int64_t stride) {
  typedef Scalar Vector __attribute__((vector_size(kBytes), aligned(alignof(Scalar)), may_alias));
  Vector zeros{};
  Scalar zero = 0;
  for (int64_t i = 0; i < rows; ++i) {
    const Scalar* row = matrix + i * stride;
    int64_t j = 0;
    for (; j + kLanes<Scalar> <= columns; j += kLanes<Scalar>) {
      const Vector numbers = *reinterpret_cast<const Vector*>(row + j);
      zeros += numbers - numbers;  // NaN for NaN and ∞
    }
    for (; j < columns; ++j) zero += row[j] - row[j];
  }
  for (int64_t lane = 0; lane < kLanes<Scalar>; ++lane) zero += zeros[lane];
  return zero == 0;
}

// Whether the row's square is certainly below `bound`, by a sum in its own precision: few rows of many need one in float64.
template <typename Scalar>
inline __attribute__((always_inline)) bool is_less(int64_t columns, const Scalar* __restrict row, double bound) {
  constexpr double kUnit = 0x1p-23, kTiny = 0x1p-125;  // of float32
  Scalar square = 0;
#pragma omp simd reduction(+ : square)
  for (int64_t j = 0; j < columns; ++j) square += row[j] * row[j];
  const double count = static_cast<double>(columns);
  return static_cast<double>(square) * (1 + 2 * count * kUnit) + count * kTiny < bound;
}

template <typename Scalar>
double largest_square(int64_t rows, int64_t columns, const Scalar* matrix, int64_t stride) {
  double largest = 0;
  for (int64_t i = 0; i < rows; ++i) {
    const Scalar* __restrict row = matrix + i * stride;
    if (sizeof(Scalar) == sizeof(float) && is_less(columns, row, largest)) continue;
    double square = 0;
#pragma omp simd reduction(+ : square)
    for (int64_t j = 0; j < columns; ++j) square += static_cast<double>(row[j]) * static_cast<double>(row[j]);
    if (!(square <= largest) && all_finite(1, columns, row, stride)) largest = square;
  }
  return largest;
}

}  // namespace

extern const TileKernels<float> float_kernels;
extern const TileKernels<double> double_kernels;
const TileKernels<float> float_kernels{softmax<float>, gradient<float>, all_finite<float>, largest_square<float>};
const TileKernels<double> double_kernels{softmax<double>, gradient<double>, all_finite<double>, largest_square<double>};

}  // namespace lethe::cpu::LETHE_INSTRUCTION_SET
