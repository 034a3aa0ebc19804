#pragma once
// What the gradient of one side of a matrix state needs of the other side's gates: of a chunk of 64 tokens with rows a, b and a gate a channel
//
//   E_i ∘ a_i,   D_Cj ∘ b_j,   B_ij = scale Σ_κ D_ijκ a_iκ b_jκ,   E_C
//
// by halving (vector_sweep.cuh). A CTA is a chunk of a head. Its warps own 16 channels each while they multiply by gates, of a panel of 64 or of at
// most 32 in all; then 16 rows of B each, or of 32 channels 32 rows.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "optimized/cuda/arithmetic.cuh"
#include "optimized/cuda/launch.cuh"
#include "optimized/cuda/matrix_state/vector_chunk.cuh"

namespace lethe::matrix_state {

struct VectorPairsArguments {
  Operand left, right, gate;         ///< a, b and the gates' logarithms in float, [B, T, H, channels]
  void *scaled_left, *scaled_right;  ///< E ∘ a and D_C ∘ b, [B, T, H, channels] contiguous
  char* records;                     ///< PairRecords [B·H, chunks]
  int64_t length;
  int batch, heads, channels;
  float scale;
};

template <int kPanel>
struct VectorPairsShared {
  static constexpr int kTile = kTokens * kPanel * 2, kRight = kTile, kGates = 2 * kTile,
                       kOperands = kGates;  // the gates' place, once they are in registers
  static constexpr int kOperand =
      kPanel * kTokens * 2;  // of halves of 32, 16, 8, 4, 2 and 1 tokens: channels by tokens
  static constexpr int kBytes = kOperands + 6 * kOperand;
  static_assert(6 * kOperand >= kTokens * kGateStride<kPanel>);
  static_assert(kBytes >= PairRecord::kDiagonal);  // at last it has B
};

template <typename Element, int kPanel>
__global__ void __launch_bounds__(2 * kPanel, 192 / kPanel)
    vector_pairs(const __grid_constant__ VectorPairsArguments p) {
  using Shared = VectorPairsShared<kPanel>;
  constexpr int kSteps = kPanel / 16, kWarps = kPanel / 16, kBlocks = 4 / kWarps;  // blocks: of 16 rows of B, a warp's
  constexpr bool kHalf = std::is_same_v<Element, __half>;
  extern __shared__ __align__(1024) char memory[];
  let_next_kernel_start();
  const uint32_t shared = ptx::shared_address(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const bool upper2 = t & 1, upper4 = t & 2;
  // The first chunks last: vector_states begins with them and finds them in the L2 cache.
  const int64_t heads = static_cast<int64_t>(p.batch) * p.heads, head = blockIdx.x % heads;
  const int chunks = static_cast<int>((p.length + kTokens - 1) / kTokens),
            chunk = chunks - 1 - static_cast<int>(blockIdx.x / heads);
  RowTile place{head, head / p.heads, head % p.heads, 0, 0, chunks};
  const int64_t begin = static_cast<int64_t>(chunk) * kTokens;
  char* const record = p.records + (head * chunks + chunk) * PairRecord::kBytes;

  // B of rows g and g + 8 of a block: of other blocks; of the block itself, rows and columns below 8, both above, rows above and columns below.
  struct Rows {
    float others[3][2][4] = {}, near[2] = {}, far[2] = {}, across[2] = {};
  } all_rows[kBlocks];
  const auto block_of = [&](int i) { return i == 0 ? warp : 3 - warp; };  // as each_block
  const int halving[2] = {halving_of(g, 2 * t), halving_of(g, 2 * t + 1)};
  const auto select = [&](Rows& rows, int which, const float(&low)[4], const float(&high)[4]) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      rows.near[e] += halving[e] == which ? low[e] : 0.0f;
      rows.far[e] += halving[e] == which ? high[2 + e] : 0.0f;
    }
  };

#pragma unroll 1
  for (int panel = 0; kPanel * panel < p.channels; ++panel) {
    place.row = kPanel * panel;
    each_block<kWarps>(warp, [&](int block) {
      const int64_t first = begin + kBlock * block;
      copy_rows<2, kPanel / 8>(p.left, place, first, p.length, place.row, p.channels, lane,
                               tile_rows<kPanel>(shared, kBlock * block));
      copy_rows<2, kPanel / 8>(p.right, place, first, p.length, place.row, p.channels, lane,
                               tile_rows<kPanel>(shared + Shared::kRight, kBlock * block));
      copy_rows<4, kPanel / 4>(
          p.gate, place, first, p.length, place.row, p.channels, lane, [&](int row, int piece, int further) {
            return shared + Shared::kGates + (kBlock * block + row + further) * kGateStride<kPanel> + piece * 16;
          });
    });
    ptx::copies_commit();
    ptx::copies_wait<0>();
    __syncthreads();

    uint32_t scaled_left[4][4], scaled_right[4][4];
    EightGates gates[8];
    float logs[2] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float log = kLog2e * __uint_as_float(ptx::load_word(shared + Shared::kGates +
                                                                  (8 * i + 2 * t + j % 2) * kGateStride<kPanel> +
                                                                  (16 * warp + g + 8 * (j / 2)) * 4));
        logs[j / 2] += log;
        gates[i].f[j] = exp2_approximate(log);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      logs[h] += __shfl_xor_sync(kEveryLane, logs[h], 1);
      logs[h] += __shfl_xor_sync(kEveryLane, logs[h], 2);
      if (t == 0)
        reinterpret_cast<float*>(record + PairRecord::kTotals)[place.row + 16 * warp + g + 8 * h] = exp2f(logs[h]);
    }
    __syncthreads();
    ChunkProducts runs;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      gates[i].multiply();
      runs.eight[i][0] = gates[i].eight[0];
      runs.eight[i][1] = gates[i].eight[1];
    }
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      uint32_t raw_left[4], raw_right[4];
      const uint32_t at =
          shared + ptx::swizzled_chunk<kPanel>(16 * m + lane % 8 + lane / 16 * 8, 2 * warp + lane / 8 % 2);
      ptx::load_matrices_transposed(raw_left, at);
      ptx::load_matrices_transposed(raw_right, at + Shared::kRight);
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const EightGates& run = gates[2 * m + i];
          const int j = 2 * h;
          const float2 a = unpack<Element>(raw_left[h + 2 * i]), b = unpack<Element>(raw_right[h + 2 * i]);
          const float2 up = product(a, {run.up(j, upper2, upper4), run.up(j + 1, upper2, upper4)}),
                       down = product(b, {run.down(j, upper2, upper4), run.down(j + 1, upper2, upper4)});
          const uint32_t to =
              shared + Shared::kOperands + ptx::swizzled_chunk<64>(16 * warp + g + 8 * h, 2 * m + i) + 4 * t;
          const auto keep = [&](int which, float2 x, float factor) {
            ptx::store_word(to + which * Shared::kOperand, pack<Element>(x.x * factor, x.y * factor));
          };
          keep(0, m / 2 ? up : down, m / 2 ? runs.up32(m, i, h) : runs.down32(m, i, h));
          keep(1, m % 2 ? up : down, m % 2 ? runs.up16(m, i, h) : runs.down16(m, i, h));
          keep(2, i ? up : down, 1.0f);
          keep(3,
               upper4 ? product(a, {run.up_four(j, upper2), run.up_four(j + 1, upper2)})
                      : product(b, {run.down_four(j, upper2), run.down_four(j + 1, upper2)}),
               1.0f);
          keep(4,
               upper2 ? product(a, {run.up_two(j), run.up_two(j + 1)})
                      : product(b, {run.down_two(j), run.down_two(j + 1)}),
               1.0f);
          keep(5, {b.x, a.y * run.f[j + 1]}, 1.0f);
          const float to_start = runs.up64(m, i, h), to_end = runs.down64(m, i, h);
          scaled_left[m][h + 2 * i] = pack<Element>(up.x * to_start, up.y * to_start);
          scaled_right[m][h + 2 * i] = pack<Element>(down.x * to_end, down.y * to_end);
        }
    }
    __syncthreads();

    // Products over the panel's channels. As left operand the four registers are rows, as right ones columns of the two eights.
    const uint32_t operand_at =
        shared + Shared::kOperands + ptx::swizzled_chunk<64>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    const auto load_operand = [&](int which, int k, int block, uint32_t(&to)[4]) {
      ptx::load_matrices_transposed(to, steps_right<64>(operand_at + which * Shared::kOperand + 16 * k * 128, block));
    };
