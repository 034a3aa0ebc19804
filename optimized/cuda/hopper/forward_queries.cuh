#pragma once
// The left operand of S: queries in shared memory, and where Sizes::kQuerySteps says so their first columns in registers. A step of 64 keys reads as
// much of queries as of keys, and at head dim 256 shared memory is as busy as the tensor core: a panel in registers is 6 % less to read.

#include "optimized/cuda/hopper/forward_tiles.cuh"
#include "optimized/cuda/hopper/ptx/fragment.cuh"
#include "optimized/cuda/hopper/ptx/wgmma.cuh"
#include "optimized/cuda/ptx/mma.cuh"

namespace lethe::hopper::forward_pass {

/// The operands of the first k-steps.
template <int kSteps>
struct HeldQueries {
  uint32_t step[kSteps][4];

  /// A warp's 16 rows, from `first_row` of panels of `rows` rows on.
  __device__ __forceinline__ void load(uint32_t panels, int rows, int first_row) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const uint32_t offset = ptx::swizzled_offset(first_row + lane % 16, 16 * (s % 4) + lane / 16 * 8);
      ptx::load_matrices(step[s], panels + s / 4 * rows * 128 + offset);
      ptx::fence_registers(step[s]);
    }
  }
};
template <>
struct HeldQueries<0> {
  __device__ void load(uint32_t, int, int) {}
};

/// One k-step of S = Q·Kᵀ, of the descriptors of the first.
template <typename Element, int kDim>
__device__ __forceinline__ void multiply_queries(Rows<kDim>& rows, const HeldQueries<Sizes<kDim>::kQuerySteps>& held,
                                                 int step, uint64_t query, uint64_t key, bool accumulate) {
  using Size = Sizes<kDim>;
  const int panel = step / 4, within = step % 4 * (32 >> 4);
  if constexpr (Size::kQuerySteps > 0) {
    if (step < Size::kQuerySteps) {
      ptx::wgmma<ptx::Major::kK>(Element{}, rows.x, held.step[step][0], held.step[step][1], held.step[step][2],
                                 held.step[step][3], key + panel * (Size::kKeys * 128 >> 4) + within, accumulate);
      return;
    }
  }
  ptx::wgmma<ptx::Major::kK, ptx::Major::kK>(Element{}, rows.x, query + panel * (Size::kRows * 128 >> 4) + within,
                                             key + panel * (Size::kKeys * 128 >> 4) + within, accumulate);
}

}  // namespace lethe::hopper::forward_pass
