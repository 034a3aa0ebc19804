#pragma once
// Products of one warp, and the fragments that they read: compute capability 8.0 and above.
//
// Lane l = 4g + t of a warp holds
//   a 16×16 left operand    a[0]: row g, columns 2t, 2t+1;  a[1]: row g+8;  a[2]: row g, columns 2t+8, 2t+9;  a[3]: row g+8, the same columns
//   a 16×8 right operand    b[0]: rows 2t, 2t+1 of column g;  b[1]: rows 2t+8, 2t+9
//   a 16×8 sum              c[0], c[1]: row g, columns 2t, 2t+1;  c[2], c[3]: row g+8
// So two sums side by side, packed to 16 bits, are a left operand.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace lethe::ptx {

/// sum = left · right + initial, 16×8 = 16×16 · 16×8 + 16×8, of Element __nv_bfloat16 or __half, in float.
template <typename Element>
__device__ inline void multiply_add(float (&sum)[4], const uint32_t (&left)[4], uint32_t right0, uint32_t right1,
                                    float4 initial) {
  if constexpr (std::is_same_v<Element, __nv_bfloat16>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, "
        "%12, %13};"
        : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1), "f"(initial.x),
          "f"(initial.y), "f"(initial.z), "f"(initial.w));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, "
        "%12, %13};"
        : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1), "f"(initial.x),
          "f"(initial.y), "f"(initial.z), "f"(initial.w));
}

/// sum += left · right.
template <typename Element>
__device__ inline void multiply_add(float (&sum)[4], const uint32_t (&left)[4], uint32_t right0, uint32_t right1) {
  multiply_add<Element>(sum, left, right0, right1, make_float4(sum[0], sum[1], sum[2], sum[3]));
}

/// Four 8×8 matrices of 16-bit elements from shared memory, one 16-byte row address a lane: lanes 8m..8m+7 address the rows of matrix m, which
/// arrives in registers[m]. There lane l holds elements 2(l%4), 2(l%4)+1 of row l/4; with `_transposed`, of column l/4.
__device__ inline void load_matrices(uint32_t (&registers)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(address)
               : "memory");
}

__device__ inline void load_matrices_transposed(uint32_t (&registers)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(address)
               : "memory");
}

/// An 8×8 matrix of 16-bit elements across a warp, transposed: elements 2(l%4), 2(l%4)+1 of row l/4 in, of column l/4 out.
__device__ inline uint32_t transpose_matrix(uint32_t of_row) {
  uint32_t of_column;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(of_column) : "r"(of_row));
  return of_column;
}

}  // namespace lethe::ptx
