#pragma once
// O of a forward whose CTA has a multiprocessor alone, by two warpgroups: one took longer for a chunk than memory did.

#include "optimized/cuda/matrix_state/hopper/forward_output.cuh"
#include "optimized/cuda/matrix_state/hopper/forward_weights.cuh"

namespace lethe::matrix_state {

/// One of the two: every other chunk, without gates and a normaliser. P comes beside Q S, while the other warpgroup has the chunk before.
template <typename Call>
__device__ __forceinline__ void read_in_turn(const Call& call) {
  using Element = typename Call::Element;
  using ptx::Major;
  static_assert(!Call::kGated && !Call::kNormalized && Call::Shared::kStateWarps == kWarps);
  constexpr bool kHalf = Call::kHalf;
  auto& small = call.small();
  const int reader = call.reader, lane = call.lane;
  const Place place{call.warp, lane};
  ptx::RingPosition at;
  if (reader == 1) at.advance(call.p.stages);
  uint32_t parity = 0;  // of this reader's rounded states
  for (int n = reader; n < call.chunks; n += 2, parity ^= 1) {
    const char* const tiles = call.stage(at.index);
    float out[32], scores[32], row_unit[2];
    uint32_t weights[16];
    ptx::undefined(scores);
    ptx::undefined(out);
    ptx::mbarrier_wait(&small.full[at.index], at.parity);
    ptx::fence_registers(scores);
    ptx::wgmma_fence();
    call.issue_scores(scores, tiles);
    ptx::wgmma_commit();
    ptx::mbarrier_wait(&small.state_full[reader], parity);
    ptx::fence_registers(out);
    ptx::wgmma_fence();
    issue_product<Element, Major::kK, Major::kMN>(out, tiles, call.rounded_state(reader), false);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    ptx::fence_registers(scores);
    call.weigh(scores, at.index);
    pack_weights<Element>(weights, row_unit, scores);
    ptx::wgmma_wait<0>();
    ptx::fence_registers(out);
    if constexpr (kHalf) {  // of S in its unit, to P in its rows' units
      const float unit = small.units[reader][0];
      scale_rows(out, unit * reciprocal_of_power(row_unit[0]), unit * reciprocal_of_power(row_unit[1]));
      ptx::fence_registers(out);
    }
    arrive_warp(&small.state_empty[reader], lane);
    ptx::fence_registers(weights);
    ptx::wgmma_fence();
    issue_product<Element, Major::kMN>(out, weights, tiles + Call::Shared::kValue, true);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::fence_registers(out);
    ptx::fence_registers(weights);
    arrive_warp(&small.empty[at.index], lane);
    write_rows(call, out, row_unit, n, place);
    at.advance(call.p.stages);
    at.advance(call.p.stages);
  }
  if (lane == 0) ptx::bulk_wait<0>();
}

}  // namespace lethe::matrix_state
