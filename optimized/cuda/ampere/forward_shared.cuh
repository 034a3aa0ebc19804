#pragma once
// Sizes, arguments and shared memory of the forward kernel.

#include "optimized/cuda/ampere/fragments.cuh"
#include "optimized/cuda/ampere/plan.hpp"
#include "optimized/cuda/tile/order.cuh"

namespace lethe::ampere {

/// Sizes of the forward at a head dim of up to kDim.
template <int kDim>
struct ForwardSizes {
  static constexpr int kRowTiles = kDim <= 128 ? 2 : 1;  // of 16 queries, a warp
  static constexpr int kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kRows = 16 * kRowTiles * kWarps;
  static constexpr int kKeys = kDim <= 32 ? 64 : 32;  // with more, scores leave too few registers
  static constexpr int kKeysAtOnce = 16;
  static constexpr bool kQueriesInRegisters = kDim <= 64;
};

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
};

template <int kDim>
struct ForwardShared {
  using Sizes = ForwardSizes<kDim>;
  alignas(128) char query[tile_bytes<kDim>(Sizes::kRows)];
  alignas(128) char key[2][tile_bytes<kDim>(Sizes::kKeys)];
  alignas(128) char value[2][tile_bytes<kDim>(Sizes::kKeys)];
  float4 bias[2][Sizes::kKeys / 2];  // of the keys in key[]
  TwoFloats base[2];                 // log₂e·c at the end of the block of the keys in value[]
  float row_decay[Sizes::kRows];     // log₂e (c_i − c before the tile's first block)
  int row_first[Sizes::kRows];       // the first key that a row sees
  tile::Tile<Sizes::kRows> tile;
};

}  // namespace lethe::ampere
