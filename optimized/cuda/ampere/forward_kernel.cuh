#pragma once
// The forward kernel by mma.sync: one CTA a tile of queries, each warp for its own rows of it.

#include "optimized/cuda/ampere/forward_tile.cuh"
#include "optimized/cuda/launch.cuh"

namespace lethe::ampere {

template <typename Element, int kDim>
__global__ void __launch_bounds__(ForwardSizes<kDim>::kThreads, 2)
    forward_tiles(const __grid_constant__ ForwardParameters p) {
  using Sizes = ForwardSizes<kDim>;
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<ForwardShared<kDim>*>(memory);
  wait_for_previous_kernel();
  if (threadIdx.x == 0) {
    tile::Tile<Sizes::kRows> tile = tile::tile_at<Sizes::kRows>(p, blockIdx.x);
    const int64_t blocks = int64_t{tile.row} * (p.key_blocks + 1);
    const int offset = p.key_length - p.query_length, first = tile.query + offset,
              last = min(first + Sizes::kRows, p.key_length) - 1, rows = last - first + 1;
    tile.frame = p.scratch.base_log2[blocks + first / tile::kColumns];
    shared.tile = tile;
    const int64_t pairs = int64_t{rows} * (first + 1 - tile.first * tile::kColumns) + int64_t{rows} * (rows - 1) / 2;
    atomicAdd(reinterpret_cast<unsigned long long*>(p.visited_pairs) + tile.row,
              static_cast<unsigned long long>(pairs));
  }
  __syncthreads();
  ForwardTile<Element, kDim> tile(p, shared);
  RowCopies<kDim, Sizes::kThreads>(p.query, tile.tile.batch, tile.tile.head, p.query_length, p.key_dim)
      .template copy<Sizes::kRows>(ptx::shared_address(shared.query), tile.tile.query);
  typename ForwardTile<Element, kDim>::Registers registers;
  tile.find_rows();
  __syncthreads();
  // Again with a maximum that follows every block, where weights left their format.
  for (bool follow = false;; follow = true) {
    const bool fit = tile.visit_blocks(registers, follow);
    if (__syncthreads_and(fit) || follow) break;
  }
  tile.store(registers);
}

}  // namespace lethe::ampere
