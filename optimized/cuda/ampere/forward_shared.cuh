#pragma once
// Sizes, arguments and shared memory of the forward kernel.

#include <type_traits>

#include "optimized/cuda/ampere/float_products.cuh"
#include "optimized/cuda/ampere/fragments.cuh"
#include "optimized/cuda/ampere/plan.hpp"
#include "optimized/cuda/tile/order.cuh"

namespace lethe::ampere {

/// Sizes of the forward at a head dim of up to kHeadDim. A row in shared memory has the bytes of kPitch 16-bit elements.
template <int kHeadDim>
struct ForwardSizes {
  static constexpr int kDim = kHeadDim, kPitch = kDim;
  static constexpr int kRowTiles = kDim <= 128 ? 2 : 1;  // of 16 queries, a warp
  static constexpr int kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kRows = 16 * kRowTiles * kWarps;
  static constexpr int kKeys = kDim <= 32 ? 64 : 32;  // with more, scores leave too few registers
  static constexpr int kKeysAtOnce = kDim == 96 ? kKeys : 16, kStages = 2;
  // The first sixteen columns of queries that stay in registers, by what these hold beside output and scores.
  static constexpr int kHeldSteps = kDim <= 64 ? kDim / 16 : kDim == 96 ? 4 : 0;
  // K and V come from running addresses, as those of windows do: at 32 and 256 slower.
  static constexpr bool kRunning = kDim >= 64 && kDim <= 128;
};

/// The same of floats.
template <int kHeadDim>
struct FloatForwardSizes {
  static constexpr int kDim = kHeadDim, kPitch = 2 * kDim;
  static constexpr int kRowTiles = 2;
  static constexpr int kWarps = kDim <= 64 ? 4 : 2, kThreads = 32 * kWarps;
  static constexpr int kRows = 16 * kRowTiles * kWarps;
  static constexpr int kKeys = kDim <= 64 ? 32 : 16;
  static constexpr int kKeysAtOnce = kKeys, kStages = 2;
  static constexpr int kHeldSteps = 0;
  static constexpr bool kRunning = false;  // for want of registers
};

template <typename Element, int kDim>
using ForwardSizesOf = std::conditional_t<std::is_same_v<Element, float>, FloatForwardSizes<kDim>, ForwardSizes<kDim>>;

struct ForwardParameters : tile::ForwardShape {
  Operand query, key, value;
  Scratch scratch;
  int key_dim, value_dim;
  float scale_log2;
  double inverse_scale;
  float inverse_scale_log2;
  void *values, *residual;
  float* log_normalizer;
  int64_t* visited_pairs;
  int64_t key_block_bytes, value_block_bytes;  // of kKeys rows
};

template <typename Sizes>
struct ForwardShared {
  static constexpr int kPitch = Sizes::kPitch;
  alignas(128) char query[tile_bytes<kPitch>(Sizes::kRows)];
  static constexpr int kStages = Sizes::kStages;
  alignas(128) char key[kStages][tile_bytes<kPitch>(Sizes::kKeys)];
  alignas(128) char value[kStages][tile_bytes<kPitch>(Sizes::kKeys)];
  float4 bias[kStages][Sizes::kKeys / 2];       // of the keys in key[], before the near blocks
  float4 near_bias[kStages][Sizes::kKeys / 2];  // of those in value[], in near blocks
  TwoFloats base[kStages];                      // log₂e·c at the end of the block of the keys in value[]
  float row_decay[Sizes::kRows];                // log₂e (c_i − c before the tile's first block)
  int row_first[Sizes::kRows];                  // the first key that a row sees
  tile::Tile<Sizes::kRows> tile;
};

template <typename Sizes>
struct FloatForwardShared : ForwardShared<Sizes> {
  FloatWeights<Sizes::kRowTiles> weights[Sizes::kWarps][Sizes::kKeysAtOnce / 16];
};

template <typename Element, typename Sizes>
using ForwardSharedOf =
    std::conditional_t<std::is_same_v<Element, float>, FloatForwardShared<Sizes>, ForwardShared<Sizes>>;

}  // namespace lethe::ampere
