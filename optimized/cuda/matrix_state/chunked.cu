// gated_state by passes over chunks of 64 tokens. On compute capability 9.0 states of at most 128 rows have kernels of their own (hopper/launch.hpp),
// which alone compute a normaliser apart. Elsewhere
// the gradients of one of at most 64 × 64 are two kernels (fused.hpp) where a CTA can have over 99 KB of shared memory; others are three more passes:
//
//   dq_i = Σ_{j ≤ i} D_ij (dO_i·v_j) k_j     query dO, key v, value k
//   dk_j = Σ_{i ≥ j} D_ij (dO_i·v_j) q_i     in reverse: query v, key dO, value q
//   dv_j = Σ_{i ≥ j} D_ij (q_i·k_j) dO_i     in reverse: query k, key q, value dO
//
// A pass that is launched `overlapping` reads nothing of the one before it; its CTAs run beside the last of that one.
//
// d log f_l is the sum over exactly the pairs that gate l separates: inside a chunk from the first pass, between chunks from the first two.
#include <algorithm>

#include "optimized/cuda/check.hpp"
#include "optimized/cuda/hopper/tensor_map.hpp"
#include "optimized/cuda/matrix_state/families.hpp"
#include "optimized/cuda/matrix_state/fused.hpp"
#include "optimized/cuda/matrix_state/hopper/launch.hpp"
#include "optimized/cuda/matrix_state/sweep.cuh"
#include "optimized/cuda/workspace.hpp"

