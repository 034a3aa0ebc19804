#pragma once
// The producer warpgroup of the main backward kernel: three threads feed the consumers, a warp adds their dQ to global memory.

#include <climits>
#include <type_traits>

#include "optimized/cuda/hopper/backward_shared.cuh"
#include "optimized/cuda/hopper/ptx/copy.cuh"

namespace lethe::hopper::backward_pass {

/// Loads the steps of a key tile, and its K or V: K arrives at the first Q's barrier, V at the first dO's, so that Sᵀ can start before V has
/// arrived. Either is issued after all else that the first step needs, for the key tile before may still be using its place.
template <typename Element, int kDim, bool kFloatSums>
template <int kStagePanels, int kRing>
__device__ void BackwardCta<Element, kDim, kFloatSums>::load(const StepOperand<kStagePanels, kRing>& operand,
                                                             ptx::RingPosition& ring) {
  constexpr uint32_t kTileBytes = kPanels * Shared::kQueryPanelBytes + sizeof(operand.numbers[0]);
  constexpr uint32_t kFixedBytes = kPanels * Shared::kKeyPanelBytes;
  BackwardWalk at = walk(tile());
  bool first = true;
#pragma unroll 1
  for (bool more = at.next_head(); more; more = at.next(), ring.advance(kRing), first = false) {
    const int stage = ring.index;
    const BiasColumn* numbers =
        p.query_offset + at.tile * kQueries < operand.zeros_end
            ? p.workspace.zeros
            : operand.all_numbers + row_of_heads(at.head) * p.padded_queries + at.tile * kQueries;
    uint64_t* full = &operand.full[stage];
    ptx::mbarrier_wait_patiently(&operand.empty[stage], ring.parity ^ 1);
    ptx::mbarrier_arrive_expect(full, kTileBytes + (first ? kFixedBytes : 0));
    ptx::load_run(operand.numbers[stage], numbers, sizeof operand.numbers[0], full);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel)
      ptx::load_tile(operand.tiles[stage][panel], &operand.map, full, 64 * panel, tile().head * p.group + at.head,
                     at.tile * kQueries, tile().batch);
    if (!first) continue;
    if (tiles > 0)
      ptx::mbarrier_wait_patiently(&operand.fixed_free[(tiles - 1) % kTileSlots], (tiles - 1) / kTileSlots % 2);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel)
      ptx::load_tile(operand.fixed[panel], &operand.fixed_map, full, 64 * panel, tile().head, tile().key_tile * kKeys,
                     tile().batch);
  }
}

/// The tile of an index; none after the last.
template <typename Element, int kDim, bool kFloatSums>
template <bool kEdges>
__device__ BackwardTile BackwardCta<Element, kDim, kFloatSums>::tile_of(int index) const {
  if (index >= p.key_tiles * p.rows) return {.key_tile = -1};
  BackwardTile tile = kEdges ? window_tile_at(p, index) : backward_tile_at(p, index);
  BackwardWalk at = walk(tile);
  if (at.next_head()) tile.first_in_group = at.head;
  return tile;
}

/// Publishes the CTA's next tile, the first that no CTA has taken; returns false after the last. A CTA takes even its first tile here: no other
/// CTA waits for one that has not begun.
template <typename Element, int kDim, bool kFloatSums>
template <bool kEdges>
__device__ bool BackwardCta<Element, kDim, kFloatSums>::publish_tile() {
  const int slot = tiles % kTileSlots;
  const BackwardTile tile = tile_of<kEdges>(atomicAdd(p.plan.scratch.next_tile, 1));
  ptx::mbarrier_wait_patiently(&shared.tile_empty[slot], tiles / kTileSlots % 2 ^ 1);
  shared.tile[slot] = tile;
  ptx::mbarrier_arrive(&shared.tile_full[slot]);
  return tile.key_tile >= 0;
}

