#pragma once
// What the roles of the main backward kernel share: parameters, shared memory, and the walk over query tiles.

#include "optimized/cuda/gate/cuts.cuh"
#include "optimized/cuda/gate/row_groups.cuh"
#include "optimized/cuda/gate/strong_gates.cuh"
#include "optimized/cuda/gate/switch.hpp"
#include "optimized/cuda/hopper/backward.hpp"
#include "optimized/cuda/hopper/bias_step.cuh"
#include "optimized/cuda/hopper/handover.cuh"
#include "optimized/cuda/hopper/ptx/barrier.cuh"

namespace lethe::hopper::backward_pass {

struct BackwardParameters {
  CUtensorMap query, key, value, grad_output, grad_key, grad_value;
  Plan plan;
  BackwardWorkspace workspace;
  int query_length, query_offset;  // Tq, Tk − Tq
  int heads, group;                // H, Hq / H
  int rows, section;               // B·H; heads whose queries, gradients and dQ share the L2 cache at a time
  int query_tiles, key_tiles;      // ⌈Tq/tile⌉, N · tiles of a block
  int padded_queries;              // Tp
  float scale, logit_scale;        // scale, a
  double inverse_scale;            // 1 / scale
  bool deterministic;
  int key_blocks;      // N; a block may have several key tiles
  int short_tiles;     // key tiles of a head whose queries end before a window does; 0 in the fixed order
  int cleared_blocks;  // blocks of queries whose dQ prepare sets to zero; key tile k does so for block k + cleared_blocks
  int trial_late;
};

inline constexpr int kBackwardThreads = 384;
/// Of the gate's plan.
inline constexpr int kBlock = int(kGateBlock);
inline constexpr int kStages = 2;
inline constexpr int kTileSlots = 4;  // tiles published at a time: some roles are a tile ahead

/// A step, one query tile of one head, as describe_steps publishes it to the consumers, which have no registers for the walk.
struct alignas(16) BackwardStep {
  static constexpr uint32_t kMasked = 1, kCut = 2;  // not all pairs of the tile are visible; a cut is among the reasons
  static constexpr uint32_t kLastOfHead = 4, kLast = 8;
  static constexpr uint32_t kDiagonal = 16;      // queries are among the keys; set near strong gates alone
  static constexpr uint32_t kSeparateRows = 32;  // float sums are of each row of dS, not of groups of them
  // With kCut, in the instance for windows and packed sequences: the keys' queries end by the window alone, or all at one position, so many after the
  // step's first as the bits from kEnd on say.
  static constexpr uint32_t kWindowEnds = 64, kOneEnd = 128, kEnd = 16;

  float frame;   // log₂e (c at the query tile's frame − c at the key tile's)
  int row;       // b·Hq + h
  int position;  // of its first query
  uint32_t flags;
};

/// What a CTA computes: a tile of keys of one (batch, key head). key_tile −1: there is none left.
struct BackwardTile {
  int key_tile, head, batch;
  int first_in_group = -1;  // the first of the group's query heads that sees the keys, or −1
};

/// What one CTA holds in shared memory. Panels are [rows][64] of 16 bits, swizzled.
template <int kDim>
struct alignas(1024) BackwardShared {
  static constexpr bool kSplit = false;
  static constexpr int kQueries = kTileQueries<kDim>;
  static constexpr int kKeys = 128;  // a tile; 64 a warpgroup
  static constexpr int kOutputStages = kStages;
  static constexpr int kPanels = kDim / 64;
  static constexpr int kQueryPanelBytes = kQueries * 128;
  static constexpr int kKeyPanelBytes = kKeys * 128;
  // The ones come one panel stride after a head's two panels, and anywhere after its only one (kOnesStep).
  static constexpr int kQueryPanels = kPanels == 1 ? 1 : kPanels + 1;

