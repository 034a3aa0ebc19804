// The gradients of gated_state with a gate a row, and perhaps one a column (vector_gradient.cuh).
//
// Rows and columns change places with query and dO, key and v, and the two gates: Σ_{i ≥ j} Σ_κv q_iκ dO_iv D_ijκ D'_ijv k_jκ v_jv. So one kernel
// gives the gradients of k and f, and those of v and g. With gates of both, each side reads of the other what vector_pairs made of it; or in
// bfloat16, of up to 96 rows and columns together, one kernel has both (vector_sides.cuh).
#include "optimized/cuda/matrix_state/vector_gradient.cuh"

#include <algorithm>

#include "optimized/cuda/check.hpp"
#include "optimized/cuda/launch.cuh"
#include "optimized/cuda/matrix_state/families.hpp"
#include "optimized/cuda/matrix_state/vector_pairs.cuh"
#include "optimized/cuda/matrix_state/vector_side_states.cuh"
#include "optimized/cuda/matrix_state/vector_sides.cuh"
#include "optimized/cuda/workspace.hpp"

namespace lethe::matrix_state {
namespace {

int64_t chunks_of(const Shape& shape) { return (shape.key_length + kTokens - 1) / kTokens; }

// What the kernels before it leave for the gradient of one side, of `rows` rows.
struct Between {
  uint4 *states = nullptr, *grad_states = nullptr;  // null: those of the other side
  float *units = nullptr, *grad_units = nullptr;
  char* records = nullptr;
  uint16_t *scaled_left = nullptr, *scaled_right = nullptr;

  Between(Workspace& memory, const Shape& shape, int64_t rows, int64_t columns, bool has_states, bool column_gate) {
    const int64_t heads = shape.batch * shape.heads, chunks = heads * chunks_of(shape);
    if (has_states) {
      const int64_t tile = row_tile_of(rows), warps = chunks * ((rows + tile - 1) / tile) * (tile / kBlock);
      states = memory.take<uint4>(warps * (padded_columns(columns) / kBlock) * 32);
      grad_states = memory.take<uint4>(warps * (padded_columns(columns) / kBlock) * 32);
      units = memory.take<float>(warps);
      grad_units = memory.take<float>(warps);
    }
    if (column_gate) {
      records = memory.take<char>(chunks * PairRecord::kBytes);
      scaled_left = memory.take<uint16_t>(heads * shape.key_length * columns);
      scaled_right = memory.take<uint16_t>(heads * shape.key_length * columns);
    }
  }
};

// Of the rows, and with gates of both of the columns, which in float16 have states of their own: a state's units are those of its rows.
struct BothSides {
  Between rows, columns;
  int32_t *state_marks, *grad_marks;  // one array
  int64_t mark_bytes;

  BothSides(Workspace& memory, const Shape& shape, bool value_gate, bool half)
      : rows(memory, shape, shape.key_dim, shape.value_dim, true, value_gate),
        columns(memory, shape, shape.value_dim, shape.key_dim, value_gate && half, value_gate) {
    const int64_t heads = shape.batch * shape.heads, tile = row_tile_of(shape.key_dim),
                  of_states = heads * ((shape.key_dim + tile - 1) / tile),
                  of_grads = heads * ((shape.value_dim + kSweepColumns - 1) / kSweepColumns);
    mark_bytes = (of_states + of_grads) * static_cast<int64_t>(sizeof(int32_t));
    state_marks = memory.take<int32_t>(of_states + of_grads);
    grad_marks = state_marks + of_states;
  }
};

// kLargest: columns, or rows, of a side that has tiles of them all.
template <int kBytes, int kLargest, typename Arguments>
void run(void (*kernel)(Arguments), int64_t grid, int threads, const Arguments& p, bool overlapping,
         cudaStream_t stream) {
  static_assert(kBytes <= 1024 * shared_kilobytes(kLargest <= 64 ? 80 : 90), "unsupported_by_vector_gates");
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
             "matrix state: shared memory");
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100),
             "matrix state: shared memory");
  if (overlapping) return launch_overlapping(kernel, dim3(static_cast<unsigned>(grid)), threads, kBytes, stream, p);
  kernel<<<static_cast<unsigned>(grid), threads, kBytes, stream>>>(p);
  cuda_check(cudaGetLastError(), "matrix state: launch");
}

enum class Kernel { kStates, kGradStates, kGradient };