#pragma unroll
    for (int own = 0; own < kBlocks; ++own) {
      const int block = block_of(own);
      Rows& rows = all_rows[own];
#pragma unroll
      for (int c = 0; c < 3; ++c) {
        if (c >= block) continue;
        const int which = c / 2 == block / 2 ? 1 : 0;
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          uint32_t left[4], right[4];
          load_operand(which, k, block, left);
          load_operand(which, k, c, right);
          ptx::multiply_add<Element>(rows.others[c][0], left, right[0], right[2]);
          ptx::multiply_add<Element>(rows.others[c][1], left, right[1], right[3]);
        }
      }
#pragma unroll
      for (int which = 2; which < 6; ++which) {
        float low[4] = {}, high[4] = {};
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          uint32_t x[4];
          load_operand(which, k, block, x);
          ptx::multiply_add<Element>(low, x, x[0], x[2]);
          if (which > 2) ptx::multiply_add<Element>(high, x, x[1], x[3]);
        }
        if (which > 2) {
          select(rows, 32 >> which, low, high);
        } else {
          rows.across[0] += low[2];
          rows.across[1] += low[3];
        }
      }
      {
        float low[4] = {}, high[4] = {};
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          uint32_t left[4], right[4];
          const uint32_t at =
              steps_right<kPanel>(shared + ptx::swizzled_chunk<kPanel>(16 * block + lane % 16, lane / 16), k);
          ptx::load_matrices(left, at);
          ptx::load_matrices(right, at + Shared::kRight);
          ptx::multiply_add<Element>(low, left, right[0], right[2]);
          ptx::multiply_add<Element>(high, left, right[1], right[3]);
        }
        select(rows, 0, low, high);
      }
    }
    __syncthreads();

    // Out through the places of a and b.
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const uint32_t to = shared + ptx::swizzled_chunk<kPanel>(16 * m + 8 * i + g, 2 * warp + h) + 4 * t;
          ptx::store_word(to, ptx::transpose_matrix(scaled_left[m][h + 2 * i]));
          ptx::store_word(to + Shared::kRight, ptx::transpose_matrix(scaled_right[m][h + 2 * i]));
        }
    __syncthreads();
    constexpr int kPieces = kPanel / 8, kRowsAtOnce = 32 / kPieces;
    each_block<kWarps>(warp, [&](int block) {
      const int piece = lane % kPieces, row = kBlock * block + lane / kPieces;
      const int64_t token = begin + row, step = int64_t{2} * kRowsAtOnce * p.heads * p.channels;
      const int left =
          place.row + 8 * piece < p.channels ? static_cast<int>(min(p.length - token, int64_t{kBlock})) : 0;
      int64_t to = (((place.b * p.length + token) * p.heads + place.h) * p.channels + place.row + 8 * piece) * 2;
#pragma unroll
      for (int i = 0; i < kBlock; i += kRowsAtOnce, to += step) {
        const uint32_t from = shared + rows_below<kPanel>(ptx::swizzled_chunk<kPanel>(row, piece), i);
        const uint4 x = ptx::load_words(from), y = ptx::load_words(from + Shared::kRight);
        if (i >= left) continue;
        *reinterpret_cast<uint4*>(static_cast<char*>(p.scaled_left) + to) = x;
        *reinterpret_cast<uint4*>(static_cast<char*>(p.scaled_right) + to) = y;
      }
    });
    __syncthreads();
  }

  // B in 16 bits, through the operands' places.
