#pragma once
// A block of keys in the forward: its logits become weights, O += P V, and S of the block before it takes the logits' registers.

#include "optimized/cuda/ampere/float_products.cuh"
#include "optimized/cuda/ampere/fragments.cuh"
#include "optimized/cuda/arithmetic.cuh"

namespace lethe::ampere {

/// The weights of column tile `column` of row tile i, in the place of its logits, and the rows' sums. `hidden`, unless null: the first key that a row
/// sees, less the lane's first column. Returns bits of all four: 0 or at least 2²³, since no weight is subnormal.
template <typename Tile>
__device__ __forceinline__ uint32_t exponentiate(const Tile& tile, typename Tile::Registers& r, int i, int column,
                                                 const float (&offset)[Tile::kRowTiles][2], const int (*hidden)[2]) {
  float(&x)[4] = r.score[i][column];
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    x[e] = exp2_approximate(fmaf(x[e], tile.p.scale_log2, offset[i][e / 2]));
    if (hidden && 8 * column + e % 2 < hidden[i][e / 2]) x[e] = 0;
    r.sum[i][e / 2] += x[e];
  }
  return __float_as_uint(x[0]) | __float_as_uint(x[1]) | __float_as_uint(x[2]) | __float_as_uint(x[3]);
}

/// Weights of block n, O += P V, and with kMore S of the block before it.
template <bool kMore, typename Tile>
__device__ __forceinline__ void float_step(const Tile& tile, typename Tile::Registers& r, int n,
                                           const float (&offset)[Tile::kRowTiles][2]) {
  constexpr int kKeysAtOnce = Tile::kKeysAtOnce;
#pragma unroll
  for (int first = 0; first < Tile::kKeys; first += kKeysAtOnce) {
#pragma unroll
    for (int i = 0; i < Tile::kRowTiles; ++i)
#pragma unroll
      for (int column = 0; column < kKeysAtOnce / 8; ++column)
        exponentiate(tile, r, i, first / 8 + column, offset, nullptr);
#pragma unroll
    for (int k = 0; k < kKeysAtOnce / 16; ++k) tile.own_weights(k).store(r.score, first / 8 + 2 * k);
    if constexpr (kMore) tile.multiply_scores(r, n - 1, first);
#pragma unroll
    for (int k = 0; k < kKeysAtOnce / 16; ++k)
      multiply_float_columns<Tile::kDim>(r.output, tile.own_weights(k),
                                         tile.shared.value[Tile::stage(n)] + tile_bytes<Tile::kPitch>(first + 16 * k));
  }
}

/// The same of 16 bits. The exponentials of sixteen keys run under the products of those before, a part under each sixteen columns of V: ptxas would move
/// them all after these, or before.
template <typename Element, bool kMore, typename Tile>
__device__ __forceinline__ void step_of_16_bits(const Tile& tile, typename Tile::Registers& r, int n,
                                                const float (&offset)[Tile::kRowTiles][2], const int (*hidden)[2]) {
  constexpr int kDim = Tile::kDim, kRowTiles = Tile::kRowTiles, kGroups = Tile::kKeys / 16, kSteps = kDim / 16,
                kTiles = 2 * kRowTiles;
  const auto exponentiate_tile = [&](int group, int of) {
    return exponentiate(tile, r, of % kRowTiles, 2 * group + of / kRowTiles, offset, hidden);
  };
#pragma unroll
  for (int of = 0; of < kTiles; ++of) exponentiate_tile(0, of);
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    uint32_t weights[kRowTiles][4];
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int c = 0; c < 2; ++c)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          weights[i][2 * c + h] = pack<Element>(r.score[i][2 * group + c][2 * h], r.score[i][2 * group + c][2 * h + 1]);
    const uint32_t values = tile.value_address + Tile::stage(n) * sizeof(tile.shared.value[0]) +
                            tile_bytes<kDim>(16 * group) + tile.offsets.left;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      multiply_columns<Element, kDim, kRowTiles>(r.output, weights, values, step);
      const int first = step * kTiles / kSteps, past = (step + 1) * kTiles / kSteps;
      if (group + 1 == kGroups || first == past) continue;
      uint32_t number = 0;
#pragma unroll
      for (int of = first; of < past; ++of) number |= exponentiate_tile(group + 1, of);
      keep_order_at<kGroups * kSteps>(group * kSteps + step, number);
    }
  }
  if constexpr (kMore) tile.multiply_scores(r, n - 1);
}

}  // namespace lethe::ampere
