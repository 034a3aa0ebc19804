#pragma once
// What the kernels of wgmma (launch.cu) hand on: from one to the next in a call's workspace, and from a forward to its backward.

#include "optimized/cuda/matrix_state/hopper/maps.hpp"
#include "optimized/cuda/matrix_state/hopper/segments.cuh"
#include "optimized/cuda/matrix_state/hopper/splits.hpp"
#include "optimized/cuda/workspace.hpp"
#include "optimized/kept_states.hpp"

namespace lethe::matrix_state {

static_assert(kChunksOfSegment<1> * kChunk == 512 &&
              kChunksOfSegment<2> * kChunk == 256);  // as kept_state_bytes() has it

/// Where a forward leaves states for its backward, or left them; tokens: rows of S that a copy takes at a time.
inline KeptStates kept_states_of(const MatrixStateInput& in, const void* states, int tokens) {
  const Shape& s = in.shape;
  const int64_t a_head = kept_state_bytes<int64_t>(s.key_length, s.key_dim, s.value_dim, in.form, in.dtype), row = 64,
                blocks = int64_t{1} * tiles_of(s) * order_of(s).chunks * blocks_of(s);
  char* const begin = static_cast<char*>(const_cast<void*>(states));
  KeptStates kept{};
  kept.states = tensor_map({begin, s.heads * a_head / 2, row, a_head / 2}, in.dtype, s.batch, blocks * 64, s.heads, row,
                           tokens, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
  kept.wanted = true;
  kept.units = reinterpret_cast<float*>(begin + blocks * 64 * row * 2);
  kept.columns = kept.units + (in.dtype == Dtype::kFloat16 ? blocks * kWarps : 0);
  kept.stride = a_head / static_cast<int64_t>(sizeof(float));
  return kept;
}

/// Where z·q is among them, [chunks · 64] a head, KeptStates::stride from a head to the next; null where it isn't left.
inline float* divisors_of(const MatrixStateInput& in, const KeptStates& kept) {
  const bool left = kept.wanted && keeps_divisors(blocks_of(in.shape), in.form);
  return left ? kept.columns + int64_t{1} * order_of(in.shape).chunks * 64 : nullptr;
}

/// The states after the first segments of some heads, of one sweep.
struct SegmentMemory {
  int heads, segments;
  float *states = nullptr, *decays = nullptr, *vectors = nullptr;
  int32_t* marks = nullptr;
  int mark_count = 0;

  /// Of the last `head_count` heads; with marks, where the kernel that reads states writes them too.
  SegmentMemory(Workspace& memory, const Shape& shape, bool normalized, int64_t head_count, int first_segments,
                bool marked = false)
      : heads(static_cast<int>(head_count)), segments(first_segments) {
    const int64_t handed = head_count * tiles_of(shape) * segments;
    states = memory.take<float>(handed * blocks_of(shape) * kBlockFloats);
    decays = memory.take<float>(handed);
    if (normalized) vectors = memory.take<float>(handed * blocks_of(shape) * 64);
    if (!marked) return;
    mark_count = static_cast<int>(head_count) * tiles_of(shape) * blocks_of(shape) * kWarps;
    marks = memory.take<int32_t>(mark_count);
  }
  /// Of a split of a forward.
  SegmentMemory(Workspace& memory, const Shape& shape, bool normalized, const ForwardSplit& split)
      : SegmentMemory(memory, shape, normalized, split.cut_heads(shape), split.handed(shape), split.handed_on) {}
};

/// Marks of the gradients' kernel, cleared before it: of pieces that hand R on, and of tiles of columns.
struct GradientMarks {
  int32_t *states = nullptr, *tiles = nullptr;  // null: there are none
  int32_t* begin = nullptr;                     // of both
  int count = 0;

  GradientMarks(Workspace& memory, const Shape& shape, const Split& split) {
    const int of_states = split.handed_on ? split.cut_heads(shape) * tiles_of(shape) * kWarps : 0,
              of_tiles = tiles_of(shape) > 1 ? static_cast<int>(split.ctas(shape)) * kTileMarks : 0;
    count = of_states + of_tiles;
    if (count == 0) return;
    begin = memory.take<int32_t>(count);
    if (of_states > 0) states = begin;
    if (of_tiles > 0) tiles = begin + of_states;
  }
};

/// What a normaliser's pass writes before the backward: dO over z·q, [B, T, H, V] of 16 bits, and the gradient of z·q.
struct NormalizerMemory {
  uint16_t* grad_values;
  float* grad_normalizer;

  NormalizerMemory(Workspace& memory, const Shape& shape)
      : grad_values(memory.take<uint16_t>(heads_of(shape) * shape.key_length * shape.value_dim)),
        grad_normalizer(memory.take<float>(heads_of(shape) * padded_tokens(shape))) {}
};

// Segments of all heads whose states a backward computes again, but the last of each head.
inline int segments_to_sum(const Shape& shape, const MatrixStateForm& form) {
  return form.kept_states ? 0 : order_of(shape).segments - 1;
}

inline PreparedGates* take_gates(Workspace& memory, const Shape& shape, bool gated) {
  return gated ? memory.take<PreparedGates>(heads_of(shape) * order_of(shape).chunks) : nullptr;
}

/// Whether the gradients' kernel divides by z·q (gradients_divided.cuh), in place of a pass before it.
inline bool divides_in_gradients(const Shape& shape, const MatrixStateForm& form) {
  return form.kept_states && keeps_divisors(blocks_of(shape), form);
}
inline DividedGates* take_divided_gates(Workspace& memory, const Shape& shape) {
  return memory.take<DividedGates>(heads_of(shape) * order_of(shape).chunks);
}

}  // namespace lethe::matrix_state
