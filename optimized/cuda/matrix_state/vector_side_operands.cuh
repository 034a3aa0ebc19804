#pragma once
// What a warp of vector_sides.cuh computes from its 16 channels.

#include "optimized/cuda/matrix_state/vector_block.cuh"
#include "optimized/cuda/matrix_state/vector_chunk.cuh"
#include "optimized/cuda/ptx/eights.cuh"

namespace lethe::matrix_state {

constexpr int kSideTokens = 32;  ///< of a chunk
constexpr int kSideBlocks = kSideTokens / kBlock;

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
  /// Of vector_side_states: S before each chunk and R after it, of which whole heads read the first alone
  const uint4 *states, *grad_states;
  /// Of whole heads, [B, H, rows, columns]; null: zeros, and not wanted
  const float* grad_last;
  float* grad_initial;
};

template <int kRowPanels, int kColumnPanels>
struct VectorSidesShared {
  static constexpr int kPanels = kRowPanels + kColumnPanels, kWarps = 2 * kPanels, kPanel = 32;
  static constexpr int kTile = kSideTokens * kPanel * 2;
  /// a and b, tokens by channels, then E ∘ a and D_C ∘ b; gates, then d log f; three halvings' operands, channels by tokens, then two and a and b of
  /// the last block, then those of the first one too; before the chunk its gates' logarithms are in the places of two.
  static constexpr int kRight = kPanels * kTile, kGates = 2 * kRight, kOperands = 2 * kGates,
                       kOperand = kPanels * kTile;
  /// Of each side B and its diagonal; S and R, blocks of rows by columns; E_C; products of eights; what E ∘ a in float16 is divided by; of d log f
  /// what a warp's gates have in common.
  static constexpr int kPairs = kOperands + 3 * kOperand, kDiagonal = kSideTokens * kSideTokens * 2,
                       kPairBytes = kDiagonal + kSideTokens * 4, kStates = kPairs + 2 * kPairBytes,
                       kColumns = kColumnPanels * kPanel, kState = kRowPanels * kPanel * kColumns * 2,
                       kTotals = kStates + 2 * kState, kProducts = kTotals + kPanels * kPanel * 4,
                       kUnits = kProducts + kWarps * kSideBlocks * 128, kTerms = kUnits + (kWarps * 4 + 15) / 16 * 16,
                       kTermBytes = kSideBlocks * 64 + 32 * 8, kRest = kTerms + kWarps * kTermBytes;
  /// What a warp has no registers for (SideOperands), then of whole heads E ∘ a in float16, channels by tokens; R in float, a block of 16 by 16 after
  /// the other.
  static constexpr int kHalf = (kRest + 127) / 128 * 128, kBytes = kHalf + kOperand, kSums = kBytes,
                       kWholeBytes = kSums + 2 * kState;
};

/// Byte offset of the gate of a token and one of a panel's channels: as gate_offset.
__device__ __forceinline__ uint32_t side_gate_offset(int token, int channel) {
  return (token * 32 + (channel ^ (token >> 1 & 3) << 3)) * 4;
}

/// Byte offset of log f of one of 16 tokens and one of a warp's 16 channels: those that a warp loads at once are in different banks.
__device__ __forceinline__ uint32_t side_log_offset(int token, int channel) {
  return (token ^ (token >> 2 & 1)) * 64 + (channel / 4 ^ (token >> 1 & 1) << 1) * 16 + channel % 4 * 4;
}

/// One of a panel's two warps copies a and the gates, where they are wanted, and b of half of a chunk's tokens.
template <typename Shared, bool kLeft, bool kGates>
__device__ __forceinline__ void load_side(const VectorSide& from, const RowTile& place, int64_t length, uint32_t shared,
                                          int panel, int half, int lane) {
  static_assert(kSideBlocks == 2);
  const uint32_t tile = shared + panel * Shared::kTile;
  const int64_t first = static_cast<int64_t>(place.chunk) * kSideTokens + kBlock * half;
  if constexpr (kLeft)
    copy_rows<2, 4>(from.left, place, first, length, place.row, from.channels, lane,
                    tile_rows<32>(tile, kBlock * half));
  copy_rows<2, 4>(from.right, place, first, length, place.row, from.channels, lane,
                  tile_rows<32>(tile + Shared::kRight, kBlock * half));
  if constexpr (kGates)
    copy_rows<4, 8>(from.gate, place, first, length, place.row, from.channels, lane,
                    [&](int row, int piece, int further) {
                      return shared + Shared::kGates + panel * (2 * Shared::kTile) +
                             side_gate_offset(kBlock * half + row + further, 4 * piece);
                    });
}

