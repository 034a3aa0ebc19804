#pragma once
// What one pass over the tokens of all heads reads and writes (sweep.cuh).

#include <cuda.h>

#include <cstdint>

#include "optimized/cuda/attention.hpp"

namespace lethe::matrix_state {

constexpr int kChunk = 64;  ///< tokens that meet in one product
/// Chunks of a segment, which a CTA of its own sweeps (segments.cuh). Segments begin at multiples of it, whatever the length and the number of heads.
constexpr int kSegmentChunks = 8;
/// Warps of a CTA, and its threads.
constexpr int kWarps = 4, kComputing = 32 * kWarps;
constexpr unsigned kAllLanes = 0xffffffffu;

/// What the segments of a head hand on: the state after each one but the last.
struct SegmentStates {
  float* states;   ///< [column tiles, B·H, segments − 1], in the fragments' order
  int32_t* ready;  ///< [column tiles, B·H, segments − 1, kWarps]: 1 where a warp's part is there; zeros at launch
};

/// For the tokens in order, or in reverse: with a, b, c the rows of `query`, `key`, `value`,
///
///   out_i = read_scale · (E_i S_iᵀ a_i + write_scale Σ_{j ≤ i} D_ij (a_i·b_j) c_j)       i, j in one chunk
///   S_i   = the state before the chunk, rows as b, columns as c;   S ← E_C S + write_scale Σ_j D_Cj b_j c_jᵀ
///
/// D_ij is the product of the gates that separate i and j, E_i of those since the chunk began. In reverse time token t has the gate of t + 1.
struct SweepArguments {
  CUtensorMap maps[5];  ///< of query, key, value, partner and out in 16 rows, for compute capability 9.0 and above
  Operand query, key, value;  ///< [B, T, H, rows], the same, [B, T, H, columns]
  Operand partner;            ///< [B, T, H, columns]: the input whose gradient `out` is; read for the gate's gradient
  Gates gate;
  void* out;  ///< [B, T, H, columns] contiguous
  bool float_out, reverse;
  int64_t length;
  int batch, heads, rows, columns;
  float read_scale, write_scale;
  const float*
      initial;  ///< a head's state: element (row, column) at row·row_stride + column·column_stride; null: zeros
  float* last;  ///< the same; null: not wanted. In reverse times the gate of the first token
  int64_t row_stride, column_stride;
  float* chunk_states;  ///< of each column tile, head and chunk in the fragments' order: the state before the chunk
  float* crossings;     ///< [column tiles, B·H, chunks·kChunk]: shares of the gate's gradient
  SegmentStates segments;
};

}  // namespace lethe::matrix_state
