// Compiled once for each instruction set, as tile_kernels.cpp.
#include "optimized/cpu/layers/short_convolution_kernels.hpp"

#include "optimized/cpu/layers/sigmoid.hpp"
#include "optimized/cpu/layers/storage.hpp"

namespace lethe::cpu::LETHE_INSTRUCTION_SET {
namespace {

constexpr int64_t kTile = 64;                 // channels at a time
constexpr int64_t kBlock = 64, kLargest = 4;  // tokens of a block, and W

constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Token t of sequence b, channel 0, where t < 0 is in the state; null: zeros.
template <typename Stored>
LETHE_INLINE const Stored* token(const ShortConvolutionRows& rows, int64_t b, int64_t t) {
  if (t >= 0) return static_cast<const Stored*>(rows.x) + (b * rows.length + t) * rows.pitch;
  if (!rows.state) return nullptr;
  return static_cast<const Stored*>(rows.state) + (b * (rows.width - 1) + t + rows.width - 1) * rows.channels;
}

// u of one token, channels first … first + count.
template <typename Stored>
LETHE_INLINE void convolve(const ShortConvolutionRows& rows, int64_t b, int64_t t, int64_t first, int64_t count,
                           Wide<Stored>* __restrict u) {
  using Number = Wide<Stored>;
  for (int64_t c = 0; c < count; ++c) u[c] = rows.bias ? static_cast<const Number*>(rows.bias)[first + c] : Number(0);
  for (int64_t i = 0; i < rows.width; ++i) {
    const Stored* __restrict x = token<Stored>(rows, b, t - rows.width + 1 + i);
    if (!x) continue;
    const Number* __restrict weight = static_cast<const Number*>(rows.weight) + i * rows.channels;
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) u[c] += weight[first + c] * widened(x[first + c]);
  }
}

template <typename Stored>
void forward(const ShortConvolutionRows& rows, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    Stored* __restrict values = static_cast<Stored*>(rows.values) + row * rows.channels;
    for (int64_t first = 0; first < rows.channels; first += kTile) {
      const int64_t count = smaller(kTile, rows.channels - first);
      Wide<Stored> u[kTile];
      convolve<Stored>(rows, row / rows.length, row % rows.length, first, count, u);
      if (rows.silu) {
#pragma omp simd
        for (int64_t c = 0; c < count; ++c) store(u[c] * sigmoid(u[c]), values[first + c]);
      } else {
#pragma omp simd
        for (int64_t c = 0; c < count; ++c) store(u[c], values[first + c]);
      }
    }
  }
}

// Tokens begin … end of sequence b, at most kBlock, of one tile. du_t for the W − 1 tokens after them is computed as well: their x reaches it.
template <typename Stored>
void backward_block(const ShortConvolutionRows& rows, int64_t b, int64_t begin, int64_t end, int64_t first,
                    Wide<Stored>* grad_weight) {
  using Number = Wide<Stored>;
  const int64_t count = smaller(kTile, rows.channels - first), width = rows.width;
  Number du[kBlock + kLargest - 1][kTile];
  for (int64_t t = begin; t < end + width - 1; ++t) {
    Number* __restrict gradient = du[t - begin];
    if (t >= rows.length) {
      for (int64_t c = 0; c < count; ++c) gradient[c] = 0;
      continue;
    }
    const Stored* __restrict grad_values =
        static_cast<const Stored*>(rows.grad_values) + (b * rows.length + t) * rows.grad_pitch + first;
    if (rows.silu) {
      convolve<Stored>(rows, b, t, first, count, gradient);
#pragma omp simd
      for (int64_t c = 0; c < count; ++c) {
        const Number u = gradient[c], share = sigmoid(u);
        gradient[c] = widened(grad_values[c]) * share * (1 + u * (1 - share));
      }
    } else {
#pragma omp simd
      for (int64_t c = 0; c < count; ++c) gradient[c] = widened(grad_values[c]);
    }
    if (t >= end) continue;
    for (int64_t i = 0; i < width; ++i) {
      const Stored* __restrict x = token<Stored>(rows, b, t - width + 1 + i);
      if (!x) continue;
      Number* __restrict sum = grad_weight + i * rows.channels + first;
#pragma omp simd
      for (int64_t c = 0; c < count; ++c) sum[c] += gradient[c] * widened(x[first + c]);
    }
    Number* __restrict sum = grad_weight + width * rows.channels + first;
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) sum[c] += gradient[c];
  }
  // x_t is read by u_{t+W−1−i} with weight i. Tokens before the first are the state's.
  const int64_t earliest = begin == 0 && rows.grad_state ? 1 - width : begin;
  for (int64_t t = earliest; t < end; ++t) {
    Number sum[kTile] = {};
    for (int64_t i = 0; i < width; ++i) {
      const int64_t reader = t + width - 1 - i;
      if (reader < 0) continue;
      const Number* __restrict weight = static_cast<const Number*>(rows.weight) + i * rows.channels + first;
      const Number* __restrict gradient = du[reader - begin];
#pragma omp simd
      for (int64_t c = 0; c < count; ++c) sum[c] += weight[c] * gradient[c];
    }
    Stored* __restrict grad =
        (t >= 0 ? static_cast<Stored*>(rows.grad_x) + (b * rows.length + t) * rows.channels
                : static_cast<Stored*>(rows.grad_state) + (b * (width - 1) + t + width - 1) * rows.channels) +
        first;
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) store(sum[c], grad[c]);
  }
}

template <typename Stored>
void backward(const ShortConvolutionRows& rows, int64_t begin, int64_t end, void* grad_weight) {
  for (int64_t row = begin; row < end;) {
    const int64_t b = row / rows.length, t = row % rows.length;
    const int64_t tokens = smaller(smaller(kBlock, end - row), rows.length - t);
    for (int64_t first = 0; first < rows.channels; first += kTile)
      backward_block<Stored>(rows, b, t, t + tokens, first, static_cast<Wide<Stored>*>(grad_weight));
    row += tokens;
  }
}

}  // namespace

extern const ShortConvolutionKernels short_convolution_kernels;
const ShortConvolutionKernels short_convolution_kernels{
    {forward<double>, forward<float>, forward<BFloat16>, forward<Float16>},
    {backward<double>, backward<float>, backward<BFloat16>, backward<Float16>}};

}  // namespace lethe::cpu::LETHE_INSTRUCTION_SET