/// Where a warp is: its head and chunk, its side, and its 16 channels.
template <int kRowPanels, int kColumnPanels>
struct SideWarp {
  using Shared = VectorSidesShared<kRowPanels, kColumnPanels>;
  const VectorSidesArguments& p;
  uint32_t shared;
  int warp, lane, panel, side, half;
  RowTile place;

  /// Of a CTA a chunk, or a CTA a head that begins with the last one.
  __device__ __forceinline__ SideWarp(const VectorSidesArguments& p, uint32_t shared, bool whole_head)
      : p(p), shared(shared), warp(__shfl_sync(kEveryLane, threadIdx.x / 32, 0)), lane(threadIdx.x % 32),
        panel(warp / 2), side(panel >= kRowPanels), half(warp % 2) {
    const unsigned heads = p.batch * p.heads, head = blockIdx.x % heads;
    const int chunks = static_cast<int>((p.length + kSideTokens - 1) / kSideTokens);
    place = {head,
             head / p.heads,
             head % p.heads,
             head,
             (panel - side * kRowPanels) * Shared::kPanel,
             chunks,
             whole_head ? chunks - 1 : static_cast<int>(blockIdx.x / heads)};
  }
  __device__ __forceinline__ int64_t first_token() const { return static_cast<int64_t>(place.chunk) * kSideTokens; }
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
    return shared + Shared::kOperands + level * Shared::kOperand + panel * Shared::kTile +
           16 * half * (kSideTokens * 2);
  }
  /// Where the gate of token 8·eight + 2t + j % 2 and channel g + 8·(j / 2) is.
  __device__ __forceinline__ uint32_t gate_at(int eight, int j) const {
    const int g = lane / 4, t = lane % 4;
    return shared + Shared::kGates + panel * (2 * Shared::kTile) +
           side_gate_offset(2 * t, 16 * half + g + 8 * (j / 2)) + (8 * eight + j % 2) * (Shared::kPanel * 4);
  }
  __device__ __forceinline__ uint32_t products_at(int m, int h) const {
    return shared + Shared::kProducts + (warp * kSideBlocks + m) * 128 + (lane / 4 + 8 * h) * 8;
  }

  /// Where the lane has a and b of a block from the operands of halves of 16 and 8 tokens on, until the block's gradients are stored.
  __device__ __forceinline__ uint32_t operands_at(int m) const { return channels_at(1 + m) + lane * 16; }

  /// Where log f of the token and channel of gate_at() comes: operands of halves are there later.
  __device__ __forceinline__ uint32_t log_at(int eight, int j) const {
    return channels_at(eight / 2) + side_log_offset(2 * (lane % 4) + j % 2, lane / 4 + 8 * (j / 2)) + eight % 2 * 512;
  }

  /// Begin to bring a chunk's gates, of the warp's channels alone; and the chunk's a and b.
  __device__ __forceinline__ void load_gates(int chunk) const {
#pragma unroll
    for (int m = 0; m < kSideBlocks; ++m)
      copy_rows<4, 4>(p.sides[side].gate, place, static_cast<int64_t>(chunk) * kSideTokens + kBlock * m, p.length,
                      place.row + 16 * half, p.sides[side].channels, lane, [&](int row, int piece, int further) {
                        return channels_at(m) + side_log_offset(row, 4 * piece) + further * 64;
                      });
    ptx::copies_commit();
  }
  __device__ __forceinline__ void load_rows() const {
    load_side<Shared, true, false>(p.sides[side], place, p.length, shared, panel, half, lane);
    ptx::copies_commit();
  }
  /// The panel's two warps meet; the side's.
  __device__ __forceinline__ void meet_panel() const {
    if (panel == 0) ptx::sync_threads<1, 64>();
    else if (panel == 1) ptx::sync_threads<2, 64>();
    else ptx::sync_threads<3, 64>();
  }
  __device__ __forceinline__ void meet_side() const {
    if (side) ptx::sync_threads<5, 64 * kColumnPanels>();
    else ptx::sync_threads<4, 64 * kRowPanels>();
  }
};

