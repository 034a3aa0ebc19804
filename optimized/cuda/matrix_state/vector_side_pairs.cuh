#pragma once
// B of a side in vector_sides.cuh, of what all its warps have computed from their channels.

#include "optimized/cuda/matrix_state/vector_side_operands.cuh"

namespace lethe::matrix_state {

/// B of the warp's side: of an eight each where the side has four warps, or of two.
template <int kRowPanels, int kColumnPanels>
struct SidePairs {
  using Element = __nv_bfloat16;
  using Warp = SideWarp<kRowPanels, kColumnPanels>;
  using Shared = VectorSidesShared<kRowPanels, kColumnPanels>;
  static constexpr int kMaxPanels = kRowPanels > kColumnPanels ? kRowPanels : kColumnPanels;
  static_assert(kSideBlocks == 2 && kMaxPanels <= 2);
  const VectorSidesArguments& p;
  const Warp& at;

  /// Calls work with the warp's parts, of four.
  template <typename Work>
  __device__ __forceinline__ void each(Work work) const {
    const int own = at.warp - 2 * Warp::first_panel(at.side);
    work(own);
    if (Warp::panels_of(at.side) == 1) work(own + 2);
  }
  /// Calls work with the byte offset of each of the side's panels, from its first tile on.
  template <typename Work>
  __device__ __forceinline__ void each_panel(Work work) const {
#pragma unroll
    for (int panel = 0; panel < kMaxPanels; ++panel) {
      if (panel >= Warp::panels_of(at.side)) break;
      work(panel * Shared::kTile);
    }
  }
  __device__ __forceinline__ uint32_t side_tile() const {
    return at.shared + Warp::first_panel(at.side) * Shared::kTile;
  }
  __device__ __forceinline__ uint32_t operand_tile(int level) const {
    return side_tile() + Shared::kOperands + level * Shared::kOperand;
  }
  /// An eight of a panel's operand, eight channels a register.
  __device__ __forceinline__ void load_eight(uint32_t tile, int eight, uint32_t (&to)[4]) const {
    ptx::load_matrices_transposed(to, tile + ptx::swizzled_chunk<kSideTokens>(at.lane, eight));
  }
  /// 16 tokens by half a panel's channels: the first eight has registers 0 and 2.
  __device__ __forceinline__ void load_block(uint32_t tile, int block, int half, uint32_t (&to)[4]) const {
    const uint32_t from = tile + ptx::swizzled_chunk<kSideTokens>(at.lane % 8 + at.lane / 16 * 8, at.lane / 8 % 2);
    ptx::load_matrices_transposed(to, steps_right<kSideTokens>(from, block) + half * (16 * kSideTokens * 2));
  }
  /// Adds left · rightᵀ of two eights by 32 channels: to rows 0 to 7 that of 16 channels, to rows 8 to 15 that of the others. What else is in the
  /// rows has no meaning.
  __device__ __forceinline__ static void add_eights(float (&low)[4], float (&high)[4], const uint32_t (&left)[4],
                                                    const uint32_t (&right)[4]) {
    ptx::multiply_add_8(low, left[0], left[1], right[0]);
    ptx::multiply_add_8(high, left[0], left[1], right[1]);
    ptx::multiply_add_8(low, left[2], left[3], right[2]);
    ptx::multiply_add_8(high, left[2], left[3], right[3]);
  }
  __device__ __forceinline__ void put(int row, int piece, float x, float y) const {
    ptx::store_word(at.pairs_of(at.side) + ptx::swizzled_chunk<kSideTokens>(row, piece) + at.lane % 4 * 4,
                    pack<Element>(x * p.scale, y * p.scale));
  }

  /// Pairs of tokens in one eight, and the tokens with themselves.
  __device__ __forceinline__ void within_eights() const {
    const int g = at.lane / 4, t = at.lane % 4;
    const int halving[2] = {halving_of(g, 2 * t), halving_of(g, 2 * t + 1)};
    each([&](int eight) {
      float pairs[2] = {};
      const auto select = [&](int which, const float(&low)[4], const float(&high)[4]) {
#pragma unroll
        for (int e = 0; e < 2; ++e) pairs[e] = halving[e] == which ? low[e] + high[2 + e] : pairs[e];
      };
#pragma unroll
      for (int level = 0; level < 3; ++level) {
        float low[4] = {}, high[4] = {};
        each_panel([&](int panel) {
          uint32_t x[4];
          load_eight(operand_tile(level) + panel, eight, x);
          add_eights(low, high, x, x);
        });
        select(4 >> level, low, high);
      }
      {
        float low[4] = {}, high[4] = {};
        each_panel([&](int panel) {
          uint32_t left[4], right[4];
          const uint32_t from =
              side_tile() + panel + ptx::swizzled_chunk<Shared::kPanel>(8 * eight + at.lane % 8, at.lane / 8);
          ptx::load_matrices(left, from);
          ptx::load_matrices(right, from + Shared::kRight);
          add_eights(low, high, left, right);
        });
        select(0, low, high);
      }
      if (g / 2 == t)
        ptx::store_word(at.pairs_of(at.side) + Shared::kDiagonal + (8 * eight + g) * 4,
                        __float_as_uint(p.scale * (g % 2 ? +pairs[1] : +pairs[0])));
      put(8 * eight + g, eight, pairs[0], pairs[1]);
      if (eight % 2 == 0) put(8 * eight + g, eight + 1, 0.0f, 0.0f);
    });
  }

  /// Pairs of the second block with each eight of the first one; and of each block's two eights.
  __device__ __forceinline__ void beyond_eights() const {
    const int g = at.lane / 4;
    each([&](int part) {
      float sum[4] = {};
      if (part < 2) {
        each_panel([&](int panel) {
          const uint32_t tile = operand_tile(0) + panel;
          uint32_t left[2][4], right[4];
          load_eight(tile, part, right);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            load_block(tile, 1, half, left[half]);
            ptx::multiply_add<Element>(sum, left[half], right[2 * half], right[2 * half + 1]);
          }
        });
#pragma unroll
        for (int e = 0; e < 2; ++e) put(kBlock + g + 8 * e, part, sum[2 * e], sum[2 * e + 1]);
        return;
      }
      const int block = part - 2;
      each_panel([&](int panel) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t x[4];
          load_block(operand_tile(1) + panel, block, half, x);
          ptx::multiply_add_8(sum, x[0], x[1], x[0]);
          ptx::multiply_add_8(sum, x[2], x[3], x[2]);
        }
      });
      put(kBlock * block + g + 8, 2 * block, sum[2], sum[3]);
    });
  }
};

}  // namespace lethe::matrix_state
