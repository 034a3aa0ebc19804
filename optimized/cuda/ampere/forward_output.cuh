#pragma once
// The end of a warp's work on a tile of queries: O, what its rounding leaves, and the log-sum-exp to global memory.

#include <numbers>

#include "optimized/cuda/ampere/forward_tile.cuh"

namespace lethe::ampere {

template <typename Element, typename Sizes, bool kEdges>
struct ForwardOutput {
  using Tile = ForwardTile<Element, Sizes, kEdges>;
  static constexpr int kDim = Sizes::kDim, kRowTiles = Sizes::kRowTiles, kOutputTiles = Tile::kOutputTiles;

  const ForwardParameters& p;
  typename Tile::Shared& shared;
  const tile::Tile<Sizes::kRows>& tile;
  const int lane, warp_row;

  __device__ __forceinline__ explicit ForwardOutput(const Tile& of)
      : p(of.p), shared(of.shared), tile(of.tile), lane(of.lane), warp_row(of.warp_row) {}

  __device__ __forceinline__ void store(typename Tile::Registers& r) const {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float inverse = 1 / r.sum[i][h];
#pragma unroll
        for (int d = 0; d < kOutputTiles; ++d)
#pragma unroll
          for (int e = 0; e < 2; ++e) r.output[i][d][2 * h + e] *= inverse;
        const int query = tile.query + warp_row + 16 * i + 8 * h + lane / 4;
        if (lane % 4 == 0 && query < p.query_length)
          p.log_normalizer[(int64_t{tile.batch} * p.query_length + query) * p.query_heads + tile.head] =
              static_cast<float>((r.maximum[i][h] + log2_approximate(r.sum[i][h])) * std::numbers::ln2);
      }
    if constexpr (Tile::kFloat) {
      const int query = tile.query + warp_row;
      store_float_rows<kDim>(r.output, 1, static_cast<float*>(p.values) + tile.head * p.value_dim,
                             int64_t{tile.batch} * p.query_length + query, p.query_length - query,
                             int64_t{p.query_heads} * p.value_dim, p.value_dim);
    } else {
      store_rounded(r);
    }
  }

  __device__ __forceinline__ void store_rounded(typename Tile::Registers& r) const {
    const auto stage = [&](auto word_of) {
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
          for (int d = 0; d < kOutputTiles; ++d)
            *reinterpret_cast<uint32_t*>(shared.query + tile_bytes<kDim>(warp_row) +
                                         ptx::swizzled_chunk<kDim>(16 * i + 8 * h + lane / 4, d) + lane % 4 * 4) =
                word_of(r.output[i][d][2 * h], r.output[i][d][2 * h + 1]);
    };
    __syncwarp();
    stage([](float x, float y) { return pack<Element>(x, y); });
    copy_out(p.values);
    if (!p.residual) return;
    stage([](float x, float y) {
      const float2 rounded = unpack<Element>(pack<Element>(x, y));
      return pack<Element>(x - rounded.x, y - rounded.y);
    });
    copy_out(p.residual);
  }

  /// A warp's rows of 16-bit numbers, from where its queries were.
  __device__ __forceinline__ void copy_out(void* to) const {
    __syncwarp();
    constexpr int kChunks = kDim / 8;
    if constexpr (kEdges && 32 % kChunks == 0) {
      constexpr int kRowsAtOnce = 32 / kChunks;
      const int row = lane / kChunks, chunk = lane % kChunks, query = tile.query + warp_row + row;
      const int64_t first = (int64_t{tile.batch} * p.query_length + query) * p.query_heads + tile.head,
                    apart = int64_t{kRowsAtOnce} * p.query_heads * p.value_dim * sizeof(Element);
      char* out = static_cast<char*>(to) + first * p.value_dim * sizeof(Element) + chunk * 16;
      const int rows = chunk * 8 < p.value_dim ? p.query_length - query : 0;
#pragma unroll
      for (int i = 0; i < 16 * kRowTiles; i += kRowsAtOnce, out += apart)
        if (i < rows)
          *reinterpret_cast<uint4*>(out) = *reinterpret_cast<const uint4*>(shared.query + tile_bytes<kDim>(warp_row) +
                                                                           ptx::swizzled_chunk<kDim>(row + i, chunk));
    } else {
      for (int i = lane; i < 16 * kRowTiles * kChunks; i += 32) {
        const int row = i / kChunks, chunk = i % kChunks, query = tile.query + warp_row + row;
        if (query >= p.query_length || chunk * 8 >= p.value_dim) continue;
        Element* out = static_cast<Element*>(to) +
                       ((int64_t{tile.batch} * p.query_length + query) * p.query_heads + tile.head) * p.value_dim;
        reinterpret_cast<uint4*>(out)[chunk] = *reinterpret_cast<const uint4*>(
            shared.query + tile_bytes<kDim>(warp_row) + ptx::swizzled_chunk<kDim>(row, chunk));
      }
    }
    __syncwarp();
  }
};

}  // namespace lethe::ampere
