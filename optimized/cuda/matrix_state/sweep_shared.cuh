#pragma once
// The shared memory of a sweep: the places of its parts in bytes.

#include "optimized/cuda/matrix_state/chunk_gates.cuh"
#include "optimized/cuda/matrix_state/crossings.cuh"
#include "optimized/cuda/matrix_state/tiles.cuh"

namespace lethe::matrix_state {

template <int kRows, int kColumns, Role kRole>
struct SweepShared {
  static constexpr bool kHasPartner = kRole != Role::kRead;
  static constexpr int kTile = kPanelsOf<kRows> * kPanel, kNarrow = kPanelsOf<kColumns> * kPanel;
  static constexpr int kKey = kTile, kValue = 2 * kTile, kPartner = kValue + kNarrow;
  static constexpr int kStage = kPartner + (kHasPartner ? kNarrow : 0);
  static constexpr int kStages = kRows == 64 ? 3 : 2;
  static constexpr int kState = kStages * kStage, kGates = kState + kRows * kColumns * 2;
  static constexpr int kCrossings = kGates + 2 * sizeof(ChunkGates);
  static constexpr int kLargest = kCrossings + (kHasPartner ? 2 * sizeof(Crossings) : 0);
  static constexpr int kFull = kLargest + kWarps * sizeof(float);  // mbarriers
  static constexpr int kBytes = kFull + kStages * sizeof(uint64_t);
};

}  // namespace lethe::matrix_state
