#pragma once
// From the forward kernel's accumulators to shared memory.

#include "optimized/cuda/hopper/ptx/fragment.cuh"
#include "optimized/cuda/tile/softmax.cuh"

namespace lethe::hopper::forward_pass {

/// A warp's 16 rows of o = output · inverse into panels of 64 columns × `tile_rows` at `panels`, from `first_row` on: rounded, or with
/// kResidual what rounding takes away, rounded itself.
template <typename Element, bool kResidual, int kDim>
__device__ inline void stage_output(const tile::Rows<kDim>& rows, const float (&inverse)[2], uint32_t panels,
                                    int tile_rows, int first_row) {
  const uint32_t lane = threadIdx.x % 32, row = first_row + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
  for (int j = 0; j < kDim / 8; j += 2) {
    const uint32_t column = 8 * j + lane / 16 * 8;
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float first = rows.output[4 * j + 2 * i] * inverse[i % 2],
                  second = rows.output[4 * j + 2 * i + 1] * inverse[i % 2];
      pairs[i] = pack<Element>(first, second);
      if constexpr (kResidual) {
        const float2 stored = unpack<Element>(pairs[i]);
        pairs[i] = pack<Element>(first - stored.x, second - stored.y);
      }
    }
    ptx::store_matrices(panels + column / 64 * tile_rows * 128 + ptx::swizzled_offset(row, column % 64), pairs[0],
                        pairs[1], pairs[2], pairs[3]);
  }
}

}  // namespace lethe::hopper::forward_pass
