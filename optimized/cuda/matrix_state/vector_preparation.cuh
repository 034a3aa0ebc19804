#pragma once
// How vector_sweep.cuh prepares a chunk: its operands with their gates, and its pairs; its copies and stores; where its warps meet.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "optimized/cuda/arithmetic.cuh"
#include "optimized/cuda/hopper/ptx/barrier.cuh"
#include "optimized/cuda/matrix_state/vector_parts.cuh"

namespace lethe::matrix_state {

template <int kRows, bool kValueGate = false>
struct VectorSweepShared {
  static constexpr int kStages = 3, kGateStages = 2;
  static constexpr int kKey = kTokens * kRows * 2, kValue = 2 * kKey, kStage = kValue + kTokens * kSweepColumns * 2;
  static constexpr int kGates = kStages * kStage, kGateStage = kTokens * kRows * 4;
  static constexpr int kPairs = kGates + kGateStages * kGateStage, kPairStage = kTokens * kBlock * 2;
  static constexpr int kTotals = kPairs + 2 * kPairStage, kTotalStage = kTokens / kBlock * kRows * 4;
  static constexpr int kUnits = kTotals + 2 * kTotalStage, kUnitStage = kTokens * 4;
  // Value gates of a sweeping warp's 16 columns: where there is room, tokens 2t and columns g of a fragment are in different banks.
  static constexpr int kColumnGates = kUnits + 2 * kUnitStage, kColumnGateStride = (kRows < 128 ? 20 : 16) * 4,
                       kColumnGateStage = kTokens * kColumnGateStride;
  static constexpr int kBytes = kColumnGates + (kValueGate ? 4 * 2 * kColumnGateStage : 0);
};

/// The n-th meeting of the half of a CTA that sweeps (0) with the half that prepares (1). Each waits at a barrier of its own, since __syncthreads()
/// is for threads that meet it in one place. Two alternate, so that a fast half doesn't arrive twice in one phase.
__device__ __forceinline__ void meet_other_half(int half, int n) {
  const int first = 1 + 2 * (n % 2);
  ptx::named_barrier_arrive(first + 1 - half, kVectorThreads);
  ptx::named_barrier_sync(first + half, kVectorThreads);
}

/// Block `pw` of every chunk: one warp prepares it, another copies and stores it.
template <typename Element, int kRows>
struct VectorPreparation {
  using Shared = VectorSweepShared<kRows>;
  static constexpr bool kHalf = std::is_same_v<Element, __half>;
  static constexpr int kWide = kRows < 64 ? kRows : 64, kPanels = kRows / kWide;  // channels at once, two a lane
  const VectorSweepArguments& p;
  const VectorPlace& place;
  uint32_t shared;
  int pw, lane;

