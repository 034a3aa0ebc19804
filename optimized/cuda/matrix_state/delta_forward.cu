// delta_state without a gate or with one a token, by chunks of 64 tokens: the forward, and the one that a backward runs first.
#include "optimized/cuda/matrix_state/delta_forward.cuh"

#include "optimized/cuda/matrix_state/delta_launch.hpp"
#include "optimized/cuda/matrix_state/hopper/delta.hpp"

namespace lethe::matrix_state {
namespace {

template <typename Element, bool kKeeps>
void launch_rows(const DeltaArguments& p, cudaStream_t stream) {
  p.rows <= 64 ? launch_delta<64, DeltaForwardMemory<64>::kBytes>(delta_chunks<Element, 64, kKeeps>, p, stream)
               : launch_delta<128, DeltaForwardMemory<128>::kBytes>(delta_chunks<Element, 128, kKeeps>, p, stream);
}

template <bool kKeeps>
void launch(const DeltaArguments& p, Dtype dtype, cudaStream_t stream) {
  dtype == Dtype::kBFloat16 ? launch_rows<__nv_bfloat16, kKeeps>(p, stream) : launch_rows<__half, kKeeps>(p, stream);
}

}  // namespace

bool runs_hopper_code() {
  int device;
  cuda_check(cudaGetDevice(&device), "delta rule: device");
  return compute_capability(device) / 10 == 9;
}

DeltaArguments delta_arguments(const MatrixStateInput& in, const Operand& other) {
  DeltaArguments p{};
  p.query = in.query;
  p.key = in.key;
  p.other = other;
  p.gate = {static_cast<const float*>(in.key_gate.data), in.key_gate.batch_stride, in.key_gate.token_stride,
            in.key_gate.head_stride};
  p.beta = in.beta;
  p.scale = static_cast<float>(in.scale);
  p.length = in.shape.key_length;
  p.batch = static_cast<int>(in.shape.batch);
  p.heads = static_cast<int>(in.shape.heads);
  p.rows = static_cast<int>(in.shape.key_dim);
  p.columns = static_cast<int>(in.shape.value_dim);
  return p;
}

void launch_delta_states(const DeltaArguments& arguments, Dtype dtype, cudaStream_t stream) {
  launch<true>(arguments, dtype, stream);
}

// Where the device runs the kernels of wgmma.
size_t delta_forward_workspace_bytes(const Shape& shape, const MatrixStateForm&) {
  return runs_hopper_code() ? delta_warpgroup_workspace_bytes(shape) : 0;
}

void delta_forward(const MatrixStateForward& a) {
  if (runs_hopper_code()) return delta_forward_by_warpgroups(a);
  DeltaArguments p = delta_arguments(a, a.value);
  p.initial = a.initial_state;
  p.last = a.last_state;
  p.out = a.values;
  launch<false>(p, a.dtype, a.stream);
}

}  // namespace lethe::matrix_state
