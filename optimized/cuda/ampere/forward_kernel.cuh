#pragma once
// The forward kernel by mma.sync: one CTA a tile of queries, each warp for its own rows of it.

#include "optimized/cuda/ampere/forward_output.cuh"
#include "optimized/cuda/launch.cuh"

namespace lethe::ampere {

/// The number of the tile's visited pairs, and what else the kernel needs of a tile that has its place, to shared memory: by one thread.
template <typename Sizes, typename Shared>
__device__ __forceinline__ void publish_tile(const ForwardParameters& p, Shared& shared,
                                             tile::Tile<Sizes::kRows>& tile) {
  const int64_t blocks = int64_t{tile.row} * (p.key_blocks + 1);
  const int offset = p.key_length - p.query_length, first = tile.query + offset,
            last = min(first + Sizes::kRows, p.key_length) - 1, rows = last - first + 1;
  tile.frame = p.scratch.base_log2[blocks + first / tile::kColumns];
  shared.tile = tile;
  const int64_t pairs = int64_t{rows} * (first + 1 - tile.first * tile::kColumns) + int64_t{rows} * (rows - 1) / 2;
  atomicAdd(reinterpret_cast<unsigned long long*>(p.visited_pairs) + tile.row, static_cast<unsigned long long>(pairs));
}

template <typename Element, typename Sizes, bool kEdges = false>
__global__ void __launch_bounds__(Sizes::kThreads, 2) forward_tiles(const __grid_constant__ ForwardParameters p) {
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<ForwardSharedOf<Element, Sizes>*>(memory);
  wait_for_previous_kernel();
  using Tile = ForwardTile<Element, Sizes, kEdges>;
  const auto begin = [&](const Tile& tile, const tile::Tile<Sizes::kRows>& placed) {
    RowCopies<Sizes::kPitch, Sizes::kThreads>(p.query, placed.batch, placed.head, p.query_length,
                                              p.key_dim * sizeof(Element) / 2)
        .template copy<Sizes::kRows>(ptx::shared_address(shared.query), placed.query);
    tile.loads.begin(tile.last_block());
  };
  const auto compute = [&](Tile& tile, typename Tile::Registers& registers) {
    tile.find_rows();
    __syncthreads();
    // Again with a maximum that follows every block, where weights left their format.
    for (bool follow = false;; follow = true) {
      const bool fit = tile.visit_blocks(registers, follow);
      ptx::copies_wait<0>();
      if (__syncthreads_and(fit) || follow) break;
      tile.loads.begin(tile.last_block());
    }
    ForwardOutput<Element, Sizes, kEdges>(tile).store(registers);
  };
  if constexpr (Tile::kShort) {
    // The loads begin as soon as the tile has its place, and run under the loads of what else is needed of it.
    tile::Tile<Sizes::kRows> placed;
    tile::place(placed, p, blockIdx.x, __ldcg(p.order.query_section));
    Tile tile(p, shared, placed.row, placed.query, placed.batch, placed.head / p.group);
    if (!(p.trial & 8)) begin(tile, placed);
    if (threadIdx.x == 0) {
      tile::describe(placed, p);
      publish_tile<Sizes>(p, shared, placed);
    }
    if (p.trial & 8) {
      __syncthreads();
      begin(tile, placed);
    }
    typename Tile::Registers registers;
    compute(tile, registers);
  } else {
    if (threadIdx.x == 0) {
      tile::Tile<Sizes::kRows> tile = tile::tile_at<Sizes::kRows>(p, blockIdx.x, __ldcg(p.order.query_section));
      publish_tile<Sizes>(p, shared, tile);
    }
    __syncthreads();
    Tile tile(p, shared);
    begin(tile, tile.tile);
    typename Tile::Registers registers;
    compute(tile, registers);
  }
}

}  // namespace lethe::ampere