/// S and R of a chunk, as the registers of blocks of 16 by 16 hold them, in shared memory: a column of such blocks after the other.
template <int kRowPanels, int kColumnPanels>
struct SideBlocks {
  using Shared = VectorSidesShared<kRowPanels, kColumnPanels>;
  static constexpr int kSteps = 2 * kColumnPanels, kOne = 2 * kRowPanels * kSteps;

  /// Where block `of` of S (0) or R (1) begins.
  __device__ __forceinline__ static uint32_t place(uint32_t shared, int which, int of) {
    return shared + Shared::kStates + which * Shared::kState + (of % kSteps * (2 * kRowPanels) + of / kSteps) * 512;
  }
  __device__ __forceinline__ static void store(uint32_t to, int lane, uint4 four) {
    const uint32_t packed[4] = {four.x, four.y, four.z, four.w};
    ptx::store_fragments(to + pair_piece(lane % 16, lane / 16), packed);
  }
};

/// S, and but for whole heads R, of a chunk: from global to shared memory.
template <int kRowPanels, int kColumnPanels, bool kWholeHeads>
struct StateCopies {
  using Shared = VectorSidesShared<kRowPanels, kColumnPanels>;
  using Blocks = SideBlocks<kRowPanels, kColumnPanels>;
  static constexpr int kOne = Blocks::kOne, kAll = kWholeHeads ? kOne : 2 * kOne,
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
      const int n = at.warp + i * Shared::kWarps;
      if (n < kAll) Blocks::store(Blocks::place(at.shared, n / kOne, n % kOne), at.lane, fours[i]);
    }
  }
};

/// What a warp's operand x is divided by, so that it comes up to 2^13 in float16 (to 2^15 from 2^125 on) and numbers 2^-26 times as large keep all
/// their bits: a power of two, not below 2^-92, by which sums are divided. Gates then only make it less, which below 2^-36 of the largest is lost.
__device__ __forceinline__ float side_unit(const uint32_t (&x)[kSideBlocks][4]) {
  uint32_t most = 0, least = 0;
#pragma unroll
  for (int i = 0; i < 4 * kSideBlocks; ++i) {
    asm("max.bf16x2 %0, %0, %1;" : "+r"(most) : "r"(x[i / 4][i % 4]));
    asm("min.bf16x2 %0, %0, %1;" : "+r"(least) : "r"(x[i / 4][i % 4]));
  }
  const float2 above = unpack<__nv_bfloat16>(most), below = unpack<__nv_bfloat16>(least);
  const float largest = fmaxf(fmaxf(above.x, above.y), -fminf(below.x, below.y));
  const uint32_t of_all = __reduce_max_sync(kEveryLane, __float_as_uint(largest));
  return power_below(fmaxf(__uint_as_float(of_all), 0x1p-80f)) * 0x1p-12f;
}

/// The warp's channels: a and b of token 16m + 8i + 2t and the next, channel g + 8h, at [m][h + 2i]; and their operands.
template <int kRowPanels, int kColumnPanels>
struct SideOperands {
  using Element = __nv_bfloat16;
  using Shared = VectorSidesShared<kRowPanels, kColumnPanels>;
  const VectorSidesArguments& p;
  const SideWarp<kRowPanels, kColumnPanels>& at;
  uint32_t left[kSideBlocks][4], right[kSideBlocks][4];
  /// Of each eight the factor of its tokens from their run of 2 to the eight's end. That to its beginning would spill, so it is in shared memory.
  float down[2 * kSideBlocks][2];

