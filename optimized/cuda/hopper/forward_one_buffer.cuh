#pragma once
// The forward's consumer where there is shared memory for one tile's queries alone: a tile's output leaves from their place, and then its residual. The
// next tile's first keys and values arrive meanwhile, its queries after it.

#include "optimized/cuda/hopper/forward_consumer.cuh"

namespace lethe::hopper::forward_pass {

/// All methods are for all threads of the warpgroup, whose own 64 rows of the buffer they overwrite.
template <typename Element, int kDim, bool kRepeat>
struct OneBufferConsumer : ForwardConsumer<Element, kDim, kRepeat> {
  using Base = ForwardConsumer<Element, kDim, kRepeat>;
  using Base::a, Base::shared, Base::rows, Base::warpgroup, Base::warp, Base::lane;
  using Base::at, Base::previous, Base::slot, Base::batch, Base::head, Base::query;
  using Base::kRows, Base::kStages, Base::kWarpgroups;

  __device__ __forceinline__ OneBufferConsumer(const ForwardParameters& a, Shared<kDim>& shared, Rows<kDim>& rows)
      : Base(a, shared, rows) {}

  /// Last P·V of the tile.
  __device__ __forceinline__ void finish_output() {
    ptx::mbarrier_wait(&shared.value_full[previous.index], previous.parity);
    const uint32_t value_stage = ptx::broadcast(previous.index);
    ptx::fence_registers(rows.output);
    ptx::fence_registers(rows.weights);
    ptx::wgmma_fence();
    this->template issue_output<false>(this->value_operand(value_stage));
    ptx::wgmma_wait<0>();
    ptx::fence_registers(rows.output);
    release(&shared.value_empty[value_stage], lane);
    previous.advance(kStages);
  }

  /// Rows of the output, or of its residual, over the queries; returns when the copy engine has read them, in thread 0.
  template <bool kResidual>
  __device__ __forceinline__ void store(const CUtensorMap& map) {
    constexpr float kNormalized[2] = {1, 1};
    char* output = shared.query[0];
    // Nothing computed from O is kept from one store to the other: there are no registers.
    ptx::fence_registers(rows.output);
    ptx::named_barrier_sync(kStores<kWarpgroups> + warpgroup, 128);  // nothing reads these rows any more
    stage_output<Element, kResidual>(rows, kNormalized, ptx::shared_address(output), kRows, warpgroup * 64 + warp * 16);
    ptx::fence_async_shared();
    ptx::named_barrier_sync(kStores<kWarpgroups> + warpgroup, 128);
    if (threadIdx.x % 128 == 0) {
#pragma unroll
      for (int panel = 0; panel < kDim / 64; ++panel)
        ptx::store_tile(&map, output + panel * kRows * 128 + warpgroup * 64 * 128, panel * 64, head,
                        query + warpgroup * 64, batch);
      ptx::bulk_commit();
      ptx::bulk_wait_read<0>();
    }
    __syncwarp();
  }

  /// The next tile's first scores. Is there a next tile?
  __device__ __forceinline__ bool next_tile() {
    slot.advance(kTileSlots);
    ptx::mbarrier_wait(&shared.tile_full[slot.index], slot.parity);
    if (ptx::broadcast(this->tile().row) < 0) return false;
    this->held.load(ptx::shared_address(shared.query[0]), kRows, warpgroup * 64 + warp * 16);
    this->skip_keys(this->tile());
    ptx::mbarrier_wait(&shared.key_full[at.index], at.parity);
    ptx::wgmma_fence();
    const uint32_t stage = ptx::broadcast(at.index);
    this->template issue_scores<false, false>(this->query_operand(0), this->key_operand(stage),
                                              this->start_unless(this->tile().strong, stage));
    ptx::wgmma_wait<0>();
    ptx::fence_registers(rows.x);
    return true;
  }

  __device__ __forceinline__ void consume() {
    if (!this->prologue()) return;
    for (bool more = true; more;) {
      this->enter_tile();
      this->start_rows();
      this->steps();
      this->finish_sums();
      float row_base[2] = {}, row_bias[2] = {}, inverse[2];
      this->load_row_numbers(row_base, row_bias);
      finish_output();
      this->store_log_normalizer(row_base, row_bias, inverse);
#pragma unroll
      for (int i = 0; i < kDim / 2; ++i) rows.output[i] *= inverse[i / 2 % 2];
      store<false>(a.output);
      if (a.keep_residual) store<true>(a.residual);
      release(&shared.tile_empty[slot.index], lane);
      more = next_tile();
    }
    if (threadIdx.x % 128 == 0) ptx::bulk_wait<0>();
  }
};

}  // namespace lethe::hopper::forward_pass
