#pragma once
// What the launches of the delta rule's passes share.

#include "optimized/cuda/attention.hpp"
#include "optimized/cuda/check.hpp"
#include "optimized/cuda/matrix_state.hpp"
#include "optimized/cuda/matrix_state/delta.hpp"
#include "optimized/cuda/matrix_state/families.hpp"
#include "optimized/cuda/workspace.hpp"
#include "optimized/kept_states.hpp"

namespace lethe::matrix_state {

/// Whether the current device runs the code of compute capability 9.0, and not that of 8.0.
bool runs_hopper_code();

/// The arrays that a backward reads of what was before it: S, r and their units, and Wᵀ. Where a forward leaves them, also the keys' numbers; they
/// lie in what it is given for them one after the other, kept_delta_bytes() a chunk, since all but the last one's sizes are multiples of 256 bytes.
inline DeltaArrays take_left_arrays(Workspace& memory, const Shape& shape, bool by_forward, int parts) {
  const int64_t chunks = shape.batch * shape.heads * ((shape.key_length + kChunk - 1) / kChunk),
                row_tiles = (shape.key_dim + 63) / 64, tiles = (shape.value_dim + 63) / 64 * chunks;
  constexpr int64_t kPieces = 64 * 64 * 2 / sizeof(uint4), kInverse = kLowerBlocks * 32;
  static_assert(kept_delta_bytes(2, 2, kInverseParts<__half>) ==
                kInverseParts<__half> * kInverse * sizeof(uint4) + sizeof(ChunkKeys) +
                    2 * (3 * kPieces * sizeof(uint4) + (kChunk + 1) * sizeof(float)));
  DeltaArrays arrays{};
  arrays.inverse = memory.take<uint4>(chunks * parts * kInverse);
  arrays.before = memory.take<uint4>(tiles * row_tiles * kPieces);
  arrays.residual = memory.take<uint4>(tiles * kPieces);
  arrays.residual_unit = memory.take<float>(tiles * kChunk);
  if (by_forward) arrays.keys = memory.take<ChunkKeys>(chunks);
  arrays.before_unit = memory.take<float>(tiles);
  return arrays;
}

/// The arguments of a pass that reads `other` beside query and key.
DeltaArguments delta_arguments(const MatrixStateInput& in, const Operand& other);

/// The forward that keeps for a backward what it needs.
void launch_delta_states(const DeltaArguments& arguments, Dtype dtype, cudaStream_t stream);

/// Launches a pass over states of kRows rows: a CTA a head and 64 columns.
template <int kRows, int kBytes, typename Kernel>
void launch_delta(Kernel kernel, const DeltaArguments& p, cudaStream_t stream) {
  static_assert(kBytes <= 1024 * shared_kilobytes(kRows == 64 ? 86 : 80), "unsupported_by_delta_chunks");
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
             "delta rule: shared memory");
  const int ctas = p.batch * p.heads * delta_ctas(p.columns, 1);
  kernel<<<static_cast<unsigned>(ctas), kDeltaThreads, kBytes, stream>>>(p);
  cuda_check(cudaGetLastError(), "delta rule: launch");
}

}  // namespace lethe::matrix_state