#pragma unroll
  for (int own = 0; own < kBlocks; ++own) {
    const int block = block_of(own);
    auto& [others, near, far, across] = all_rows[own];
    float largest = 0.0f;
#pragma unroll
    for (int c = 0; c < 3; ++c)
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          others[c][i][e] *= p.scale;
          largest = fmaxf(largest, fabsf(others[c][i][e]));
        }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      near[e] *= p.scale;
      far[e] *= p.scale;
      across[e] *= p.scale;
      largest = fmaxf(fmaxf(largest, fabsf(near[e])), fmaxf(fabsf(far[e]), fabsf(across[e])));
    }
    float unscale = 1.0f;
    if constexpr (kHalf) {
      const float unit = power_below(__uint_as_float(__reduce_max_sync(kEveryLane, __float_as_uint(largest))));
      if (lane == 0) reinterpret_cast<float*>(record + PairRecord::kUnits)[block] = unit;
      unscale = inverse_of_power(unit);
    }
    if (g / 2 == t) {
      float* const diagonal = reinterpret_cast<float*>(record + PairRecord::kDiagonal) + kBlock * block + g;
      diagonal[0] = g % 2 ? near[1] : near[0];
      diagonal[8] = g % 2 ? far[1] : far[0];
    }
    const auto put = [&](int row, int piece, float x, float y) {
      ptx::store_word(shared + ptx::swizzled_chunk<64>(kBlock * block + row, piece) + 4 * t,
                      pack<Element>(x * unscale, y * unscale));
    };
#pragma unroll
    for (int c = 0; c < 3; ++c)
      if (c < block)
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int half = 0; half < 2; ++half)
            put(g + 8 * half, 2 * c + i, others[c][i][2 * half], others[c][i][2 * half + 1]);
    put(g, 2 * block, near[0], near[1]);
    put(g, 2 * block + 1, 0.0f, 0.0f);
    put(g + 8, 2 * block, across[0], across[1]);
    put(g + 8, 2 * block + 1, far[0], far[1]);
  }
  __syncthreads();
#pragma unroll
  for (int at = threadIdx.x * 16; at < PairRecord::kDiagonal; at += 2 * kPanel * 16)
    if (PairRecord::used(at)) *reinterpret_cast<uint4*>(record + at) = ptx::load_words(shared + at);
  end_after_previous_kernel();
}

}  // namespace lethe::matrix_state
