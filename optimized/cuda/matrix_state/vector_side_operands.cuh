#pragma once
// What a warp of vector_sides.cuh makes of its 16 channels, and of the products of both warps' or all four.

#include "optimized/cuda/matrix_state/vector_block.cuh"
#include "optimized/cuda/matrix_state/vector_chunk.cuh"

namespace lethe::matrix_state {

/// One side: its operands and gates, [B, T, H, channels], and its gradients, contiguous.
struct VectorSide {
  Operand left, right, gate;     ///< a, b and the gates' logarithms in float
  void *grad_left, *grad_right;  ///< grad_left null: not wanted
  float* grad_gate;
  int channels;
};

struct VectorSidesArguments {
  VectorSide sides[2];  ///< rows, columns
  int64_t length;
  int batch, heads;
  float scale;
  const uint4 *states, *grad_states;  ///< of vector_side_states: S before each chunk and R after it
};

template <int kRowPanels, int kColumnPanels>
struct VectorSidesShared {
  static constexpr int kPanels = kRowPanels + kColumnPanels, kWarps = 2 * kPanels, kPanel = 32;
  static constexpr int kTile = kTokens * kPanel * 2;
  /// a and b, tokens by channels, then E ∘ a and D_C ∘ b; logarithms of gates, then gates, then d log f; three halvings' operands, channels by tokens.
  static constexpr int kRight = kPanels * kTile, kGates = 2 * kRight, kOperands = 2 * kGates,
                       kOperand = kPanels * kTile;
  /// Of each side B and its diagonal, as PairRecord has them; S and R, rows by columns; E_C; products of eights, then sums.
  static constexpr int kPairs = kOperands + 3 * kOperand, kPairBytes = PairRecord::kUnits,
                       kStates = kPairs + 2 * kPairBytes, kColumns = kColumnPanels * kPanel,
                       kState = kRowPanels * kPanel * kColumns * 2, kTotals = kStates + 2 * kState,
                       kProducts = kTotals + kPanels * kPanel * 4, kBytes = kProducts + kWarps * 4 * 128;
};

/// Byte offset of the gate of a token and one of a panel's channels: as gate_offset.
__device__ __forceinline__ uint32_t side_gate_offset(int token, int channel) {
  return (token * 32 + (channel ^ (token >> 1 & 3) << 3)) * 4;
}

/// One of a panel's two warps copies a, b and the gates of half of a chunk's tokens.
template <typename Shared>
__device__ __forceinline__ void load_side(const VectorSide& from, const RowTile& place, int64_t length, uint32_t shared,
                                          int panel, int half, int lane) {
  const uint32_t tile = shared + panel * Shared::kTile, gates = shared + Shared::kGates + panel * (2 * Shared::kTile);
#pragma unroll 1
  for (int block = 2 * half; block < 2 * half + 2; ++block) {
    const int64_t first = place.first() + kBlock * block;
    copy_rows<2, 4>(from.left, place, first, length, place.row, from.channels, lane,
                    tile_rows<32>(tile, kBlock * block));
    copy_rows<2, 4>(from.right, place, first, length, place.row, from.channels, lane,
                    tile_rows<32>(tile + Shared::kRight, kBlock * block));
    copy_rows<4, 8>(from.gate, place, first, length, place.row, from.channels, lane,
                    [&](int row, int piece, int further) {
                      return gates + side_gate_offset(kBlock * block + row + further, 4 * piece);
                    });
  }
}

/// Where a warp is: its head and chunk, its side, and its 16 channels.
template <int kRowPanels, int kColumnPanels>
struct SideWarp {
  using Shared = VectorSidesShared<kRowPanels, kColumnPanels>;
  const VectorSidesArguments& p;
  uint32_t shared;
  int warp, lane, panel, side, half;
  RowTile place;

