#pragma once
// The forward kernel.
//
//   x_ij = scale·log₂e·q_i·k_j + b_j,  b_j = −log₂e·(c_j − F);  l_i = Σ_j 2^(x_ij − m_i)
//   o_i = Σ_j 2^(x_ij − m_i) v_j / l_i;  log_normalizer_i = ln 2·(m_i + log₂ l_i) + c_i − F
//
// The gate enters as a column term only: along a row c_i is a constant that the softmax divides out. F, the prefix before the block of the
// tile's first row, keeps every number small; b_j is the plan's float local part plus one number a block, the difference of two numbers
// of 48 bits. The local part, divided by the scale, comes with one more k-step of Q·K (bias_step.cuh) and costs nothing between that product
// and the exponentials: m and the block's number are the third operand of the multiplication by the scale.
//
// m_i may be any number near the row's maximum: it is found in the first blocks (the diagonal's) and then left alone, so that no
// clean block pays for a maximum or waits for one. Where weights leave float16, or bfloat16's sum float's range (2^16, 2^100 times the
// weight of the largest logit found), the tile goes on a list, and a second launch computes it again with a maximum a row and block. Tiles
// with queries in a strong block (gate/strong_gates.cuh) go on that list at once, and only the second launch computes them: it takes c_i for F,
// row by row, and adds c_i − c_j to each logit of the diagonal.
//
// One CTA an SM. Warpgroup 0: one thread hands out tiles, up to a tile ahead; three others feed the copy engine: one Q, once a tile, and K,
// one what the gate adds to K, one V. K and its bias share a ring, V has its own. The other warpgroups: 64 query rows each. A thread holds
// 2 rows × 32 columns of S, its part of O, and P of the previous block as the next product's operand. Key blocks run from the diagonal
// down to the pruning boundary. At head dim 256 a thread's O takes 128 registers, so a step has half a block, 2 rows × 16 columns of S; there is
// one buffer of queries, over which O leaves (forward_one_buffer.cuh), and what stands below for a block is for half of one.
// Within a warpgroup the exponentials of block n run under P·V of block n+1; among warpgroups, named barriers pass the turn to issue products, so that
// one's products run under the others' exponentials.
//
// kEdges: for windows and packed sequences. Each warpgroup finds where its own rows' keys begin, and the second launch stores warpgroups, not tiles: no
// row's bits depend on another sequence. What the table calls a block, and a turn, is also handed on by a warpgroup whose rows see none of it.
//
// Barriers. Roles: consume, W warpgroups of 4 warps each (3 at D = 64, else 2); schedule, load_keys, load_gate and load_values, a thread
// each. A warp's arrival counts 1 (32 in the build for racecheck, handover.cuh). [n]: a ring of n; S stages, 3 at D = 64, else 2.
//
//   mbarrier          arrives                        count   waits                 what a phase hands over
//   tile_wanted       load_keys                      1       schedule              the demand for a tile, kBlocksAhead before its last block
//   tile_known[2]     schedule                       1       the three loaders     shared.tile and its index; row −1 after the last
//   tile_full[2]      load_keys (and bytes)          1       consume               the same, and the tile's Q
//   tile_empty[2]     consume: a warp                4W + 2  schedule              the slot; with a residual, which leaves from Q's place,
//                     load_gate, load_values                 D = 256: load_keys    one tile later; at D = 256 the one buffer of Q
//   key_full[S]       load_keys, load_gate (bytes)   2       consume               K of a block; the keys' bias and the block's number
//   key_empty[S]      consume: a warp, after S       4W      load_keys, load_gate  the stage of these
//   value_full[S]     load_values (and bytes)        1       consume               V of a block
//   value_empty[S]    consume: a warp, after P·V     4W      load_values           its stage
//
//   named barrier     arrives                waits         count   what a phase hands over
//   0                 all                    all           all     initialised barriers, a cleared bias
//   kTurns + w        warpgroup w − 1 (mod W) warpgroup w  256     the turn to issue the products of a block; the last begins by passing it
//   kStores + w       warpgroup w            warpgroup w   128     the output buffer, read by the copy engine; then its staged rows

#include "optimized/cuda/hopper/forward_one_buffer.cuh"

namespace lethe::hopper::forward_pass {

template <typename Element, int kDim, bool kRepeat, bool kEdges>
__global__ void __launch_bounds__(Sizes<kDim>::kThreads, 1) forward(const __grid_constant__ ForwardParameters a) {
  let_next_kernel_start();
  if constexpr (kRepeat) {
    wait_for_previous_kernel();
    for (int row = blockIdx.x * Sizes<kDim>::kThreads + threadIdx.x; row < a.tiles / a.query_tiles;
         row += gridDim.x * Sizes<kDim>::kThreads)
      a.visited_pairs[row] = a.scratch.pairs[row];
    if (blockIdx.x >= a.scratch.repeats[0]) return;
  }
  extern __shared__ __align__(1024) char memory[];  // read as it is: a rounded pointer would lose its address space
  auto& shared = *reinterpret_cast<Shared<kDim>*>(memory);
  using Size = Sizes<kDim>;
  constexpr int kReleases = Size::kWarpgroups * 4 * kArrivalsOfAWarp;
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&a.query, &a.key, &a.value, &a.output}) ptx::prefetch_tensor_map(map);
    for (int stage = 0; stage < Size::kStages; ++stage) {
      ptx::mbarrier_init(&shared.key_full[stage], kGate ? 2 : 1);  // keys, and what the gate adds to them
      ptx::mbarrier_init(&shared.key_empty[stage], kReleases);
      ptx::mbarrier_init(&shared.value_full[stage], 1);
      ptx::mbarrier_init(&shared.value_empty[stage], kReleases);
    }
    ptx::mbarrier_init(&shared.tile_wanted, 1);
    for (int slot = 0; slot < kTileSlots; ++slot) {
      ptx::mbarrier_init(&shared.tile_known[slot], 1);
      ptx::mbarrier_init(&shared.tile_full[slot], 1);
      // and load_blocks' threads: for values, for what the gate adds
      ptx::mbarrier_init(&shared.tile_empty[slot], kReleases + (kGate ? 2 : 1));
    }
    ptx::mbarrier_init_fence();
  }
  if constexpr (kGate) {
    clear(shared.start, threadIdx.x, Size::kThreads);
    ptx::fence_async_shared();
  }
  if constexpr (!kRepeat) wait_for_previous_kernel();
  __syncthreads();
  if (threadIdx.x < 128) {
    ptx::registers_shrink<Size::kProducerRegisters>();
    if (threadIdx.x == 0) load_keys<kDim, kRepeat>(a, shared);
    if (threadIdx.x == 32) schedule<kDim, kRepeat, kEdges>(a, shared);
    if (threadIdx.x == 64) load_values<kDim>(a, shared);
    if constexpr (kGate) {
      if (threadIdx.x == 96) load_gate<kDim>(a, shared);
    }
  } else {
    ptx::registers_grow<Size::kConsumerRegisters>();
    Rows<kDim> rows;
    if constexpr (Size::kQueryBuffers > 1) ForwardConsumer<Element, kDim, kRepeat, kEdges>(a, shared, rows).consume();
    else OneBufferConsumer<Element, kDim, kRepeat>(a, shared, rows).consume();
  }
}

}  // namespace lethe::hopper::forward_pass