/// The next tile is taken, which is some trips to global memory, as soon as all loads of this one's queries are issued.
template <typename Element, int kDim, bool kFloatSums>
template <bool kEdges>
__device__ void BackwardCta<Element, kDim, kFloatSums>::load_queries() {
  ptx::RingPosition ring;
  bool any = !kManyTiles || publish_tile<kEdges>();
#pragma unroll 1
  while (any) {
    load<Shared::kQueryPanels, kStages>(
        {p.query, p.key, shared.query, shared.key, shared.row_bias, p.workspace.row_bias, exact_end(),
         shared.query_full, shared.query_empty, shared.keys_free},
        ring);
    ++tiles;
    any = kManyTiles && publish_tile<kEdges>();
  }
}

template <typename Element, int kDim, bool kFloatSums>
__device__ void BackwardCta<Element, kDim, kFloatSums>::load_grad_outputs() {
  ptx::RingPosition ring;
#pragma unroll 1
  for (bool any = enter_tile(); any; any = next_tile())
    load<kPanels, Shared::kOutputStages>(
        {p.grad_output, p.value, shared.grad_output, shared.value, shared.negative_delta, p.workspace.negative_delta, 0,
         shared.output_full, shared.output_empty, shared.values_free},
        ring);
}

template <typename Element, int kDim, bool kFloatSums>
template <bool kEdges>
__device__ void BackwardCta<Element, kDim, kFloatSums>::describe_steps() {
  ptx::RingPosition ring;
#pragma unroll 1
  for (bool any = enter_tile(); any; any = next_tile()) {
    const int key_tile = tile().key_tile;
    BackwardWalk at = walk(tile());
    // The gate's numbers of a tile are read a tile ahead: their latency must not come between the release of a stage and its step.
    TwoFloats query_base{}, key_base{};
    bool query_separate = false;
    shared.exact_end = exact_end();
    using Visible = Visibility<KeyBlockCuts>;
    int head_read = -1, end_query = INT_MAX;  // end_query: of the key tile's first key
    [[maybe_unused]] int next_cut = INT_MAX;
#pragma unroll 1
    for (bool more = at.next_head(); more; ring.advance(kStages)) {
      const int stage = ring.index, in_group = at.head, position = p.query_offset + at.tile * kQueries;
      const int64_t heads = row_of_heads(in_group);
      more = at.next();
      float frame = 0;
      bool separate_rows = false;
      if constexpr (kGate) {
        const TwoFloats* base = p.plan.scratch.base_log2 + heads * (key_blocks() + 1);
        const uint8_t* separate = p.plan.prefix.separate_rows + heads * (key_blocks() + 1);
        if (in_group != head_read) {
          head_read = in_group;
          key_base = base[block_of(key_tile) + (shared.exact_end > 0)];  // as the keys' biases
          query_base = base[position / kBlock];
          query_separate = separate[position / kBlock];
          const auto visible = visibility_of_keys(p.plan.prefix, heads, key_blocks(), block_of(key_tile));
          end_query = visible.end_query(key_tile * kKeys);
          if constexpr (kEdges) next_cut = visible.cuts.next_cut(key_tile * kKeys);
        }
        frame = (query_base.high - key_base.high) + (query_base.low - key_base.low);
        if (isnan(frame)) frame = 0;  // as the keys' biases
        separate_rows = query_separate;
        query_base = base[(position + kQueries) / kBlock];  // the last one's is the sum over all
        query_separate = separate[(position + kQueries) / kBlock];
        if (p.query_offset % kBlock != 0) separate_rows |= query_separate;  // as in gate/row_groups.cuh
      }
      uint32_t flags = 0;
      if (kFloatSums && separate_rows) flags |= BackwardStep::kSeparateRows;
      if (position + kQueries > end_query) flags |= BackwardStep::kMasked | BackwardStep::kCut;
      if (kEdges && flags & BackwardStep::kCut) {
        if (next_cut >= position + kQueries) flags |= BackwardStep::kWindowEnds;
        else if (next_cut >= (key_tile + 1) * kKeys && next_cut == end_query)
          flags |= BackwardStep::kOneEnd | max(next_cut - position, 0) << BackwardStep::kEnd;
      }
      if (Visible::masks_last_key(position, key_tile * kKeys + kKeys - 1)) flags |= BackwardStep::kMasked;
      if (position < shared.exact_end) flags |= BackwardStep::kMasked | BackwardStep::kDiagonal;
      if (!more) flags |= BackwardStep::kLast;
      if (!more || at.head != in_group) flags |= BackwardStep::kLastOfHead;
      ptx::mbarrier_wait_patiently(&shared.query_empty[stage], ring.parity ^ 1);
      shared.step[stage] = {frame, int(heads), position, flags};
      ptx::mbarrier_arrive(&shared.query_full[stage]);
    }
  }
}