  __device__ __forceinline__ uint32_t up_at(int m) const {
    return at.shared + Shared::kHalf + at.warp * (Shared::kTile / 2) + m * 512 + at.lane * 16;
  }

  __device__ __forceinline__ void load(int m) {
    const uint32_t from = at.tokens_at() + 16 * m * (Shared::kPanel * 2);
    ptx::load_matrices_transposed(left[m], from);
    ptx::load_matrices_transposed(right[m], from + Shared::kRight);
  }
  /// a and b once more, before another warp may write over them: kept, they would take 16 registers.
  __device__ __forceinline__ void load() {
#pragma unroll
    for (int m = 0; m < kSideBlocks; ++m) load(m);
  }

  /// Of the lane, for stores of 16 channels by 16 tokens: where the first operand's first block is.
  __device__ __forceinline__ uint32_t operand_at() const {
    return at.channels_at(0) + ptx::swizzled_chunk<kSideTokens>(at.lane % 16, at.lane / 16);
  }

  /// The products of the chunk's eights.
  __device__ __forceinline__ ChunkProducts products() const {
    ChunkProducts runs;
#pragma unroll
    for (int m = 0; m < kSideBlocks; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float2 two = ptx::load_floats(at.products_at(m, h));
        runs.eight[2 * m][h] = two.x;
        runs.eight[2 * m + 1][h] = two.y;
      }
    return runs;
  }

