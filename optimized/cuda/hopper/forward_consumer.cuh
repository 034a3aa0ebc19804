#pragma once
// What a consumer warpgroup of the forward kernel computes: 64 query rows of each of the CTA's tiles. forward_kernel.cuh has the equations
// and the barriers.

#include <numbers>

#include "optimized/cuda/hopper/forward_output.cuh"
#include "optimized/cuda/hopper/forward_products.cuh"

namespace lethe::hopper::forward_pass {

/// All methods are for all threads of the warpgroup. kEdges: for tiles of several sequences, and windows. Each warpgroup finds where its own rows' keys
/// begin.
template <typename Element, int kDim, bool kRepeat, bool kEdges = false>
struct ForwardConsumer : ForwardProducts<Element, kDim, kRepeat> {
  using Base = ForwardProducts<Element, kDim, kRepeat>;
  using Base::a, Base::shared, Base::rows, Base::warpgroup, Base::warp, Base::lane, Base::offset, Base::tile_row;
  using Base::at, Base::previous, Base::slot, Base::query_buffer_holds_residual, Base::held, Base::frame;
  using Base::await_turn, Base::pass_turn, Base::pin_rows;
  using Base::batch, Base::head, Base::query, Base::first, Base::last, Base::skipped_blocks, Base::cut_block;
  using Base::block, Base::accumulate, Base::fits;
  using Base::kStages, Base::kRows, Base::kWarpgroups, Base::kKeys, Base::kStepsOfBlock;
  using Base::query_operand, Base::key_operand, Base::value_operand, Base::start_unless, Base::block_number;
  using Base::row_frame, Base::cut_within, Base::unseen_blocks, Base::stored, Base::unmasked, Base::last_position;
  using typename Base::Size;

  __device__ __forceinline__ ForwardConsumer(const ForwardParameters& a, Shared<kDim>& shared, Rows<kDim>& rows)
      : Base(a, shared, rows) {}

  __device__ __forceinline__ const Tile<kRows>& tile() const { return shared.tile[slot.index]; }

  // ---- where the tile's queries are ----

  /// The last block that this warpgroup's rows see. One that only the others' rows see is handed back unread.
  __device__ __forceinline__ int own_last(const Tile<kRows>& tile) const {
    return ptx::broadcast(own_last_block<kKeys>(tile, warpgroup, offset, a.key_length));
  }
  __device__ __forceinline__ void skip_keys(const Tile<kRows>& tile) {
    for (int block = ptx::broadcast(tile.last); block > own_last(tile); --block) {
      ptx::mbarrier_wait(&shared.key_full[at.index], at.parity);
      release(&shared.key_empty[at.index], lane);
      at.advance(kStages);
    }
  }
  __device__ __forceinline__ void skip_values() {
    for (int i = 0; i < skipped_blocks; ++i) {
      ptx::mbarrier_wait(&shared.value_full[previous.index], previous.parity);
      release(&shared.value_empty[previous.index], lane);
      previous.advance(kStages);
      await_turn();
      pass_turn();
    }
  }

  __device__ __forceinline__ int in_span(int position) const {  // of the tile's numbers of blocks
    return position / kColumns - (query + offset) / kColumns;
  }
  __device__ __forceinline__ int64_t token(int position) const {
    return static_cast<int64_t>(tile().row) * a.key_blocks * kColumns + position;
  }
  __device__ __forceinline__ int position_of(int h) const {
    return min(query + tile_row + 8 * h + offset, last_position);
  }
  /// log₂e·(c_i − c before a block) of row h.
  __device__ __forceinline__ TwoFloats decay_since(int h, int block) const {
    const double before = a.prefix.base[int64_t{tile().row} * (a.key_blocks + 1) + block];
    return two_floats((prefix_at(a.prefix, tile().row, a.key_blocks, position_of(h)) - before) * std::numbers::log2e);
  }
  __device__ __forceinline__ bool is_exact(int block) const { return kRepeat && tile().strong && block > unmasked; }

