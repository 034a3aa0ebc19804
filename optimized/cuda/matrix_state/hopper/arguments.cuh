#pragma once
// What the kernels of wgmma read and write: no gate or one a token, a state of at most 128 rows, for gradients of at most
// 128 × 64, with a gate a token and no normaliser 128 × 128, on compute capability 9.0. Shapes as in sweep.hpp. In a
// normalised call a state has columns + 1 columns, the last of which is z, or z's gradient.

#include "optimized/cuda/matrix_state/chunk_gates.cuh"
#include "optimized/cuda/matrix_state/sweep.hpp"

namespace lethe::matrix_state {

/// Chunks of a segment where the state has kBlocks · 64 rows: S of all of them fit into shared memory.
template <int kBlocks>
inline constexpr int kChunksOfSegment = kSegmentChunks / kBlocks;

/// Segments of a head, of `each` chunks, in the order of a sweep: forwards in time, or in reverse.
struct SegmentOrder {
  int each, chunks, segments;
  bool reverse;

  __host__ __device__ SegmentOrder(int64_t length, bool reversed, int chunks_of_segment)
      : each(chunks_of_segment), chunks(static_cast<int>((length + kChunk - 1) / kChunk)),
        segments((chunks + each - 1) / each), reverse(reversed) {}

  /// A segment's chunks, the place in time of its earliest, and that of its n-th one.
  __device__ int count(int index) const { return min(each, chunks - begin(index)); }
  __device__ int begin(int index) const { return (reverse ? segments - 1 - index : index) * each; }
  __device__ int chunk(int index, int n) const { return begin(index) + (reverse ? count(index) - 1 - n : n); }
};

/// A head's segments [begin, end) in order: the n-th of so many pieces, of which each is a CTA's.
struct Piece {
  int begin, end;

  __host__ __device__ Piece(const SegmentOrder& order, int n, int pieces)
      : begin(static_cast<int>(static_cast<unsigned>(order.segments) * n / pieces)),
        end(static_cast<int>(static_cast<unsigned>(order.segments) * (n + 1) / pieces)) {}