  /// Gates, E_C and the products of eights, of the gates alone: a and b are on their way meanwhile.
  __device__ __forceinline__ void multiply(EightGates (&run)[2 * kSideBlocks]) const {
    const int g = at.lane / 4, t = at.lane % 4;
    float totals[2] = {1.0f, 1.0f};
#pragma unroll
    for (int eight = 0; eight < 2 * kSideBlocks; ++eight) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        run[eight].f[j] = exp2_approximate(kLog2e * __uint_as_float(ptx::load_word(at.log_at(eight, j))));
        ptx::store_word(at.gate_at(eight, j), __float_as_uint(run[eight].f[j]));
      }
      run[eight].multiply();
#pragma unroll
      for (int h = 0; h < 2; ++h) totals[h] *= run[eight].eight[h];
    }
    if (t == 0) {
#pragma unroll
      for (int m = 0; m < kSideBlocks; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          ptx::store_floats(at.products_at(m, h), run[2 * m].eight[h], run[2 * m + 1].eight[h]);
    }
    if (t < 2)
      ptx::store_word(at.shared + Shared::kTotals + (at.panel * Shared::kPanel + 16 * at.half + g + 8 * t) * 4,
                      __float_as_uint(t ? +totals[1] : +totals[0]));
  }

  /// The operands of halves of 4, 2 and 1 tokens.
  __device__ __forceinline__ void within_eights(const EightGates (&run)[2 * kSideBlocks]) {
    const int t = at.lane % 4;
    const bool upper2 = t & 1, upper4 = t & 2;
    const uint32_t operands = operand_at();
#pragma unroll
    for (int m = 0; m < kSideBlocks; ++m) {
      load(m);
      uint32_t halves[3][4];
      float up[2][2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int eight = 2 * m + i;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float f0 = run[eight].f[2 * h], f1 = run[eight].f[2 * h + 1], two = run[eight].other_two[h],
                      four = run[eight].other_four[h], up2 = upper2 ? two : 1.0f, down2 = upper2 ? 1.0f : two;
          up[i][h] = up2 * (upper4 ? four : 1.0f);
          down[eight][h] = down2 * (upper4 ? 1.0f : four);
          const float2 a = unpack<Element>(left[m][h + 2 * i]), b = unpack<Element>(right[m][h + 2 * i]);
          const float near = upper4 ? up2 : down2, odd = a.y * f1;
          const float2 first = {a.x * f0, odd * f0}, last = {b.x * f1, b.y};
          const auto keep = [&](int level, float x, float y) { halves[level][h + 2 * i] = pack<Element>(x, y); };
          keep(0, (upper4 ? first.x : last.x) * near, (upper4 ? first.y : last.y) * near);
          keep(1, upper2 ? first.x : last.x, upper2 ? first.y : last.y);
          keep(2, b.x, odd);
        }
      }
      ptx::store_words(up_at(m), {__float_as_uint(up[0][0]), __float_as_uint(up[0][1]), __float_as_uint(up[1][0]),
                                  __float_as_uint(up[1][1])});
#pragma unroll
      for (int level = 0; level < 3; ++level)
        ptx::store_fragments(steps_right<kSideTokens>(operands, m) + level * Shared::kOperand, halves[level]);
    }
  }

  /// The last block's a and b to where the gradients read them, after the side's pairs in one eight, which read the operand there. The first one's
  /// stay in registers.
  __device__ __forceinline__ void store_last() const {
    constexpr int kLast = kSideBlocks - 1;
    const uint32_t(&a)[4] = left[kLast], (&b)[4] = right[kLast];
    ptx::store_words(at.operands_at(kLast), {a[0], a[1], a[2], a[3]});
    ptx::store_words(at.operands_at(kLast) + 512, {b[0], b[1], b[2], b[3]});
  }

  /// The operands of halves of 16 and 8 tokens; scale E ∘ a and D_C ∘ b, channels by tokens, in the places of a and b; of whole heads E ∘ a in
  /// float16 as well, divided by a unit.
  template <bool kWholeHeads>
  __device__ __forceinline__ void beyond_eights() const {
    const uint32_t operands = operand_at();
    const ChunkProducts runs = products();
    const auto gate = [&](int eight, int j) { return __uint_as_float(ptx::load_word(at.gate_at(eight, j))); };
    uint4 up[kSideBlocks];
#pragma unroll
    for (int m = 0; m < kSideBlocks; ++m) up[m] = ptx::load_words(up_at(m));
    __syncwarp();
    float inverse = 0.0f;
    if constexpr (kWholeHeads) {
      const float unit = side_unit(left);
      inverse = inverse_of_power(unit);
      if (at.lane == 0) ptx::store_word(at.shared + Shared::kUnits + at.warp * 4, __float_as_uint(unit));
    }
#pragma unroll
    for (int m = 0; m < kSideBlocks; ++m) {
      uint32_t of_16[4], of_8[4], to_begin_of_all[4], to_end_of_all[4], in_half[4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int eight = 2 * m + i;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float f0 = gate(eight, 2 * h), f1 = gate(eight, 2 * h + 1),
                      to_begin = f0 * __uint_as_float(i ? (h ? up[m].w : up[m].z) : (h ? up[m].y : up[m].x)),
                      to_end = down[eight][h];
          const float2 a = product(unpack<Element>(left[m][h + 2 * i]), {to_begin, to_begin * f1}),
                       b = product(unpack<Element>(right[m][h + 2 * i]), {to_end * f1, to_end});
          const auto keep = [&](uint32_t(&to)[4], float2 x, float factor) {
            to[h + 2 * i] = pack<Element>(x.x * factor, x.y * factor);
          };
          keep(of_16, m ? a : b, m ? runs.up16(m, i, h) : runs.down16(m, i, h));
          keep(of_8, i ? a : b, 1.0f);
          const float from_begin = runs.up32(m, i, h);
          keep(to_begin_of_all, a, p.scale * from_begin);
          keep(to_end_of_all, b, runs.down32(m, i, h));
          if constexpr (kWholeHeads) {
            const float factor = inverse * from_begin;
            in_half[h + 2 * i] = pack<__half>(a.x * factor, a.y * factor);
          }
        }
      }
      const uint32_t to = steps_right<kSideTokens>(operands, m);
      ptx::store_fragments(to, of_16);
      ptx::store_fragments(to + Shared::kOperand, of_8);
      ptx::store_fragments(to - Shared::kOperands, to_begin_of_all);
      ptx::store_fragments(to + Shared::kRight - Shared::kOperands, to_end_of_all);
      if constexpr (kWholeHeads) ptx::store_fragments(to + Shared::kHalf - Shared::kOperands, in_half);
    }
  }
};

}  // namespace lethe::matrix_state
