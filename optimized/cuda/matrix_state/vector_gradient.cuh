#pragma once
// The gradients of query, key and log f of a matrix state with a gate a row: of 64 tokens of one head and up to 64 rows, a CTA each.
//
// With S the state before a chunk, R the gradient of the state after it, and B_ij = scale dO_i·v_j:
//
//   dq_i = E_i ∘ (scale S dO_i) + Σ_{j ≤ i} D_ij ∘ B_ij k_j
//   dk_j = D_Cj ∘ (R v_j)       + Σ_{i ≥ j} D_ij ∘ B_ij q_i
//   d log f_l = Σ_{i ≥ l} q_i ∘ E_i ∘ (scale S dO_i) + Σ_{j < l} k_j ∘ D_Cj ∘ (R v_j) + E_C ⟨S, R⟩ + Σ_{i ≥ l > j} q_i ∘ D_ij ∘ B_ij k_j
//
// S comes from vector_states; R from there too, or in bfloat16 without a gate a column from the sweep for dv (vector_sweep.cuh). With a gate a column
// both are, in bfloat16, the same for both sides.
//
// Halving (vector_sweep.cuh), from runs of 64 tokens to runs of 2: a token of an upper half has the operand q times the gates since the middle, one
// of a lower half k times the gates up to it. One product of these with the symmetric B of the run's pairs is Σ_j D_ij B_ij k_j for the upper tokens
// and Σ_i D_ij B_ij q_i for the lower ones, but for the token's own gates, by which what has been summed is multiplied from one halving to the next.
// The pairs that gate l separates are, at each halving, those of the upper tokens from l on or of the lower ones before l: no difference is taken.
//
// A warp owns 16 rows of R, S, q, k and f, with tokens along the columns of its accumulators; of the tokens it copies, multiplies and stores a share.
// An SM has several CTAs, of which some compute while another loads or stores.

#include "optimized/cuda/launch.cuh"
#include "optimized/cuda/matrix_state/vector_pair_warps.cuh"
#include "optimized/cuda/matrix_state/vector_row_warps.cuh"
#include "optimized/cuda/matrix_state/vector_states.cuh"

namespace lethe::matrix_state {

/// The CTAs in the order in which their states come: from the last chunk on, of which R is there first; of the last quarter of the tiles, whose S are
/// the last to be begun, after all others.
template <int kRows>
__device__ __forceinline__ RowTile tile_in_turn(const VectorGradientArguments& p, unsigned tiles) {
  const unsigned chunks = static_cast<unsigned>((p.length + kTokens - 1) / kTokens), late = tiles / 4,
                 early = tiles - late;
  const bool is_late = blockIdx.x >= early * chunks;
  const unsigned at = is_late ? blockIdx.x - early * chunks : blockIdx.x, of = is_late ? late : early;
  return row_tile<kRows>(p, at % of + (is_late ? early : 0), static_cast<int>(chunks - 1 - at / of));
}

__device__ __forceinline__ void wait_for_states(const VectorGradientArguments& p, const RowTile& place, int lane) {
  // Lane 0 looks for S, the others for R's tiles of columns.
  const int tiles = (p.columns + kSweepColumns - 1) / kSweepColumns;
  wait_for_marks(lane == 0 ? p.state_marks + place.index : p.grad_marks + place.head * tiles + min(lane, tiles) - 1,
                 lane == 0 ? place.chunk + 1 : place.chunks - place.chunk);
}

template <typename Element, int kRows, int kColumns, bool kColumnGate>
__global__ void __launch_bounds__(2 * kRows, VectorGradientShared<kRows, kColumns, kColumnGate>::kCtas)
    vector_gradient(const __grid_constant__ VectorGradientArguments p) {
  using Shared = VectorGradientShared<kRows, kColumns, kColumnGate>;
  extern __shared__ __align__(1024) char memory[];
  let_next_kernel_start();
  const uint32_t shared = ptx::shared_address(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const unsigned tiles = static_cast<unsigned>(p.batch * p.heads * ((p.rows + kRows - 1) / kRows));
  const RowTile place = kColumnGate || !p.state_marks
                            ? row_tile<kRows>(p, blockIdx.x % tiles, static_cast<int>(blockIdx.x / tiles))
                            : tile_in_turn<kRows>(p, tiles);
  VectorRows<Element, kRows, kColumns, kColumnGate> rows{p, place, shared, warp, lane};
  const VectorPairs<Element, kRows, kColumns, kColumnGate> pairs{p, place, shared, warp, lane};
  const bool owns_rows = place.row + 16 * warp < p.rows;
  pairs.load_columns();
  ptx::copies_commit();
  pairs.load_rows();
  ptx::copies_commit();
  // S and R are what the kernels before it write; without a gate a column all else is an input.
  if constexpr (!kColumnGate) {
    if (p.state_marks) wait_for_states(p, place, lane);
    else wait_for_previous_kernel();
  }
  if (owns_rows) rows.begin();
  if constexpr (!kColumnGate) {
    ptx::copies_wait<1>();
    __syncthreads();
    pairs.multiply();
  }
  ptx::copies_wait<0>();
  __syncthreads();
  if (owns_rows) rows.step();
  __syncthreads();
  pairs.store();
  end_after_previous_kernel();
}

}  // namespace lethe::matrix_state
