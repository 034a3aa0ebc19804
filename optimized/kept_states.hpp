#pragma once
// What a forward of the matrix state leaves for its backward: host code, so that shapes are known without a device.

#include <cmath>

#include "optimized/coverage.hpp"

namespace lethe {

/// Tokens of a head to which the gradients of a state of 65 to 128 rows are faster by the kernels of wgmma than by those of mma.sync, where nothing
/// is normalised.
inline constexpr int64_t kLongestOfTwoBlocks = 8192;

/// Whether z·q of every token is left beside states of so many blocks of 64 rows: where the gradients' kernel divides by it.
inline bool keeps_divisors(int blocks, const MatrixStateForm& form) {
  return blocks == 1 && form.normalize && form.key_gate == MatrixStateForm::Gate::kToken;
}

/// Parts of Wᵀ that the delta rule's backward on compute capability 9.0 reads: rounded to float16, and of inputs of float16 what that leaves
/// (cuda/matrix_state/hopper/delta_folded.cuh).
constexpr int inverse_parts(Dtype dtype) { return dtype == Dtype::kFloat16 ? 2 : 1; }

/// Bytes of a chunk of 64 tokens that the delta rule's forward leaves, of a state of so many tiles of 64 rows and 64 columns: Wᵀ by blocks of
/// 16 × 16 on and above its diagonal, in so many parts of 16 bits, units and norms of keys, S before the chunk and the residuals in 16 bits, their units,
/// one a token and one a tile of columns.
constexpr int kept_delta_bytes(int row_tiles, int column_tiles, int parts) {
  constexpr int kTile = 64 * 64 * 2, kInverse = 10 * 16 * 16 * 2, kFloats = 64 * 4;
  return parts * kInverse + 2 * kFloats + column_tiles * ((row_tiles + 1) * kTile + kFloats + 4);
}

/// The most columns whose gradients compute capability 9.0 computes by one kernel. Above 64 that kernel rounds parts of dq and dk to 16 bits before it
/// adds them. It does so with a gate a token alone: without a gate, dq of bfloat16 from states that the forward left and from states computed again
/// differed by 0.7 %, and the parts of a normalised call cancel.
inline int64_t most_columns_of_gradients(const MatrixStateForm& form) {
  return form.key_gate == MatrixStateForm::Gate::kToken && !form.normalize && !form.ones ? 128 : 64;
}

/// Bytes a head of the states that a forward on compute capability 9.0 leaves for a backward, which else computes them again: those before every 64th
/// token, of 64 or 128 rows and as many columns in 16 bits, of float16 with a unit for every 16 rows and 64 columns; and, to 64 columns, the
/// normaliser's one in float32, with z·q of every token where keeps_divisors(). Of the delta rule kept_delta_bytes() a chunk, to 128 × 128. 0 where
/// it leaves none. Int: int64_t, or a symbolic integer.
template <typename Int>
Int kept_state_bytes(const Int& length, const Int& key_dim, const Int& value_dim, const MatrixStateForm& form,
                     Dtype dtype) {
  if (dtype != Dtype::kBFloat16 && dtype != Dtype::kFloat16) return 0;
  if (form.key_gate == MatrixStateForm::Gate::kKey || form.value_gate) return 0;
  if (form.delta) {
    if (form.normalize || key_dim > 128 || value_dim > 128 || key_dim < 1 || value_dim < 1 || length <= 64) return 0;
    return (length + 63) / 64 * kept_delta_bytes(key_dim > 64 ? 2 : 1, value_dim > 64 ? 2 : 1, inverse_parts(dtype));
  }
  if (key_dim > 128 || value_dim > most_columns_of_gradients(form) || value_dim < 1) return 0;
  const int blocks = key_dim > 64 ? 2 : 1, tiles = value_dim > 64 ? 2 : 1, each = 512 / blocks;
  if (length <= each || (blocks > 1 && length > kLongestOfTwoBlocks && !form.normalize)) return 0;
  const int units = dtype == Dtype::kFloat16 ? 4 : 0, column = form.normalize ? 64 : 0,  // floats of 64 rows
      divisors = keeps_divisors(blocks, form) ? 64 : 0;                                  // of 64 tokens
  return (length + 63) / 64 * (tiles * blocks * (64 * 64 * 2 + 4 * (units + column)) + 4 * divisors);
}

/// Whether a forward leaves them: of a scale by which the backward may divide.
inline bool keeps_states_at(double scale) { return std::abs(scale) >= 0x1p-32 && std::abs(scale) <= 0x1p32; }

}  // namespace lethe
