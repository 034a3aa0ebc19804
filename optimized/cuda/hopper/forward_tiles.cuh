#pragma once
// The tiles of the forward kernel: their order, what a CTA holds in shared memory, and the threads that hand out tiles and load them.
// Internal to forward.cu.

#include "optimized/cuda/hopper/bias_step.cuh"
#include "optimized/cuda/tile/softmax.cuh"
#include "optimized/cuda/gate/cuts.cuh"
#include "optimized/cuda/hopper/handover.cuh"
#include "optimized/cuda/hopper/ptx/copy.cuh"
#include "optimized/cuda/gate/strong_gates.cuh"
#include "optimized/cuda/hopper/forward.hpp"
#include "optimized/cuda/launch.cuh"

namespace lethe {

inline constexpr int kTileSlots = 2;  // the next tile's queries arrive while this one is computed

struct ForwardParameters {
  CUtensorMap query, key, value, output, residual;
  Plan plan;
  float scale_log2;
  int query_length, key_length, heads, query_heads, query_blocks, query_tiles, key_blocks, tiles;
  int section;  // heads whose keys and values share the L2 cache at a time
  float* log_normalizer;
  bool keep_residual;
  int64_t* visited_pairs;
};

// Positions of a tile's queries lie in at most so many key blocks.
template <int kRows>
inline constexpr int kSpan = (kRows + kColumns - 2) / kColumns + 1;

template <int kRows>
struct Tile {
  int batch, head, row, query;  // query head; row = batch · query_heads + head, −1 where no tile is left; first query
  int first, last;              // key blocks, both included
  int cut_block;                // blocks below it reach behind a cut
  // Of each block that queries stand in: c before it less F, the last cut before it. Is there a cut among the tile's positions? Is one of
  // the blocks strong?
  float base[kSpan<kRows>];
  int cut_before[kSpan<kRows>];
  bool cut_within, strong;
  TwoFloats frame;  // log₂e·F; F is c before the block of the tile's first position
};

// Longest first: sections of heads, those with most blocks first; inside a section from the last query block down, heads innermost.
template <int kRows>
__host__ __device__ inline Tile<kRows> tile_at(const ForwardParameters& a, int index) {
  const int per_section = a.section * a.query_tiles, rows = a.tiles / a.query_tiles;
  const int section = index / per_section, within = index % per_section;
  const int width = min(a.section, rows - section * a.section);
  Tile<kRows> tile;
  tile.row = a.plan.order.head_order[section * a.section + within % width];
  tile.query = (a.query_tiles - 1 - within / width) * kRows;
  tile.batch = tile.row / a.query_heads;
  tile.head = tile.row % a.query_heads;
  tile.first = a.plan.boundary.first_key_block[tile.row * a.query_blocks + tile.query / static_cast<int>(kGateBlock)];
  const int first_position = tile.query + a.key_length - a.query_length;
  const int last_position = min(first_position + kRows, a.key_length) - 1;
  tile.last = last_position / kColumns;
  tile.cut_block = 0;
  tile.frame = {};
  tile.strong = false;
  if constexpr (kGate) {
    const int64_t blocks = static_cast<int64_t>(tile.row) * (a.key_blocks + 1);
    const double* base = a.plan.prefix.base + blocks;
    const int32_t* cuts = a.plan.prefix.block_cut_before + blocks;
    const int first_block = first_position / kColumns;
    tile.frame = a.plan.scratch.base_log2[blocks + first_block];
#pragma unroll
    for (int i = 0; i < kSpan<kRows>; ++i) {
      const int block = min(first_block + i, tile.last);
      tile.base[i] = static_cast<float>(base[block] - base[first_block]);
      tile.strong |= base[block + 1] - base[block] < kStrongSum;
      tile.cut_before[i] = cuts[block];
    }
    const int last_cut = cuts[tile.last + 1];
    tile.cut_within = last_cut > 0 && last_cut >= first_block * kColumns;
    int cut = cuts[tile.last];
    if (tile.cut_within) {
      const int64_t last_token = static_cast<int64_t>(tile.row) * a.key_blocks * kColumns + last_position;
      cut = max(cut, last_cut_at(a.plan.prefix.cut_before[last_token], tile.last));
    }
    tile.cut_block = (cut + kColumns - 1) / kColumns;
  }
  return tile;
}

// The last block that a warpgroup's rows see; offset = Tk − Tq.
template <int kRows>
__host__ __device__ inline int own_last_block(const Tile<kRows>& tile, int warpgroup, int offset, int key_length) {
  return (min(tile.query + 64 * (warpgroup + 1) + offset, key_length) - 1) / kColumns;
}

// The last block before those that hold the diagonal of rows from this position on.
__host__ __device__ inline int block_below_diagonal(int position) { return position / kColumns - 1; }

// The first key behind the last cut at or before a position of the tile, in the in_span-th block of its queries.
template <int kRows>
__host__ __device__ inline int first_visible_key(const ForwardParameters& a, const Tile<kRows>& tile, int in_span,
                                                 int position) {
  const int before = tile.cut_before[in_span];
  const int64_t token = static_cast<int64_t>(tile.row) * a.key_blocks * kColumns + position;
  return tile.cut_within ? max(before, last_cut_at(a.plan.prefix.cut_before[token], position / kColumns)) : before;
}

template <int kDim>
struct alignas(1024) Shared {
  static constexpr int kStages = Sizes<kDim>::kStages, kRows = Sizes<kDim>::kRows;
  DenseBias<kColumns, kStages> start;  // the keys' part of the bias; not at the end (bias_step.cuh)
  TwoFloats block_end[kStages];        // log₂e·c behind the block
  Tile<kRows> tile[kTileSlots];
  int index[kTileSlots], listed[kTileSlots];
  uint64_t tile_wanted, tile_known[kTileSlots];            // the next tile
  uint64_t tile_full[kTileSlots], tile_empty[kTileSlots];  // a tile and its queries
  uint64_t key_full[kStages], key_empty[kStages], value_full[kStages], value_empty[kStages];
  alignas(1024) char query[kTileSlots][kRows * kDim * 2];
  char output[kRows * kDim * 2];
  char key[kStages][kColumns * kDim * 2];
  char value[kStages][kColumns * kDim * 2];
};

// How many blocks are left to load of a tile when the next is taken.
inline constexpr int kBlocksAhead = 3;

// Adds up the causal pairs inside a tile's blocks: row r sees first_visible + r keys.
template <int kRows>
__device__ inline void count_pairs(const ForwardParameters& a, const Tile<kRows>& tile) {
  const long long rows = min(kRows, a.query_length - tile.query),
                  first_visible = tile.query + a.key_length - a.query_length + 1 - tile.first * kColumns;
  atomicAdd(a.plan.scratch.pairs + tile.row, static_cast<unsigned long long>(rows * first_visible + rows * (rows - 1) / 2));
}

// For the second launch.
__device__ inline void list_tile(const ForwardParameters& a, int index) {
  a.plan.scratch.repeats[1 + atomicAdd(a.plan.scratch.repeats, 1)] = index;
}

// Hands out tiles, by one thread; those with strong gates it leaves to the second launch. To find out about one takes several trips to
// global memory, one behind the other, so the next is taken before all blocks of this one are loaded, but only some blocks before: CTAs
// that take their final tiles early end at very different times.
template <int kDim, bool kRepeat>
__device__ inline void schedule(const ForwardParameters& a, Shared<kDim>& shared) {
  constexpr int kRows = Sizes<kDim>::kRows;
  const int tiles = kRepeat ? a.plan.scratch.repeats[0] : a.tiles;
  uint32_t wanted = 0;  // parity
  ptx::RingPosition slot;
  int turn = blockIdx.x;
  const auto take_next = [&] { turn = gridDim.x + (kRepeat ? turn : atomicAdd(a.plan.scratch.next_tile, 1)); };
  for (;; slot.advance(kTileSlots)) {
    ptx::mbarrier_wait_patiently(&shared.tile_empty[slot.index], slot.parity ^ 1);
    Tile<kRows>& tile = shared.tile[slot.index];
    for (; turn < tiles; take_next()) {
      const int index = kRepeat ? a.plan.scratch.repeats[1 + turn] : turn;
      tile = tile_at<kRows>(a, index);
      shared.index[slot.index] = index;
      shared.listed[slot.index] = false;
      if (kRepeat || !tile.strong) break;
      count_pairs(a, tile);
      list_tile(a, index);
    }
    if (turn >= tiles) tile.row = -1;
    ptx::mbarrier_arrive(&shared.tile_known[slot.index]);
    if (turn >= tiles) return;
    ptx::mbarrier_wait_patiently(&shared.tile_wanted, wanted);
    wanted ^= 1;
    take_next();
  }
}

// Keys, what the gate adds to them, and values have a thread each, which does little else: key and value tiles come from an L2 cache that
// is near its limit, and whatever stands between a stage that falls free and its next load is missed at the other end.

template <int kDim>
__device__ inline void load_rows(char* destination, int rows, const CUtensorMap& map, uint64_t* full, int head,
                                 int token, int batch) {
#pragma unroll
  for (int panel = 0; panel < kDim / 64; ++panel)
    ptx::load_tile(destination + panel * rows * 128, &map, full, panel * 64, head, token, batch);
}

// Loads the tiles' queries and keys. Counts the pairs.
template <int kDim, bool kRepeat>
__device__ inline void load_keys(const ForwardParameters& a, Shared<kDim>& shared) {
  constexpr int kStages = Sizes<kDim>::kStages, kRows = Sizes<kDim>::kRows;
  const int group = a.query_heads / a.heads;
  ptx::RingPosition at, slot;
  for (;; slot.advance(kTileSlots)) {
    ptx::mbarrier_wait(&shared.tile_known[slot.index], slot.parity);
    const Tile<kRows> tile = shared.tile[slot.index];  // a copy, for registers; the slot holds it long enough
    if (tile.row < 0) break;
    ptx::mbarrier_arrive_expect(&shared.tile_full[slot.index], kRows * kDim * 2);
    load_rows<kDim>(shared.query[slot.index], kRows, a.query, &shared.tile_full[slot.index], tile.head, tile.query,
                    tile.batch);
    const int key_head = tile.head / group;
#pragma unroll 1
    for (int block = tile.last; block >= tile.first; --block) {
      ptx::mbarrier_wait_patiently(&shared.key_empty[at.index], at.parity ^ 1);
      uint64_t* full = &shared.key_full[at.index];
      ptx::mbarrier_arrive_expect(full, kColumns * kDim * 2);
      load_rows<kDim>(shared.key[at.index], kColumns, a.key, full, key_head, block * kColumns, tile.batch);
      if (block == min(tile.last, tile.first + kBlocksAhead)) ptx::mbarrier_arrive(&shared.tile_wanted);
      at.advance(kStages);
    }
    if constexpr (!kRepeat) count_pairs(a, tile);
  }
  ptx::mbarrier_arrive(&shared.tile_full[slot.index]);
}

// Loads each block of each tile when the stage of its ring is free: load(tile) gives what loads a (block, stage). Of a tile there is only
// what is copied here: the consumers may be done with it before its last block is loaded.
template <int kDim, typename Load>
__device__ inline void load_blocks(Shared<kDim>& shared, uint64_t (&empty)[Sizes<kDim>::kStages], Load load) {
  struct BlocksOfTile {
    int batch, head, row, first, last;
  };
  ptx::RingPosition at, slot;
  for (;; slot.advance(kTileSlots)) {
    ptx::mbarrier_wait(&shared.tile_known[slot.index], slot.parity);
    const auto& held = shared.tile[slot.index];
    if (held.row < 0) return;
    const BlocksOfTile tile{held.batch, held.head, held.row, held.first, held.last};
    ptx::mbarrier_arrive(&shared.tile_empty[slot.index]);
    const auto load_block = load(tile);
#pragma unroll 1
    for (int block = tile.last; block >= tile.first; --block) {
      ptx::mbarrier_wait_patiently(&empty[at.index], at.parity ^ 1);
      load_block(block, at.index);
      at.advance(Sizes<kDim>::kStages);
    }
  }
}

// Loads what the gate adds to the keys, into the keys' ring: half of the arrivals at key_full.
template <int kDim>
__device__ inline void load_gate(const ForwardParameters& a, Shared<kDim>& shared) {
  load_blocks(shared, shared.key_empty, [&](const auto& tile) {
    const int64_t row = tile.row;
    const BiasOfEight* starts = a.plan.scratch.start + row * a.key_blocks * (kColumns / 8);
    const TwoFloats* ends = a.plan.scratch.base_log2 + row * (a.key_blocks + 1) + 1;
    return [=, &shared](int block, int stage) {
      constexpr uint32_t kStartBytes = sizeof shared.start.eights[0], kEndBytes = sizeof shared.block_end[0];
      uint64_t* full = &shared.key_full[stage];
      ptx::mbarrier_arrive_expect(full, kStartBytes + kEndBytes);
      ptx::load_run(&shared.block_end[stage], ends + block, kEndBytes, full);
      ptx::load_run(shared.start.eights[stage], starts + block * (kColumns / 8), kStartBytes, full);
    };
  });
}

// Loads the tiles' values.
template <int kDim>
__device__ inline void load_values(const ForwardParameters& a, Shared<kDim>& shared) {
  const int group = a.query_heads / a.heads;
  load_blocks(shared, shared.value_empty, [&](const auto& tile) {
    return [&, head = tile.head / group](int block, int stage) {
      uint64_t* full = &shared.value_full[stage];
      ptx::mbarrier_arrive_expect(full, kColumns * kDim * 2);
      load_rows<kDim>(shared.value[stage], kColumns, a.value, full, head, block * kColumns, tile.batch);
    };
  });
}

}  // namespace lethe
