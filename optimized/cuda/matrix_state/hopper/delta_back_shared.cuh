#pragma once
// The shared memory of the delta rule's sweep from the last token back: the places of its parts in bytes.

#include "optimized/cuda/matrix_state/hopper/delta_arguments.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_back_units.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_roles.cuh"
#include "optimized/cuda/matrix_state/tiles.cuh"

namespace lethe::matrix_state {

/// kBlocks: of 64 rows of the state. kGroups: of 64 columns, a warpgroup each.
template <int kBlocks, int kGroups>
struct DeltaBackShared : DeltaSweepRoles<kBlocks, kGroups> {
  using DeltaSweepRoles<kBlocks, kGroups>::kStateWarps, DeltaSweepRoles<kBlocks, kGroups>::kTogether;
  static constexpr int kTile = kBlocks * kPanel, kGradient = kTile, kStage = kGradient + kGroups * kPanel;
  /// With one more stage of keys than of the rest, this is empty when R has its queries, before it has its keys.
  static constexpr int kStages = kBlocks == 1 ? 2 : 3, kKeyStages = 3;
  static constexpr bool kEarly = kKeyStages > kStages;
  /// Of a chunk, what solve_chunks has left.
  struct alignas(16) Solved {
    uint4 inverse[kLowerBlocks * 32];  ///< Wᵀ, rounded
    float key_unit[kChunk], key_norm[kChunk];
  };
  struct Small {
    DeltaBackTokens tokens[kStages];
    DeltaBackRows row_units[kStages];
    DeltaBackUnits units[2];        ///< in two places as Pᵀ
    float largest[2][kStateWarps];  ///< of R after a chunk, which is held divided by a unit
    float decay[kStages];           ///< γ_C and the unit of R, over that of the R before
    float next[kStages];            ///< the unit of the R before
    float first_reciprocal;         ///< of the first unit
    uint64_t full[kStages], rows[kStages], weighed[kStages], prepared[kStages], empty[kStages], measured[2], stored;
    uint64_t folded[2];  ///< of float16: Aᵀ of a chunk is there, in two places as Pᵀ
  };
  static constexpr int kKeys = kStages * kStage, kState = kKeys + kKeyStages * kTile,
                       kRows = kState + kGroups * kBlocks * kPanel, kResult = kRows + kGroups * kPanel,
                       kPairs = kResult + (kBlocks == 1 ? kGroups * kPanel : 0), kSolved = kPairs + 2 * kFragments,
                       kSmall = kSolved + kStages * int{sizeof(Solved)};
  static constexpr int kBytes = kSmall + int{sizeof(Small)};
  static_assert(kTogether * (kBytes + 1024) <= 228 * 1024 && kBytes <= 227 * 1024);
};

}  // namespace lethe::matrix_state
