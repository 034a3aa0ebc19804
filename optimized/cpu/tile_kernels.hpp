#pragma once
// The elementwise half of the blockwise algorithm, on one tile of queries × keys that stays in cache between the matrix products.
// Plain C++ that the compiler vectorises, compiled once for each instruction set; the processor chooses at run time.

#include <cstdint>

namespace lethe::cpu {

/// The distance between the rows of a tile's matrices is a multiple of this, so that the kernels may read and write whole vectors of columns.
inline constexpr int64_t kRowUnit = 16;

/// One tile's logits: scale · product[i, j] + row_bias[i] + column_bias[j] for begin[i] ≤ j < end[i], −∞ elsewhere.
///
/// The two biases are c_i − F and F − c_j, each rounded to Scalar once from float64, with F the prefix sum at a row nearby (frame_rows): both stay
/// small where the weight is not negligible, so neither length nor a strong gate costs precision.
template <typename Scalar>
struct Tile {
  int64_t rows, columns;
  Scalar scale;
  const Scalar* row_bias;     ///< [rows]
  const Scalar* column_bias;  ///< [columns], readable up to a multiple of kRowUnit
  const int64_t* begin;       ///< [rows], first visible column, 0 ≤ begin
  const int64_t* end;         ///< [rows], ≤ columns; a row with end ≤ begin sees nothing
};

/// One step of the online softmax: products become weights exp(logit − maximum), zero where invisible or below the smallest normal
/// number.
///
/// reads    weights [rows, stride] holding q·k, stride a multiple of kRowUnit; maximum, sum [rows] of the columns before (−∞, 0 at first)
/// writes   weights; maximum, sum including this tile; rescale [rows], the factor for values gathered before
template <typename Scalar>
struct SoftmaxTile : Tile<Scalar> {
  Scalar* weights;
  int64_t stride;
  Scalar* maximum;
  Scalar* sum;
  Scalar* rescale;
};

/// The softmax's derivative: P_ij = exp(logit_ij − log_normalizer_i), dS_ij = P_ij (dP_ij − delta_i), zero where invisible.
///
/// reads    weights [rows, stride] holding q·k, stride a multiple of kRowUnit; gradients [rows, stride] holding dP
/// writes   weights ← P, gradients ← dS; row_sum [rows] += Σ_j dS; column_sum [columns] += Σ_i dS, of the same rounded dS
template <typename Scalar>
struct GradientTile : Tile<Scalar> {
  Scalar* weights;
  Scalar* gradients;
  int64_t stride;
  const Scalar* log_normalizer;
  const Scalar* delta;
  double* row_sum;
  double* column_sum;
};

/// The functions for one processor.
template <typename Scalar>
struct TileKernels {
  void (*softmax)(const SoftmaxTile<Scalar>&);
  void (*gradient)(const GradientTile<Scalar>&);
  /// Whether rows × columns numbers hold neither NaN nor ∞.
  bool (*all_finite)(int64_t rows, int64_t columns, const Scalar* matrix, int64_t stride);
  /// max Σ_j matrix[i, j]² over the rows that all_finite, summed in float64; 0 where there are none.
  double (*largest_square)(int64_t rows, int64_t columns, const Scalar* matrix, int64_t stride);
};

/// Those of the instruction set that Torch uses, see instruction_set.hpp.
template <typename Scalar>
const TileKernels<Scalar>& tile_kernels();

}  // namespace lethe::cpu
