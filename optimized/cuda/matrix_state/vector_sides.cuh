#pragma once
// The gradients of both sides of a matrix state with a gate a row and one a column: of 64 tokens of one head, a CTA each, in bfloat16.
//
// A side is two operands a, b and a gate a channel: q, k and f with the state's rows, dO, v and g with its columns. By halving (vector_sweep.cuh) a chunk's
// tokens have the same operands in B_ij = scale Σ_κ D_ijκ a_iκ b_jκ, which the other side reads, and as what multiplies the other side's B in the gradients
// (vector_gradient.cuh): each is made once, and each tensor read once.
//
//   1  gates; halves of 4, 2 and 1 tokens               B of pairs in one eight
//   2  halves of 32, 16 and 8; E ∘ a and D_C ∘ b         B of other pairs
//   3  gradients of both sides, by S and R and the other side's B, E ∘ a and D_C ∘ b
//
// Channels are in panels of 32 with two warps each; a warp has 16 of them and all 64 tokens, channels along the rows of its fragments.

#include "optimized/cuda/launch.cuh"
#include "optimized/cuda/matrix_state/vector_side_gradients.cuh"
#include "optimized/cuda/matrix_state/vector_side_operands.cuh"

namespace lethe::matrix_state {

template <int kRowPanels, int kColumnPanels>
__global__ void __launch_bounds__(64 * (kRowPanels + kColumnPanels), 2)
    vector_sides(const __grid_constant__ VectorSidesArguments p) {
  using Shared = VectorSidesShared<kRowPanels, kColumnPanels>;
  extern __shared__ __align__(1024) char memory[];
  let_next_kernel_start();
  const uint32_t shared = ptx::shared_address(memory);
  const SideWarp<kRowPanels, kColumnPanels> at(p, shared);
  at.load();
  ptx::copies_commit();
  wait_for_previous_kernel();
  StateCopies<kRowPanels, kColumnPanels> states{p, at};
  states.load();
  ptx::copies_wait<0>();
  __syncthreads();
  SideOperands<kRowPanels, kColumnPanels> operands{p, at};
  operands.load();
  operands.within_eights();
  states.store();
  __syncthreads();
  SidePairs<kRowPanels, kColumnPanels> pairs{p, at};
  pairs.within_eights();
  __syncthreads();
  operands.beyond_eights();
  __syncthreads();
  pairs.beyond_eights();
  __syncthreads();
  SideGradients<kRowPanels, kColumnPanels>{p, at}.run(operands);
}

}  // namespace lethe::matrix_state