namespace lethe::matrix_state {
namespace {

template <typename Element, int kRows, int kColumns, Role kRole, bool kGated>
void launch_instance(const SweepArguments& p, bool overlapping, cudaStream_t stream) {
  constexpr int kBytes = SweepShared<kRows, kColumns, kRole>::kBytes;
  static_assert(kBytes <= 1024 * shared_kilobytes(kRows == 64    ? 86
                                                  : kRows == 128 ? 80
                                                                 : 90),
                "by these unsupported_by_chunks tells GPUs apart");
  const auto kernel = sweep<Element, kRows, kColumns, kRole, kGated>;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
             "matrix state: shared memory");
  const int64_t tiles = (p.columns + kColumns - 1) / kColumns;
  const dim3 grid(static_cast<unsigned>(p.batch * p.heads * tiles * segments_of(p.length)));
  if (overlapping) {
    launch_overlapping(kernel, grid, kComputing, kBytes, stream, p);
  } else {
    kernel<<<grid, kComputing, kBytes, stream>>>(p);
    cuda_check(cudaGetLastError(), "matrix state: launch");
  }
}

constexpr int padded_rows(int64_t rows) { return rows <= 64 ? 64 : rows <= 128 ? 128 : 256; }
constexpr int tile_columns(int64_t rows) { return rows <= 128 ? 64 : 32; }

template <typename Element, Role kRole, bool kGated>
void launch_rows(const SweepArguments& p, bool overlapping, cudaStream_t stream) {
  switch (padded_rows(p.rows)) {
    case 64: return launch_instance<Element, 64, tile_columns(64), kRole, kGated>(p, overlapping, stream);
    case 128: return launch_instance<Element, 128, tile_columns(128), kRole, kGated>(p, overlapping, stream);
    default: return launch_instance<Element, 256, tile_columns(256), kRole, kGated>(p, overlapping, stream);
  }
}

template <Role kRole, bool kGated>
void launch(const SweepArguments& p, Dtype dtype, bool overlapping, cudaStream_t stream) {
  dtype == Dtype::kBFloat16 ? launch_rows<__nv_bfloat16, kRole, kGated>(p, overlapping, stream)
                            : launch_rows<__half, kRole, kGated>(p, overlapping, stream);
}

template <Role kRole>
void launch(SweepArguments p, Dtype dtype, cudaStream_t stream, bool overlapping = false) {
  int device;
  cuda_check(cudaGetDevice(&device), "matrix state: device");
  if (compute_capability(device) >= 90) {
    const auto map = [&](const Operand& operand, int dim, int tokens = kChunk) {
      Operand one = operand;  // the copy engine has no stride of 0
      if (one.head_stride == 0) one.head_stride = one.token_stride;
      return tensor_map(one, dtype, p.batch, p.length, operand.head_stride ? p.heads : 1, dim, tokens);
    };
    p.maps[0] = map(p.query, p.rows);
    p.maps[1] = map(p.key, p.rows);
    p.maps[2] = map(p.value, p.columns);
    if (kRole != Role::kRead) p.maps[3] = map(p.partner, p.columns);
    if (!p.float_out) {
      const int64_t token = int64_t{1} * p.heads * p.columns;
      p.maps[4] = map({p.out, p.length * token, token, p.columns}, p.columns, kChunk / kWarps);
    }
  }
  if constexpr (kRole == Role::kRead) {
    if (!p.gate.log_forget) return launch<Role::kRead, false>(p, dtype, overlapping, stream);
  }
  launch<kRole, true>(p, dtype, overlapping, stream);
}

Gates gates_of(const MatrixStateInput& in) {
  return {static_cast<const float*>(in.key_gate.data), in.key_gate.batch_stride, in.key_gate.token_stride,
          in.key_gate.head_stride};
}

// The state as [rows, columns] of this pass: K × V, or V × K.
SweepArguments arguments_of(const MatrixStateInput& in, bool transposed) {
  const Shape& shape = in.shape;
  SweepArguments p{};
  p.gate = gates_of(in);
  p.length = shape.key_length;
  p.batch = static_cast<int>(shape.batch);
  p.heads = static_cast<int>(shape.heads);
  p.rows = static_cast<int>(transposed ? shape.value_dim : shape.key_dim);
  p.columns = static_cast<int>(transposed ? shape.key_dim : shape.value_dim);
  p.row_stride = transposed ? 1 : shape.value_dim;
  p.column_stride = transposed ? shape.value_dim : 1;
  return p;
}

int64_t chunks_of(const Shape& shape) { return (shape.key_length + kChunk - 1) / kChunk; }
// Column tiles of all heads, of a pass whose state has these rows and columns.
int64_t tile_heads(const Shape& shape, int64_t rows, int64_t columns) {
  const int width = tile_columns(rows);
  return shape.batch * shape.heads * ((columns + width - 1) / width);
}
int64_t key_tiles(const Shape& shape) {
  const int width = tile_columns(shape.value_dim);
  return (shape.key_dim + width - 1) / width;
}

// What segments of up to three passes hand on.
class Handed {
 public:
  // `rows` of the state in each pass.
  template <size_t kPasses>
  Handed(Workspace& memory, const Shape& shape, const int64_t (&rows)[kPasses]) {
    const int64_t handing = segments_of(shape.key_length) - 1, all = shape.key_dim + shape.value_dim;
    if (handing == 0) return;
    for (size_t i = 0; i < kPasses; ++i) flags_ += counts_[i] = tile_heads(shape, rows[i], all - rows[i]) * handing;
    flags_ *= kWarps;
    int32_t* ready = ready_ = memory.take<int32_t>(flags_);
    for (size_t i = 0; i < kPasses; ++i) {
      passes[i] = {memory.take<float>(counts_[i] * padded_rows(rows[i]) * tile_columns(rows[i])), ready};
      ready += counts_[i] * kWarps;
    }
  }

  void clear(cudaStream_t stream) const {
    if (flags_ > 0) cuda_check(cudaMemsetAsync(ready_, 0, flags_ * sizeof(int32_t), stream), "matrix state: segments");
  }

  SegmentStates passes[3] = {};

