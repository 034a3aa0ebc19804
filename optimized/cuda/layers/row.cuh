#pragma once
// Rows of device memory in pieces of up to 16 bytes, sums over threads in a fixed order, and the choice of a kernel's element type.

#include <cstdint>
#include <numbers>
#include <stdexcept>

#include "optimized/cuda/arithmetic.cuh"
#include "optimized/cuda/launch.cuh"
#include "reference/problem.hpp"

namespace lethe::layers {

template <typename T>
struct WideOf {
  using Type = float;
};
template <>
struct WideOf<double> {
  using Type = double;
};
/// The type of arithmetic on numbers that are stored as T.
template <typename T>
using Wide = typename WideOf<T>::Type;

/// V neighbouring elements, which one instruction loads or stores up to 16 bytes.
template <typename T, int V>
struct alignas(sizeof(T) * V < 16 ? sizeof(T) * V : 16) Piece {
  uint32_t words[sizeof(T) * V / 4];
};
template <typename T>
struct Piece<T, 1> {
  T element;
};

/// The elements of T that fill 16 bytes.
template <typename T>
constexpr int kPieceElements = 16 / sizeof(T);

/// Whether pieces of V elements lie at multiples of their size: the first one, and those a multiple of `pitch` further.
template <int V, typename T>
bool holds_pieces(const T* data, int64_t pitch) {
  return reinterpret_cast<uintptr_t>(data) % alignof(Piece<T, V>) == 0 && pitch % V == 0;
}

/// work(T*) with a null pointer to the element type.
template <typename Work>
void with_element(Dtype dtype, const Work& work) {
  switch (dtype) {
    case Dtype::kFloat64: return work(static_cast<double*>(nullptr));
    case Dtype::kFloat32: return work(static_cast<float*>(nullptr));
    case Dtype::kBFloat16: return work(static_cast<__nv_bfloat16*>(nullptr));
    case Dtype::kFloat16: return work(static_cast<__half*>(nullptr));
  }
}

inline void check_launch(const char* what) { cuda_check(cudaGetLastError(), what); }

__device__ inline double widened(double x) { return x; }
__device__ inline float widened(float x) { return x; }
__device__ inline float widened(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float widened(__half x) { return __half2float(x); }

/// Rounded to nearest.
template <typename T>
__device__ inline T stored(Wide<T> x) {
  if constexpr (sizeof(T) == 2) {
    const auto halves = pack<T>(x, x);
    T element;
    memcpy(&element, &halves, sizeof element);
    return element;
  } else {
    return x;
  }
}

template <int V, typename T>
__device__ inline Piece<T, V> load(const T* from) {
  return *reinterpret_cast<const Piece<T, V>*>(from);
}

/// Zeros where it is unwanted: nothing is read.
template <int V, typename T>
__device__ inline Piece<T, V> load_if(bool wanted, const T* from) {
  return wanted ? load<V>(from) : Piece<T, V>{};
}

template <typename T, int V>
__device__ inline void store(const Piece<T, V>& piece, T* to) {
  *reinterpret_cast<Piece<T, V>*>(to) = piece;
}

template <typename T, int V>
__device__ inline void widen(const Piece<T, V>& piece, Wide<T> (&numbers)[V]) {
  if constexpr (V == 1) {
    numbers[0] = widened(piece.element);
  } else if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int i = 0; i < V / 2; ++i) {
      const float2 pair = unpack<T>(piece.words[i]);
      numbers[2 * i] = pair.x;
      numbers[2 * i + 1] = pair.y;
    }
  } else if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < V; ++i) numbers[i] = __uint_as_float(piece.words[i]);
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i) numbers[i] = __hiloint2double(piece.words[2 * i + 1], piece.words[2 * i]);
  }
}

template <typename T, int V>
__device__ inline Piece<T, V> narrow(const Wide<T> (&numbers)[V]) {
  Piece<T, V> piece;
  if constexpr (V == 1) {
    piece.element = stored<T>(numbers[0]);
  } else if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int i = 0; i < V / 2; ++i) piece.words[i] = pack<T>(numbers[2 * i], numbers[2 * i + 1]);
  } else if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < V; ++i) piece.words[i] = __float_as_uint(numbers[i]);
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      piece.words[2 * i] = __double2loint(numbers[i]);
      piece.words[2 * i + 1] = __double2hiint(numbers[i]);
    }
  }
  return piece;
}

/// The sum over groups of `lanes` neighbouring lanes, a power of two up to 32, with the same bits in each. The whole warp calls it.
template <typename Number>
__device__ inline Number lane_sum(Number number, int lanes = 32) {
  for (int distance = 1; distance < lanes; distance *= 2) number += __shfl_xor_sync(0xffffffffu, number, distance);
  return number;
}

/// 1/(1 + e^(−x)); 0 and 1 far from 0.
__device__ inline float sigmoid(float x) {
  return __fdividef(1.0f, 1.0f + exp2_approximate(-std::numbers::log2e_v<float> * x));
}
__device__ inline double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

/// sums[c] = Σ_p partials[p, c] in a fixed order; partials [count, width] is contiguous. For float and double.
template <typename Number>
struct Partials {
  const Number* partials = nullptr;
  int count = 0;
  int64_t width = 0;  ///< 0: nothing to sum
  Number* sums = nullptr;
};
constexpr int kMostPartials = 4;

/// Up to four such sums in one launch.
template <typename Number>
void sum_partials(const Partials<Number> (&all)[kMostPartials], cudaStream_t stream);

template <typename Number>
void sum_partials(const Number* partials, int count, int64_t width, Number* sums, cudaStream_t stream) {
  sum_partials<Number>({{partials, count, width, sums}}, stream);
}

}  // namespace lethe::layers
