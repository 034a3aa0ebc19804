#pragma once
// The forward kernel's parameters, what a CTA holds in shared memory, and the threads that hand out tiles and load them.

#include "optimized/cuda/hopper/bias_step.cuh"
#include "optimized/cuda/hopper/forward.hpp"
#include "optimized/cuda/hopper/handover.cuh"
#include "optimized/cuda/hopper/ptx/copy.cuh"
#include "optimized/cuda/launch.cuh"
#include "optimized/cuda/tile/order.cuh"
#include "optimized/cuda/tile/softmax.cuh"

namespace lethe::hopper::forward_pass {

using namespace tile;

inline constexpr int kTileSlots = 2;  // the next tile is known while this one is computed

/// Sizes of a kernel. At head dim 64 the exponentials take as long as the products: three warpgroups hide more latency than two. Above 128 there is
/// shared memory for one tile's queries alone, over which its output leaves, and a step has half a block's keys.
template <int kDim>
struct Sizes {
  static constexpr int kWarpgroups = kDim == 64 ? 3 : 2;
  static constexpr int kRows = kWarpgroups * 64;
  static constexpr int kThreads = (kWarpgroups + 1) * 128;
  static constexpr int kProducerRegisters = kDim == 64 ? 32 : 40, kConsumerRegisters = kDim == 64 ? 160 : 232;
  static constexpr int kStages = kDim == 64 ? 3 : 2;
  static constexpr bool kBiasFirst = kDim == 64;   // of a clean block: before Q·K and before the warpgroup's turn
  static constexpr bool kPassEarly = kDim >= 128;  // the turn, before the last k-step of P·V
  static constexpr int kKeys = kStepKeys<kDim>, kStepsOfBlock = kColumns / kKeys;
  static constexpr int kQuerySteps = kDim <= 128 ? 0 : 4;  // k-steps of S whose queries are held in registers
  static constexpr int kQueryBuffers = kDim <= 128 ? kTileSlots : 1;
  static constexpr bool kOutputBuffer = kDim <= 128;  // apart from the queries
};

/// Named barriers (forward_kernel.cuh): the first of one for each warpgroup.
inline constexpr uint32_t kTurns = 1;
template <int kWarpgroups>
inline constexpr uint32_t kStores = kTurns + kWarpgroups;

struct ForwardMaps {
  CUtensorMap query, key, value, output, residual;
};

struct ForwardParameters : ForwardMaps, ForwardShape {
  Scratch scratch;
  float scale_log2;
  float* log_normalizer;
  bool keep_residual;
  int64_t* visited_pairs;
  int trial;
};

template <int kDim>
struct alignas(1024) Shared {
  using Size = Sizes<kDim>;
  static constexpr int kStages = Size::kStages, kRows = Size::kRows, kKeys = Size::kKeys;
  DenseBias<kKeys, kStages> start;  // the keys' part of the bias; not at the end (bias_step.cuh)
  TwoFloats block_end[kStages];     // log₂e·c after the keys' block
  Tile<kRows> tile[kTileSlots];
  int index[kTileSlots], listed[kTileSlots];
  uint64_t tile_wanted, tile_known[kTileSlots];            // the next tile
  uint64_t tile_full[kTileSlots], tile_empty[kTileSlots];  // a tile and its queries
  uint64_t key_full[kStages], key_empty[kStages], value_full[kStages], value_empty[kStages];
  alignas(1024) char query[Size::kQueryBuffers + Size::kOutputBuffer][kRows * kDim * 2];  // and the output, the last
  char key[kStages][kKeys * kDim * 2];
  char value[kStages][kKeys * kDim * 2];
};

// Steps of a tile that are left to load when the next tile is taken.
inline constexpr int kBlocksAhead = 3;

// Sums the causal pairs inside a tile's steps: row r sees first_visible + r keys.
template <int kKeys, int kRows>
__device__ inline void count_pairs(const ForwardParameters& a, const Tile<kRows>& tile) {
  const long long rows = min(kRows, a.query_length - tile.query),
                  first_visible = tile.query + a.key_length - a.query_length + 1 - tile.first * kKeys;
  atomicAdd(a.scratch.pairs + tile.row, static_cast<unsigned long long>(rows * first_visible + rows * (rows - 1) / 2));
}

// Puts a tile on the second launch's list.
__device__ inline void list_tile(const ForwardParameters& a, int index) {
  a.scratch.repeats[1 + atomicAdd(a.scratch.repeats, 1)] = index;
}

/// Of a tile that is on the second launch's list, a bit a warpgroup whose rows it stores: their weights left their format, or the tile is strong. Only
/// kEdges counts by warpgroups, so that no row's bits depend on another sequence's.
__device__ inline int32_t& repeated_groups(const ForwardParameters& a, int index) {
  return a.scratch.repeats[1 + a.tiles + index];
}

// Publishes tiles, by one thread; those with strong gates go to the second launch. Reading a tile's numbers takes several dependent trips to
// global memory, so the next is taken before all blocks of this one are loaded, but only some blocks before: CTAs that take their final tiles
// early end at very different times.
template <int kDim, bool kRepeat, bool kEdges>
__device__ inline void schedule(const ForwardParameters& a, Shared<kDim>& shared) {
  constexpr int kRows = Sizes<kDim>::kRows;
  const int tiles = kRepeat ? a.scratch.repeats[0] : a.tiles;
  const int section = kEdges ? __ldcg(a.order.query_section) : a.section;
  uint32_t wanted = 0;  // parity
  ptx::RingPosition slot;
  int turn = blockIdx.x;
  const auto take_next = [&] { turn = gridDim.x + (kRepeat ? turn : atomicAdd(a.scratch.next_tile, 1)); };
  for (;; slot.advance(kTileSlots)) {
    ptx::mbarrier_wait_patiently(&shared.tile_empty[slot.index], slot.parity ^ 1);
    Tile<kRows>& tile = shared.tile[slot.index];
    for (; turn < tiles; take_next()) {
      const int index = kRepeat ? a.scratch.repeats[1 + turn] : turn;
      tile = tile_at<kRows>(a, index, section);
      if constexpr (kGate)
        tile.frame = a.scratch.base_log2[static_cast<int64_t>(tile.row) * (a.key_blocks + 1) +
                                         (tile.query + a.key_length - a.query_length) / kColumns];
      count_in_steps<Sizes<kDim>::kKeys>(tile, a.key_length - a.query_length, a.key_length);
      shared.index[slot.index] = index;
      shared.listed[slot.index] = false;
      if constexpr (kEdges && !kRepeat) repeated_groups(a, index) = tile.strong ? ~0 : 0;
      if (kRepeat || !tile.strong) break;
      count_pairs<Sizes<kDim>::kKeys>(a, tile);
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

// Keys, the gate's bias of the keys, and values have a thread each, which does little else: key and value tiles come from an L2 cache near its
// limit, and time between the release of a stage and its next load is lost.

template <int kDim>
__device__ inline void load_rows(char* destination, int rows, const CUtensorMap& map, uint64_t* full, int head,
                                 int token, int batch) {
#pragma unroll
  for (int panel = 0; panel < kDim / 64; ++panel)
    ptx::load_tile(destination + panel * rows * 128, &map, full, panel * 64, head, token, batch);
}

// Loads the tiles' queries and keys. Counts the pairs. Where there is one buffer of queries, the tile before must hand it back, with which its slot
// comes: this tile's first keys are loaded before.
template <int kDim, bool kRepeat>
__device__ inline void load_keys(const ForwardParameters& a, Shared<kDim>& shared) {
  constexpr int kStages = Sizes<kDim>::kStages, kRows = Sizes<kDim>::kRows, kKeys = Sizes<kDim>::kKeys;
  constexpr bool kQueriesFirst = Sizes<kDim>::kQueryBuffers > 1;
  const int group = a.query_heads / a.heads;
  ptx::RingPosition at, slot;
  [[maybe_unused]] ptx::RingPosition used{.index = kTileSlots};  // the slot of the tile before
  for (;; slot.advance(kTileSlots)) {
    ptx::mbarrier_wait(&shared.tile_known[slot.index], slot.parity);
    const Tile<kRows> tile = shared.tile[slot.index];  // a copy, for registers; the slot holds it long enough
    if (tile.row < 0) break;
    const auto load_queries = [&](uint32_t buffer) {
      ptx::mbarrier_arrive_expect(&shared.tile_full[slot.index], kRows * kDim * 2);
      load_rows<kDim>(shared.query[buffer], kRows, a.query, &shared.tile_full[slot.index], tile.head, tile.query,
                      tile.batch);
    };
    if constexpr (kQueriesFirst) load_queries(slot.index);
    const int key_head = tile.head / group;
#pragma unroll 1
    for (int block = tile.last; block >= tile.first; --block) {
      ptx::mbarrier_wait_patiently(&shared.key_empty[at.index], at.parity ^ 1);
      uint64_t* full = &shared.key_full[at.index];
      ptx::mbarrier_arrive_expect(full, kKeys * kDim * 2);
      load_rows<kDim>(shared.key[at.index], kKeys, a.key, full, key_head, block * kKeys, tile.batch);
      if (block == min(tile.last, tile.first + kBlocksAhead)) ptx::mbarrier_arrive(&shared.tile_wanted);
      at.advance(kStages);
      if constexpr (!kQueriesFirst) {
        if (block == max(tile.last - (kStages - 1), tile.first)) {
          if (used.index < kTileSlots) ptx::mbarrier_wait_patiently(&shared.tile_empty[used.index], used.parity);
          load_queries(0);
          used = slot;
        }
      }
    }
    if constexpr (!kRepeat) count_pairs<kKeys>(a, tile);
  }
  ptx::mbarrier_arrive(&shared.tile_full[slot.index]);
}

// Loads each step of each tile when the stage of its ring is free: load(tile) returns the function that loads a (block, stage). A tile's
// numbers are copied: the consumers may release it before its last block is loaded.
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

// Loads the gate's bias of the keys into the keys' ring: half of the arrivals at key_full.
template <int kDim>
__device__ inline void load_gate(const ForwardParameters& a, Shared<kDim>& shared) {
  load_blocks(shared, shared.key_empty, [&](const auto& tile) {
    const int64_t row = tile.row;
    const BiasOfEight* starts = a.scratch.start + row * a.key_blocks * (kColumns / 8);
    const TwoFloats* ends = a.scratch.base_log2 + row * (a.key_blocks + 1) + 1;
    return [=, &shared](int block, int stage) {
      constexpr uint32_t kStartBytes = sizeof shared.start.eights[0], kEndBytes = sizeof shared.block_end[0];
      uint64_t* full = &shared.key_full[stage];
      ptx::mbarrier_arrive_expect(full, kStartBytes + kEndBytes);
      ptx::load_run(&shared.block_end[stage], ends + block / Sizes<kDim>::kStepsOfBlock, kEndBytes, full);
      ptx::load_run(shared.start.eights[stage], starts + block * (Sizes<kDim>::kKeys / 8), kStartBytes, full);
    };
  });
}

// Loads the tiles' values.
template <int kDim>
__device__ inline void load_values(const ForwardParameters& a, Shared<kDim>& shared) {
  constexpr int kKeys = Sizes<kDim>::kKeys;
  const int group = a.query_heads / a.heads;
  load_blocks(shared, shared.value_empty, [&](const auto& tile) {
    return [&, head = tile.head / group](int block, int stage) {
      uint64_t* full = &shared.value_full[stage];
      ptx::mbarrier_arrive_expect(full, kKeys * kDim * 2);
      load_rows<kDim>(shared.value[stage], kKeys, a.value, full, head, block * kKeys, tile.batch);
    };
  });
}

}  // namespace lethe::hopper::forward_pass