template <typename Element, int kRows, int kColumns, bool kColumnGate>
void launch_instance(const VectorGradientArguments& p, Kernel which, bool overlapping, cudaStream_t stream) {
  const int64_t tiles = static_cast<int64_t>(p.batch) * p.heads * ((p.rows + kRows - 1) / kRows);
  if (which == Kernel::kGradient)
    return run<VectorGradientShared<kRows, kColumns, kColumnGate>::kBytes, kColumns>(
        vector_gradient<Element, kRows, kColumns, kColumnGate>, tiles * ((p.length + kTokens - 1) / kTokens), 2 * kRows,
        p, overlapping, stream);
  const auto states = which == Kernel::kStates ? vector_states<Element, kRows, kColumns, kColumnGate, false>
                                               : vector_states<Element, kRows, kColumns, kColumnGate, true>;
  run<VectorStatesShared<kRows, kColumns>::kBytes, kColumns>(states, tiles, 4 * kRows, p, overlapping, stream);
}

template <typename Element, int kRows, bool kColumnGate>
void launch_columns(const VectorGradientArguments& p, Kernel which, bool overlapping, cudaStream_t stream) {
  if (p.columns <= 32) return launch_instance<Element, kRows, 32, kColumnGate>(p, which, overlapping, stream);
  p.columns <= 64 ? launch_instance<Element, kRows, 64, kColumnGate>(p, which, overlapping, stream)
                  : launch_instance<Element, kRows, 128, kColumnGate>(p, which, overlapping, stream);
}

template <typename Element, bool kColumnGate>
void launch_rows(const VectorGradientArguments& p, Kernel which, bool overlapping, cudaStream_t stream) {
  row_tile_of(p.rows) == 32 ? launch_columns<Element, 32, kColumnGate>(p, which, overlapping, stream)
                            : launch_columns<Element, 64, kColumnGate>(p, which, overlapping, stream);
}

template <typename Element>
void launch(const VectorGradientArguments& p, Kernel which, bool overlapping, cudaStream_t stream) {
  p.pairs ? launch_rows<Element, true>(p, which, overlapping, stream)
          : launch_rows<Element, false>(p, which, overlapping, stream);
}

template <typename Element>
void launch_pairs(const VectorPairsArguments& p, bool overlapping, cudaStream_t stream) {
  const int64_t grid = (p.length + kTokens - 1) / kTokens * p.batch * p.heads;
  p.channels <= 32
      ? run<VectorPairsShared<32>::kBytes, 32>(vector_pairs<Element, 32>, grid, 64, p, overlapping, stream)
      : run<VectorPairsShared<64>::kBytes, 64>(vector_pairs<Element, 64>, grid, 128, p, overlapping, stream);
}

// One of the two sides: its query and key, what multiplies them, and where its gradients go.
struct Side {
  Operand query, key, gate;
  int64_t dim;
  void *grad_query, *grad_key;
  float* grad_gate;
  int64_t stride;  // of its index in a state
};

VectorPairsArguments pairs_of(const MatrixStateBackward& a, const Side& other, const Between& between) {
  return {other.query,
          other.key,
          other.gate,
          between.scaled_left,
          between.scaled_right,
          between.records,
          a.shape.key_length,
          static_cast<int>(a.shape.batch),
          static_cast<int>(a.shape.heads),
          static_cast<int>(other.dim),
          static_cast<float>(a.scale)};
}

VectorGradientArguments gradient_of(const MatrixStateBackward& a, const Side& own, const Side& other,
                                    const Between& between) {
  VectorGradientArguments p{};
  p.query = own.query;
  p.key = own.key;
  p.key_gate = own.gate;
  p.grad_values = other.query;
  p.value = other.key;
  p.grad_query = own.grad_query;
  p.grad_key = own.grad_key;
  p.grad_key_gate = own.grad_gate;
  p.length = a.shape.key_length;
  p.batch = static_cast<int>(a.shape.batch);
  p.heads = static_cast<int>(a.shape.heads);
  p.rows = static_cast<int>(own.dim);
  p.columns = static_cast<int>(other.dim);
  p.row_stride = own.stride;
  p.column_stride = other.stride;
  p.scale = static_cast<float>(a.scale);
  p.initial = a.initial_state;
  p.grad_last = a.grad_last_state;
  p.grad_initial = own.grad_query ? a.grad_initial_state : nullptr;
  p.states = between.states;
  p.grad_states = between.grad_states;
  p.state_units = between.units;
  p.grad_units = between.grad_units;
  p.pairs = between.records;
  if (p.pairs) {
    const auto contiguous = [&](const void* data) {
      return Operand{data, p.length * p.heads * p.columns, static_cast<int64_t>(p.heads) * p.columns, p.columns};
    };
    p.grad_values = contiguous(between.scaled_left);
    p.value = contiguous(between.scaled_right);
  }
  return p;
}