 private:
  int64_t counts_[3] = {}, flags_ = 0;
  int32_t* ready_ = nullptr;
};
Handed handed_forwards(Workspace& memory, const Shape& shape) { return {memory, shape, {shape.key_dim}}; }
Handed handed_backwards(Workspace& memory, const Shape& shape) {
  if (is_fused(shape)) return {memory, shape, {shape.key_dim, shape.key_dim}};
  return {memory, shape, {shape.value_dim, shape.value_dim, shape.key_dim}};
}

struct FusedStates {
  uint4* states;
  float* units;

  FusedStates(Workspace& memory, const Shape& shape) {
    const int64_t chunks = shape.batch * shape.heads * chunks_of(shape);
    states = memory.take<uint4>(chunks * 4 * kComputing);
    units = memory.take<float>(chunks * kWarps);
  }
};

struct Passes {
  float *chunk_states, *query_shares, *key_shares;

  Passes(Workspace& memory, const Shape& shape) {
    const int64_t chunks = tile_heads(shape, shape.value_dim, shape.key_dim) * chunks_of(shape);
    chunk_states = memory.take<float>(chunks * padded_rows(shape.value_dim) * tile_columns(shape.value_dim));
    query_shares = memory.take<float>(chunks * kChunk);
    key_shares = memory.take<float>(chunks * kChunk);
  }
};

void fused_backward(const MatrixStateBackward& a, const Handed& handed, const FusedStates& states) {
  const Shape& shape = a.shape;
  FusedArguments p{};
  p.query = a.query;
  p.key = a.key;
  p.value = a.value;
  p.grad_values = a.grad_values;
  p.gate = gates_of(a);
  p.grad_query = a.grad_query;
  p.grad_key = a.grad_key;
  p.grad_value = a.grad_value;
  p.grad_gate = a.grad_key_gate;
  p.length = shape.key_length;
  p.batch = static_cast<int>(shape.batch);
  p.heads = static_cast<int>(shape.heads);
  p.rows = static_cast<int>(shape.key_dim);
  p.columns = static_cast<int>(shape.value_dim);
  p.scale = static_cast<float>(a.scale);
  p.initial = a.initial_state;
  p.grad_last = a.grad_last_state;
  p.grad_initial = a.grad_initial_state;
  p.chunk_states = states.states;
  p.state_units = states.units;
  p.before = handed.passes[0];
  p.after = handed.passes[1];
  launch_fused(p, a.dtype, a.stream);
}

// d log f [B, T, H]: the shares of both passes over the column tiles, in their order.
__global__ void add_shares(const float* query_shares, const float* key_shares, float* to, int64_t length, int batch,
                           int heads, int tiles) {
  const int64_t padded = (length + kChunk - 1) / kChunk * kChunk, all_heads = static_cast<int64_t>(batch) * heads;
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i >= all_heads * length) return;
  const int64_t h = i % heads, t = i / heads % length, b = i / heads / length;
  float sum = 0.0f;
  for (int tile = 0; tile < tiles; ++tile) {
    const int64_t at = ((tile * all_heads) + b * heads + h) * padded + t;
    sum += query_shares[at] + key_shares[at];
  }
  to[i] = sum;
}

bool has_gate(const MatrixStateForm& form) { return form.key_gate != MatrixStateForm::Gate::kNone; }

}  // namespace

bool chunk_normalizes(const Shape& shape, const MatrixStateForm& form, bool backward) {
  MatrixStateForm normalized = form;
  normalized.normalize = true;
  return shape.value_dim > 0 && (backward ? backward_by_warpgroups(shape, normalized) : forward_by_warpgroups(shape));
}

size_t chunk_forward_workspace_bytes(const Shape& shape, const MatrixStateForm& form) {
  if (forward_by_warpgroups(shape)) return warpgroup_forward_workspace_bytes(shape, form);
  Workspace memory(nullptr);
  handed_forwards(memory, shape);
  return memory.bytes();
}

