#pragma once
// The shared memory of a sweep: the places of its parts in bytes.

#include "optimized/cuda/matrix_state/chunk_gates.cuh"
#include "optimized/cuda/matrix_state/crossings.cuh"
#include "optimized/cuda/matrix_state/tile_ring.cuh"

namespace lethe::matrix_state {

template <int kRows, int kColumns, Role kRole>
struct SweepShared {
  static constexpr bool kHasPartner = kRole != Role::kRead;
  static constexpr int kTile = kPanelsOf<kRows> * kPanel, kNarrow = kPanelsOf<kColumns> * kPanel;
  static constexpr int kKey = kTile, kValue = 2 * kTile, kPartner = kValue + kNarrow;
  static constexpr int kStage = kPartner + (kHasPartner ? kNarrow : 0);
  using Ring = TileRing<kStage>;
  static constexpr int kState = Ring::kBytes, kOut = kState + kRows * kColumns * 2, kGates = kOut + kNarrow;
  static constexpr int kCrossings = kGates + kSegmentChunks * sizeof(ChunkGates);
  static constexpr int kLargest = kCrossings + (kHasPartner ? 2 * sizeof(Crossings) : 0);
  static constexpr int kFull = kLargest + kWarps * sizeof(float);  // mbarriers
  static constexpr int kBytes = kFull + Ring::kStages * sizeof(uint64_t);
  /// CTAs of a multiprocessor that their registers and 227 KB of shared memory allow.
  static constexpr int kTogether = kRows == 64 ? (kHasPartner ? 2 : 3) : kRows == 128 && !kHasPartner ? 2 : 1;
};

}  // namespace lethe::matrix_state
