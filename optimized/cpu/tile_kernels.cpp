// Compiled once for each instruction set, with LETHE_INSTRUCTION_SET naming the namespace. Nothing here may be shared between those
// compilations: no standard library, everything local but the one table, or the linker could hand AVX-512 code to a processor without.
#include "optimized/cpu/tile_kernels.hpp"

#include "optimized/cpu/exponential.hpp"
#include "optimized/cpu/shuffle.hpp"

namespace lethe::cpu::LETHE_INSTRUCTION_SET {
namespace {

#if defined(__AVX512F__)
constexpr int kBytes = 64;
#elif defined(__AVX__)
constexpr int kBytes = 32;
#else
constexpr int kBytes = 16;
#endif
template <typename Scalar>
constexpr int64_t kLanes = kBytes / sizeof(Scalar);

template <typename Scalar>
struct Vectors {
  typedef Scalar Whole __attribute__((vector_size(kBytes)));
  typedef Scalar Half __attribute__((vector_size(kBytes / 2)));
  typedef double HalfWide __attribute__((vector_size(kBytes / 2 / sizeof(Scalar) * sizeof(double))));
  typedef typename Format<Scalar>::Bits Bits __attribute__((vector_size(kBytes)));
  typedef Whole InMemory __attribute__((aligned(alignof(Scalar)), may_alias));
  typedef Half HalfInMemory __attribute__((aligned(alignof(Scalar)), may_alias));
};
template <typename Scalar>
using Vector = typename Vectors<Scalar>::Whole;

template <typename Scalar>
inline __attribute__((always_inline)) Vector<Scalar> load(const Scalar* from) {
  return *reinterpret_cast<const typename Vectors<Scalar>::InMemory*>(from);
}
template <typename Scalar>
inline __attribute__((always_inline)) void store(Scalar* to, Vector<Scalar> numbers) {
  *reinterpret_cast<typename Vectors<Scalar>::InMemory*>(to) = numbers;
}

// Zeros from `begin`, a multiple of kLanes, to `end` or a few columns further.
template <typename Scalar>
inline __attribute__((always_inline)) void zero(Scalar* row, int64_t begin, int64_t end) {
  for (int64_t j = begin; j < end; j += kLanes<Scalar>) {
    asm("" : "+r"(j));  // or the compiler calls memset, for a few vectors
    store(row + j, Vector<Scalar>{});
  }
}

template <typename Scalar>
inline __attribute__((always_inline)) typename Vectors<Scalar>::Bits lanes() {
  typename Vectors<Scalar>::Bits lanes;
  for (int lane = 0; lane < kLanes<Scalar>; ++lane) lanes[lane] = lane;
  return lanes;
}

// op over all lanes.
template <typename Scalar, typename Op>
inline __attribute__((always_inline)) Scalar reduce(Vector<Scalar> numbers, const Op& op) {
#pragma GCC unroll 8
  for (int distance = kLanes<Scalar> / 2; distance > 0; distance /= 2)
    numbers = op(numbers, shuffled(numbers, lanes<Scalar>() ^ distance));
  return numbers[0];
}

// `numbers` of the columns from j on where begin ≤ column < end, `rest` elsewhere.
template <typename Scalar>
inline __attribute__((always_inline)) Vector<Scalar> visible(Vector<Scalar> numbers, int64_t j, int64_t begin,
                                                             int64_t end, Scalar rest) {
  using Bits = typename Format<Scalar>::Bits;
  if (j >= begin && j + kLanes<Scalar> <= end) return numbers;
  const auto lane = lanes<Scalar>();
  const auto seen = (lane >= static_cast<Bits>(begin - j)) & (lane < static_cast<Bits>(end - j));
  return seen ? numbers : Vector<Scalar>{} + rest;
}

template <typename Scalar>
inline __attribute__((always_inline)) Vector<Scalar> exponentials(Vector<Scalar> x) {
  return exponential_of<Scalar, Vector<Scalar>, typename Vectors<Scalar>::Bits>(x);
}

template <typename Scalar>
constexpr Scalar kNoWeight = -__builtin_inf();  // as a logit

template <typename Scalar>
void softmax(const SoftmaxTile<Scalar>& tile) {
  constexpr int64_t kStep = kLanes<Scalar>;
  const Scalar scale = tile.scale;  // a copy: the compiler reads a member again after every store
  const Scalar* const column_bias = tile.column_bias;
  const auto larger = [](auto a, auto b) __attribute__((always_inline)) { return a < b ? b : a; };
  const auto plus = [](auto a, auto b) __attribute__((always_inline)) { return a + b; };
  for (int64_t i = 0; i < tile.rows; ++i) {
    Scalar* row = tile.weights + i * tile.stride;
    const int64_t begin = tile.begin[i], end = tile.end[i], first = begin / kStep * kStep;
    tile.rescale[i] = 1;
    if (end <= begin) {
      zero(row, 0, tile.columns);
      continue;
    }
    const Scalar row_bias = tile.row_bias[i], before = tile.maximum[i];
    Vector<Scalar> largest = Vector<Scalar>{} + before;
    int64_t j = first;
    for (; j < end; j += kStep) {
      const Vector<Scalar> logits =
          visible<Scalar>(scale * load(row + j) + (row_bias + load(column_bias + j)), j, begin, end, kNoWeight<Scalar>);
      store(row + j, logits);
      largest = larger(largest, logits);
    }
    const Scalar maximum = reduce<Scalar>(largest, larger);
    // Logits that are all −∞ have no weight, but a later tile's may.
    const Scalar subtracted = maximum == kNoWeight<Scalar> ? Scalar(0) : maximum;
    Vector<Scalar> sums{};
    for (j = first; j < end; j += kStep) {
      const Vector<Scalar> weights = exponentials<Scalar>(load(row + j) - subtracted);
      store(row + j, weights);
      sums += weights;
    }
    zero(row, 0, first);
    zero(row, j, tile.columns);
    if (maximum != before) {
      tile.rescale[i] = before == kNoWeight<Scalar> ? Scalar(0) : exponential(before - maximum);
      tile.maximum[i] = maximum;
    }
    tile.sum[i] = tile.sum[i] * tile.rescale[i] + reduce<Scalar>(sums, plus);
  }
}

// sums [columns] += the columns' sums of a matrix, in float64.
template <typename Scalar>
void add_columns(int64_t rows, int64_t columns, const Scalar* matrix, int64_t stride, double* sums) {
  using V = Vectors<Scalar>;
  constexpr int64_t kStep = kLanes<Scalar> / 2;
  for (int64_t j = 0; j < columns; j += kStep) {
    typename V::HalfWide sum{};
    for (int64_t i = 0; i < rows; ++i)
      sum += __builtin_convertvector(*reinterpret_cast<const typename V::HalfInMemory*>(matrix + i * stride + j),
                                     typename V::HalfWide);
    for (int64_t lane = 0; lane < kStep && j + lane < columns; ++lane) sums[j + lane] += sum[lane];
  }
}

// The sum of a row from `begin` to `end`, whole vectors, in float64: of the very numbers that add_columns() sums, so that a large one cancels.
template <typename Scalar>
inline __attribute__((always_inline)) double sum_of_row(const Scalar* row, int64_t begin, int64_t end) {
  using V = Vectors<Scalar>;
  constexpr int64_t kStep = kLanes<Scalar> / 2;
  typename V::HalfWide sum{};
  for (int64_t j = begin; j < end; j += kStep)
    sum += __builtin_convertvector(*reinterpret_cast<const typename V::HalfInMemory*>(row + j), typename V::HalfWide);
  double total = 0;
  for (int64_t lane = 0; lane < kStep; ++lane) total += sum[lane];
  return total;
}

template <typename Scalar>
void gradient(const GradientTile<Scalar>& tile) {
  constexpr int64_t kStep = kLanes<Scalar>;
  const Scalar scale = tile.scale;
  const Scalar* const column_bias = tile.column_bias;
  for (int64_t i = 0; i < tile.rows; ++i) {
    Scalar *weights = tile.weights + i * tile.stride, *gradients = tile.gradients + i * tile.stride;
    const bool sees = tile.begin[i] < tile.end[i];
    const int64_t begin = sees ? tile.begin[i] : 0, end = sees ? tile.end[i] : 0, first = begin / kStep * kStep;
    const Scalar row_bias = tile.row_bias[i], log_normalizer = tile.log_normalizer[i], delta = tile.delta[i];
    int64_t j = first;
    for (; j < end; j += kStep) {
      const Vector<Scalar> logits = scale * load(weights + j) + (row_bias + load(column_bias + j));
      const Vector<Scalar> weight =
          exponentials<Scalar>(visible<Scalar>(logits - log_normalizer, j, begin, end, kNoWeight<Scalar>));
      const Vector<Scalar> derivative =
          visible<Scalar>(weight * (load(gradients + j) - delta), j, begin, end, Scalar(0));
      store(weights + j, weight);
      store(gradients + j, derivative);
    }
    tile.row_sum[i] += sum_of_row(gradients, first, j);
    zero(weights, 0, first);
    zero(weights, j, tile.columns);
    zero(gradients, 0, first);
    zero(gradients, j, tile.columns);
  }
  add_columns(tile.rows, tile.columns, tile.gradients, tile.stride, tile.column_sum);
}

template <typename Scalar>
bool all_finite(int64_t rows, int64_t columns, const Scalar* matrix, int64_t stride) {
  Vector<Scalar> zeros{};
  Scalar zero = 0;
  for (int64_t i = 0; i < rows; ++i) {
    const Scalar* row = matrix + i * stride;
    int64_t j = 0;
    for (; j + kLanes<Scalar> <= columns; j += kLanes<Scalar>) {
      const Vector<Scalar> numbers = load(row + j);
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