  /// The n-th of two, the second of which begins at `second`.
  static __device__ Piece of_two(const SegmentOrder& order, int n, int second) {
    Piece piece(order, 0, 1);
    (n == 0 ? piece.end : piece.begin) = second;
    return piece;
  }
};

/// The states after each of the first segments in order, of key [B, T, H, rows] and value [B, T, H, columns]: in reverse of the gradient, of query
/// and dO.
struct SegmentArguments {
  CUtensorMap maps[2];  ///< of key and value
  Operand key, value;
  Gates gate;
  int64_t length;
  int batch, heads, rows, columns;
  float scale;
  bool reverse;
  bool beside_previous;        ///< nothing is read that the kernel before writes
  int first_head, head_count;  ///< of B·H: which
  int tiles;                   ///< of 64 columns, a CTA each
  int segments;                ///< the first ones
  int pieces;            ///< of a head, before which alone join_segments leaves states, else own sums; 0: everywhere
  const float* initial;  ///< [B, H, rows, columns] contiguous; null: zeros
  const float* column;  ///< [B·H, chunks · 64], normalised: of the last column, as `value` has the others; null: all 1
  float* vectors;       ///< [tiles, head_count, segments, 64 a block of rows], normalised: the last column
  float* states;        ///< [tiles, head_count, segments, 4096 a block of 64 rows] in the fragments' order
  float* decays;        ///< [tiles, head_count, segments]: the product of a segment's gates
  bool only_last;       ///< of head_states: the state after the last segment alone is wanted
};

/// The states before every chunk that a forward leaves for its backward (kept_states.hpp): in each head the rounded states, and then their units and
/// the normaliser's columns, with which there is one tile.
struct KeptStates {
  CUtensorMap states;  ///< [B, tiles · chunks · blocks · 64 rows, H, 64]
  bool wanted;         ///< by a forward
  float* units;        ///< [tiles, chunks, blocks, 4] a head, of float16: those of 16 rows each
  float* columns;      ///< [chunks, blocks, 64] a head, normalised: z
  int64_t stride;      ///< floats from a head to the next
};

/// A forward, by pieces of heads and tiles of 64 columns of the state.
struct StateForwardArguments {
  CUtensorMap maps[5];  ///< of query, key, value and out in 16 rows; for gradients of dO in 16 rows
  Operand query, key, value, grad_values;
  Gates gate;
  void* out;  ///< [B, T, H, columns] contiguous: the values; for gradients dO / z·q, times division_unit
  bool float_out;
  float* grad_normalizer;  ///< [B·H, chunks · 64], for gradients: that of z·q, times the same
  int64_t length;
  int batch, heads, rows, columns;
  float scale;
  float division_unit;      ///< for gradients: what dO / z·q is multiplied by
  const float* initial;     ///< [B, H, rows, columns] contiguous; null: zeros
  float* last;              ///< the same; null: not wanted
  int tiles;                ///< of 64 columns
  int whole_heads;          ///< the first ones, a CTA each for a tile; of the others
  int pieces, handed;       ///< in order; segments in `states`, at least all before the last piece
  int second;               ///< the segment with which the second of two unlike pieces begins; 0: pieces are alike
  float *states, *vectors;  ///< of SegmentArguments; where the first of two pieces hands its state on, written by that
  int32_t* marks;           ///< [cut heads · tiles, blocks · warps]: 1 where it has, 0 before; null: they are there
  int stages;               ///< of tiles in shared memory
  /// For gradients, as of SegmentArguments: after all segments but the last; null: not wanted.
  float *kept_states, *kept_vectors;
  KeptStates kept;  ///< where a backward follows
  float* divisors;  ///< of KeptStates::stride a head, [chunks · 64]: z·q of P and z in float; null: not wanted
};

/// A chunk's gates as the gradients read them, by copies of multiples of 16 bytes: in reverse, with the scale in `write`; and by time for S.
struct alignas(16) GatesInReverse : ChunkGates {};
struct alignas(16) GatesByTime {
  float write[kChunk], total;
};
struct PreparedGates {
  GatesInReverse in_reverse;
  GatesByTime by_time;
};
/// The same where the gradients' kernel divides by z·q: `write` times 1 / z·q, over `unit`, a power of two; for products of float16, else 1.
struct alignas(16) DividedGates : ChunkGates {
  float divisors[kChunk];    ///< the scale / z·q; 0 beyond the sequence
  float read_state[kChunk];  ///< times that and the gates from the chunk's first token on
  float unit;
};

struct PreparedGatesArguments {
  Gates gate;
  int64_t length;
  int batch, heads;
  float scale;
  bool by_time;       ///< whether those are wanted, too
  PreparedGates* to;  ///< [B·H, chunks]
  int32_t* marks;     ///< [mark_count], of the gradients' kernel: cleared; null: there are none
  int mark_count;
  bool beside_previous;  ///< nothing is read that the kernel before writes
  /// Of StateForwardArguments, and what is prepared in place of `to`, with units or without.
  const float* divisors;
  int64_t divisor_stride;
  DividedGates* divided;
  bool in_units;
};

/// What the CTA of a first tile of columns publishes to that of the second: how far dq and dk have come, and d log f.
constexpr int kTileMarks = 2;

/// All gradients, by heads, pieces of heads, and tiles of columns, of which a state with a gate a token and no normaliser may have two.
struct StateGradientArguments {
  CUtensorMap maps[7];  ///< of query, key, value, dO; of their gradients but dO's, in 16 rows
  Operand query, key, value, grad_values;
  Gates gate;
  const PreparedGates* gates;  ///< [B·H, chunks]
  float* grad_gate;            ///< [B, T, H] contiguous
  int64_t length;
  int batch, heads, rows, columns;
  float scale;
  const float* grad_normalizer;  ///< [B·H, chunks · 64], normalised: dO is that over z·q, and this the gradient of z·q
  const float *initial, *grad_last;   ///< [B, H, rows, columns] contiguous; null: zeros
  float* grad_initial;                ///< the same; null: not wanted
  int whole_heads;                    ///< the first ones, a CTA each; of the others
  int pieces, handed;                 ///< in reverse; segments in `grad_states`, all before the last piece
  const float *states, *vectors;      ///< of SegmentArguments: after all segments but the last
  float *grad_states, *grad_vectors;  ///< in reverse; written where the first of two pieces hands R on
  KeptStates kept;                    ///< in place of `states`, where the forward left them
  int32_t* marks;  ///< [tiles · cut heads, warps]: 1 where R has been handed on, 0 before; null: all are there
  int32_t* tile_marks;  ///< [CTAs, kTileMarks], of two tiles: chunks done, counted from the sequence's end; 0 before
  const DividedGates* divided_gates;  ///< [B·H, chunks], in place of `gates` where dO is divided here
};

}  // namespace lethe::matrix_state