/// Adds the warps' row sums of a step, in the place of the first's, and issues their addition to global memory, after dQ of the query's
/// first 64 columns, in a bulk group that stays open.
template <typename Element, int kDim, bool kFloatSums>
__device__ void BackwardCta<Element, kDim, kFloatSums>::add_row_sums(float* slices, int step) {
  const int lane = threadIdx.x % 32;
  constexpr int kRing = std::extent_v<decltype(shared.row_sums), 0>,
                kWarps = std::extent_v<decltype(shared.row_sums), 1>;
  float(&sums)[kWarps][kQueries] = shared.row_sums[step % kRing];
#pragma unroll
  for (int slice = 0; slice < kQueries / 64; ++slice) {
    float2 sum = {0, 0};  // of two queries
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      const float2 part = reinterpret_cast<const float2*>(sums[warp] + 64 * slice)[lane];
      sum.x += part.x, sum.y += part.y;
    }
    reinterpret_cast<float2*>(sums[0] + 64 * slice)[lane] = sum;
  }
  ptx::fence_async_shared();
  __syncwarp();
#pragma unroll
  for (int slice = 0; slice < kQueries / 64; ++slice)
    if (lane == 0)
      ptx::reduce_add_run(slices + slice * kSliceFloats + 64 * 64, sums[0] + 64 * slice, 64 * sizeof(float));
}

/// Sets dQ to zero of the queries that key tiles after this one are the first to add to, where prepare has not: beside the products, which leave
/// memory idle. The next key tiles that are taken don't need it yet (blocks_cleared_before()).
template <typename Element, int kDim, bool kFloatSums>
__device__ void BackwardCta<Element, kDim, kFloatSums>::clear_ahead(int lane) const {
  constexpr int kFloat4s = kBlock / 64 * kPanels * kSliceFloats / 4;
  const int blocks = p.padded_queries / kBlock, block = tile().key_tile + p.cleared_blocks;
  if (block >= blocks) return;
#pragma unroll 1
  for (int in_group = 0; in_group < p.group; ++in_group) {
    const int64_t place = row_of_heads(in_group) * blocks + block;
    float4* sums = reinterpret_cast<float4*>(p.workspace.grad_query) + place * kFloat4s;
#pragma unroll 4
    for (int i = lane; i < kFloat4s; i += 32) sums[i] = float4{0, 0, 0, 0};
    __syncwarp();
    if (lane == 0) ptx::store_release(p.workspace.turns + place, 1);
    __syncwarp();
  }
}

/// Waits for the zeros of the head's queries that see the tile, which earlier tiles write: those are taken before it, and wait for none.
template <typename Element, int kDim, bool kFloatSums>
__device__ void BackwardCta<Element, kDim, kFloatSums>::wait_until_cleared(const BackwardWalk& at, int lane) const {
  const int64_t first = row_of_heads(at.head) * (p.padded_queries / kBlock);
  for (int block = max(tile().key_tile, p.cleared_blocks) + lane; block * (kBlock / kQueries) < at.end; block += 32)
    while (ptx::load_acquire(p.workspace.turns + first + block) == 0) {
    }
  __syncwarp();
  ptx::fence_async_global();
}