  uint8_t key[kPanels][kKeyPanelBytes];
  uint8_t value[kPanels][kKeyPanelBytes];
  uint8_t query[kStages][kQueryPanels][kQueryPanelBytes];
  uint8_t grad_output[kStages][kPanels][kQueryPanelBytes];
  uint8_t grad_score[kStages][2][kQueryPanelBytes];  // dS [query][key], one panel a warpgroup; after a tile's last, dK
  uint8_t ones[16 * 128];                            // also where there is no gate: they cost nothing
  alignas(128) BiasColumn row_bias[kStages][kQueries];
  alignas(128) BiasColumn negative_delta[kStages][kQueries];
  BiasOnes bias_ones;
  alignas(16) float grad_query[2][kSliceFloats];
  BackwardStep step[kStages];
  BackwardTile tile[kTileSlots];
  float key_bias[kKeys];  // b_j of the step's head, each written and read by one warp
  int exact_end;          // a register of describe_steps' thread, spilled by hand
  uint64_t tile_full[kTileSlots], tile_empty[kTileSlots];
  uint64_t keys_free[kTileSlots],
      values_free[kTileSlots];  // K and V: neither the operands nor the staged dV are still being read
  uint64_t query_full[kStages], query_empty[kStages], output_full[kStages], output_empty[kStages];
  // Float sums of dS, each consumer warp's over its 16 keys, where each row has a sum. Those of the CTA's nth step are number n mod 4: their
  // total stays there until the slices of step n + 1 are handed back, which dQ of step n + 2 overwrites, written in step n + 3.
  alignas(16) float row_sums[2 * kStages][8][kQueries];
};

/// At head dim 256 a tile has 64 keys, which both warpgroups share: each computes half of a step's queries of Sᵀ and dPᵀ, and half of the columns of
/// dV, dK and dQ, two panels (backward_split.cuh). P goes through shared memory as dS does, there is one stage of dO, and dV and dK leave from the
/// places of V and K.
template <>
struct alignas(1024) BackwardShared<256> {
  static constexpr bool kSplit = true;
  static constexpr int kQueries = kTileQueries<256>;
  static constexpr int kKeys = 64;
  static constexpr int kOutputStages = 1;
  static constexpr int kPanels = 4, kQueryPanels = 4;
  static constexpr int kQueryPanelBytes = kQueries * 128;
  static constexpr int kKeyPanelBytes = kKeys * 128;

  uint8_t key[kPanels][kKeyPanelBytes];
  uint8_t value[kPanels][kKeyPanelBytes];
  uint8_t query[kStages][kPanels][kQueryPanelBytes];
  uint8_t grad_output[kOutputStages][kPanels][kQueryPanelBytes];
  uint8_t grad_score[kStages][kKeyPanelBytes];  // dS [key][query]
  uint8_t weight[kKeyPanelBytes];               // P [key][query]
  alignas(128) BiasColumn row_bias[kStages][kQueries];
  alignas(128) BiasColumn negative_delta[kOutputStages][kQueries];
  BiasOnes bias_ones;
  alignas(16) float grad_query[2][kSliceFloats];
  BackwardStep step[kStages];
  BackwardTile tile[kTileSlots];
  float key_bias[2 * kKeys];  // a copy for each warpgroup
  float column_sums[kKeys];   // those of a head's second half
  int exact_end;
  uint64_t tile_full[kTileSlots], tile_empty[kTileSlots];
  uint64_t keys_free[kTileSlots], values_free[kTileSlots];
  uint64_t query_full[kStages], query_empty[kStages], output_full[kOutputStages], output_empty[kOutputStages];
  // Of a step's dS, by stage: each warp's over its 16 keys, the queries of both warpgroups side by side. A step's slices are handed back, read, before
  // the step after the next is summed.
  alignas(16) float row_sums[kStages][4][kQueries];
};

/// The query tiles of one key tile: over the query heads of its group, and in each from the diagonal to the last that sees it.
/// The roles that load, describe and add dQ walk it each; the consumers follow BackwardStep.
struct BackwardWalk {
  const int32_t* last_query_block;  // of the group's first head, at this key tile
  int key_tiles, group, query_tiles, tiles_a_block, first;
  int head = -1, tile = 0, end = 0;