template <typename Element>
void launch_sides(const MatrixStateBackward& a, const BothSides& between) {
  const Side rows{a.query,      a.key,      a.key_gate,      a.shape.key_dim,
                  a.grad_query, a.grad_key, a.grad_key_gate, a.shape.value_dim},
      columns{a.grad_values, a.value, a.value_gate, a.shape.value_dim, nullptr, a.grad_value, a.grad_value_gate, 1};
  VectorGradientArguments of_rows = gradient_of(a, rows, columns, between.rows);
  // Of an overlapping launch no kernel reads what the one before it writes: it begins beside that one's last CTAs. But for a key gate's gradient,
  // whose CTAs wait for the states that they need: it begins when all CTAs before it have.
  if (!a.form.value_gate) {
    constexpr bool kLeavesStates = std::is_same_v<Element, __nv_bfloat16>;
    if constexpr (kLeavesStates) {
      of_rows.state_marks = between.state_marks;
      of_rows.grad_marks = between.grad_marks;
      cuda_check(cudaMemsetAsync(between.state_marks, 0, between.mark_bytes, a.stream), "matrix state: marks");
      vector_sweep_back(a, of_rows.grad_states, of_rows.grad_initial, of_rows.grad_marks);
    } else {
      vector_sweep_back(a, nullptr, nullptr, nullptr);
    }
    launch<Element>(of_rows, Kernel::kStates, true, a.stream);
    if (!kLeavesStates) launch<Element>(of_rows, Kernel::kGradStates, true, a.stream);
    return launch<Element>(of_rows, Kernel::kGradient, true, a.stream);
  }
  VectorGradientArguments of_columns = gradient_of(a, columns, rows, between.columns);
  const bool transposed = !of_columns.states;
  of_columns.transposed = of_columns.grad_transposed = transposed;
  if (transposed) {
    of_columns.states = of_rows.states;
    of_columns.grad_states = of_rows.grad_states;
  }
  // The states find in the L2 cache what the columns' pairs have left, and the columns' gradient what the rows' pairs have.
  launch_pairs<Element>(pairs_of(a, columns, between.rows), false, a.stream);
  launch<Element>(of_rows, Kernel::kStates, false, a.stream);
  launch<Element>(of_rows, Kernel::kGradStates, true, a.stream);
  launch_pairs<Element>(pairs_of(a, rows, between.columns), true, a.stream);
  if (!transposed) {
    launch<Element>(of_columns, Kernel::kStates, false, a.stream);
    launch<Element>(of_columns, Kernel::kGradStates, true, a.stream);
  }
  launch<Element>(of_columns, Kernel::kGradient, false, a.stream);
  launch<Element>(of_rows, Kernel::kGradient, true, a.stream);
}

// Of up to 96 rows and columns, both in whole panels of 32.
int panels_of(int64_t channels) { return static_cast<int>((channels + 31) / 32); }
bool both_in_one(const Shape& shape) { return panels_of(shape.key_dim) + panels_of(shape.value_dim) <= 3; }

// How many CTAs of so much shared memory a multiprocessor has place for.
int places(int bytes) {
  int device, all;
  cuda_check(cudaGetDevice(&device), "matrix state: shared memory");
  cuda_check(cudaDeviceGetAttribute(&all, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device),
             "matrix state: shared memory");
  return all / (bytes + 1024);
}

int64_t side_chunks_of(const Shape& shape) { return (shape.key_length + kSideTokens - 1) / kSideTokens; }

// Whether vector_sides has a CTA a head, or one a chunk: where there are two heads a multiprocessor at least, of three for which there is place.
bool whole_heads_of(const Shape& shape) { return shape.batch * shape.heads >= 2 * multiprocessors(); }

struct StatesOfBoth {
  uint4 *states, *grad_states = nullptr;
  float *sums = nullptr, *totals = nullptr;