/// dQ of a step is in two slices, one a warpgroup. In the fixed order a key tile adds to a query tile after all later key tiles. Those are
/// taken before it, and a CTA computes its tiles in the order in which it took them: so the first of all unfinished tiles waits for none.
/// (Where each tile has a CTA they begin in the order of their indices, which this GPU keeps and CUDA does not promise.)
/// Float sums of separate rows are added while the copy engine reads the slices: in such steps the others wait for this warp.
template <typename Element, int kDim, bool kFloatSums>
template <bool kEdges>
__device__ void BackwardCta<Element, kDim, kFloatSums>::add_slices() {
  const int lane = threadIdx.x % 32;
  const bool leader = lane == 0;
  int step = 0, head = -1;
  float* slices = nullptr;
  uint32_t separate_rows = 0;  // a bit a query tile, from the step's on: read for 32 at a time, for the read takes long
  int separate_rows_end = 0;   // the first tile that has no bit
  // A slice is handed back as soon as the copy engine has read it, or after both have been issued: the faster ways.
  constexpr bool kHandBackAtOnce = kPanels == 1;
  const auto hand_back = [&]<int kPending>(int warpgroup) {
    if (leader) ptx::bulk_wait_read<kPending>();
    __syncwarp();
    ptx::named_barrier_arrive(kSliceEmpty + warpgroup, 160);
  };
  const auto hand_back_both = [&] {
    hand_back.template operator()<1>(0);
    hand_back.template operator()<0>(1);
  };
  hand_back_both();
#pragma unroll 1
  for (bool any = enter_tile(); any; any = next_tile(lane), head = -1) {
    if constexpr (kEdges) clear_ahead(lane);
    BackwardWalk at = walk(tile());
    bool more = at.next_head();
    if (more) {  // the slices of the warpgroups' first step are of no step (backward_consumer.cuh)
      for (int warpgroup = 0; warpgroup < 2; ++warpgroup) ptx::named_barrier_sync(kSliceFull + warpgroup, 160);
      for (int warpgroup = 0; warpgroup < 2; ++warpgroup) ptx::named_barrier_arrive(kSliceEmpty + warpgroup, 160);
    }
#pragma unroll 1
    for (; more; more = at.next(), ++step, slices += 2 * kSliceFloats) {
      const auto query_tile = [&] { return row_of_heads(at.head) * (p.padded_queries / kQueries) + at.tile; };
      const auto turn = [&] { return p.workspace.turns + query_tile(); };
      const auto tiles_before = [&] {  // in the fixed order
        const int last = min(at.tile * kQueries + kQueries, p.query_length) - 1;
        return (p.query_offset + last) / kKeys - tile().key_tile;
      };
      if (at.head != head) {
        head = at.head;
        slices = p.workspace.grad_query + query_tile() * 2 * kSliceFloats;
        separate_rows_end = 0;
        if constexpr (kEdges) wait_until_cleared(at, lane);
      }
      if (kFloatSums && at.tile >= separate_rows_end) {
        const uint8_t* separate = p.plan.prefix.separate_rows + row_of_heads(head) * (p.key_tiles + 1);
        const int query_tile = at.tile + lane;
        separate_rows = __ballot_sync(
            ~0u, query_tile < p.query_tiles &&
                     rows_are_separate(separate, p.query_offset + query_tile * kQueries, kQueries, p.query_offset));
        separate_rows_end = at.tile + 32;
      }
      if (p.deterministic && leader) {
        while (ptx::load_acquire(turn()) != tiles_before()) {
        }
        ptx::fence_async_global();
      }
      __syncwarp();
      const bool separate = kFloatSums && separate_rows & 1, at_once = kHandBackAtOnce && !separate;
#pragma unroll
      for (int warpgroup = 0; warpgroup < 2; ++warpgroup) {
        // Where rows are separate the parts of groups are zeros.
        constexpr int kSums = !kGate ? 0 : kFloatSums ? 128 : 64;
        const bool with_sums = kOneInstance || warpgroup == 0;
        ptx::named_barrier_sync(kSliceFull + warpgroup, 160);
        ptx::fence_async_shared();
        if (leader) {
          ptx::reduce_add_run(slices + warpgroup * kSliceFloats, shared.grad_query[warpgroup],
                              sizeof(float) * (64 * 64 + (with_sums ? kSums : 0)));
          ptx::bulk_commit();
        }
        if (at_once) hand_back.template operator()<0>(warpgroup);
      }
      if (separate) add_row_sums(slices, step);
      if (!at_once) hand_back_both();
      if (separate && leader) ptx::bulk_commit();  // after the slices, which wait for themselves alone
      separate_rows >>= 1;
      if (p.deterministic && leader) {
        ptx::bulk_wait<0>();
        ptx::store_release(turn(), tiles_before() + 1);
      }
    }
  }
  if (leader) ptx::bulk_wait<0>();
}

