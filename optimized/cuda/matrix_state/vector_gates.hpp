#pragma once
// What the kernels for a gate a row, and one a column, read and write (vector_sweep.cuh).

#include <cstdint>

#include "optimized/cuda/attention.hpp"

namespace lethe::matrix_state {

constexpr int kBlock = 16;     ///< tokens between two states of a sweep
constexpr int kMarkSteps = 8;  ///< chunks from one mark of those whose states others may read to the next

/// For the tokens in order, or in reverse, with a, b, c the rows of `query`, `key`, `value`:
///
///   out_i = read_scale · (S_iᵀ (E_i ∘ a_i)  +  write_scale Σ_{j ≤ i} (Σ_κ D_ijκ a_iκ b_jκ) c_j)       i, j in one block
///   S_i   = the state before the block;   S ← E_B S + write_scale Σ_j (D_Bj ∘ b_j) c_jᵀ
///
/// D_ij is the product of the gates that separate i and j, E_i of those since the block began, of each row; a value gate does the same to each
/// column. In reverse time token t has the gate of t + 1.
struct VectorSweepArguments {
  Operand query, key, value;     ///< [B, T, H, rows], the same, [B, T, H, columns]
  Operand key_gate, value_gate;  ///< logarithms in float, [B, T, H, rows], [B, T, H, columns]; null: absent
  void* out;                     ///< [B, T, H, columns] contiguous
  bool float_out, reverse;
  int64_t length;
  int batch, heads, rows, columns;  ///< rows and columns: multiples of 8
  float read_scale, write_scale;
  const float* initial;  ///< [B, H, rows, columns]; null: zeros
  float* last;           ///< the same; null: not wanted. In reverse times the gates of the first token
  /// In bfloat16 without a value gate the state before each chunk of the pass, here in the order of tokens, as left operands of its transpose:
  /// [tiles of columns, B·H, chunks, warps, padded rows / 16, lane] of 16 bytes; null: not wanted
  void* states;
  /// Of each CTA, the chunks so far whose states others may read, zero before the kernel begins; null: none read them before it ends
  int32_t* marks;
};

}  // namespace lethe::matrix_state
