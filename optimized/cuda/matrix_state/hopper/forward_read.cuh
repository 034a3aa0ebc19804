#pragma once
// O of a forward by one warpgroup, without gates and a normaliser.

#include "optimized/cuda/matrix_state/hopper/forward_output.cuh"
#include "optimized/cuda/matrix_state/hopper/forward_weights.cuh"

namespace lethe::matrix_state {

/// A warpgroup: every chunk. P of the next chunk is computed beside O's products, and weighted after them.
template <typename Call>
__device__ __forceinline__ void read_plain(const Call& call) {
  using Element = typename Call::Element;
  using ptx::Major;
  static_assert(!Call::kGated && !Call::kNormalized);
  constexpr bool kHalf = Call::kHalf;
  constexpr int kBlocks = Call::Shared::kBlocks;
  auto& small = call.small();
  const int lane = call.lane;
  const Place place{call.warp, lane};
  uint32_t weights[16];
  float row_unit[2];
  ptx::RingPosition at, rounded;
  ptx::mbarrier_wait(&small.full[0], 0);
  {
    float scores[32];
    compute_first_weights(call, scores);
    pack_weights<Element>(weights, row_unit, scores);
  }
  for (int n = 0; n < call.chunks; ++n, rounded.advance(2)) {
    const uint32_t index = at.index;
    const char* const tiles = call.stage(index);
    if (n + 1 < call.chunks) {
      at.advance(call.p.stages);
      ptx::mbarrier_wait(&small.full[at.index], at.parity);
    }
    ptx::mbarrier_wait(&small.state_full[rounded.index], rounded.parity);
    float out[32], scores[32];
    ptx::undefined(out);
    ptx::undefined(scores);
    ptx::fence_registers(out);
    ptx::fence_registers(scores);
    ptx::fence_registers(weights);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kBlocks; ++i)
      issue_product<Element, Major::kK, Major::kMN>(out, tiles + i * kPanel,
                                                    call.rounded_state(rounded.index) + i * kPanel, i > 0);
    const auto issue_pairs = [&] {
      issue_product<Element, Major::kMN>(out, weights, tiles + Call::Shared::kValue, true);
    };
    if constexpr (!kHalf) issue_pairs();
    ptx::wgmma_commit();
    // P of the next chunk; after the last one its own once more, so that no product depends on a branch.
    call.issue_scores(scores, call.stage(at.index));
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    ptx::fence_registers(out);
    if constexpr (kHalf) {  // of S in its unit, to P in its rows' units
      const float unit = small.units[rounded.index][0];
      scale_rows(out, unit * reciprocal_of_power(row_unit[0]), unit * reciprocal_of_power(row_unit[1]));
      ptx::fence_registers(out);
      ptx::wgmma_fence();
      issue_pairs();
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      ptx::fence_registers(scores);
      arrive_warp(&small.state_empty[rounded.index], lane);
      call.weigh(scores, at.index);
      ptx::wgmma_wait<0>();
      ptx::fence_registers(out);
      ptx::fence_registers(weights);
      arrive_warp(&small.empty[index], lane);
      write_rows(call, out, row_unit, n, place);
    } else {
      ptx::fence_registers(weights);
      arrive_warp(&small.state_empty[rounded.index], lane);
      write_rows(call, out, row_unit, n, place);
      ptx::wgmma_wait<0>();
      ptx::fence_registers(scores);
      arrive_warp(&small.empty[index], lane);
      call.weigh(scores, at.index);
    }
    pack_weights<Element>(weights, row_unit, scores);
  }
  if (lane == 0) ptx::bulk_wait<0>();
}

}  // namespace lethe::matrix_state