/// dQ of a step is in four slices: two of each warpgroup, one after the other, the step's row sums after the first two. The order of additions as in
/// add_slices().
template <typename Element, int kDim, bool kFloatSums>
__device__ void BackwardCta<Element, kDim, kFloatSums>::add_split_slices() {
  const int lane = threadIdx.x % 32;
  const bool leader = lane == 0;
  int step = 0;
  const auto hand_back = [&]<int kPending>(int warpgroup) {
    if (leader) ptx::bulk_wait_read<kPending>();
    __syncwarp();
    ptx::named_barrier_arrive(kSliceEmpty + warpgroup, 160);
  };
  for (int warpgroup = 0; warpgroup < 2; ++warpgroup) hand_back.template operator()<0>(warpgroup);
#pragma unroll 1
  for (bool any = enter_tile(); any; any = next_tile(lane)) {
    BackwardWalk at = walk(tile());
    bool more = at.next_head();
    if (more) {  // the first slices are of no step
      for (int warpgroup = 0; warpgroup < 2; ++warpgroup) {
        ptx::named_barrier_sync(kSliceFull + warpgroup, 160);
        ptx::named_barrier_arrive(kSliceEmpty + warpgroup, 160);
      }
    }
#pragma unroll 1
    for (; more; more = at.next(), ++step) {
      const int64_t heads = row_of_heads(at.head), query_tile = heads * (p.padded_queries / kQueries) + at.tile;
      float* slices = p.workspace.grad_query + query_tile * kPanels * kSliceFloats;
      const bool separate =
          kFloatSums && rows_are_separate(p.plan.prefix.separate_rows + heads * (key_blocks() + 1),
                                          p.query_offset + at.tile * kQueries, kQueries, p.query_offset);
      int32_t* turn = p.workspace.turns + query_tile;
      const int last = min(at.tile * kQueries + kQueries, p.query_length) - 1;
      const int tiles_before = (p.query_offset + last) / kKeys - tile().key_tile;  // in the fixed order
      if (p.deterministic && leader) {
        while (ptx::load_acquire(turn) != tiles_before) {
        }
        ptx::fence_async_global();
      }
      __syncwarp();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int warpgroup = 0; warpgroup < 2; ++warpgroup) {
          ptx::named_barrier_sync(kSliceFull + warpgroup, 160);
          ptx::fence_async_shared();
          const int sums = kFloatSums && half == 0 ? 128 : 0;
          if (leader)
            ptx::reduce_add_run(slices + (2 * half + warpgroup) * kSliceFloats, shared.grad_query[warpgroup],
                                sizeof(float) * (64 * 64 + sums));
          if (half == 0 && warpgroup == 1 && separate) add_row_sums(slices, step);
          if (leader) ptx::bulk_commit();
        }
        hand_back.template operator()<1>(0);
        hand_back.template operator()<0>(1);
      }
      if (p.deterministic && leader) {
        ptx::bulk_wait<0>();
        ptx::store_release(turn, tiles_before + 1);
      }
    }
  }
  if (leader) ptx::bulk_wait<0>();
}

}  // namespace lethe::hopper::backward_pass