  /// The columns of an edge's block that the thread's rows see, as bits.
  __device__ __forceinline__ void find_visible(uint32_t (&visible)[2]) const {
    const auto visibility = visibility_of(a, tile(), (query + offset) / kColumns);
#pragma unroll
    for (int h = 0; h < 2; ++h) visible[h] = ~columns_below(visibility.first_key(position_of(h)) - block * kKeys);
  }

  template <int kPart = Rows<kDim>::kLogits>
  __device__ __forceinline__ void mask_block(int block, OfRows& bias) {
    if constexpr (kRepeat && kGate) {
      if (is_exact(block)) {
        const int of_gate = block / kStepsOfBlock;
        const bool strong = a.prefix.block_sum[int64_t{tile().row} * a.key_blocks + of_gate] < kStrongSum;
        const int64_t first_token = token(block * kKeys);
        add_decay(rows, {decay_since(0, of_gate), decay_since(1, of_gate)}, a.prefix.bias + first_token,
                  strong ? a.prefix.bias_rest + first_token : nullptr);
        bias = {0, 0};
      }
    }
    mask<kDim, kPart>(rows, block * kKeys, query + tile_row + offset, block < cut_block,
                      visibility_of(a, tile(), (query + offset) / kColumns), [&](int h) { return position_of(h); });
  }

  // ---- a tile ----

  __device__ __forceinline__ void enter_tile() {
    const Tile<kRows>& held = tile();
    batch = held.batch, head = held.head, query = ptx::broadcast(held.query);
    first = ptx::broadcast(held.first), last = own_last(held), skipped_blocks = ptx::broadcast(held.last) - last;
    cut_block = ptx::broadcast(held.cut_block);
    unmasked = block_below_diagonal<kKeys>(query + 64 * warpgroup + offset);
    last_position = min(query + kRows + offset, a.key_length) - 1;
    frame = held.frame;
    if constexpr (kEdges && !kRepeat) {
      const OwnEdges own = own_edges<kKeys>(a, held, warpgroup);
      const int unseen = ptx::broadcast(own.first) - first;
      // A step with weights of 0 ends the product of the last weights that are not: a product that waited for its turn
      // after the steps would need one of its own.
      unseen_blocks = max(unseen - 1, 0);
      first += unseen_blocks;
      cut_block = ptx::broadcast(own.cut_block), cut_within = ptx::broadcast(own.cut_within);
    }
    if constexpr (kEdges && kRepeat)
      stored = ptx::broadcast(repeated_groups(a, shared.index[slot.index])) >> warpgroup & 1;
    if constexpr (kRepeat && kGate) {
      // F of the warpgroup's own: of what it sees clean nothing comes after F, so that no sum of large numbers is small
      const int first_own = min(unmasked + 1, last) / kStepsOfBlock;
      frame = a.scratch.base_log2[int64_t{held.row} * (a.key_blocks + 1) + first_own];
      row_frame = {decay_since(0, first_own).high, decay_since(1, first_own).high};
    }
  }

  /// The softmax of the first kPart of a thread's first scores, which come before a scale of the logits above 0; the others are of no visible key.
  template <int kPart>
  __device__ __forceinline__ void weigh_first(OfRows bias, float scale) {
    mask_block<kPart>(last, bias);
    follow_maximum<kDim, kPart>(rows, bias, scale);
    exponentiate<kDim, kPart>(rows, {offset_of(rows, 0, bias), offset_of(rows, 1, bias)}, scale);
#pragma unroll
    for (int i = kPart; i < Rows<kDim>::kLogits; ++i) rows.x[i] = 0;
  }