  StatesOfBoth(Workspace& memory, const Shape& shape, bool whole_heads) {
    const int64_t panels[] = {panels_of(shape.key_dim), panels_of(shape.value_dim)},
                  chunks = shape.batch * shape.heads * side_chunks_of(shape),
                  blocks = chunks * 4 * panels[0] * panels[1];
    states = memory.take<uint4>(blocks * 32);
    if (whole_heads) return;
    grad_states = memory.take<uint4>(blocks * 32);
    sums = memory.take<float>(blocks * 32 * 8);
    totals = memory.take<float>(chunks * 32 * (panels[0] + panels[1]));
  }
};

template <int kRowPanels, int kColumnPanels>
bool launch_both(const MatrixStateBackward& a, Workspace& memory) {
  using Shared = VectorSidesShared<kRowPanels, kColumnPanels>;
  constexpr int kThreads = 64 * (kRowPanels + kColumnPanels);
  if (places(Shared::kWholeBytes) < 2) return false;
  const int64_t heads = a.shape.batch * a.shape.heads;
  const bool whole_heads = whole_heads_of(a.shape);
  const StatesOfBoth between(memory, a.shape, whole_heads);
  VectorSideStatesArguments s{};
  s.sides[0] = {
      a.query, a.key, a.key_gate, a.grad_query, a.grad_key, a.grad_key_gate, static_cast<int>(a.shape.key_dim)};
  s.sides[1] = {a.grad_values,
                a.value,
                a.value_gate,
                nullptr,
                a.grad_value,
                a.grad_value_gate,
                static_cast<int>(a.shape.value_dim)};
  s.length = a.shape.key_length;
  s.batch = static_cast<int>(a.shape.batch);
  s.heads = static_cast<int>(a.shape.heads);
  s.scale = static_cast<float>(a.scale);
  s.initial = a.initial_state;
  s.grad_last = a.grad_last_state;
  s.grad_initial = a.grad_initial_state;
  s.states = between.states;
  s.grad_states = between.grad_states;
  s.sums = between.sums;
  s.totals = between.totals;
  const VectorSidesArguments p{{s.sides[0], s.sides[1]},
                               s.length,
                               s.batch,
                               s.heads,
                               s.scale,
                               s.states,
                               s.grad_states,
                               s.grad_last,
                               s.grad_initial};
  const auto launch_states = [&](auto both) {
    constexpr bool kBoth = decltype(both)::value;
    run<VectorSideStatesShared<kRowPanels, kColumnPanels, kBoth>::kBytes, 64>(
        vector_side_states<kRowPanels, kColumnPanels, kBoth>, heads, kThreads, s, false, a.stream);
  };
  if (whole_heads) {
    launch_states(std::false_type{});
    run<Shared::kWholeBytes, 64>(vector_sides<kRowPanels, kColumnPanels, true>, heads, kThreads, p, true, a.stream);
  } else {
    launch_states(std::true_type{});
    run<Shared::kBytes, 64>(vector_sides<kRowPanels, kColumnPanels, false>, heads * side_chunks_of(a.shape), kThreads,
                            p, true, a.stream);
  }
  return true;
}

// Whether it has been launched.
bool launch_both(const MatrixStateBackward& a) {
  if (a.dtype != Dtype::kBFloat16 || !a.form.value_gate || !both_in_one(a.shape)) return false;
  Workspace memory(a.workspace);
  if (panels_of(a.shape.key_dim) == 2) return launch_both<2, 1>(a, memory);
  return panels_of(a.shape.value_dim) == 2 ? launch_both<1, 2>(a, memory) : launch_both<1, 1>(a, memory);
}

}  // namespace

size_t vector_workspace_bytes(const Shape& shape, const MatrixStateForm& form) {
  Workspace memory(nullptr);
  BothSides(memory, shape, form.value_gate, true);
  Workspace of_both(nullptr);
  if (form.value_gate && both_in_one(shape)) StatesOfBoth(of_both, shape, whole_heads_of(shape));
  return std::max({memory.bytes(), of_both.bytes(), size_t{256}});
}

void vector_backward(const MatrixStateBackward& a) {
  if (launch_both(a)) return;
  Workspace memory(a.workspace);
  const bool half = a.dtype != Dtype::kBFloat16;
  const BothSides between(memory, a.shape, a.form.value_gate, half);
  half ? launch_sides<__half>(a, between) : launch_sides<__nv_bfloat16>(a, between);
}

}  // namespace lethe::matrix_state