  /// Copies the block of chunk n of all inputs.
  __device__ __forceinline__ void load(int n) const {
    const uint32_t stage = shared + n % Shared::kStages * Shared::kStage;
    const uint32_t gates = shared + Shared::kGates + n % Shared::kGateStages * Shared::kGateStage;
    const int64_t first = static_cast<int64_t>(n) * kTokens;
    const int64_t highest = place.token(first + kBlock * pw + (p.reverse ? 0 : kBlock - 1));
    const auto copy = [&](auto pieces_of_row, const Operand& from, auto element_bytes, int shift, int column,
                          int columns, auto at_row) {
      constexpr int kPieces = decltype(pieces_of_row)::value, kRowsAtOnce = 32 / kPieces;
      constexpr int kElement = decltype(element_bytes)::value, kElements = 16 / kElement;
      const int piece = lane % kPieces, sign = p.reverse ? -1 : 1;
      const char* const begin = static_cast<const char*>(from.data) +
                                (place.b * from.batch_stride + place.h * from.head_stride + column) * kElement;
      int token = static_cast<int>(place.token(first + kBlock * pw + lane / kPieces)) + shift;
      const char* source = begin + token * from.token_stride * kElement + piece * 16;
      const int64_t step = sign * kRowsAtOnce * from.token_stride * kElement;
      if (highest + shift < p.length && column + kPieces * kElements <= columns) {
#pragma unroll
        for (int i = 0; i < kBlock; i += kRowsAtOnce, source += step)
          ptx::copy_chunk(at_row(lane / kPieces, piece, i), source);
        return;
      }
      const bool inside = column + piece * kElements < columns;
#pragma unroll 1
      for (int i = 0; i < kBlock; i += kRowsAtOnce, source += step, token += sign * kRowsAtOnce) {
        const bool valid = inside && token < p.length;
        ptx::copy_chunk(at_row(lane / kPieces, piece, i), valid ? source : begin, valid);
      }
    };
    const auto tile_row = [&](auto width, uint32_t tile) {
      return [this, tile](int row, int piece, int further) {
        constexpr int kWidth = decltype(width)::value;
        return rows_below<kWidth>(tile + ptx::swizzled_chunk<kWidth>(kBlock * pw + row, piece), further);
      };
    };
    using std::integral_constant;
    constexpr integral_constant<int, 2> kSixteenBits;
    constexpr integral_constant<int, kRows / 8> kPieces;
    const auto of_rows = [&](uint32_t tile) { return tile_row(integral_constant<int, kRows>(), tile); };
    copy(kPieces, p.query, kSixteenBits, 0, 0, p.rows, of_rows(stage));
    copy(kPieces, p.key, kSixteenBits, 0, 0, p.rows, of_rows(stage + Shared::kKey));
    copy(integral_constant<int, kRows / 4>(), p.key_gate, integral_constant<int, 4>(), p.reverse ? 1 : 0, 0, p.rows,
         [&](int row, int piece, int further) {
           return gates + (kBlock * pw + row + further) * (kRows * 4) + piece * 16;
         });
    copy(integral_constant<int, kSweepColumns / 8>(), p.value, kSixteenBits, 0, place.column, p.columns,
         tile_row(integral_constant<int, kSweepColumns>(), stage + Shared::kValue));
  }

  /// Stores the block's rows of chunk n's output, which the sweep left in the place of c.
  __device__ __forceinline__ void store(int n) const {
    const int row = kBlock * pw + lane / 8, piece = lane % 8, sign = p.reverse ? -1 : 1;
    const uint32_t tile =
        shared + n % Shared::kStages * Shared::kStage + Shared::kValue + ptx::swizzled_chunk<kSweepColumns>(row, piece);
    int token = static_cast<int>(place.token(static_cast<int64_t>(n) * kTokens + row));
    const int length = place.column + 8 * piece < p.columns ? static_cast<int>(p.length) : 0;
    char* to = static_cast<char*>(p.out) +
               (((place.b * p.length + token) * p.heads + place.h) * p.columns + place.column + 8 * piece) * 2;
    const int64_t step = sign * int64_t{8} * p.heads * p.columns;
#pragma unroll
    for (int i = 0; i < kBlock; i += 4, token += 4 * sign, to += step) {
      const uint4 eight = ptx::load_words(rows_below<kSweepColumns>(tile, i));
      if (token < length) *reinterpret_cast<uint4*>(to) = eight;
    }
    __syncwarp();
  }