  /// The softmax of the tile's first scores. What the tile before left is handed back. Short tiles, those of windows, take the scale with the exponent
  /// and leave out the block's second half where it comes after all rows: nothing runs beside this.
  __device__ __forceinline__ void start_rows() {
    constexpr int kLogits = Rows<kDim>::kLogits;
    constexpr bool kShort = kEdges && !kRepeat;
    OfRows first_bias = block_number(at.index);
    float scale = a.scale_log2;
    if (!kShort || scale <= 0 || (a.trial & 2)) {
      scale_scores(rows, scale);
      scale = 1;
    }
    if constexpr (!kShort) mask_block(last, first_bias);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      rows.maximum[h] = -INFINITY;
      rows.sum[h] = 0;
    }
    if constexpr (kShort) {
      constexpr bool kHalves = kDim == 128 || std::is_same_v<Element, __nv_bfloat16>;  // else there are no registers
      const bool half = kHalves && !(a.trial & 1) && query + 64 * warpgroup + 63 + offset < last * kKeys + kKeys / 2;
      if (half) weigh_first<kLogits / 2>(first_bias, scale);
      else weigh_first<kLogits>(first_bias, scale);
    } else {
      follow_maximum(rows, first_bias);
      exponentiate(rows, {offset_of(rows, 0, first_bias), offset_of(rows, 1, first_bias)});
    }
    release(&shared.key_empty[at.index], lane);
    if (query_buffer_holds_residual) {
      if (threadIdx.x % 128 == 0) ptx::bulk_wait_read<0>();
      release(&shared.tile_empty[slot.index ^ 1], lane);
    }
    if constexpr (Size::kOutputBuffer) query_buffer_holds_residual = a.keep_residual;
    skip_values();
    previous = at;
    at.advance(kStages);
    pack_weights<Element>(rows);
    accumulate = false;
    fits = true;
    block = last - 1;
  }

  /// kEdge: of a block before the diagonal that some rows do not see whole, which are of one sequence.
  template <bool kMasked, bool kEdge = false>
  __device__ __forceinline__ void step() {
    ptx::mbarrier_wait(&shared.key_full[at.index], at.parity);
    const uint32_t stage = ptx::broadcast(at.index), value_stage = ptx::broadcast(previous.index),
                   query_slot = ptx::broadcast(slot.index);
    ptx::mbarrier_wait(&shared.value_full[previous.index], previous.parity);
    pin_rows();
    ptx::wgmma_fence();
    this->template issue_scores<!kMasked, true>(query_operand(query_slot), key_operand(stage),
                                                start_unless(kMasked && is_exact(block), stage));
    this->template issue_output<true>(value_operand(value_stage));
    OfRows block_bias = block_number(stage);
    [[maybe_unused]] uint32_t visible[2];
    if constexpr (kEdge) find_visible(visible);
    ptx::wgmma_wait<1>();
    ptx::fence_registers(rows.x);
    if constexpr (kMasked || kRepeat) scale_scores(rows, a.scale_log2);
    if constexpr (kMasked) mask_block(block, block_bias);
    release(&shared.key_empty[stage], lane);  // before the exponentials: the next load takes as long as they do
    [[maybe_unused]] bool moved;
    if constexpr (kMasked || kRepeat) {
      // O of the clean blocks may be beyond float, and a maximum that moves hides it from the sum's bound.
      if constexpr (!kRepeat) fits = fits && rows.sum[0] < kLargestSum / 4 && rows.sum[1] < kLargestSum / 4;
      moved = follow_maximum(rows, block_bias);
      exponentiate(rows, {offset_of(rows, 0, block_bias), offset_of(rows, 1, block_bias)});
    } else if constexpr (kEdge) {
      exponentiate_visible(rows, {block_bias.row[0] - rows.maximum[0], block_bias.row[1] - rows.maximum[1]},
                           a.scale_log2, visible);
    } else {
      // no row is without a maximum: each has seen itself
      exponentiate(rows, {block_bias.row[0] - rows.maximum[0], block_bias.row[1] - rows.maximum[1]}, a.scale_log2);
    }
    // Never so, but every exponential is needed to know: the compiler can't sink them below the wait.
    if (rows.sum[0] + rows.sum[1] < 0) ptx::mbarrier_arrive(&shared.key_empty[stage]);
    ptx::wgmma_wait<0>();
    ptx::fence_registers(rows.output);
    ptx::fence_registers(rows.weights);
    release(&shared.value_empty[value_stage], lane);
    if constexpr (kMasked || kRepeat) {
      if (moved) {
#pragma unroll
        for (int i = 0; i < kDim / 2; ++i) rows.output[i] *= rows.shrink[i / 2 % 2];
      }
    }
    pack_weights<Element>(rows);
    accumulate = true;
    previous = at;
    at.advance(kStages);
    --block;
  }

