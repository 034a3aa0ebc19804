#pragma once
// The main kernel of the backward pass: a CTA takes one tile of 128 keys after the other, and walks over the query tiles that see it.
//
//   Sᵀ = K Qᵀ        P = exp2(a·S + R_i + b_j)          dV += Pᵀ dO
//   dPᵀ = V dOᵀ      dS = P (dP − Δ_i)                  dK += dSᵀ Q,   dQ += dS K
//   a = scale·log₂e, R_i = log₂e (c_i − log_normalizer_i), b_j = −log₂e c_j, Δ_i = dO_i·o_i
//
// Two warpgroups own 64 keys each, in the rows of Sᵀ and dPᵀ, so that P and dS are register operands of the products that give dV
// and dK; dQ needs dS of both, from shared memory. In a third warpgroup two threads feed them by the copy engine, one describes the
// steps, and a warp adds dQ to global memory; these begin the next tile while the two finish one. R_i / a and −Δ_i come with one more
// k-step of Sᵀ and dPᵀ (bias_step.cuh), and b_j is one number a row of Sᵀ, the third operand of a multiplication: the gate's bias and Δ
// cost nothing between a product and what waits for it. A step multiplies the dQ of the step before, for which the other warpgroup's dS
// arrived long ago: neither warpgroup waits for the other unless it is about half a step ahead, and one computes exponentials while the
// other's products run. Sᵀ of the next tile is issued before dK of this one has ended, and at D = 64, where there are registers for it,
// before dQ has. Near strong gates (gate/strong_gates.cuh) R's k-step adds zeros on the diagonal, where R_i + b_j comes in double, and
// elsewhere b_j is counted from the end of the tile.
//
// The row and column sums of dS, from which the gate's gradient is computed, come in one of two ways, an instance of the kernel each:
//
//   16-bit sums   of dS as it is rounded, from the tensor core: dQ and dK have eight columns more than the head, from a panel of ones after
//                 the operand's own. Where both warpgroups have the same rows of dS, one of them sums.
//   float sums    of dS before it is rounded. A thread has two keys' rows of dSᵀ. It sums the queries of each key in two registers over the
//                 head. Rows are summed in one of two ways, as the step says (gate/row_groups.cuh). Where the gate hardly decays, 64 rows
//                 share a sum: a thread's part leaves with dQ of the step, after it, and is summed at the very end. Where it does, each row
//                 has a sum: a thread adds the two keys of each query, lanes exchange their warp's 16 keys (tile/row_sums.cuh), and the
//                 warp that adds dQ to global memory adds the eight warps' parts.
//
// kEdges: for windows and packed sequences. Where a window is given the warp of dQ sets sums to zero that later key tiles add to (clear_ahead), and K
// and V are handed back as soon as each is read: of short tiles more end at a time.
//
// At head dim 256 two warpgroups share 64 keys (backward_split.cuh): two slices of dQ a step each, sums of floats alone, one stage of dO.
//
// Barriers. Roles: consume, two warpgroups of 4 warps each, C0 and C1; load_queries, load_grad_outputs and describe_steps, a thread each;
// add_slices, a warp. A warp's arrival counts 1 (32 in the build for racecheck, handover.cuh). [n]: a ring of n.
//
//   mbarrier          arrives                         count  waits                what a phase hands over
//   tile_full[4]      load_queries                    1      all other roles      shared.tile, the CTA's next tile
//   tile_empty[4]     C0, C1, add_slices: a warp      9      load_queries         the slot of a tile that all roles have finished
//                     load_grad_outputs, describe_…   + 2
//   query_full[2]     load_queries (and bytes)        2      C0, C1               Q and R_i / a of a step, with a tile's first step K
//                     describe_steps                                              shared.step
//   query_empty[2]    C0, C1: a warp, after dK        8      load_queries,        the stage of Q, R_i / a and the step
//                                                            describe_steps
//   output_full[2]    load_grad_outputs (and bytes)   1      C0, C1               dO and −Δ_i of a step, with a tile's first step V
//   output_empty[2]   C0, C1: a warp, after dV        8      load_grad_outputs    the stage of dO and −Δ_i
//   keys_free[4]      C0, C1: thread 0                2      load_queries         K, after a tile's last dQ
//                     (kEdges: a warp)                (8)
//   values_free[4]    C0, C1: thread 0                2      load_grad_outputs    V, after dV, staged there, has been read
//
//   named barrier           arrives    waits      count   what a phase hands over
//   0                       all        all        384     initialised barriers, the ones
//   kScoresReady + 2s + w   C(1 − w)   Cw         256     after the step in stage s: the other's dS of s is stored, and it no longer
//                                                         reads dS of 1 − s. After the last step: nor K, nor any dS
//   kSliceFull + w          Cw         add_slices 160     dQ of a step in shared.grad_query[w], with its row sums
//   kSliceEmpty + w         add_slices Cw         160     the slice, read by the copy engine; once more than it is filled
//   kWarpgroup + w          Cw         Cw         128     dV or dK of the warpgroup, before its thread 0 issues the copy
//
// Ring phases alternate by parity: a tile's slot and parity are its number mod 4 and / 4 mod 2, a step's its number mod 2 and / 2 mod 2.

