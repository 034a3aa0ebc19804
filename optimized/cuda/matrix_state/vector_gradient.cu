// The gradients of gated_state with a gate a row, and perhaps one a column (vector_gradient.cuh).
//
// Rows and columns change places with query and dO, key and v, and the two gates: Σ_{i ≥ j} Σ_κv q_iκ dO_iv D_ijκ D'_ijv k_jκ v_jv. So one kernel gives the
// gradients of k and f, and those of v and g. With gates of both, each side reads of the other what vector_pairs made of it.
#include "optimized/cuda/matrix_state/vector_gradient.cuh"

#include <algorithm>

#include "optimized/cuda/check.hpp"
#include "optimized/cuda/matrix_state/families.hpp"
#include "optimized/cuda/matrix_state/vector_pairs.cuh"
#include "optimized/cuda/workspace.hpp"

namespace lethe::matrix_state {
namespace {

int64_t padded_columns(int64_t columns) { return columns <= 32 ? 32 : columns <= 64 ? 64 : 128; }
int64_t chunks_of(const Shape& shape) { return (shape.key_length + kTokens - 1) / kTokens; }

// The arrays between the kernels of a backward.
struct Between {
  uint4* states;
  float* units;
  char* records = nullptr;
  uint16_t *scaled_left = nullptr, *scaled_right = nullptr;

  Between(Workspace& memory, const Shape& shape, bool value_gate) {
    const int64_t heads = shape.batch * shape.heads, widest = std::max(shape.key_dim, shape.value_dim);
    const auto warps = [&](int64_t rows) {  // of all tiles and chunks
      const int64_t tile = row_tile_of(rows);
      return heads * chunks_of(shape) * ((rows + tile - 1) / tile) * (tile / kBlock);
    };
    const auto of_states = [&](int64_t rows, int64_t columns) {
      return warps(rows) * (padded_columns(columns) / 16) * 32;
    };
    int64_t count = of_states(shape.key_dim, shape.value_dim);
    if (value_gate) count = std::max(count, of_states(shape.value_dim, shape.key_dim));
    states = memory.take<uint4>(count);
    units = memory.take<float>(warps(widest));
    if (value_gate) {
      records = memory.take<char>(heads * chunks_of(shape) * PairRecord::kBytes);
      scaled_left = memory.take<uint16_t>(heads * shape.key_length * widest);
      scaled_right = memory.take<uint16_t>(heads * shape.key_length * widest);
    }
  }
};

template <typename Kernel, typename Arguments>
void run(Kernel kernel, int64_t grid, int threads, int bytes, const Arguments& p, cudaStream_t stream) {
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "matrix state: shared memory");
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100),
             "matrix state: shared memory");
  kernel<<<static_cast<unsigned>(grid), threads, bytes, stream>>>(p);
  cuda_check(cudaGetLastError(), "matrix state: launch");
}

template <typename Element, int kRows, int kColumns, bool kColumnGate>
void launch_instance(const VectorGradientArguments& p, cudaStream_t stream) {
  const int64_t grid = static_cast<int64_t>(p.batch) * p.heads * ((p.rows + kRows - 1) / kRows);
  run(vector_states<Element, kRows, kColumns, kColumnGate>, grid, 2 * kRows,
      VectorStatesShared<kRows, kColumns>::kBytes, p, stream);
  run(vector_gradient<Element, kRows, kColumns, kColumnGate>, grid, 2 * kRows,
      VectorGradientShared<kRows, kColumns, kColumnGate>::kBytes, p, stream);
}

template <typename Element, int kRows, bool kColumnGate>
void launch_columns(const VectorGradientArguments& p, cudaStream_t stream) {
  if (p.columns <= 32) return launch_instance<Element, kRows, 32, kColumnGate>(p, stream);
  p.columns <= 64 ? launch_instance<Element, kRows, 64, kColumnGate>(p, stream)
                  : launch_instance<Element, kRows, 128, kColumnGate>(p, stream);
}