  __device__ bool next_head() {
    while (++head < group) {
      tile = first;
      const int last = last_query_block[int64_t{head} * key_tiles];
      end = min((last + 1) * tiles_a_block, query_tiles);
      if (tile < end) return true;
    }
    return false;
  }
  __device__ bool next() { return ++tile < end || next_head(); }
};

/// Longest first: sections of heads in WorkOrder's order; inside a section from the first key tile on, which most queries
/// see, heads innermost. In the fixed order of dQ's sums from the last key tile on instead: no tile waits for a later one.
__device__ inline BackwardTile backward_tile_at(const BackwardParameters& p, int index) {
  const int per_section = p.section * p.key_tiles, section = index / per_section, within = index % per_section;
  const int width = min(p.section, p.rows - section * p.section), tile = within / width;
  const int row = p.plan.order.key_head_order[section * p.section + within % width];
  return {p.deterministic ? p.key_tiles - 1 - tile : tile, row % p.heads, row / p.heads};
}

/// The same for windows: the last key tiles of all heads, which fewer queries see, come after all others and let the kernel end evenly.
__device__ inline BackwardTile window_tile_at(const BackwardParameters& p, int index) {
  const int in_sections = p.key_tiles - p.short_tiles, rest = index - p.rows * in_sections;
  int tile = in_sections + rest / p.rows, place = rest % p.rows;
  if (rest < 0) {
    const int per_section = p.section * in_sections, section = index / per_section, within = index % per_section;
    const int width = min(p.section, p.rows - section * p.section);
    tile = within / width, place = section * p.section + within % width;
  }
  const int row = p.plan.order.key_head_order[place];
  return {p.deterministic ? p.key_tiles - 1 - tile : tile, row % p.heads, row / p.heads};
}

/// In units of a descriptor, 16 bytes: a step of 16 rows in an operand of one panel whose further columns are always the same 16
/// rows of ones. The start moves on by 2048 bytes, and the distance from it to the ones shrinks by as much.
inline constexpr uint64_t kOnesStep = 128 - (uint64_t{128} << 16);

/// Named barriers (backward_kernel.cuh): the first of two, one for each warpgroup; of kScoresReady two for each stage.
enum BackwardBarrier : uint32_t { kScoresReady = 1, kSliceEmpty = 5, kSliceFull = 7, kWarpgroup = 9 };
/// In place of kScoresReady where the warpgroups share keys (backward_split.cuh): the second for each of them.
enum SplitBarrier : uint32_t { kScoresStored = 1, kWeightFree = 2, kColumnSums = 4 };

/// One CTA's share of the work, by role.
/// `kFloatSums`: the sums of dS are of floats, not of what is rounded to 16 bits.
template <typename Element, int kDim, bool kFloatSums>
struct BackwardCta {
  static_assert(kGate || !kFloatSums);
  using Shared = BackwardShared<kDim>;
  static constexpr int kQueries = Shared::kQueries;
  static constexpr int kKeys = Shared::kKeys;
  static constexpr int kPanels = Shared::kPanels;
  static constexpr int kGroups = kQueries / kGroupRows;
  static_assert(Shared::kSplit ||
                sizeof(Shared::grad_score) >= kPanels * Shared::kKeyPanelBytes);  // which dK leaves from

  /// Whether both warpgroups run the same instance of BackwardConsumer. Not where columns of ones would sum rows of dS that both have: there
  /// warpgroup 0 alone sums.
  static constexpr bool kOneInstance = !kGate || kFloatSums || kPanels == 1;
  /// Whether a CTA computes one tile after the other. There are no registers for that where a head has two panels and dK sums in 16 bits.
  static constexpr bool kManyTiles = !kGate || kFloatSums || kPanels == 1;

  const BackwardParameters& p;
  Shared& shared;
  BackwardTile only = {};  // where there is one a CTA
  int tiles = 0;           // that this role has finished

  /// The tile that this role is at.
  __device__ BackwardTile tile() const { return kManyTiles ? shared.tile[tiles % kTileSlots] : only; }
  /// Waits until it is published; false after the last.
  __device__ bool enter_tile() const {
    if constexpr (kManyTiles) ptx::mbarrier_wait(&shared.tile_full[tiles % kTileSlots], tiles / kTileSlots % 2);
    return tile().key_tile >= 0;
  }
  /// The same for the next, after the role has finished its tile: a role that is a thread; one that is a warp, or all warps of a warpgroup.
  __device__ bool next_tile() {
    if constexpr (kManyTiles) ptx::mbarrier_arrive(&shared.tile_empty[tiles++ % kTileSlots]);
    return kManyTiles && enter_tile();
  }
  __device__ bool next_tile(int lane) {
    if constexpr (kManyTiles) release(&shared.tile_empty[tiles++ % kTileSlots], lane);
    return kManyTiles && enter_tile();
  }

