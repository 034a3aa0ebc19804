#pragma once
// The launches before a gradients' kernel that divides by z·q (gradients_divided.cuh).

#include "optimized/cuda/matrix_state/hopper/launches.cuh"
#include "optimized/cuda/matrix_state/hopper/prepared_gates.cuh"
#include "optimized/cuda/matrix_state/hopper/segments_divided.cuh"

namespace lethe::matrix_state {

/// The gates of all chunks, beside no kernel; marks are cleared.
inline void divide_gates_of_chunks(const MatrixStateBackward& a, const KeptStates& kept, DividedGates* to,
                                   const GradientMarks& marks) {
  PreparedGatesArguments p{};
  p.gate = arguments_of<SegmentArguments>(a).gate;
  p.length = a.shape.key_length;
  p.batch = static_cast<int>(a.shape.batch);
  p.heads = static_cast<int>(a.shape.heads);
  p.scale = static_cast<float>(a.scale);
  p.marks = marks.begin;
  p.mark_count = marks.count;
  p.divisors = divisors_of(a, kept);
  p.divisor_stride = kept.stride;
  p.divided = to;
  p.in_units = a.dtype == Dtype::kFloat16;
  const int64_t chunks = heads_of(a.shape) * order_of(a.shape).chunks;
  launch(divide_all_gates, (chunks + kPreparingWarps - 1) / kPreparingWarps, 32 * kPreparingWarps,
         sizeof(DividedShared), false, a.stream, p);
}

/// R before every piece, of heads in pieces whose gradients' kernel divides.
inline void sum_divided_segments(const MatrixStateBackward& a, const KeptStates& kept, const DividedGates* gates,
                                 const SegmentMemory& to, int pieces) {
  if (to.heads * to.segments == 0) return;
  const Maps map = maps_of(a);
  DividedSumsArguments p{};
  p.maps[0] = map(a.key, a.shape.key_dim);
  p.maps[1] = map(a.value, a.shape.value_dim);
  p.key = a.key;
  p.value = a.value;
  p.kept = kept;
  p.gates = gates;
  SegmentArguments& sums = p.sums = arguments_of<SegmentArguments>(a);
  sums.maps[0] = map(a.query, a.shape.key_dim);
  sums.maps[1] = map(a.grad_values, a.shape.value_dim);
  sums.key = a.query;
  sums.value = a.grad_values;
  sums.scale = static_cast<float>(a.scale);
  sums.reverse = true;
  sums.initial = a.grad_last_state;
  sums.first_head = static_cast<int>(heads_of(a.shape)) - to.heads;
  sums.head_count = to.heads;
  sums.tiles = 1;
  sums.segments = to.segments;
  sums.pieces = pieces;
  sums.vectors = to.vectors;
  sums.states = to.states;
  sums.decays = to.decays;
  const auto kernel = a.dtype == Dtype::kBFloat16 ? divided_segment_sums<__nv_bfloat16> : divided_segment_sums<__half>;
  launch(kernel, int64_t{1} * to.heads * to.segments, DividedSumsShared::kThreads, DividedSumsShared::kBytes, true,
         a.stream, p);
  launch(join_segments<true, 1, true>, to.heads * (kJoiningCtas + 1), kJoiningThreads, 0, true, a.stream, sums);
}

}  // namespace lethe::matrix_state