template <typename Element>
void launch(const VectorGradientArguments& p, cudaStream_t stream) {
  if (row_tile_of(p.rows) == 32)
    return p.pairs ? launch_columns<Element, 32, true>(p, stream) : launch_columns<Element, 32, false>(p, stream);
  p.pairs ? launch_columns<Element, 64, true>(p, stream) : launch_columns<Element, 64, false>(p, stream);
}

// One of the two sides: its query and key, what multiplies them, and where its gradients go.
struct Side {
  Operand query, key, gate;
  int64_t dim;
  void *grad_query, *grad_key;
  float* grad_gate;
  int64_t stride;  // of its index in a state
};

template <typename Element>
void launch_side(const MatrixStateBackward& a, const Side& own, const Side& other, const Between& between) {
  const Shape& shape = a.shape;
  VectorGradientArguments p{};
  p.query = own.query;
  p.key = own.key;
  p.key_gate = own.gate;
  p.grad_values = other.query;
  p.value = other.key;
  p.grad_query = own.grad_query;
  p.grad_key = own.grad_key;
  p.grad_key_gate = own.grad_gate;
  p.length = shape.key_length;
  p.batch = static_cast<int>(shape.batch);
  p.heads = static_cast<int>(shape.heads);
  p.rows = static_cast<int>(own.dim);
  p.columns = static_cast<int>(other.dim);
  p.row_stride = own.stride;
  p.column_stride = other.stride;
  p.scale = static_cast<float>(a.scale);
  p.initial = a.initial_state;
  p.grad_last = a.grad_last_state;
  p.grad_initial = own.grad_query ? a.grad_initial_state : nullptr;
  p.states = between.states;
  p.state_units = between.units;
  if (a.form.value_gate) {
    VectorPairsArguments pairs{other.query,
                               other.key,
                               other.gate,
                               between.scaled_left,
                               between.scaled_right,
                               between.records,
                               p.length,
                               p.batch,
                               p.heads,
                               p.columns,
                               p.scale};
    const int64_t grid = shape.batch * shape.heads * chunks_of(shape);
    pairs.channels <= 32 ? run(vector_pairs<Element, 32>, grid, 128, VectorPairsShared<32>::kBytes, pairs, a.stream)
                         : run(vector_pairs<Element, 64>, grid, 128, VectorPairsShared<64>::kBytes, pairs, a.stream);
    const auto contiguous = [&](const void* data) {
      return Operand{data, p.length * p.heads * p.columns, static_cast<int64_t>(p.heads) * p.columns, p.columns};
    };
    p.grad_values = contiguous(between.scaled_left);
    p.value = contiguous(between.scaled_right);
    p.pairs = between.records;
  }
  launch<Element>(p, a.stream);
}

template <typename Element>
void launch_sides(const MatrixStateBackward& a, const Between& between) {
  const Side rows{a.query,      a.key,      a.key_gate,      a.shape.key_dim,
                  a.grad_query, a.grad_key, a.grad_key_gate, a.shape.value_dim},
      columns{a.grad_values, a.value, a.value_gate, a.shape.value_dim, nullptr, a.grad_value, a.grad_value_gate, 1};
  launch_side<Element>(a, rows, columns, between);
  if (a.form.value_gate) launch_side<Element>(a, columns, rows, between);
}

}  // namespace

size_t vector_gradient_workspace_bytes(const Shape& shape, bool value_gate) {
  Workspace memory(nullptr);
  Between(memory, shape, value_gate);
  return std::max<size_t>(memory.bytes(), 256);
}

void vector_gradient_launch(const MatrixStateBackward& a) {
  Workspace memory(a.workspace);
  const Between between(memory, a.shape, a.form.value_gate);
  a.dtype == Dtype::kBFloat16 ? launch_sides<__nv_bfloat16>(a, between) : launch_sides<__half>(a, between);
}

}  // namespace lethe::matrix_state