  __device__ __forceinline__ SideWarp(const VectorSidesArguments& p, uint32_t shared)
      : p(p), shared(shared), warp(__shfl_sync(kEveryLane, threadIdx.x / 32, 0)), lane(threadIdx.x % 32),
        panel(warp / 2), side(panel >= kRowPanels), half(warp % 2) {
    const unsigned heads = p.batch * p.heads, head = blockIdx.x % heads;
    place = {head,
             head / p.heads,
             head % p.heads,
             head,
             (panel - side * kRowPanels) * Shared::kPanel,
             static_cast<int>((p.length + kTokens - 1) / kTokens),
             static_cast<int>(blockIdx.x / heads)};
  }
  /// Panels of a side, and the first of them.
  __device__ __forceinline__ static int panels_of(int side) { return side ? kColumnPanels : kRowPanels; }
  __device__ __forceinline__ static int first_panel(int side) { return side ? kRowPanels : 0; }
  __device__ __forceinline__ uint32_t pairs_of(int side) const {
    return shared + Shared::kPairs + side * Shared::kPairBytes;
  }
  /// Of the lane, for loads of 16 by 16: tokens from 0 on by the warp's channels, of the panel's tile of a; and channels by tokens.
  __device__ __forceinline__ uint32_t tokens_at() const {
    return shared + panel * Shared::kTile +
           ptx::swizzled_chunk<Shared::kPanel>(lane % 8 + lane / 16 * 8, 2 * half + lane / 8 % 2);
  }
  __device__ __forceinline__ uint32_t channels_at(int level) const {
    return shared + Shared::kOperands + level * Shared::kOperand + panel * Shared::kTile + 16 * half * (kTokens * 2);
  }
  /// Where the gate of token 8·eight + 2t + j % 2 and channel g + 8·(j / 2) is.
  __device__ __forceinline__ uint32_t gate_at(int eight, int j) const {
    const int g = lane / 4, t = lane % 4;
    return shared + Shared::kGates + panel * (2 * Shared::kTile) +
           side_gate_offset(2 * t, 16 * half + g + 8 * (j / 2)) + (8 * eight + j % 2) * (Shared::kPanel * 4);
  }
  __device__ __forceinline__ uint32_t products_at(int m, int h) const {
    return shared + Shared::kProducts + (warp * 4 + m) * 128 + (lane / 4 + 8 * h) * 8;
  }

  __device__ __forceinline__ void load() const {
    load_side<Shared>(p.sides[side], place, p.length, shared, panel, half, lane);
  }
};

/// S and R of the chunk: from vector_side_states' registers to shared memory, 16 rows by 16 columns after the other, a column of such blocks after the other.
template <int kRowPanels, int kColumnPanels>
struct StateCopies {
  using Shared = VectorSidesShared<kRowPanels, kColumnPanels>;
  static constexpr int kSteps = 2 * kColumnPanels, kOne = 2 * kRowPanels * kSteps, kAll = 2 * kOne,
                       kEach = (kAll + Shared::kWarps - 1) / Shared::kWarps;
  const VectorSidesArguments& p;
  const SideWarp<kRowPanels, kColumnPanels>& at;
  uint4 fours[kEach];

  __device__ __forceinline__ void load() {
    const int64_t from = (at.place.head * at.place.chunks + at.place.chunk) * kOne * 32 + at.lane;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int n = at.warp + i * Shared::kWarps;
      if (n < kAll) fours[i] = n < kOne ? p.states[from + n * 32] : p.grad_states[from + (n - kOne) * 32];
    }
  }
  __device__ __forceinline__ void store() const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int n = at.warp + i * Shared::kWarps, of = n % kOne;
      if (n >= kAll) continue;
      const uint32_t to = at.shared + Shared::kStates + n / kOne * Shared::kState +
                          (of % kSteps * (2 * kRowPanels) + of / kSteps) * 512 + at.lane % 4 * 4;
      const int g = at.lane / 4;
      ptx::store_word(to + pair_piece(g, 0), fours[i].x);
      ptx::store_word(to + pair_piece(g + 8, 0), fours[i].y);
      ptx::store_word(to + pair_piece(g, 1), fours[i].z);
      ptx::store_word(to + pair_piece(g + 8, 1), fours[i].w);
    }
  }
};

