#pragma once

#include <cstdint>

namespace lethe::cpu {

/// Tokens of a short convolution, row b·T + t for token t of sequence b; weights and bias in the type of arithmetic, all else of one storage type.
struct ShortConvolutionRows {
  int64_t length, channels, width;  ///< T, C, W
  bool silu;
  const void* x;       ///< [B·T, C]
  int64_t pitch;       ///< of x, in elements
  const void* weight;  ///< [W,C]: transposed
  const void* bias;    ///< [C], or null
  const void* state;   ///< [B,W−1,C], or null
  void* values;        ///< forward: [B·T, C]
  const void* grad_values;
  int64_t grad_pitch;
  void* grad_x;      ///< backward: [B·T, C]
  void* grad_state;  ///< [B,W−1,C], or null
};

/// The rows from `begin` to `end`, for each storage type (storage_index). The backward adds to grad_weight [W+1,C], whose last row is the bias's.
struct ShortConvolutionKernels {
  void (*forward[4])(const ShortConvolutionRows&, int64_t begin, int64_t end);
  void (*backward[4])(const ShortConvolutionRows&, int64_t begin, int64_t end, void* grad_weight);
};
const ShortConvolutionKernels& short_convolution_kernels();

}  // namespace lethe::cpu
