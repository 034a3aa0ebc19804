#pragma once
// What the launches of the delta rule's passes share.

#include "optimized/cuda/attention.hpp"
#include "optimized/cuda/check.hpp"
#include "optimized/cuda/matrix_state.hpp"
#include "optimized/cuda/matrix_state/delta.hpp"
#include "optimized/cuda/matrix_state/families.hpp"

namespace lethe::matrix_state {

/// Whether the current device runs the code of compute capability 9.0, and not that of 8.0.
bool runs_hopper_code();

/// The arguments of a pass that reads `other` beside query and key.
DeltaArguments delta_arguments(const MatrixStateInput& in, const Operand& other);

/// The forward that keeps for a backward what it needs.
void launch_delta_states(const DeltaArguments& arguments, Dtype dtype, cudaStream_t stream);

/// Launches a pass: a CTA a head and 64 columns.
template <typename Kernel>
void launch_delta(Kernel kernel, int bytes, const DeltaArguments& p, cudaStream_t stream) {
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "delta rule: shared memory");
  const int ctas = p.batch * p.heads * delta_ctas(p.columns, 1);
  kernel<<<static_cast<unsigned>(ctas), kDeltaThreads, bytes, stream>>>(p);
  cuda_check(cudaGetLastError(), "delta rule: launch");
}

}  // namespace lethe::matrix_state
