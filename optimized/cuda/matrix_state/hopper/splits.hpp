#pragma once
// How the kernels of wgmma (launch.cu) cut heads into pieces, a CTA each.

#include <algorithm>

#include "optimized/cuda/launch.cuh"
#include "optimized/cuda/matrix_state/hopper/arguments.cuh"

namespace lethe::matrix_state {

/// Blocks of 64 rows of the state.
inline int blocks_of(const Shape& shape) { return shape.key_dim <= 64 ? 1 : 2; }
/// Tiles of 64 columns.
inline int tiles_of(const Shape& shape) { return static_cast<int>((shape.value_dim + 63) / 64); }
inline SegmentOrder order_of(const Shape& shape) {
  return {shape.key_length, false, blocks_of(shape) == 1 ? kChunksOfSegment<1> : kChunksOfSegment<2>};
}

inline int64_t heads_of(const Shape& shape) { return shape.batch * shape.heads; }
inline int64_t padded_tokens(const Shape& shape) { return int64_t{kChunk} * order_of(shape).chunks; }

/// Segments before the last of so many pieces.
inline int segments_before_last(const Shape& shape, int pieces) {
  return Piece(order_of(shape), pieces - 1, pieces).begin;
}

/// The heads that a forward, or a normaliser's pass before the backward, sweeps by a CTA each for a tile; and the pieces of the others, which would
/// leave multiprocessors without work.
struct ForwardSplit {
  int whole_heads, pieces = 1;
  int second = 0;          // where the second of two pieces begins, whose state comes by head_states, or from the first
  bool handed_on = false;  // the latter

  ForwardSplit(const Shape& shape, const MatrixStateForm& form) : whole_heads(static_cast<int>(heads_of(shape))) {
    const int processors = multiprocessors(), tiles = tiles_of(shape), segments = order_of(shape).segments;
    const int64_t ctas = heads_of(shape) * tiles;
    const bool few = ctas <= processors, shared = blocks_of(shape) == 1;  // two CTAs a multiprocessor
    const bool weighted = form.key_gate != MatrixStateForm::Gate::kNone || form.normalize;
    if (shared && !few) {
      // Pieces of a last round read keys and values before them once more, and are slower (5 % on an H200). Where products bind, most multiprocessors
      // that have two CTAs take longer: so heads of those end as second CTAs of the others, which wait for the state.
      const int cut = static_cast<int>(std::min(ctas - processors, 2 * processors - ctas) / tiles);
      if (!weighted || cut <= 0 || segments < 2) return;
      whole_heads -= cut;
      pieces = 2;
      second = std::clamp((5 * segments + 4) / 8, 1, segments - 1);
      handed_on = true;
      return;
    }
    const int left = few ? whole_heads : static_cast<int>((ctas % processors + tiles - 1) / tiles),
              places = shared && few && weighted ? 2 * processors : processors;
    if (left == 0) return;
    pieces = std::clamp(places / (left * tiles), 1, segments);
    if (pieces == 1) return;
    whole_heads -= left;
    // Two CTAs begin together, the second one's by so much later as head_states takes; beside whole heads that is in time. Few weighted heads are
    // faster (10 % on an H200) in equal pieces: as many stages as that needs have no room beside head_states.
    if (pieces == 2 && !(few && weighted))
      second = few ? std::clamp((23 * segments + 16) / 32, 1, segments - 1) : segments / 2;
  }
  int cut_heads(const Shape& shape) const { return static_cast<int>(heads_of(shape)) - whole_heads; }
  int handed(const Shape& shape) const { return second > 0 ? second : segments_before_last(shape, pieces); }
};

/// The heads that a backward sweeps by a CTA each for a tile; and the pieces of the others, which would leave multiprocessors without work.
struct Split {
  int whole_heads, pieces;
  /// R of the second of two pieces comes from the first, between which a round of whole heads is swept.
  bool handed_on = false;

  Split(const Shape& shape, const MatrixStateForm& form) : whole_heads(static_cast<int>(heads_of(shape))), pieces(1) {
    cut(shape, form);
    handed_on = form.kept_states && pieces == 2 && int64_t{1} * whole_heads * tiles_of(shape) >= multiprocessors();
  }
  int cut_heads(const Shape& shape) const { return static_cast<int>(heads_of(shape)) - whole_heads; }
  int handed(const Shape& shape) const { return segments_before_last(shape, pieces); }
  int64_t ctas(const Shape& shape) const {
    return tiles_of(shape) * (whole_heads + int64_t{1} * cut_heads(shape) * pieces);
  }

 private:
  void cut(const Shape& shape, const MatrixStateForm& form) {
    const int processors = multiprocessors(), tiles = tiles_of(shape), segments = order_of(shape).segments,
              left = static_cast<int>((int64_t{1} * whole_heads * tiles % processors + tiles - 1) / tiles),
              ctas = left * tiles;
    if (left == 0) return;
    if (blocks_of(shape) > 1) {  // R of a piece's beginning comes by a CTA a head
      if (form.normalize) return;
      pieces = std::clamp(processors / ctas, 1, segments);
      if (pieces > 1) whole_heads -= left;
      return;
    }
    if (form.key_gate == MatrixStateForm::Gate::kNone) {  // memory binds, and further pieces bring further rounds
      pieces = std::clamp(processors / ctas, 1, segments);
      if (pieces > 1) whole_heads -= left;
      return;
    }
    // Rounds of CTAs times the segments of one, and for R of a piece's beginning as much as a fraction of a head.
    constexpr double kCostOfPiece = 0.005;
    const auto cost = [&](int n) {
      return (ctas * n + processors - 1) / processors * ((segments + n - 1) / n) + kCostOfPiece * segments * n;
    };
    for (int n = 2; n <= segments; ++n)
      if (cost(n) < cost(pieces)) pieces = n;
    if (pieces > 1) whole_heads -= left;
  }
};

}  // namespace lethe::matrix_state