  /// First the diagonal's blocks and the clean ones down to the last cut; then, masked again, those across it. Rows of one sequence have no need of
  /// a maximum in these: what leaves its format sends no other sequence's rows to the second launch.
  __device__ __forceinline__ void steps() {
#pragma unroll 1
    for (const int masked_down_to : {max(first, unmasked + 1), kEdges && !kRepeat && !cut_within ? INT_MAX : first}) {
#pragma unroll 1
      while (block >= masked_down_to) step<true>();
#pragma unroll 1
      while (block >= max(first, cut_block)) step<false>();
    }
    if constexpr (kEdges && !kRepeat) {
#pragma unroll 1
      while (block >= first) step<false, true>();
      skip_unseen();
    }
  }

  /// Hands back the blocks that are left of the tile, each in its turn. The last weights are 0 there: any value serves as their operand.
  __device__ __forceinline__ void skip_unseen() {
#pragma unroll 1
    for (int i = 0; i < unseen_blocks; ++i) {
      ptx::mbarrier_wait(&shared.key_full[at.index], at.parity);
      release(&shared.key_empty[at.index], lane);
      ptx::mbarrier_wait(&shared.value_full[previous.index], previous.parity);
      release(&shared.value_empty[previous.index], lane);
      await_turn();
      pass_turn();
      previous = at;
      at.advance(kStages);
    }
  }

  /// A tile with a weight that its format can't hold goes on the second launch's list.
  __device__ __forceinline__ void finish_sums() {
#pragma unroll
    for (int h = 0; h < 2; ++h) rows.sum[h] = sum_of_four(rows.sum[h]);
    if (!kRepeat && !__all_sync(~0u, fits && weights_fit<Element>(rows, accumulate)) && lane == 0) {
      if constexpr (kEdges) atomicOr(&repeated_groups(a, shared.index[slot.index]), 1 << warpgroup);
      if (atomicExch(&shared.listed[slot.index], true) == false) list_tile(a, shared.index[slot.index]);
    }
  }