  __device__ int64_t row_of_heads(int in_group) const {
    return int64_t{tile().batch * p.heads + tile().head} * p.group + in_group;
  }  // b·Hq + h

  /// Blocks of the plan in a head, and that of a key tile.
  __device__ int key_blocks() const { return kKeys == kBlock ? p.key_tiles : p.key_blocks; }
  __device__ static int block_of(int key_tile) { return key_tile / (kBlock / kKeys); }

  __device__ BackwardWalk walk(const BackwardTile& tile) const {
    int first = max(0, tile.key_tile * kKeys - p.query_offset) / kQueries;
    // of the last block's tiles one may have no key
    if (kKeys < kBlock && tile.key_tile * kKeys >= p.query_offset + p.query_length) first = p.query_tiles;
    const int64_t row = int64_t{tile.batch * p.heads + tile.head} * p.group;
    return {p.plan.boundary.last_query_block + row * key_blocks() + block_of(tile.key_tile),
            key_blocks(),
            p.group,
            p.query_tiles,
            kBlock / kQueries,
            first};
  }

  /// The first of the group's query heads that sees the tile's keys, or −1.
  __device__ int first_in_group() const {
    if constexpr (kManyTiles) return tile().first_in_group;
    BackwardWalk at = walk(tile());
    return at.next_head() ? at.head : -1;
  }

  __device__ bool near_strong_gates() const {
    bool marked = false;
    for (int in_group = 0; kGate && in_group < p.group && !marked; ++in_group)
      marked = p.plan.boundary.near_strong[row_of_heads(in_group) * key_blocks() + block_of(tile().key_tile)];
    return marked;
  }

  /// Query tiles that begin before this position have queries in the keys' block, and add c_i − c_j to each logit; 0 where no strong gate
  /// is near.
  __device__ int exact_end() const { return near_strong_gates() ? (block_of(tile().key_tile) + 1) * kBlock : 0; }

  /// What is loaded with each step, and the K or V of the key tile, which is loaded with the first.
  template <int kStagePanels, int kRing>
  struct StepOperand {
    const CUtensorMap &map, &fixed_map;
    uint8_t (&tiles)[kRing][kStagePanels][Shared::kQueryPanelBytes];
    uint8_t (&fixed)[kPanels][Shared::kKeyPanelBytes];
    BiasColumn (&numbers)[kRing][kQueries];  // one a query
    const BiasColumn* all_numbers;
    int zeros_end;  // zeros for tiles that begin before this position
    uint64_t (&full)[kRing], (&empty)[kRing], (&fixed_free)[kTileSlots];
  };
  template <int kStagePanels, int kRing>
  __device__ void load(const StepOperand<kStagePanels, kRing>& operand, ptx::RingPosition& ring);
  template <bool kEdges>
  __device__ BackwardTile tile_of(int index) const;
  template <bool kEdges>
  __device__ bool publish_tile();
  template <bool kEdges>
  __device__ void describe_steps();  // one thread of the producer warpgroup
  template <bool kEdges>
  __device__ void load_queries();       // another, and the keys; publishes tiles
  __device__ void load_grad_outputs();  // a third, and the values
  template <bool kEdges>
  __device__ void add_slices();                 // a warp
  __device__ void clear_ahead(int lane) const;  // its part of windows
  __device__ void wait_until_cleared(const BackwardWalk& at, int lane) const;
  __device__ void add_split_slices();                     // the same where a warpgroup has two slices a step
  __device__ void add_row_sums(float* slices, int step);  // its part of float sums of separate rows
  template <int kCount>
  __device__ void store_gradient(const CUtensorMap& map, uint8_t* panels, int warpgroup, int thread, float factor,
                                 const float (&grad)[kCount]);
};

}  // namespace lethe::hopper::backward_pass
