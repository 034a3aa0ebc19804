#pragma once
// Products of 16 by 8 by 8, and fragments to shared memory: compute capability 8.0 and above. Fragments are those of ptx/mma.cuh.

#include "optimized/cuda/ptx/mma.cuh"

namespace lethe::ptx {

/// sum += left · right, 16×8 = 16×8 · 8×8 in bfloat16: the first halves of the operands above, of 8 columns and rows.
__device__ inline void multiply_add_8(float (&sum)[4], uint32_t left0, uint32_t left1, uint32_t right) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(left0), "r"(left1), "r"(right));
}

/// Four 8×8 matrices of 16-bit elements to shared memory, one 16-byte row address a lane, from registers as load_matrices (ptx/mma.cuh) leaves them
/// there; with `_transposed`, as load_matrices_transposed does. Below compute capability 9.0, which has an instruction for it, each lane stores its
/// words.
__device__ inline void store_fragments(uint32_t address, const uint32_t (&registers)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(registers[0]),
               "r"(registers[1]), "r"(registers[2]), "r"(registers[3])
               : "memory");
#else
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    const uint32_t row = __shfl_sync(0xffffffffu, address, 8 * m + lane / 4);
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(row + lane % 4 * 4), "r"(registers[m]) : "memory");
  }
#endif
}

__device__ inline void store_fragments_transposed(uint32_t address, const uint32_t (&registers)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(registers[0]), "r"(registers[1]), "r"(registers[2]), "r"(registers[3])
               : "memory");
#else
  const uint32_t of_columns[4] = {transpose_matrix(registers[0]), transpose_matrix(registers[1]),
                                  transpose_matrix(registers[2]), transpose_matrix(registers[3])};
  store_fragments(address, of_columns);
#endif
}

}  // namespace lethe::ptx
