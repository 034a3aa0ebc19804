#pragma once
// The order of a forward's tiles, and the key blocks and keys that the queries of each see.

#include "optimized/cuda/gate/cuts.cuh"
#include "optimized/cuda/gate/strong_gates.cuh"
#include "optimized/cuda/gate/switch.hpp"

namespace lethe::tile {

inline constexpr int kColumns = 128;  // of a key block

/// The inputs of a tile.
struct ForwardShape {
  GatePrefix prefix;
  Boundary boundary;
  WorkOrder order;
  int query_length, key_length, heads, query_heads, query_blocks, query_tiles, key_blocks, tiles;
  int section;  // heads whose keys and values share the L2 cache at a time; ampere/ reads WorkOrder::query_section in its place
};

/// The largest number of key blocks that contain the positions of a tile's queries.
template <int kRows>
inline constexpr int kSpan = (kRows + kColumns - 2) / kColumns + 1;

template <int kRows>
struct Tile {
  int batch, head, row, query;  // query head; row = batch · query_heads + head, −1 where no tile is left; first query
  int first, last;              // key blocks, both included; after count_in_steps() their parts
  int cut_block;                // blocks below it reach across a cut, or out of a query's window
  // For each block with queries of the tile: c before it less F, and the last cut before it. Then whether a cut is among the tile's positions, and
  // whether one of the blocks is strong.
  float base[kSpan<kRows>];
  int cut_before[kSpan<kRows>];
  bool cut_within, strong;
  TwoFloats frame;  // log₂e·F, set by the kernel; F is c before the block of the tile's first position
};

/// Longest first: sections of `heads` heads, heads and the tiles of a section as WorkOrder has them, heads innermost.
template <int kRows>
__host__ __device__ inline void place(Tile<kRows>& tile, const ForwardShape& a, int index, int heads) {
  const int per_section = heads * a.query_tiles, rows = a.tiles / a.query_tiles;
  const int section = index / per_section, within = index % per_section;
  const int width = min(heads, rows - section * heads);
  tile.row = a.order.head_order[section * heads + within % width];
  tile.query = a.order.tile_order[within / width] * kRows;
  tile.batch = tile.row / a.query_heads;
  tile.head = tile.row % a.query_heads;
}

/// What else the kernels need of a tile that has its place.
template <int kRows>
__host__ __device__ inline void describe(Tile<kRows>& tile, const ForwardShape& a) {
  tile.first = a.boundary.first_key_block[tile.row * a.query_blocks + tile.query / static_cast<int>(kGateBlock)];
  const int first_position = tile.query + a.key_length - a.query_length;
  const int last_position = min(first_position + kRows, a.key_length) - 1;
  tile.last = last_position / kColumns;
  tile.cut_block = 0;
  tile.frame = {};
  tile.strong = false;
  if constexpr (kGate) {
    const int64_t blocks = static_cast<int64_t>(tile.row) * (a.key_blocks + 1);
    const double* base = a.prefix.base + blocks;
    const int32_t* cuts = a.prefix.block_cut_before + blocks;
    const int first_block = first_position / kColumns;
#pragma unroll
    for (int i = 0; i < kSpan<kRows>; ++i) {
      const int block = min(first_block + i, tile.last);
      tile.base[i] = static_cast<float>(base[block] - base[first_block]);
      tile.strong |= base[block + 1] - base[block] < kStrongSum;
      tile.cut_before[i] = cuts[block];
    }
    const int last_cut = cuts[tile.last + 1];
    tile.cut_within = last_cut > 0 && last_cut >= first_block * kColumns;
    int cut = max(cuts[tile.last], last_position - a.prefix.window + 1);
    if (tile.cut_within) {
      const int64_t last_token = static_cast<int64_t>(tile.row) * a.key_blocks * kColumns + last_position;
      cut = max(cut, last_cut_at(a.prefix.cut_before[last_token], tile.last));
    }
    tile.cut_block = (cut + kColumns - 1) / kColumns;
  }
}

template <int kRows>
__host__ __device__ inline Tile<kRows> tile_at(const ForwardShape& a, int index, int heads) {
  Tile<kRows> tile;
  place(tile, a, index, heads);
  describe(tile, a);
  return tile;
}

/// The last block, or part of kKeys keys of one, that a warpgroup's rows see; offset = Tk − Tq.
template <int kKeys = kColumns, int kRows>
__host__ __device__ inline int own_last_block(const Tile<kRows>& tile, int warpgroup, int offset, int key_length) {
  return (min(tile.query + 64 * (warpgroup + 1) + offset, key_length) - 1) / kKeys;
}

/// The tile's first, last and cut_block in parts of kKeys keys, which divides a block.
template <int kKeys, int kRows>
__host__ __device__ inline void count_in_steps(Tile<kRows>& tile, int offset, int key_length) {
  if constexpr (kKeys < kColumns) {
    tile.first *= kColumns / kKeys;
    tile.cut_block *= kColumns / kKeys;
    tile.last = own_last_block<kKeys>(tile, kRows / 64 - 1, offset, key_length);
  }
}

/// The last block before the diagonal of rows from this position on; with kKeys the last part of it.
template <int kKeys = kColumns>
__host__ __device__ inline int block_below_diagonal(int position) {
  return position / kColumns * (kColumns / kKeys) - 1;
}

/// The cuts of a tile's queries, for Visibility.
template <int kRows>
struct TileCuts {
  const ForwardShape& a;
  const Tile<kRows>& tile;
  int first_block;  // the first query's block

  __host__ __device__ int last_cut(int position) const {
    const int before = tile.cut_before[position / kColumns - first_block];
    const int64_t token = static_cast<int64_t>(tile.row) * a.key_blocks * kColumns + position;
    return tile.cut_within ? max(before, last_cut_at(a.prefix.cut_before[token], position / kColumns)) : before;
  }
};

template <int kRows>
__host__ __device__ inline Visibility<TileCuts<kRows>> visibility_of(const ForwardShape& a, const Tile<kRows>& tile,
                                                                     int first_block) {
  return {{a, tile, first_block}, a.prefix.window};
}

/// Where the keys of a warpgroup's 64 rows begin.
struct OwnEdges {
  int first;        // the first block, or part of kKeys keys, that one of them sees
  int cut_block;    // blocks below it reach across a cut of one of them, or out of its window
  bool cut_within;  // whether a cut is among their positions: they are of two sequences
};

template <int kKeys = kColumns, int kRows>
__host__ __device__ inline OwnEdges own_edges(const ForwardShape& a, const Tile<kRows>& tile, int warpgroup) {
  const int position = tile.query + a.key_length - a.query_length, last = min(position + kRows, a.key_length) - 1,
            first_row = min(position + 64 * warpgroup, last), last_row = min(first_row + 63, last);
  const auto visibility = visibility_of(a, tile, position / kColumns);
  return {max(tile.first, visibility.first_key(first_row) / kKeys),
          (visibility.first_key(last_row) + kKeys - 1) / kKeys, visibility.cuts.last_cut(last_row) > first_row};
}

}  // namespace lethe::tile
