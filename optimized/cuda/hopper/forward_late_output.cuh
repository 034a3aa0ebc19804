#pragma once
// The forward's consumer for windows and packed sequences, whose tiles have few blocks: what lies between two tiles is shorter. The next tile's first S is
// issued before the last P·V of this one, its softmax runs under that, and the output leaves under the second S.

#include "optimized/cuda/hopper/forward_consumer.cuh"

namespace lethe::hopper::forward_pass {

/// All methods are for all threads of the warpgroup.
template <typename Element, int kDim>
struct LateOutputConsumer : ForwardConsumer<Element, kDim, false, true> {
  using Base = ForwardConsumer<Element, kDim, false, true>;
  using Base::a, Base::shared, Base::rows, Base::warpgroup, Base::lane, Base::offset;
  using Base::at, Base::previous, Base::slot, Base::batch, Base::head, Base::query, Base::first, Base::last;
  using Base::block, Base::accumulate, Base::fits, Base::unmasked, Base::cut_block;
  using Base::kRows, Base::kStages, Base::kKeys;
  using Base::pin_rows, Base::tile;

  /// Of the tile before, whose output is in the accumulators.
  struct Output {
    bool exists = false;
    int batch, head, query;
    float inverse[2];
    char* query_rows;
  };

  __device__ __forceinline__ LateOutputConsumer(const ForwardParameters& a, Shared<kDim>& shared, Rows<kDim>& rows)
      : Base(a, shared, rows) {}

  /// First Q·Kᵀ of the next tile and last P·V of this one; after the last tile Q·Kᵀ is of nothing. Is there a next tile?
  __device__ __forceinline__ bool change_tile() {
    if (!a.keep_residual) release(&shared.tile_empty[slot.index], lane);
    slot.advance(kTileSlots);
    ptx::mbarrier_wait(&shared.tile_full[slot.index], slot.parity);
    const bool more = ptx::broadcast(tile().row) >= 0;
    if (more) {
      this->skip_keys(tile());
      ptx::mbarrier_wait(&shared.key_full[at.index], at.parity);
    }
    ptx::mbarrier_wait(&shared.value_full[previous.index], previous.parity);
    const uint32_t stage = ptx::broadcast(at.index), value_stage = ptx::broadcast(previous.index),
                   query_slot = ptx::broadcast(slot.index);
    pin_rows();
    ptx::wgmma_fence();
    this->template issue_scores<false, false>(this->query_operand(query_slot), this->key_operand(stage),
                                              this->start_unless(tile().strong, stage));
    this->template issue_output<false>(this->value_operand(value_stage));
    return more;
  }

  /// The last P·V of the tile before, if there is one.
  __device__ __forceinline__ void finish_product(bool exists) {
    ptx::wgmma_wait<0>();
    ptx::fence_registers(rows.output);
    ptx::fence_registers(rows.weights);
    if (exists) release(&shared.value_empty[previous.index], lane);
    previous.advance(kStages);
  }

  /// The softmax of the tile's first scores, which have arrived. The last product of the tile before ends under it.
  __device__ __forceinline__ void start_rows(bool product_runs) {
    OfRows first_bias = this->block_number(at.index);
    scale_scores(rows, a.scale_log2);
    this->mask_block(last, first_bias);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      rows.maximum[h] = -INFINITY;
      rows.sum[h] = 0;
    }
    follow_maximum(rows, first_bias);
    release(&shared.key_empty[at.index], lane);
    exponentiate(rows, {offset_of(rows, 0, first_bias), offset_of(rows, 1, first_bias)});
    if (rows.sum[0] + rows.sum[1] < 0) ptx::mbarrier_arrive(&shared.key_empty[at.index]);  // never: as in a step
    finish_product(product_runs);
    this->skip_values();
    previous = at;
    at.advance(kStages);
    pack_weights<Element>(rows);
    accumulate = false;
    fits = true;
    block = last - 1;
  }

  __device__ __forceinline__ void leave(const Output& output) {
    this->store_output(output.inverse, output.query_rows, output.batch, output.head, output.query);
  }

  /// A step of a block that all rows see whole; the output of the tile before leaves under S. The turn is passed before that.
  __device__ __forceinline__ void leaving_step(const Output& output) {
    ptx::mbarrier_wait(&shared.key_full[at.index], at.parity);
    const uint32_t stage = ptx::broadcast(at.index), value_stage = ptx::broadcast(previous.index),
                   query_slot = ptx::broadcast(slot.index);
    ptx::mbarrier_wait(&shared.value_full[previous.index], previous.parity);
    pin_rows();
    ptx::wgmma_fence();
    this->template issue_scores<true, true>(this->query_operand(query_slot), this->key_operand(stage),
                                            this->start_unless(false, stage));
    this->pass_turn();
    leave(output);
    ptx::wgmma_fence();
    this->template issue_output<false>(this->value_operand(value_stage));
    this->template finish_step<false, false>(stage, value_stage);
  }

  /// A tile's output leaves while the next one is computed. With a residual, which leaves from the tile's queries, these are then handed back.
  __device__ __forceinline__ void leave_output(const Output& output) {
    if (!output.exists) return;
    if (block >= max(first, cut_block) && block <= unmasked) leaving_step(output);
    else leave(output);
    if (!a.keep_residual) return;
    if (threadIdx.x % 128 == 0) ptx::bulk_wait_read<0>();
    release(&shared.tile_empty[slot.index ^ 1], lane);
  }

  static __device__ __forceinline__ void keep_uniform(ptx::RingPosition& ring) {
    ring = {.index = uint32_t(ptx::in_uniform_register(ring.index)),
            .parity = uint32_t(ptx::in_uniform_register(ring.parity))};
  }

  __device__ __forceinline__ void consume() {
    if (!this->prologue()) return;
    Output output;
    previous = {.index = kStages - 1, .parity = 1};  // before the first block
    for (bool more = true; more;) {                  // a tile's first scores have arrived
      this->enter_tile();
      start_rows(output.exists);
      leave_output(output);
      keep_uniform(at), keep_uniform(previous), keep_uniform(slot);
      this->steps();
      this->finish_sums();
      float row_base[2] = {}, row_bias[2] = {};
      this->load_row_numbers(row_base, row_bias);
      output.exists = true, output.batch = batch, output.head = head, output.query = query;
      output.query_rows = shared.query[slot.index];
      more = change_tile();
      this->store_log_normalizer(row_base, row_bias, output.inverse);
      ptx::wgmma_wait<1>();
      ptx::fence_registers(rows.x);
    }
    finish_product(true);
    leave(output);
    if (threadIdx.x % 128 == 0) ptx::bulk_wait<0>();
  }
};

}  // namespace lethe::hopper::forward_pass