#include "optimized/cuda/hopper/backward_consumer.cuh"
#include "optimized/cuda/hopper/backward_producer.cuh"
#include "optimized/cuda/hopper/backward_split.cuh"
#include "optimized/cuda/launch.cuh"

namespace lethe::hopper::backward_pass {

template <typename Element, int kDim, bool kFloatSums, bool kEdges = false>
__global__ void __launch_bounds__(kBackwardThreads, 1) backward_tiles(const __grid_constant__ BackwardParameters p) {
  using Shared = BackwardShared<kDim>;
  extern __shared__ __align__(1024) uint8_t raw[];  // read as it is: a rounded pointer would lose its address space
  Shared& shared = *reinterpret_cast<Shared*>(raw);

  if constexpr (!Shared::kSplit) {
    const uint32_t one = pack<Element>(1, 1);
    for (uint32_t i = threadIdx.x; i < sizeof shared.ones / 4; i += kBackwardThreads)
      reinterpret_cast<uint32_t*>(shared.ones)[i] = one;
    if constexpr (Shared::kPanels > 1) {
      for (int stage = 0; stage < kStages; ++stage)
        for (int i = threadIdx.x; i < Shared::kQueryPanelBytes / 4; i += kBackwardThreads)
          reinterpret_cast<uint32_t*>(shared.query[stage][Shared::kPanels])[i] = one;
    }
  }
  fill_ones(shared.bias_ones, threadIdx.x);
  ptx::fence_async_shared();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::mbarrier_init(&shared.query_full[stage], 2);  // loaded and described
      if (stage < Shared::kOutputStages) ptx::mbarrier_init(&shared.output_full[stage], 1);
      ptx::mbarrier_init(&shared.query_empty[stage], 8 * kArrivalsOfAWarp);
      if (stage < Shared::kOutputStages) ptx::mbarrier_init(&shared.output_empty[stage], 8 * kArrivalsOfAWarp);
    }
    for (int slot = 0; slot < kTileSlots; ++slot) {
      ptx::mbarrier_init(&shared.tile_full[slot], 1);
      ptx::mbarrier_init(&shared.tile_empty[slot], 9 * kArrivalsOfAWarp + 2);  // all roles but the one that hands out
      ptx::mbarrier_init(&shared.keys_free[slot], kEdges ? 8 * kArrivalsOfAWarp : 2);
      ptx::mbarrier_init(&shared.values_free[slot], 2);
    }
    ptx::mbarrier_init_fence();
  }
  wait_for_previous_kernel();
  BackwardCta<Element, kDim, kFloatSums> cta{p, shared};
  if constexpr (!cta.kManyTiles) cta.only = backward_tile_at(p, blockIdx.x);
  __syncthreads();

  const int warpgroup = ptx::in_uniform_register(threadIdx.x / 128);
  if (warpgroup == 2) {
    ptx::registers_shrink<24>();
    if (threadIdx.x == 256) cta.template load_queries<kEdges>();
    if (threadIdx.x / 32 == 9) {
      if constexpr (Shared::kSplit) cta.add_split_slices();
      else cta.template add_slices<kEdges>();
    }
    if (threadIdx.x == 320) cta.load_grad_outputs();
    if (threadIdx.x == 352) cta.template describe_steps<kEdges>();
  } else {
    ptx::registers_grow<240>();
    const auto consume = [&]<bool kSumsRows> {
      using Consumer = BackwardConsumer<Element, kDim, kFloatSums, kSumsRows, kEdges>;
      typename Consumer::Registers registers;
      Consumer(cta, warpgroup, threadIdx.x % 128, registers).consume();
    };
    if constexpr (Shared::kSplit) {
      using Consumer = SplitConsumer<Element, kDim, kFloatSums>;
      typename Consumer::Registers registers;
      Consumer(cta, warpgroup, threadIdx.x % 128, registers).consume();
    } else if (cta.kOneInstance || warpgroup == 0) {
      consume.template operator()<true>();
    } else {
      consume.template operator()<false>();
    }
  }
}

}  // namespace lethe::hopper::backward_pass
