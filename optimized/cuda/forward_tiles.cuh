#pragma once
// The tiles of the forward kernel: their order, what a CTA holds in shared memory, and the thread that fills it. Internal to
// forward.cu.

#include "optimized/cuda/forward_softmax.cuh"
#include "optimized/cuda/ptx/copy.cuh"
#include "optimized/kernels.hpp"

namespace lethe {

inline constexpr float kLog2E = 1.4426950408889634f;

// Who arrives at a barrier that hands shared memory back: lane 0 for its warp, after all lanes. compute-sanitizer's racecheck does not
// follow an arrival on behalf of others; the build it checks lets every lane arrive.
#ifdef LETHE_EVERY_LANE_ARRIVES
inline constexpr int kArrivalsOfAWarp = 32;
#else
inline constexpr int kArrivalsOfAWarp = 1;
#endif
inline constexpr int kTileSlots = 2;  // the next tile's queries arrive while this one is computed

struct ForwardParameters {
  CUtensorMap query, key, value, output, residual;
  GatePlan plan;
  float scale_log2;
  int query_length, key_length, heads, query_heads, query_blocks, query_tiles, key_blocks, tiles;
  int section;  // heads whose keys and values share the L2 cache at a time
  float* log_normalizer;
  bool keep_residual;
  unsigned long long* visited_pairs;
  int* next_tile;
  int* repeats;  // their count, then their tiles: where a sum overflowed
};

struct Tile {
  int batch, head, row, query;  // query head; row = batch · query_heads + head, −1 where no tile is left; first query
  int first, last;              // key blocks, both included
};

// Longest first: sections of heads, inside a section from the last query block down, heads innermost.
template <int kRows>
__device__ inline Tile tile_at(const ForwardParameters& a, int index) {
  const int per_section = a.section * a.query_tiles, rows = a.tiles / a.query_tiles;
  const int section = index / per_section, within = index % per_section;
  const int width = min(a.section, rows - section * a.section);
  Tile tile;
  tile.row = section * a.section + within % width;
  tile.query = (a.query_tiles - 1 - within / width) * kRows;
  tile.batch = tile.row / a.query_heads;
  tile.head = tile.row % a.query_heads;
  tile.first = a.plan.first_key_block[tile.row * a.query_blocks + tile.query / static_cast<int>(kGateBlock)];
  tile.last = (min(tile.query + kRows, a.query_length) - 1 + a.key_length - a.query_length) / kColumns;
  return tile;
}

template <int kDim>
struct alignas(1024) Shared {
  static constexpr int kStages = Sizes<kDim>::kStages, kRows = Sizes<kDim>::kRows;
  char query[kTileSlots][kRows * kDim * 2];
  char output[kRows * kDim * 2];
  char key[kStages][kColumns * kDim * 2];
  char value[kStages][kColumns * kDim * 2];
  float bias[kStages][kColumns];
  float block_bias[kStages];
  float row_gate[kRows];  // c_i − F, written and read by one thread
  Tile tile[kTileSlots];
  int index[kTileSlots], overflowed[kTileSlots];
  uint64_t tile_full[kTileSlots], tile_empty[kTileSlots];  // a tile and its queries
  uint64_t key_full[kStages], key_empty[kStages], value_full[kStages], value_empty[kStages];
};

// Causal pairs of a block: row r of `rows` sees clamp(first_visible + r, 0, 128) columns.
__device__ inline long long causal_pairs(int rows, int first_visible) {
  const long long empty = min(rows, max(0, -first_visible)), full = max(static_cast<int>(empty), min(rows, kColumns - first_visible));
  return (full - empty) * first_visible + (full * (full - 1) - empty * (empty - 1)) / 2 + (rows - full) * kColumns;
}

template <int kDim, bool kRepeat>
__device__ inline void produce(const ForwardParameters& a, Shared<kDim>& shared) {
  constexpr int kStages = Sizes<kDim>::kStages, kRows = Sizes<kDim>::kRows;
  const int group = a.query_heads / a.heads, offset = a.key_length - a.query_length;
  ptx::RingPosition at, previous, slot;  // a block's value follows its key one step later, in the same stage of its own ring
  const auto load = [&](char* destination, int rows, const CUtensorMap& map, uint64_t* full, int head, int token, int batch) {
#pragma unroll
    for (int panel = 0; panel < kDim / 64; ++panel)
      ptx::load_tile(destination + panel * rows * 128, &map, full, panel * 64, head, token, batch);
  };
  const int tiles = kRepeat ? a.repeats[0] : a.tiles;
  for (int turn = blockIdx.x; turn < tiles;) {
    const int index = kRepeat ? a.repeats[1 + turn] : turn;
    const Tile tile = tile_at<kRows>(a, index);
    turn = gridDim.x + (kRepeat ? turn : atomicAdd(a.next_tile, 1));
    ptx::mbarrier_wait_patiently(&shared.tile_empty[slot.index], slot.parity ^ 1);
    shared.tile[slot.index] = tile;
    shared.index[slot.index] = index;
    shared.overflowed[slot.index] = false;
    ptx::mbarrier_arrive_expect(&shared.tile_full[slot.index], kRows * kDim * 2);
    load(shared.query[slot.index], kRows, a.query, &shared.tile_full[slot.index], tile.head, tile.query, tile.batch);
    slot.advance(kTileSlots);

    const int64_t tokens = static_cast<int64_t>(tile.row) * a.key_blocks * kColumns;
    const double* base = a.plan.base + static_cast<int64_t>(tile.row) * (a.key_blocks + 1);
    const double frame = base[(tile.query + offset) / kColumns];
    const int key_head = tile.head / group, rows = min(kRows, a.query_length - tile.query);
    long long pairs = 0;
    const auto load_value = [&](int block) {
      ptx::mbarrier_wait_patiently(&shared.value_empty[previous.index], previous.parity ^ 1);
      ptx::mbarrier_arrive_expect(&shared.value_full[previous.index], kColumns * kDim * 2);
      load(shared.value[previous.index], kColumns, a.value, &shared.value_full[previous.index], key_head, block * kColumns, tile.batch);
    };
#pragma unroll 1
    for (int block = tile.last; block >= tile.first; --block) {
      const float block_bias = static_cast<float>((frame - base[block]) * static_cast<double>(kLog2E));
      ptx::mbarrier_wait_patiently(&shared.key_empty[at.index], at.parity ^ 1);
      shared.block_bias[at.index] = block_bias;
      uint64_t* full = &shared.key_full[at.index];
      ptx::mbarrier_arrive_expect(full, kColumns * kDim * 2 + kColumns * 4);
      load(shared.key[at.index], kColumns, a.key, full, key_head, block * kColumns, tile.batch);
      ptx::load_run(shared.bias[at.index], a.plan.bias + tokens + block * kColumns, kColumns * 4, full);
      if (block < tile.last) load_value(block + 1);
      previous = at;
      at.advance(kStages);
      pairs += causal_pairs(rows, tile.query + offset - block * kColumns + 1);
    }
    load_value(tile.first);
    if (!kRepeat) atomicAdd(a.visited_pairs + tile.row, static_cast<unsigned long long>(pairs));
  }
  ptx::mbarrier_wait_patiently(&shared.tile_empty[slot.index], slot.parity ^ 1);
  shared.tile[slot.index].row = -1;
  ptx::mbarrier_arrive(&shared.tile_full[slot.index]);
}

}  // namespace lethe