/// The warp's channels: a and b of token 16m + 8i + 2t and the next, channel g + 8h, at [m][h + 2i]; and their operands.
template <int kRowPanels, int kColumnPanels>
struct SideOperands {
  using Element = __nv_bfloat16;
  using Shared = VectorSidesShared<kRowPanels, kColumnPanels>;
  const VectorSidesArguments& p;
  const SideWarp<kRowPanels, kColumnPanels>& at;
  uint32_t left[4][4], right[4][4];
  float gates[8][4], up[8][2],
      down[8]
          [2];  ///< of each eight; the factor of its tokens from their run of 2 to the eight's beginning, and to its end

  __device__ __forceinline__ void load() {
    const uint32_t from = at.tokens_at();
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      ptx::load_matrices_transposed(left[m], from + 16 * m * (Shared::kPanel * 2));
      ptx::load_matrices_transposed(right[m], from + 16 * m * (Shared::kPanel * 2) + Shared::kRight);
    }
  }

  /// Where the lane's part of the first operand is, of channel g and the first eight; and that of another eight.
  __device__ __forceinline__ uint32_t operand_at() const {
    return at.channels_at(0) + ptx::swizzled_chunk<kTokens>(at.lane / 4, 0) + at.lane % 4 * 4;
  }
  __device__ __forceinline__ static uint32_t eights_right(uint32_t address, int eight) { return address ^ eight << 4; }

  /// The products of the chunk's eights.
  __device__ __forceinline__ ChunkProducts products() const {
    ChunkProducts runs;
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float2 two = ptx::load_floats(at.products_at(m, h));
        runs.eight[2 * m][h] = two.x;
        runs.eight[2 * m + 1][h] = two.y;
      }
    return runs;
  }

  /// Gates, E_C, the products of eights, and the operands of halves of 4, 2 and 1 tokens.
  __device__ __forceinline__ void within_eights() {
    const int g = at.lane / 4, t = at.lane % 4;
    const bool upper2 = t & 1, upper4 = t & 2;
    const uint32_t operands = operand_at();
    float totals[2] = {1.0f, 1.0f};
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      EightGates run[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int eight = 2 * m + i;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const uint32_t gate = at.gate_at(eight, j);
          gates[eight][j] = run[i].f[j] = exp2_approximate(kLog2e * __uint_as_float(ptx::load_word(gate)));
          ptx::store_word(gate, __float_as_uint(run[i].f[j]));
        }
        run[i].multiply();
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float f0 = run[i].f[2 * h], f1 = run[i].f[2 * h + 1], two = run[i].other_two[h],
                      four = run[i].other_four[h], up2 = upper2 ? two : 1.0f, down2 = upper2 ? 1.0f : two;
          up[eight][h] = up2 * (upper4 ? four : 1.0f);
          down[eight][h] = down2 * (upper4 ? 1.0f : four);
          const float2 a = unpack<Element>(left[m][h + 2 * i]), b = unpack<Element>(right[m][h + 2 * i]);
          const float near = upper4 ? up2 : down2, odd = a.y * f1;
          const float2 first = {a.x * f0, odd * f0}, last = {b.x * f1, b.y};
          const uint32_t to = eights_right(operands, eight) + h * 1024;
          const auto keep = [&](int level, float x, float y) {
            ptx::store_word(to + level * Shared::kOperand, pack<Element>(x, y));
          };
          keep(0, (upper4 ? first.x : last.x) * near, (upper4 ? first.y : last.y) * near);
          keep(1, upper2 ? first.x : last.x, upper2 ? first.y : last.y);
          keep(2, b.x, odd);
          totals[h] *= run[i].eight[h];
        }
      }
      if (t == 0) {
#pragma unroll
        for (int h = 0; h < 2; ++h) ptx::store_floats(at.products_at(m, h), run[0].eight[h], run[1].eight[h]);
      }
    }
    if (t < 2)
      ptx::store_word(at.shared + Shared::kTotals + (at.panel * Shared::kPanel + 16 * at.half + g + 8 * t) * 4,
                      __float_as_uint(totals[t]));
  }

  /// The operands of halves of 32, 16 and 8 tokens; scale E ∘ a and D_C ∘ b, channels by tokens, in the places of a and b.
  __device__ __forceinline__ void beyond_eights() const {
    const uint32_t operands = operand_at();
    const ChunkProducts runs = products();
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int eight = 2 * m + i;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float f0 = gates[eight][2 * h], f1 = gates[eight][2 * h + 1], to_begin = f0 * up[eight][h],
                      to_end = down[eight][h];
          const float2 a = product(unpack<Element>(left[m][h + 2 * i]), {to_begin, to_begin * f1}),
                       b = product(unpack<Element>(right[m][h + 2 * i]), {to_end * f1, to_end});
          const uint32_t to = eights_right(operands, 2 * m + i) + h * 1024;
          const auto keep = [&](int further, float2 x, float factor) {
            ptx::store_word(to + further, pack<Element>(x.x * factor, x.y * factor));
          };
          keep(0, m / 2 ? a : b, m / 2 ? runs.up32(m, i, h) : runs.down32(m, i, h));
          keep(Shared::kOperand, m % 2 ? a : b, m % 2 ? runs.up16(m, i, h) : runs.down16(m, i, h));
          keep(2 * Shared::kOperand, i ? a : b, 1.0f);
          keep(-Shared::kOperands, a, p.scale * runs.up64(m, i, h));
          keep(Shared::kRight - Shared::kOperands, b, runs.down64(m, i, h));
        }
      }
  }
};