  /// c_i − F, in two parts: what it takes from global memory is wanted after the next product.
  __device__ __forceinline__ void load_row_numbers(float (&row_base)[2], float (&row_bias)[2]) const {
    if constexpr (kGate && !kRepeat) {
      if (lane % 4 == 0) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int position = position_of(h);
          row_base[h] = tile().base[in_span(position)];
          row_bias[h] = load_global(a.prefix.bias + token(position));
        }
      }
    }
  }

  /// Last P·V of this tile and first Q·Kᵀ of the next, of nothing after the last tile; overlaps the output's store. Is there a next tile?
  __device__ __forceinline__ bool change_tile() {
    if (!a.keep_residual) release(&shared.tile_empty[slot.index], lane);
    slot.advance(kTileSlots);
    ptx::mbarrier_wait(&shared.tile_full[slot.index], slot.parity);
    const bool more = ptx::broadcast(tile().row) >= 0;
    if (more) {
      skip_keys(tile());
      ptx::mbarrier_wait(&shared.key_full[at.index], at.parity);
    }
    ptx::mbarrier_wait(&shared.value_full[previous.index], previous.parity);
    const uint32_t stage = ptx::broadcast(at.index), value_stage = ptx::broadcast(previous.index),
                   query_slot = ptx::broadcast(slot.index);
    pin_rows();
    ptx::wgmma_fence();
    this->template issue_output<false>(value_operand(value_stage));
    this->template issue_scores<false, false>(query_operand(query_slot), key_operand(stage),
                                              start_unless(tile().strong, stage));
    ptx::wgmma_wait<1>();
    ptx::fence_registers(rows.output);
    release(&shared.value_empty[value_stage], lane);
    previous.advance(kStages);
    return more;
  }

  /// Of the tile whose last product change_tile() issued, as is what follows.
  __device__ __forceinline__ void store_log_normalizer(const float (&row_base)[2], const float (&row_bias)[2],
                                                       float (&inverse)[2]) const {
    if constexpr (kEdges && kRepeat)
      if (!stored) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      inverse[h] = 1 / rows.sum[h];
      const int row = query + tile_row + 8 * h;
      if (lane % 4 == 0 && row < a.query_length)
        a.log_normalizer[(static_cast<int64_t>(batch) * a.query_length + row) * a.query_heads + head] =
            std::numbers::ln2_v<float> * (rows.maximum[h] + log2_approximate(rows.sum[h]) - row_bias[h]) + row_base[h];
    }
  }

  __device__ __forceinline__ void store_output(const float (&inverse)[2], char* query_rows) {
    if constexpr (kEdges && kRepeat)
      if (!stored) return;
    if (threadIdx.x % 128 == 0) ptx::bulk_wait_read<0>();  // the previous tile's store has left the buffer
    ptx::named_barrier_sync(kStores<kWarpgroups> + warpgroup, 128);
    const int first_row = warpgroup * 64 + warp * 16;
    char* output = shared.query[Size::kQueryBuffers];
    stage_output<Element, false>(rows, inverse, ptx::shared_address(output), kRows, first_row);
    if (a.keep_residual) stage_output<Element, true>(rows, inverse, ptx::shared_address(query_rows), kRows, first_row);
    ptx::fence_async_shared();
    ptx::named_barrier_sync(kStores<kWarpgroups> + warpgroup, 128);
    if (threadIdx.x % 128 != 0) return;
#pragma unroll
    for (int panel = 0; panel < kDim / 64; ++panel) {
      const int bytes = panel * kRows * 128 + warpgroup * 64 * 128, first_row = query + warpgroup * 64;
      ptx::store_tile(&a.output, output + bytes, panel * 64, head, first_row, batch);
      if (a.keep_residual) ptx::store_tile(&a.residual, query_rows + bytes, panel * 64, head, first_row, batch);
    }
    ptx::bulk_commit();
  }

  /// The first tile's first scores. Is there a tile?
  __device__ __forceinline__ bool prologue() {
    if (warpgroup == kWarpgroups - 1) pass_turn();
    ptx::mbarrier_wait(&shared.tile_full[0], 0);
    if (shared.tile[0].row < 0) return false;  // all are left to the second launch
    held.load(ptx::shared_address(shared.query[0]), kRows, warpgroup * 64 + warp * 16);
    skip_keys(shared.tile[0]);
    ptx::mbarrier_wait(&shared.key_full[at.index], at.parity);
    ptx::wgmma_fence();
    const uint32_t first_stage = ptx::broadcast(at.index);
    this->template issue_scores<false, false>(query_operand(0), key_operand(first_stage),
                                              start_unless(shared.tile[0].strong, first_stage));
    ptx::wgmma_wait<0>();
    ptx::fence_registers(rows.x);
    return true;
  }

  __device__ __forceinline__ void consume() {
    if (!prologue()) return;
    for (bool more = true; more;) {  // a tile's first scores have arrived
      enter_tile();
      start_rows();
      steps();
      finish_sums();
      float row_base[2] = {}, row_bias[2] = {}, inverse[2];
      load_row_numbers(row_base, row_bias);
      char* query_rows = shared.query[slot.index];
      more = change_tile();
      store_log_normalizer(row_base, row_bias, inverse);
      store_output(inverse, query_rows);
      ptx::wgmma_wait<0>();
      ptx::fence_registers(rows.x);
    }
    if (threadIdx.x % 128 == 0) ptx::bulk_wait<0>();
  }
};

}  // namespace lethe::hopper::forward_pass