size_t chunk_workspace_bytes(const Shape& shape, const MatrixStateForm& form) {
  if (backward_by_warpgroups(shape, form))
    return std::max<size_t>(warpgroup_backward_workspace_bytes(shape, form), 256);
  Workspace memory(nullptr);
  handed_backwards(memory, shape);
  if (is_fused(shape)) FusedStates(memory, shape);
  else if (has_gate(form)) Passes(memory, shape);
  return std::max<size_t>(memory.bytes(), 256);
}

void chunk_forward(const MatrixStateForward& a) {
  if (forward_by_warpgroups(a.shape)) return warpgroup_forward(a);
  Workspace memory(a.workspace);
  const Handed handed = handed_forwards(memory, a.shape);
  handed.clear(a.stream);
  SweepArguments p = arguments_of(a, false);
  p.query = a.query;
  p.key = a.key;
  p.value = a.value;
  p.out = a.values;
  p.float_out = a.float_values;
  p.read_scale = static_cast<float>(a.scale);
  p.write_scale = 1.0f;
  p.initial = a.initial_state;
  p.last = a.last_state;
  p.segments = handed.passes[0];
  launch<Role::kRead>(p, a.dtype, a.stream);
}

void chunk_backward(const MatrixStateBackward& a) {
  const bool gated = a.key_gate.data != nullptr;
  if (backward_by_warpgroups(a.shape, a.form)) return warpgroup_backward(a);
  Workspace memory(a.workspace);
  const Handed handed = handed_backwards(memory, a.shape);
  handed.clear(a.stream);
  if (is_fused(a.shape)) return fused_backward(a, handed, FusedStates(memory, a.shape));
  const float scale = static_cast<float>(a.scale);

  SweepArguments query = arguments_of(a, true);
  query.segments = handed.passes[0];
  query.query = a.grad_values;
  query.key = a.value;
  query.value = a.key;
  query.partner = a.query;
  query.out = a.grad_query;
  query.read_scale = scale;
  query.write_scale = 1.0f;
  query.initial = a.initial_state;

  SweepArguments key = arguments_of(a, true);
  key.segments = handed.passes[1];
  key.query = a.value;
  key.key = a.grad_values;
  key.value = a.query;
  key.partner = a.key;
  key.out = a.grad_key;
  key.reverse = true;
  key.read_scale = 1.0f;
  key.write_scale = scale;
  key.initial = a.grad_last_state;

  SweepArguments value = arguments_of(a, false);
  value.segments = handed.passes[2];
  value.query = a.key;
  value.key = a.query;
  value.value = a.grad_values;
  value.out = a.grad_value;
  value.reverse = true;
  value.read_scale = 1.0f;
  value.write_scale = scale;
  value.initial = a.grad_last_state;
  value.last = a.grad_initial_state;

  if (gated) {
    const Passes passes(memory, a.shape);
    query.chunk_states = key.chunk_states = passes.chunk_states;
    query.crossings = passes.query_shares;
    key.crossings = passes.key_shares;
    launch<Role::kQueryGradient>(query, a.dtype, a.stream);
    launch<Role::kKeyGradient>(key, a.dtype, a.stream);
    launch<Role::kRead>(value, a.dtype, a.stream, true);
    const int64_t tokens = a.shape.batch * a.shape.heads * a.shape.key_length;
    add_shares<<<static_cast<unsigned>((tokens + 255) / 256), 256, 0, a.stream>>>(
        passes.query_shares, passes.key_shares, a.grad_key_gate, a.shape.key_length, query.batch, query.heads,
        static_cast<int>(key_tiles(a.shape)));
    cuda_check(cudaGetLastError(), "matrix state: gate gradient");
  } else {
    launch<Role::kRead>(query, a.dtype, a.stream);
    launch<Role::kRead>(key, a.dtype, a.stream, true);
    launch<Role::kRead>(value, a.dtype, a.stream, true);
  }
}

}  // namespace lethe::matrix_state