/// B of the warp's side: of a block of 16 rows, or of two where the side has one panel.
template <int kRowPanels, int kColumnPanels>
struct SidePairs {
  using Element = __nv_bfloat16;
  using Warp = SideWarp<kRowPanels, kColumnPanels>;
  using Shared = VectorSidesShared<kRowPanels, kColumnPanels>;
  static constexpr int kMaxPanels = kRowPanels > kColumnPanels ? kRowPanels : kColumnPanels;
  const VectorSidesArguments& p;
  const Warp& at;

  /// Calls work with the warp's blocks.
  template <typename Work>
  __device__ __forceinline__ void each(Work work) const {
    const int warps = 2 * Warp::panels_of(at.side), own = at.warp - 2 * Warp::first_panel(at.side);
    work(own);
    if (warps == 2) work(3 - own);
  }
  /// Calls work with the byte offsets of each 16 channels of the side, from its first tile on: in tiles of channels by tokens, and of tokens by channels.
  template <typename Work>
  __device__ __forceinline__ void each_step(Work work) const {
#pragma unroll
    for (int panel = 0; panel < kMaxPanels; ++panel) {
      if (panel >= Warp::panels_of(at.side)) break;
#pragma unroll
      for (int k = 2 * panel; k < 2 * panel + 2; ++k) work(panel * Shared::kTile + k % 2 * 16 * (kTokens * 2), k);
    }
  }
  __device__ __forceinline__ uint32_t side_tile() const {
    return at.shared + Warp::first_panel(at.side) * Shared::kTile;
  }
  /// As left operand the four registers are rows, as right ones columns of the two eights.
  __device__ __forceinline__ void load_operand(int level, int step, int block, uint32_t (&to)[4]) const {
    const uint32_t from = side_tile() + Shared::kOperands + level * Shared::kOperand +
                          ptx::swizzled_chunk<kTokens>(at.lane % 8 + at.lane / 16 * 8, at.lane / 8 % 2);
    ptx::load_matrices_transposed(to, steps_right<kTokens>(from, block) + step);
  }
  __device__ __forceinline__ void put(int row, int piece, float x, float y) const {
    ptx::store_word(at.pairs_of(at.side) + ptx::swizzled_chunk<kTokens>(row, piece) + at.lane % 4 * 4,
                    pack<Element>(x * p.scale, y * p.scale));
  }

