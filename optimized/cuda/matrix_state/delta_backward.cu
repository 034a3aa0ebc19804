// The backward of delta_state without a gate or with one a token: the states again, the gradients from the last token back, and those inside each
// chunk.

#include <utility>

#include "optimized/cuda/matrix_state/delta_gradients.cuh"
#include "optimized/cuda/matrix_state/delta_launch.hpp"
#include "optimized/cuda/matrix_state/delta_reverse.cuh"
#include "optimized/cuda/matrix_state/families.hpp"
#include "optimized/cuda/matrix_state/hopper/delta.hpp"
#include "optimized/cuda/workspace.hpp"

namespace lethe::matrix_state {
namespace {

template <typename Element, int kTiles>
void launch_gradients(const DeltaGradients& p, cudaStream_t stream) {
  const auto kernel = delta_gradients<Element, kTiles>;
  constexpr int kBytes = DeltaGradientsMemory<kTiles>::kBytes;
  static_assert(kBytes <= 1024 * shared_kilobytes(kTiles == 1 ? 86 : 80), "unsupported_by_delta_chunks");
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
             "delta rule: shared memory");
  const int64_t chunks = (p.length + kChunk - 1) / kChunk;
  kernel<<<static_cast<unsigned>(p.batch * p.heads * chunks), kComputing, kBytes, stream>>>(p);
  cuda_check(cudaGetLastError(), "delta rule: launch");
}

template <typename Element>
void launch_reversed(const DeltaArguments& p, cudaStream_t stream) {
  p.rows <= 64 ? launch_delta<64, DeltaReverseMemory<64>::kBytes>(delta_reversed<Element, 64>, p, stream)
               : launch_delta<128, DeltaReverseMemory<128>::kBytes>(delta_reversed<Element, 128>, p, stream);
}

template <typename Element>
void launch_gradients(const DeltaGradients& p, int columns, cudaStream_t stream) {
  columns <= 64 ? launch_gradients<Element, 1>(p, stream) : launch_gradients<Element, 2>(p, stream);
}

// The other arrays. Where the forward has left its own no sweep is waited for that would.
void take_own_arrays(Workspace& memory, const Shape& shape, bool left_by_forward, DeltaArrays& arrays) {
  const int64_t heads = shape.batch * shape.heads, column_tiles = (shape.value_dim + 63) / 64,
                tiles = column_tiles * heads * ((shape.key_length + kChunk - 1) / kChunk);
  constexpr int64_t kPieces = kPanel / sizeof(uint4);
  arrays.after = memory.take<uint4>(tiles * ((shape.key_dim + 63) / 64) * kPieces);
  arrays.after_unit = memory.take<float>(tiles);
  arrays.written = memory.take<uint4>(tiles * kPieces);
  arrays.written_unit = memory.take<float>(tiles * kChunk);
  arrays.gate_share = memory.take<float>(shape.batch * shape.key_length * shape.heads);
  const int64_t marks = heads * column_tiles;
  arrays.swept = memory.take<int32_t>(left_by_forward ? marks : 2 * marks);
  if (!left_by_forward) arrays.stored = std::exchange(arrays.swept, arrays.swept + marks);
}

}  // namespace

size_t delta_workspace_bytes(const Shape& shape, const MatrixStateForm& form) {
  Workspace memory(nullptr);
  const int parts = runs_hopper_code() ? inverse_parts(Dtype::kFloat16) : 1;  // of any type: of the one that needs most
  DeltaArrays arrays = form.kept_states ? DeltaArrays{} : take_left_arrays(memory, shape, false, parts);
  take_own_arrays(memory, shape, form.kept_states, arrays);
  return memory.bytes() + (form.kept_states ? 0 : delta_forward_workspace_bytes(shape, form));
}

void delta_backward(const MatrixStateBackward& a) {
  Workspace memory(a.workspace), left(const_cast<void*>(a.kept_states));
  const bool by_forward = a.form.kept_states;
  const int parts = runs_hopper_code() ? inverse_parts(a.dtype) : 1;
  DeltaArrays arrays = take_left_arrays(by_forward ? left : memory, a.shape, by_forward, parts);
  take_own_arrays(memory, a.shape, by_forward, arrays);

  if (runs_hopper_code()) {
    void* const rest = memory.rest();
    if (!by_forward) delta_states_by_warpgroups(a, arrays, rest, a.stream);
    delta_reverse_by_warpgroups(a, arrays, rest);
    return delta_gradients_by_warpgroups(a, arrays);
  }
  DeltaArguments states = delta_arguments(a, a.value);
  states.initial = a.initial_state;
  states.arrays = arrays;
  launch_delta_states(states, a.dtype, a.stream);

  DeltaArguments reversed = delta_arguments(a, a.grad_values);
  reversed.initial = a.grad_last_state;
  reversed.last = a.grad_initial_state;
  reversed.out = a.grad_value;
  reversed.arrays = arrays;
  const bool brain = a.dtype == Dtype::kBFloat16;
  brain ? launch_reversed<__nv_bfloat16>(reversed, a.stream) : launch_reversed<__half>(reversed, a.stream);
  const DeltaGradients gradients{a.query,        a.key,           a.grad_values,    reversed.gate,
                                 a.beta,         reversed.scale,  reversed.length,  reversed.batch,
                                 reversed.heads, reversed.rows,   reversed.columns, a.grad_query,
                                 a.grad_key,     a.grad_key_gate, a.grad_beta,      arrays};
  brain ? launch_gradients<__nv_bfloat16>(gradients, reversed.columns, a.stream)
        : launch_gradients<__half>(gradients, reversed.columns, a.stream);
}

}  // namespace lethe::matrix_state
