#pragma once
// Arguments and shared memory of the forward kernel.

#include <type_traits>

#include "optimized/cuda/ampere/float_products.cuh"
#include "optimized/cuda/ampere/fragments.cuh"
#include "optimized/cuda/ampere/plan.hpp"
#include "optimized/cuda/ampere/sizes.hpp"
#include "optimized/cuda/tile/order.cuh"

namespace lethe::ampere {

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
