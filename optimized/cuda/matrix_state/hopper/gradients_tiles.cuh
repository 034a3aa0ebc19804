#pragma once
// A state of two tiles of columns in the gradients' kernel, a CTA each, one beside the other in number. dv, S and R are a tile's own; dq, dk and d log f
// are sums over tiles: the first one's CTA stores its part, rounded as a result is, and the second one's adds to that. So equal calls give equal bits.
//
// The second waits for the first, whose number is lower by one and which waits for no second one: it runs already, or has ended. Where a piece waits for
// the one before (sweep_grad_states), that is of the same tile and has a lower number, too. So no CTA waits for one that cannot begin.
//
// Warps that store dq and dk would wait for a release and an acquire once a chunk; a warp of each CTA that has no other work does that in their place.

#include "optimized/cuda/matrix_state/hopper/gradients_gates.cuh"
#include "optimized/cuda/matrix_state/hopper/gradients_shared.cuh"
#include "optimized/cuda/ptx/publish.cuh"

namespace lethe::matrix_state {

/// A warp of the first tile that stores dq and dk, in a stage's chunk or after the last one: those of the chunks before are complete, as are all groups
/// of copies but the kYounger last ones.
template <int kYounger, typename Call>
__device__ __forceinline__ void note_stored(const Call& call, const ptx::RingPosition& at) {
  if constexpr (Call::kTwoTiles) {
    if (!call.is_first()) return;
    auto& tiles = call.tiles();
    ptx::mbarrier_wait(&tiles.passed[at.index], at.parity ^ 1);
    if (arrives(call.lane)) {
      ptx::bulk_wait<kYounger>();
      ptx::mbarrier_arrive(&tiles.stored[at.index]);
    }
    __syncwarp();
  }
}

/// A warp of the first tile: what those noted, to the other CTA.
template <typename Call>
__device__ __forceinline__ void publish_stored(const Call& call) {
  auto& tiles = call.tiles();
  ptx::RingPosition at;
  const auto publish = [&](int done) {
    ptx::mbarrier_wait(&tiles.stored[at.index], at.parity);
    ptx::store_release_if(call.lane == 0, call.tile_marks(), done);
  };
  call.each_chunk([&](const auto& chunk) {
    publish(call.done_with(chunk.first) - 1);
    arrive_warp(&tiles.passed[at.index], call.lane);
    at.advance(Call::Shared::kStages);
  });
  publish(call.done_at_end());
}

/// A warp of the second tile: until the first has dq and dk of a chunk, which may then be added to, for every chunk.
template <typename Call>
__device__ __forceinline__ void wait_for_first_tile(const Call& call) {
  wait_for_previous_kernel();  // which clears marks
  auto& small = call.small();
  const int32_t* const mark = call.tile_marks();
  ptx::RingPosition at;
  call.each_chunk([&](const auto& chunk) {
    const int done = call.done_with(chunk.first);
    while (!__all_sync(kAllLanes, ptx::load_acquire(mark) >= done)) __nanosleep(64);
    ptx::fence_async_global();
    ptx::mbarrier_wait(&small.empty[at.index], at.parity ^ 1);  // the stage's chunk before has been added
    arrive_warp(&call.tiles().passed[at.index], call.lane);
    at.advance(Call::Shared::kStages);
  });
}

/// A warp of the second tile that stores dq and dk, before it adds those of a stage's chunk.
template <typename Call>
__device__ __forceinline__ void wait_until_first_done(const Call& call, const ptx::RingPosition& at) {
  if constexpr (Call::kTwoTiles) {
    if (call.adds()) ptx::mbarrier_wait(&call.tiles().passed[at.index], at.parity);
  }
}

/// The warp of d log f, of the first tile: those of the chunks so far.
template <typename Call>
__device__ __forceinline__ void publish_gate_gradient(const Call& call, int done) {
  if constexpr (Call::kTwoTiles) {
    if (!call.is_first()) return;
    __threadfence();
    __syncwarp();
    ptx::store_release_if(call.lane == 0, call.tile_marks() + 1, done);
  }
}

/// The same warp, of either tile: that of the chunk that begins at `first`, whose crossings are there after wait(). Before that the first publishes
/// the chunk before, and the second waits for this one.
template <typename Call, typename Wait>
__device__ __forceinline__ void store_gate_gradient_of_tile(const Call& call, const FusedCrossings& crossings,
                                                            const Cuts& cuts, int64_t first, Wait wait) {
  const auto& p = call.p;
  const int done = call.done_with(first);
  publish_gate_gradient(call, done - 1);
  while (call.adds() && !__all_sync(kAllLanes, ptx::load_acquire(call.tile_marks() + 1) >= done)) __nanosleep(64);
  wait();
  const float2 both = gate_gradient<true>(crossings, cuts, call.lane);
  const float x[2] = {both.x, both.y};
  float* const to = p.grad_gate + (call.b * p.length + first) * p.heads + call.h;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (const int n = 2 * call.lane + i; n < p.length - first) {
      float* const own = to + int64_t{1} * n * p.heads;
      *own = call.adds() ? __ldcg(own) + x[i] : x[i];
    }
  }
}

}  // namespace lethe::matrix_state