  /// Pairs of tokens in one eight, and the tokens with themselves.
  __device__ __forceinline__ void within_eights() const {
    const int g = at.lane / 4, t = at.lane % 4;
    const int halving[2] = {halving_of(g, 2 * t), halving_of(g, 2 * t + 1)};
    each([&](int block) {
      float near[2] = {}, far[2] = {};
      const auto select = [&](int which, const float(&low)[4], const float(&high)[4]) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          near[e] = halving[e] == which ? low[e] : near[e];
          far[e] = halving[e] == which ? high[2 + e] : far[e];
        }
      };
#pragma unroll
      for (int level = 0; level < 3; ++level) {
        float low[4] = {}, high[4] = {};
        each_step([&](int step, int) {
          uint32_t x[4];
          load_operand(level, step, block, x);
          ptx::multiply_add<Element>(low, x, x[0], x[2]);
          ptx::multiply_add<Element>(high, x, x[1], x[3]);
        });
        select(4 >> level, low, high);
      }
      {
        float low[4] = {}, high[4] = {};
        each_step([&](int, int k) {
          uint32_t left[4], right[4];
          const uint32_t from =
              steps_right<Shared::kPanel>(
                  side_tile() + ptx::swizzled_chunk<Shared::kPanel>(16 * block + at.lane % 16, at.lane / 16), k % 2) +
              k / 2 * Shared::kTile;
          ptx::load_matrices(left, from);
          ptx::load_matrices(right, from + Shared::kRight);
          ptx::multiply_add<Element>(low, left, right[0], right[2]);
          ptx::multiply_add<Element>(high, left, right[1], right[3]);
        });
        select(0, low, high);
      }
      if (g / 2 == t) {
        const uint32_t diagonal = at.pairs_of(at.side) + PairRecord::kDiagonal + (kBlock * block + g) * 4;
        ptx::store_word(diagonal, __float_as_uint(p.scale * (g % 2 ? near[1] : near[0])));
        ptx::store_word(diagonal + 32, __float_as_uint(p.scale * (g % 2 ? far[1] : far[0])));
      }
      put(kBlock * block + g, 2 * block, near[0], near[1]);
      put(kBlock * block + g, 2 * block + 1, 0.0f, 0.0f);
      put(kBlock * block + g + 8, 2 * block + 1, far[0], far[1]);
    });
  }

  /// Pairs of the block with the blocks before it, and of its two eights.
  __device__ __forceinline__ void beyond_eights() const {
    const int g = at.lane / 4;
    each([&](int block) {
#pragma unroll 1
      for (int c = 0; c < block; ++c) {
        const int level = c / 2 == block / 2 ? 1 : 0;
        float sums[2][4] = {};
        each_step([&](int step, int) {
          uint32_t left[4], right[4];
          load_operand(level, step, block, left);
          load_operand(level, step, c, right);
          ptx::multiply_add<Element>(sums[0], left, right[0], right[2]);
          ptx::multiply_add<Element>(sums[1], left, right[1], right[3]);
        });
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int e = 0; e < 2; ++e) put(kBlock * block + g + 8 * e, 2 * c + i, sums[i][2 * e], sums[i][2 * e + 1]);
      }
      float low[4] = {};
      each_step([&](int step, int) {
        uint32_t x[4];
        load_operand(2, step, block, x);
        ptx::multiply_add<Element>(low, x, x[0], x[2]);
      });
      put(kBlock * block + g + 8, 2 * block, low[2], low[3]);
    });
  }
};

}  // namespace lethe::matrix_state
