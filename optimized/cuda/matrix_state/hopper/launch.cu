// The launches of the kernels of wgmma (launch.hpp).
#include "optimized/cuda/matrix_state/hopper/launch.hpp"

#include "optimized/cuda/matrix_state/division_unit.hpp"
#include "optimized/cuda/matrix_state/hopper/gradients.cuh"
#include "optimized/cuda/matrix_state/hopper/head_states.cuh"
#include "optimized/cuda/matrix_state/hopper/launch_divided.cuh"

namespace lethe::matrix_state {
namespace {

static_assert(ForwardShared<1, 2>::bytes(ForwardShared<1, 2>::kStagesBesideStates, false) +
                  HeadStatesShared<false, 1, false>::kBytes + 2 * 1024 <=
              228 * 1024);

// The same, and whether the call is normalised.
template <typename Visit>
void by_type_and_normalizer(const MatrixStateInput& in, Visit&& visit) {
  by_type(in, [&](auto element, auto gated, auto blocks) {
    in.form.normalize ? visit(element, gated, blocks, std::true_type{})
                      : visit(element, gated, blocks, std::false_type{});
  });
}

// The gates of all chunks; marks of the gradients' kernel are cleared.
void prepare_gates_of_chunks(const MatrixStateInput& in, float scale, bool by_time, PreparedGates* to,
                             const GradientMarks& marks, bool beside_previous, cudaStream_t stream) {
  PreparedGatesArguments p{};
  p.gate = arguments_of<SegmentArguments>(in).gate;
  p.length = in.shape.key_length;
  p.batch = static_cast<int>(in.shape.batch);
  p.heads = static_cast<int>(in.shape.heads);
  p.scale = scale;
  p.by_time = by_time;
  p.to = to;
  p.marks = marks.begin;
  p.mark_count = marks.count;
  p.beside_previous = beside_previous;
  const int64_t chunks = heads_of(in.shape) * order_of(in.shape).chunks;
  launch(prepare_all_gates, (chunks + kPreparingWarps - 1) / kPreparingWarps, 32 * kPreparingWarps,
         sizeof(PreparingShared), beside_previous, stream, p);
}

// Whether a kernel starts before the one before it has ended, and whether it waits for that before it reads.
enum class Overlap { kNone, kWaits, kBeside };

// Whether all heads' states come by a CTA a head.
bool by_whole_heads(const MatrixStateInput& in) { return heads_of(in.shape) * tiles_of(in.shape) >= multiprocessors(); }

// Whether sums are by a CTA a segment, or by a CTA a head, in reverse of two blocks without a normaliser alone: all states or the last.
enum class By { kSegments, kStates, kOneState };

// `pieces`: before which alone states are wanted, or 0. Returns whether there is anything to launch.
bool sum_segments(const MatrixStateInput& in, const Operand& key, const Operand& value, const float* column,
                  float scale, bool reverse, const float* initial, const SegmentMemory& to, int pieces, Overlap overlap,
                  cudaStream_t stream, By by = By::kSegments) {
  const int64_t tile_heads = int64_t{1} * to.heads * tiles_of(in.shape);
  if (tile_heads * to.segments == 0) return false;
  const Maps map = maps_of(in);
  SegmentArguments p = arguments_of<SegmentArguments>(in);
  p.maps[0] = map(key, in.shape.key_dim);
  p.maps[1] = map(value, in.shape.value_dim);
  p.key = key;
  p.value = value;
  p.scale = scale;
  p.reverse = reverse;
  p.beside_previous = overlap == Overlap::kBeside;
  p.initial = initial;
  p.first_head = static_cast<int>(heads_of(in.shape)) - to.heads;
  p.head_count = to.heads;
  p.tiles = tiles_of(in.shape);
  p.segments = to.segments;
  p.pieces = pieces;
  p.column = column;
  p.vectors = to.vectors;
  p.states = to.states;
  p.decays = to.decays;
  p.only_last = by == By::kOneState;
  const auto launch_heads = [&](auto element, auto gated, auto blocks, auto gradient, auto normalized) {
    using Shared = HeadStatesShared<gated.value, blocks.value, normalized.value>;
    launch(head_states<decltype(element), gated.value, blocks.value, gradient.value, normalized.value>, tile_heads,
           Shared::kThreads, Shared::kBytes, overlap != Overlap::kNone, stream, p);
  };
  if (by != By::kSegments) {
    by_type_and_normalizer(in, [&](auto element, auto gated, auto blocks, auto normalized) {
      if (!reverse) return launch_heads(element, gated, blocks, std::false_type{}, normalized);
      if constexpr (blocks.value == 2 && !normalized.value)
        launch_heads(element, gated, blocks, std::true_type{}, normalized);
    });
    return true;
  }
  by_type_and_normalizer(in, [&](auto element, auto gated, auto blocks, auto normalized) {
    constexpr int kBlocks = blocks.value;
    constexpr bool kGated = gated.value, kNormalized = normalized.value;
    using Shared = SumsShared<kBlocks, kNormalized>;
    launch(segment_sums<decltype(element), kGated, kBlocks, kNormalized>, tile_heads * to.segments, Shared::kThreads,
           Shared::kBytes, overlap != Overlap::kNone, stream, p);
    launch(join_segments<kGated, kBlocks, kNormalized>, tile_heads * kBlocks * (kJoiningCtas + kNormalized),
           kJoiningThreads, 0, true, stream, p);
  });
  return true;
}

void clear(int32_t* marks, int count, cudaStream_t stream) {
  constexpr int kThreads = 256;
  clear_marks<<<(count + kThreads - 1) / kThreads, kThreads, 0, stream>>>(marks, count);
  cuda_check(cudaGetLastError(), "matrix state: marks");
}

// What a forward's pieces begin with. Returns whether there is anything to launch.
bool launch_before_pieces(const MatrixStateInput& in, const ForwardSplit& split, const SegmentMemory& handed,
                          Overlap overlap, cudaStream_t stream) {
  if (!split.handed_on)
    return sum_segments(in, in.key, in.value, nullptr, 1.0f, false, in.initial_state, handed, split.pieces, overlap,
                        stream, split.second > 0 ? By::kOneState : By::kSegments);
  clear(handed.marks, handed.mark_count, stream);
  return true;
}

// A forward of all but the first heads in pieces, from the states before those.
StateForwardArguments forward_arguments(const MatrixStateInput& in, const SegmentMemory& handed, int whole_heads,
                                        int pieces) {
  const Maps map = maps_of(in);
  StateForwardArguments p = arguments_of<StateForwardArguments>(in);
  p.maps[0] = map(in.query, in.shape.key_dim);
  p.maps[1] = map(in.key, in.shape.key_dim);
  p.maps[2] = map(in.value, in.shape.value_dim);
  p.query = in.query;
  p.key = in.key;
  p.value = in.value;
  p.scale = static_cast<float>(in.scale);
  p.initial = in.initial_state;
  p.tiles = tiles_of(in.shape);
  p.whole_heads = whole_heads;
  p.pieces = pieces;
  p.handed = handed.segments;
  p.states = handed.states;
  p.vectors = handed.vectors;
  p.marks = handed.marks;
  return p;
}

template <typename Element, bool kGated, int kBlocks, Normalizer kNormalizer>
void launch_forward(StateForwardArguments p, bool overlapping, cudaStream_t stream) {
  const int64_t cut_heads = int64_t{1} * p.batch * p.heads - p.whole_heads,
                ctas = p.tiles * (p.whole_heads + cut_heads * p.pieces);
  const bool alone = ctas <= multiprocessors();  // on a multiprocessor
  const auto launch_with = [&](auto readers) {
    constexpr int kReaders = decltype(readers)::value;
    using Shared = ForwardShared<kBlocks, kReaders>;
    p.stages = !alone ? Shared::kFewestStages : p.second > 0 ? Shared::kStagesBesideStates : Shared::kMostStages;
    launch(sweep_forward<Element, kGated, kBlocks, kNormalizer, kReaders>, ctas, Shared::kThreads,
           Shared::bytes(p.stages, kNormalizer != Normalizer::kNone), overlapping, stream, p);
  };
  if constexpr (!kGated && kBlocks == 1 && kNormalizer == Normalizer::kNone) {
    if (alone) return launch_with(std::integral_constant<int, 2>{});
  }
  launch_with(std::integral_constant<int, 1>{});
}

// dO over z·q and the gradient of z·q, both times `unit`, by a forward that leaves the states after all segments but the last.
void divide_gradients(const MatrixStateBackward& a, float unit, const ForwardSplit& split, const SegmentMemory& handed,
                      const SegmentMemory& states, const NormalizerMemory& to, bool overlapping) {
  const Maps map = maps_of(a);
  StateForwardArguments p = forward_arguments(a, handed, split.whole_heads, split.pieces);
  p.second = split.second;
  p.division_unit = unit;
  if (states.segments > 0) {
    p.kept_states = states.states;
    p.kept_vectors = states.vectors;
  }
  p.maps[3] = map.of_result(to.grad_values, a.shape.value_dim);
  p.maps[4] = map(a.grad_values, a.shape.value_dim, kChunk / kWarps);
  p.grad_values = a.grad_values;
  p.grad_normalizer = to.grad_normalizer;
  by_type(a, [&](auto element, auto gated, auto blocks) {
    launch_forward<decltype(element), gated.value, blocks.value, Normalizer::kGradients>(p, overlapping, a.stream);
  });
}

bool is_hopper() {
  int device;
  cuda_check(cudaGetDevice(&device), "matrix state: device");
  return compute_capability(device) == 90;
}

}  // namespace

bool forward_by_warpgroups(const Shape& shape) { return shape.key_dim <= 128 && is_hopper(); }
bool backward_by_warpgroups(const Shape& shape, const MatrixStateForm& form) {
  return shape.key_dim <= 128 && shape.value_dim <= most_columns_of_gradients(form) &&
         (shape.key_dim <= 64 || shape.key_length <= kLongestOfTwoBlocks || form.normalize) && is_hopper();
}

size_t warpgroup_forward_workspace_bytes(const Shape& shape, const MatrixStateForm& form) {
  Workspace memory(nullptr);
  const ForwardSplit split(shape, form);
  SegmentMemory(memory, shape, form.normalize, split);
  return memory.bytes();
}

size_t warpgroup_backward_workspace_bytes(const Shape& shape, const MatrixStateForm& form) {
  Workspace memory(nullptr);
  const Split split(shape, form);
  SegmentMemory(memory, shape, form.normalize, heads_of(shape), segments_to_sum(shape, form));
  SegmentMemory(memory, shape, form.normalize, split.cut_heads(shape), split.handed(shape));
  GradientMarks(memory, shape, split);
  if (divides_in_gradients(shape, form)) {
    take_divided_gates(memory, shape);
    return memory.bytes();
  }
  if (form.normalize) {
    const ForwardSplit divided(shape, form);
    SegmentMemory(memory, shape, true, divided);
    NormalizerMemory(memory, shape);
  }
  take_gates(memory, shape, form.key_gate != MatrixStateForm::Gate::kNone);
  return memory.bytes();
}

void warpgroup_forward(const MatrixStateForward& a) {
  const ForwardSplit split(a.shape, a.form);
  Workspace memory(a.workspace);
  const SegmentMemory handed(memory, a.shape, a.form.normalize, split);
  const bool before = launch_before_pieces(a, split, handed, Overlap::kNone, a.stream);
  StateForwardArguments p = forward_arguments(a, handed, split.whole_heads, split.pieces);
  p.second = split.second;
  const bool weighted = a.form.normalize || a.key_gate.data;  // Forward::kWeighted
  if (!a.float_values)
    p.maps[3] = maps_of(a).of_result(a.values, a.shape.value_dim, weighted ? kChunk : kChunk / kWarps);
  p.out = a.values;
  p.float_out = a.float_values;
  p.last = a.last_state;
  if (a.kept_states) p.kept = kept_states_of(a, a.kept_states, kChunk / kWarps);
  p.divisors = divisors_of(a, p.kept);
  by_type_and_normalizer(a, [&](auto element, auto gated, auto blocks, auto normalized) {
    constexpr Normalizer kNormalizer = normalized.value ? Normalizer::kDivides : Normalizer::kNone;
    if constexpr (normalized.value && gated.value && blocks.value == 1) {
      if (p.divisors) return launch_forward<decltype(element), true, 1, Normalizer::kLeaves>(p, before, a.stream);
    }
    launch_forward<decltype(element), gated.value, blocks.value, kNormalizer>(p, before, a.stream);
  });
}

void warpgroup_backward(const MatrixStateBackward& a) {
  const bool normalized = a.form.normalize, divides = divides_in_gradients(a.shape, a.form);
  const float unit = normalized && !divides ? static_cast<float>(division_unit(a.dtype, a.shape.key_length)) : 1.0f,
              scale = static_cast<float>(a.scale) / unit;  // of what follows a normaliser's pass
  const Split split(a.shape, a.form);
  Workspace memory(a.workspace);
  const SegmentMemory states(memory, a.shape, normalized, heads_of(a.shape), segments_to_sum(a.shape, a.form)),
      grads(memory, a.shape, normalized, split.cut_heads(a.shape), split.handed(a.shape));
  const GradientMarks marks(memory, a.shape, split);
  const bool gated = a.key_gate.data != nullptr;
  PreparedGates* const gates = take_gates(memory, a.shape, gated && !divides);
  DividedGates* const divided_gates = divides ? take_divided_gates(memory, a.shape) : nullptr;
  KeptStates kept{};
  if (a.form.kept_states) kept = kept_states_of(a, a.kept_states, kChunk);
  // With a normaliser beside its pass, on multiprocessors that have no work there.
  const auto prepare = [&] {
    prepare_gates_of_chunks(a, scale, !a.form.kept_states, gates, marks, normalized, a.stream);
  };
  if (divides) divide_gates_of_chunks(a, kept, divided_gates, marks);
  else if (gated && !normalized) prepare();
  else if (!gated && marks.begin) clear(marks.begin, marks.count, a.stream);
  Operand grad_values = a.grad_values;
  const float* grad_normalizer = nullptr;
  Overlap overlap = (gated ? !normalized : marks.begin != nullptr) ? Overlap::kBeside : Overlap::kNone;
  const auto sum_states = [&](By by) {
    sum_segments(a, a.key, a.value, nullptr, 1.0f, false, a.initial_state, states, 0, overlap, a.stream, by);
  };
  const auto sum_grads = [&] {
    if (split.handed_on) return false;
    const By by = blocks_of(a.shape) == 1 ? By::kSegments : split.pieces == 2 ? By::kOneState : By::kStates;
    return sum_segments(a, a.query, grad_values, grad_normalizer, scale, true, a.grad_last_state, grads, split.pieces,
                        overlap, a.stream, by);
  };
  if (divides) {
    overlap = Overlap::kWaits;
    if (!split.handed_on) sum_divided_segments(a, kept, divided_gates, grads, split.pieces);
  } else if (normalized) {
    const ForwardSplit forward(a.shape, a.form);
    const SegmentMemory handed(memory, a.shape, true, forward);
    const NormalizerMemory divided(memory, a.shape);
    const bool before = launch_before_pieces(a, forward, handed, overlap, a.stream);
    divide_gradients(a, unit, forward, handed, states, divided, before || overlap != Overlap::kNone);
    const int64_t token = a.shape.heads * a.shape.value_dim;
    grad_values = {divided.grad_values, a.shape.key_length * token, token, a.shape.value_dim};
    grad_normalizer = divided.grad_normalizer;
    if (gated) prepare();
    overlap = Overlap::kWaits;
    sum_grads();
  } else if (states.segments == 0) {
    if (sum_grads()) overlap = Overlap::kBeside;
  } else if (by_whole_heads(a)) {  // the others first, whose join runs beside the states
    if (sum_grads()) overlap = Overlap::kBeside;
    sum_states(By::kStates);
  } else {
    sum_states(By::kSegments);
    overlap = Overlap::kBeside;
    sum_grads();
  }
  StateGradientArguments p = arguments_of<StateGradientArguments>(a);
  p.whole_heads = split.whole_heads;
  p.pieces = split.pieces;
  p.states = states.states;
  p.vectors = states.vectors;
  p.kept = kept;
  p.grad_states = grads.states;
  p.grad_vectors = grads.vectors;
  p.marks = marks.states;
  p.tile_marks = marks.tiles;
  p.handed = grads.segments;
  const Maps map = maps_of(a);
  p.maps[0] = map(a.query, a.shape.key_dim);
  p.maps[1] = map(a.key, a.shape.key_dim);
  p.maps[2] = map(a.value, a.shape.value_dim);
  p.maps[3] = map(grad_values, a.shape.value_dim);
  p.maps[4] = map.of_result(a.grad_query, a.shape.key_dim);
  p.maps[5] = map.of_result(a.grad_key, a.shape.key_dim);
  p.maps[6] = map.of_result(a.grad_value, a.shape.value_dim);
  p.query = a.query;
  p.key = a.key;
  p.value = a.value;
  p.grad_values = grad_values;
  p.grad_normalizer = grad_normalizer;
  p.gates = gates;
  p.divided_gates = divided_gates;
  p.grad_gate = a.grad_key_gate;
  p.scale = scale;
  p.initial = a.initial_state;
  p.grad_last = a.grad_last_state;
  p.grad_initial = a.grad_initial_state;
  const bool overlapping = states.segments > 0 || overlap != Overlap::kNone;
  if (tiles_of(a.shape) > 1) return launch_gradients_of_two_tiles(a, split.ctas(a.shape), overlapping, p);
  by_type_and_normalizer(a, [&](auto element, auto has_gate, auto blocks, auto normalizes) {
    constexpr int kBlocks = blocks.value;
    constexpr bool kGated = has_gate.value, kNormalized = normalizes.value;
    const auto launch_gradients = [&](auto kept) {
      constexpr bool kKept = decltype(kept)::value;
      using Call = Gradients<decltype(element), kGated, kBlocks, kNormalized, kKept>;
      launch(sweep_gradients<decltype(element), kGated, kBlocks, kNormalized, kKept>, split.ctas(a.shape),
             Call::Shared::kThreads, Call::kBytes, overlapping, a.stream, p);
    };
    if (a.form.kept_states) return launch_gradients(std::true_type{});
    launch_gradients(std::false_type{});
  });
}

}  // namespace lethe::matrix_state
