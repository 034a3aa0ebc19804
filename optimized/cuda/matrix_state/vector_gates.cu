// gated_state with a gate a row, and perhaps one a column, by passes over blocks of 16 tokens (vector_sweep.cuh).
#include "optimized/cuda/check.hpp"
#include "optimized/cuda/matrix_state/families.hpp"
#include "optimized/cuda/matrix_state/vector_sweep.cuh"

namespace lethe::matrix_state {
namespace {

template <typename Element, int kRows, bool kValueGate>
void launch_instance(const VectorSweepArguments& p, cudaStream_t stream) {
  constexpr int kBytes = VectorSweepShared<kRows, kValueGate>::kBytes;
  static_assert(kBytes <= 1024 * shared_kilobytes(kRows <= 64 ? 80 : 90), "unsupported_by_vector_gates");
  const auto kernel = vector_sweep<Element, kRows, kValueGate>;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
             "matrix state: shared memory");
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100),
             "matrix state: shared memory");
  const int tiles = (p.columns + kSweepColumns - 1) / kSweepColumns;
  const dim3 grid(static_cast<unsigned>(p.batch * p.heads * tiles));
  kernel<<<grid, kVectorThreads, kBytes, stream>>>(p);
  cuda_check(cudaGetLastError(), "matrix state: launch");
}

template <typename Element, bool kValueGate>
void launch_rows(const VectorSweepArguments& p, cudaStream_t stream) {
  if (p.rows <= 32) return launch_instance<Element, 32, kValueGate>(p, stream);
  p.rows <= 64 ? launch_instance<Element, 64, kValueGate>(p, stream)
               : launch_instance<Element, 128, kValueGate>(p, stream);
}

template <typename Element>
void launch_gates(const VectorSweepArguments& p, cudaStream_t stream) {
  p.value_gate.data ? launch_rows<Element, true>(p, stream) : launch_rows<Element, false>(p, stream);
}

void launch(const VectorSweepArguments& p, Dtype dtype, cudaStream_t stream) {
  dtype == Dtype::kBFloat16 ? launch_gates<__nv_bfloat16>(p, stream) : launch_gates<__half>(p, stream);
}

VectorSweepArguments arguments_of(const MatrixStateInput& in) {
  VectorSweepArguments p{};
  p.query = in.query;
  p.key = in.key;
  p.value = in.value;
  p.key_gate = in.key_gate;
  p.value_gate = in.value_gate;
  p.length = in.shape.key_length;
  p.batch = static_cast<int>(in.shape.batch);
  p.heads = static_cast<int>(in.shape.heads);
  p.rows = static_cast<int>(in.shape.key_dim);
  p.columns = static_cast<int>(in.shape.value_dim);
  p.read_scale = static_cast<float>(in.scale);
  p.write_scale = 1.0f;
  p.initial = in.initial_state;
  return p;
}

}  // namespace

void vector_forward(const MatrixStateForward& a) {
  VectorSweepArguments p = arguments_of(a);
  p.out = a.values;
  p.float_out = a.float_values;
  p.last = a.last_state;
  launch(p, a.dtype, a.stream);
}

void vector_sweep_back(const MatrixStateBackward& a, void* states, float* first, int32_t* marks) {
  VectorSweepArguments p = arguments_of(a);
  p.query = a.key;
  p.key = a.query;
  p.value = a.grad_values;
  p.out = a.grad_value;
  p.reverse = true;
  p.read_scale = 1.0f;
  p.write_scale = static_cast<float>(a.scale);
  p.initial = a.grad_last_state;
  p.last = first;
  p.states = states;
  p.marks = marks;
  launch(p, a.dtype, a.stream);
}

}  // namespace lethe::matrix_state
