#pragma once
// The shared memory of the delta rule's sweep: the places of its parts in bytes.

#include "optimized/cuda/matrix_state/hopper/delta_arguments.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_roles.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_units.cuh"
#include "optimized/cuda/matrix_state/tiles.cuh"

namespace lethe::matrix_state {

/// kBlocks: of 64 rows of the state. kGroups: of 64 columns, a warpgroup each. kTiles: W and P of two chunks are tiles (delta_sweep_tiles.cuh).
template <int kBlocks, int kGroups, bool kTiles = false>
struct DeltaSweepShared : DeltaSweepRoles<kBlocks, kGroups> {
  using DeltaSweepRoles<kBlocks, kGroups>::kStateWarps, DeltaSweepRoles<kBlocks, kGroups>::kTogether;
  static constexpr bool kDividesFirst = true;
  static constexpr bool kCopiesTokens = kBlocks == 2;  ///< gates and strengths, which the solve has left
  static constexpr int kFullArrivals = kCopiesTokens ? 1 : 1 + kArrivalsOfAWarp;
  static constexpr int kLoadRegisters = 40, kStateRegisters = kBlocks == 1   ? 136
                                                              : kGroups == 1 ? 232
                                                                             : 192;
  static constexpr int kKey = kBlocks * kPanel, kValue = 2 * kKey, kStage = kValue + kGroups * kPanel;
  static constexpr int kStages = 3;
  struct Small {
    DeltaTokens tokens[kStages];
    DeltaTokenUnits units[kStages];
    alignas(16) uint16_t of_state[2][kChunk];  ///< 1/σ by bits_of_power, in two places as P
    float largest[2][kStateWarps];             ///< of the state before a chunk, which is held divided by a unit
    float first_reciprocal;                    ///< of the first unit
    uint64_t full[kStages], values[kStages], rows[kStages], weighed[kStages], prepared[kStages], empty[kStages], measured[2], stored;
  };
  static constexpr int kState = kStages * kStage, kPairs = kState + kGroups * (kTiles ? 1 : kBlocks) * kPanel,
                       kSolved = kPairs + (kTiles ? 4 * kPanel : 2 * kFragments),
                       kSmall = kSolved + kStages * int{sizeof(SolvedChunk)}, kSent = kSmall + int{sizeof(Small)};
  static constexpr int kFoldedBarriers = kSent + 16;      ///< of more than 64 rows: two, of A
  static constexpr int kOutUnits = kFoldedBarriers + 16;  ///< of a stage that is empty before its O is stored
  static constexpr int kBytes = kTiles         ? kOutUnits + kStages * kChunk * int{sizeof(float)}
                                : kBlocks == 2 ? kOutUnits
                                               : kSent;
  static_assert(kTogether * (kBytes + 1024) <= 228 * 1024 && kBytes <= 227 * 1024);
};

/// With tiles, for run_roles() alone. The warps that divide K share their schedulers with those of P's first rows.
template <int kBlocks, int kGroups>
struct DeltaTilesShared : DeltaSweepShared<kBlocks, kGroups, true> {
  static constexpr bool kDividesFirst = false;
  static constexpr int kLoadRegisters = 40, kPrepareRegisters = 88;
  static constexpr int kPreparingWarps = kWarps + 2;  ///< those that divide K weigh W
  static constexpr bool kSends = true;  ///< O by the loading warp, from a place that is `stored` and `sent` in turn
};

}  // namespace lethe::matrix_state