  __device__ __forceinline__ void prepare(int n) const {
    const uint32_t stage = shared + n % Shared::kStages * Shared::kStage;
    const uint32_t gates =
        shared + Shared::kGates + n % Shared::kGateStages * Shared::kGateStage + kBlock * pw * (kRows * 4);
    const uint32_t totals = shared + Shared::kTotals + n % 2 * Shared::kTotalStage + pw * (kRows * 4);
    const int g = lane / 4, t = lane % 4;
    const bool active = kWide == 64 || 2 * lane < kWide;
    float near[2] = {}, far[2] = {},
          across[2] = {};  // P: rows and columns below 8; both above; rows above and columns below
    const int halving[2] = {halving_of(g, 2 * t), halving_of(g, 2 * t + 1)};
    const auto select = [&](int which, const float(&low)[4], const float(&high)[4]) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        near[e] += halving[e] == which ? low[e] : 0.0f;
        far[e] += halving[e] == which ? high[2 + e] : 0.0f;
      }
    };
#pragma unroll 1
    for (int panel = 0; panel < kPanels; ++panel) {
      float2 f[kBlock];
      float2 log{0.0f, 0.0f};
      const uint32_t raw = stage + ptx::swizzled_chunk<kRows>(kBlock * pw, panel * 8 + lane / 4) + lane % 4 * 4;
      if (active) {
#pragma unroll
        for (int r = 0; r < kBlock; ++r) f[r] = ptx::load_floats(gates + r * (kRows * 4) + panel * 256 + lane * 8);
#pragma unroll
        for (int r = 0; r < kBlock; ++r) {
          f[r] = {f[r].x * kLog2e, f[r].y * kLog2e};
          log = {log.x + f[r].x, log.y + f[r].y};
          f[r] = {exp2_approximate(f[r].x), exp2_approximate(f[r].y)};
        }
        ptx::store_floats(totals + (panel * 64 + 2 * lane) * 4, exp2f(log.x), exp2f(log.y));
      } else {
#pragma unroll
        for (int r = 0; r < kBlock; ++r) f[r] = {1.0f, 1.0f};
      }
      {  // Tokens with themselves.
        float low[4] = {}, high[4] = {};
#pragma unroll
        for (int k = 0; k < kWide / 16; ++k) {
          uint32_t left[4], right[4];
          const uint32_t at =
              steps_right<kRows>(stage + ptx::swizzled_chunk<kRows>(kBlock * pw + lane % 16, panel * 8 + lane / 16), k);
          ptx::load_matrices(left, at);
          ptx::load_matrices(right, at + Shared::kKey);
          ptx::multiply_add<Element>(low, left, right[0], right[2]);
          ptx::multiply_add<Element>(high, left, right[1], right[3]);
        }
        select(0, low, high);
      }
      __syncwarp();  // all lanes have read the gates and the rows: both places are free
      // Two halvings at a time in the place of the gates.
      const auto operand_at = [&](int slot, int row, int piece) {
        const uint32_t at = gates + panel * 256 + piece * 16;
        if constexpr (kWide == 64) return (at ^ (row & 7) << 4) + slot * 128 + row * (kRows * 4);
        else return (at ^ ((slot * (kWide / 8)) ^ (row & 7)) << 4) + row * (kRows * 4);
      };
      // A row's 16 bits are read again for each halving, all rows before any operand is stored: registers for a and b, and for what is unpacked of
      // them, would be too many, and a load that follows a store waits for it.
      const auto load_halving = [&](auto half_of_run, uint32_t(&x)[kBlock]) {
#pragma unroll
        for (int r = 0; r < kBlock; ++r)
          x[r] = active ? ptx::load_word(rows_below<kRows>(raw, r) +
                                         (r / decltype(half_of_run)::value % 2 ? 0 : Shared::kKey))
                        : 0;
      };
      const auto keep = [&](int slot, int row, uint32_t packed, float2 factor) {
        const float2 x = unpack<Element>(packed);
        if (active)
          ptx::store_word(operand_at(slot, row, lane / 4) + lane % 4 * 4,
                          pack<Element>(x.x * factor.x, x.y * factor.y));
      };
      const auto put_halving = [&](int slot, auto half_of_run, const uint32_t(&x)[kBlock]) {
        constexpr int kHalfRun = decltype(half_of_run)::value;
#pragma unroll
        for (int middle = kHalfRun; middle < kBlock; middle += 2 * kHalfRun) {
          float2 up = f[middle], down{1.0f, 1.0f};
#pragma unroll
          for (int i = 0; i < kHalfRun; ++i) {
            if (i > 0) {
              up = product(up, f[middle + i]);
              down = product(down, f[middle - i]);
            }
            keep(slot, middle + i, x[middle + i], up);
            keep(slot, middle - 1 - i, x[middle - 1 - i], down);
          }
        }
      };
      const auto gram = [&](int slot, float(&low)[4], float(&high)[4], bool both) {
#pragma unroll
        for (int k = 0; k < kWide / 16; ++k) {
          uint32_t x[4];
          ptx::load_matrices(x, operand_at(slot, lane % 16, 2 * k + lane / 16));
          ptx::multiply_add<Element>(low, x, x[0], x[2]);
          if (both) ptx::multiply_add<Element>(high, x, x[1], x[3]);
        }
      };
      constexpr std::integral_constant<int, 1> kOne;
      constexpr std::integral_constant<int, 2> kTwo;
      constexpr std::integral_constant<int, 4> kFour;
      constexpr std::integral_constant<int, 8> kEight;
      uint32_t x[kBlock];
      load_halving(kEight, x);
      put_halving(0, kEight, x);
      load_halving(kFour, x);
      put_halving(1, kFour, x);
      __syncwarp();
      load_halving(kTwo, x);
      {
        float low[4] = {}, high[4] = {};
        gram(0, low, high, false);
        across[0] += low[2];
        across[1] += low[3];
      }
      {
        float low[4] = {}, high[4] = {};
        gram(1, low, high, true);
        select(4, low, high);
      }
      __syncwarp();
      put_halving(0, kTwo, x);
      load_halving(kOne, x);
      put_halving(1, kOne, x);
      if (active) {  // E ∘ a and D_B ∘ b
        const auto weigh = [&](int row, uint32_t tile, float2 factor) {
          const float2 two = unpack<Element>(x[row]);
          ptx::store_word(rows_below<kRows>(raw, row) + tile, pack<Element>(two.x * factor.x, two.y * factor.y));
        };
        const auto load_rows = [&](uint32_t tile) {
#pragma unroll
          for (int r = 0; r < kBlock; ++r) x[r] = ptx::load_word(rows_below<kRows>(raw, r) + tile);
        };
        load_rows(0);
        float2 factor{p.read_scale, p.read_scale};
#pragma unroll
        for (int r = 0; r < kBlock; ++r) {
          factor = product(factor, f[r]);
          weigh(r, 0, factor);
        }
        load_rows(Shared::kKey);
        factor = {p.write_scale, p.write_scale};
#pragma unroll
        for (int r = kBlock - 1; r >= 0; --r) {
          weigh(r, Shared::kKey, factor);
          factor = product(factor, f[r]);
        }
      }
      __syncwarp();
#pragma unroll
      for (int slot = 0; slot < 2; ++slot) {
        float low[4] = {}, high[4] = {};
        gram(slot, low, high, true);
        select(slot == 0 ? 2 : 1, low, high);
      }
      __syncwarp();
    }
    const float scale = p.read_scale * p.write_scale;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      near[e] *= scale;
      far[e] *= scale;
      across[e] *= scale;
    }
    if constexpr (kHalf) {
      const uint32_t units = shared + Shared::kUnits + n % 2 * Shared::kUnitStage;
      const auto unit_of = [&](float x) {
        x = fmaxf(x, __shfl_xor_sync(kEveryLane, x, 1));
        // Not below 2^-40, by which sums are divided: a row may have no weight but that of the state.
        return power_below(fmaxf(fmaxf(x, __shfl_xor_sync(kEveryLane, x, 2)), 0x1p-40f));
      };
      const float above = unit_of(fmaxf(fabsf(near[0]), fabsf(near[1])));
      const float below =
          unit_of(fmaxf(fmaxf(fabsf(far[0]), fabsf(far[1])), fmaxf(fabsf(across[0]), fabsf(across[1]))));
      if (t == 0) {
        ptx::store_word(units + (kBlock * pw + g) * 4, __float_as_uint(above));
        ptx::store_word(units + (kBlock * pw + g + 8) * 4, __float_as_uint(below));
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        near[e] *= inverse_of_power(above);
        far[e] *= inverse_of_power(below);
        across[e] *= inverse_of_power(below);
      }
    }
    const uint32_t pairs = shared + Shared::kPairs + n % 2 * Shared::kPairStage + pw * (kBlock * kBlock * 2) + 4 * t;
    ptx::store_word(pairs + pair_piece(g, 0), pack<Element>(near[0], near[1]));
    ptx::store_word(pairs + pair_piece(g, 1), 0);
    ptx::store_word(pairs + pair_piece(g + 8, 0), pack<Element>(across[0], across[1]));
    ptx::store_word(pairs + pair_piece(g + 8, 1), pack<Element>(far[0], far[1]));
  }
};

}  // namespace lethe::matrix_state
