#pragma once
// A pass of a matrix state with a gate a row over the tokens of one head and 64 columns (VectorSweepArguments), in chunks of four blocks of 16 tokens.
//
// Four warps prepare a chunk, a block each, while four sweep over the one before, 16 columns each: their part of Sᵀ stays in float accumulators, which
// rounded to 16 bits are the left operand of the next product. Between two chunks is one barrier.
//
//   prepare    E ∘ a and D_B ∘ b over a and b; P_ij = Σ_κ D_ijκ a_iκ b_jκ
//   sweep      Oᵀ = Sᵀ (E ∘ a)ᵀ + Cᵀ Pᵀ;  Sᵀ = E_B Sᵀ + Cᵀ (D_B ∘ b), of one block after the other
//
// Halving: of i > j let 2n be the smallest aligned run of tokens that has both. The gates between them are those from j to the middle, times those from
// the middle to i. So a token has one operand for every n = 1, 2, 4, 8: in the upper half of its run a times the gates since the middle, in the lower
// b times those up to it. Both are products of gates: none is divided by, and 0 is 0.
//
// float16: the rounded state and each row of P are divided by a power of two, so that neither overflows nor becomes subnormal.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "optimized/cuda/arithmetic.cuh"
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

/// A preparing warp's share: block `pw` of every chunk.
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
    const auto copy = [&](auto pieces_of_row, const Operand& from, auto element_bytes, int shift, int column,
                          int columns, auto at_row) {
      constexpr int kPieces = decltype(pieces_of_row)::value, kRowsAtOnce = 32 / kPieces;
      constexpr int kElement = decltype(element_bytes)::value, kElements = 16 / kElement;
      const int piece = lane % kPieces, sign = p.reverse ? -1 : 1;
      const char* const begin = static_cast<const char*>(from.data) +
                                (place.b * from.batch_stride + place.h * from.head_stride + column) * kElement;
      int token = static_cast<int>(place.token(first + kBlock * pw + lane / kPieces)) + shift;
      const char* source = begin + token * from.token_stride * kElement + piece * 16;
      const bool inside = column + piece * kElements < columns;
#pragma unroll
      for (int i = 0; i < kBlock; i += kRowsAtOnce) {
        const bool valid = inside && token < p.length;
        ptx::copy_chunk(at_row(lane / kPieces, piece, i), valid ? source : begin, valid);
        token += sign * kRowsAtOnce;
        source += sign * kRowsAtOnce * from.token_stride * kElement;
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
    const uint32_t tile = shared + n % Shared::kStages * Shared::kStage + Shared::kValue;
    char* const out = static_cast<char*>(p.out);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = kBlock * pw + i * 4 + lane / 8, piece = lane % 8;
      const uint4 eight = ptx::load_shared4(tile + ptx::swizzled_chunk<kSweepColumns>(row, piece));
      const int64_t token = place.token(static_cast<int64_t>(n) * kTokens + row);
      if (token < p.length && place.column + 8 * piece < p.columns)
        *reinterpret_cast<uint4*>(
            out + (((place.b * p.length + token) * p.heads + place.h) * p.columns + place.column + 8 * piece) * 2) =
            eight;
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
        for (int r = 0; r < kBlock; ++r) f[r] = ptx::load_shared2(gates + r * (kRows * 4) + panel * 256 + lane * 8);
#pragma unroll
        for (int r = 0; r < kBlock; ++r) {
          f[r] = {f[r].x * kLog2e, f[r].y * kLog2e};
          log = {log.x + f[r].x, log.y + f[r].y};
          f[r] = {exp2_approximate(f[r].x), exp2_approximate(f[r].y)};
        }
        ptx::store_shared2(totals + (panel * 64 + 2 * lane) * 4, exp2f(log.x), exp2f(log.y));
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
        return ((gates + panel * 256 + piece * 16) ^ (((slot * (kWide / 8)) ^ (row & 7)) << 4)) + row * (kRows * 4);
      };
      // A row's 16 bits are read again for each halving, all rows before any operand is stored: registers for a and b, and for what is unpacked of them,
      // would be too many, and a load that follows a store waits for it.
      const auto load_halving = [&](auto half_of_run, uint32_t(&x)[kBlock]) {
#pragma unroll
        for (int r = 0; r < kBlock; ++r)
          x[r] = active ? ptx::load_shared(rows_below<kRows>(raw, r) +
                                           (r / decltype(half_of_run)::value % 2 ? 0 : Shared::kKey))
                        : 0;
      };
      const auto keep = [&](int slot, int row, uint32_t packed, float2 factor) {
        const float2 x = unpack<Element>(packed);
        if (active)
          ptx::store_shared(operand_at(slot, row, lane / 4) + lane % 4 * 4,
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
      uint32_t x[kBlock], y[kBlock];
      load_halving(kEight, x);
      load_halving(kFour, y);
      put_halving(0, kEight, x);
      put_halving(1, kFour, y);
      __syncwarp();
      load_halving(kTwo, x);
      load_halving(kOne, y);
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
      put_halving(1, kOne, y);
      if (active) {  // E ∘ a and D_B ∘ b
#pragma unroll
        for (int r = 0; r < kBlock; ++r) {
          x[r] = ptx::load_shared(rows_below<kRows>(raw, r));
          y[r] = ptx::load_shared(rows_below<kRows>(raw, r) + Shared::kKey);
        }
        float2 up{p.read_scale, p.read_scale}, down{p.write_scale, p.write_scale};
#pragma unroll
        for (int r = 0; r < kBlock; ++r) {
          up = product(up, f[r]);
          const float2 a = unpack<Element>(x[r]);
          ptx::store_shared(rows_below<kRows>(raw, r), pack<Element>(a.x * up.x, a.y * up.y));
          const int last = kBlock - 1 - r;
          if (r > 0) down = product(down, f[last + 1]);
          const float2 b = unpack<Element>(y[last]);
          ptx::store_shared(rows_below<kRows>(raw, last) + Shared::kKey, pack<Element>(b.x * down.x, b.y * down.y));
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
        ptx::store_shared(units + (kBlock * pw + g) * 4, __float_as_uint(above));
        ptx::store_shared(units + (kBlock * pw + g + 8) * 4, __float_as_uint(below));
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        near[e] *= inverse_of_power(above);
        far[e] *= inverse_of_power(below);
        across[e] *= inverse_of_power(below);
      }
    }
    const uint32_t pairs = shared + Shared::kPairs + n % 2 * Shared::kPairStage + pw * (kBlock * kBlock * 2) + 4 * t;
    ptx::store_shared(pairs + pair_piece(g, 0), pack<Element>(near[0], near[1]));
    ptx::store_shared(pairs + pair_piece(g, 1), 0);
    ptx::store_shared(pairs + pair_piece(g + 8, 0), pack<Element>(across[0], across[1]));
    ptx::store_shared(pairs + pair_piece(g + 8, 1), pack<Element>(far[0], far[1]));
  }
};

/// A sweeping warp's share: 16 columns of the state, rows g and g + 8 of Sᵀ.
template <typename Element, int kRows, bool kValueGate>
struct VectorSweep {
  using Shared = VectorSweepShared<kRows, kValueGate>;
  static constexpr bool kHalf = std::is_same_v<Element, __half>;
  const VectorSweepArguments& p;
  const VectorPlace& place;
  uint32_t shared;
  int warp, lane;
  float state[kRows / 8][4];  // column of the state g + 8·(e / 2), row 8n + 2t + e % 2

  __device__ __forceinline__ int column_of(int e) const { return place.column + 16 * warp + lane / 4 + 8 * (e / 2); }
  __device__ __forceinline__ int64_t state_at(int n, int e) const {
    return (place.head * p.rows + 8 * n + 2 * (lane % 4) + e % 2) * p.columns + column_of(e);
  }
  __device__ __forceinline__ bool in_state(int n, int e) const {
    return 8 * n + 2 * (lane % 4) + e % 2 < p.rows && column_of(e) < p.columns;
  }

  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int n = 0; n < kRows / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) state[n][e] = p.initial && in_state(n, e) ? p.initial[state_at(n, e)] : 0.0f;
    if constexpr (kValueGate) {
      load_gates(0);
      ptx::copies_commit();
    }
  }

  __device__ __forceinline__ uint32_t gates_of(int n) const {
    return shared + Shared::kColumnGates + (warp * 2 + n % 2) * Shared::kColumnGateStage;
  }
  /// Copies the warp's value gates of chunk n.
  __device__ __forceinline__ void load_gates(int n) const {
    const int piece = lane % 4, column = place.column + 16 * warp + 4 * piece;
    const char* const begin =
        static_cast<const char*>(p.value_gate.data) +
        (place.b * p.value_gate.batch_stride + place.h * p.value_gate.head_stride + place.column) * 4;
    const uint32_t to = gates_of(n) + piece * 16;
#pragma unroll
    for (int i = 0; i < kTokens; i += 8) {
      const int row = i + lane / 4;
      const int64_t token = place.token(static_cast<int64_t>(n) * kTokens + row) + (p.reverse ? 1 : 0);
      const bool valid = token < p.length && column < p.columns;
      ptx::copy_chunk(to + row * Shared::kColumnGateStride,
                      valid ? begin + (token * p.value_gate.token_stride + 16 * warp + 4 * piece) * 4 : begin, valid);
    }
  }

  __device__ __forceinline__ void end() const {
    if (!p.last) return;
    const auto entry = [&](const Operand& gate, int at) {
      if (!gate.data || !p.reverse) return 1.0f;
      return expf(static_cast<const float*>(gate.data)[place.b * gate.batch_stride + place.h * gate.head_stride + at]);
    };
#pragma unroll
    for (int n = 0; n < kRows / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (in_state(n, e))
          p.last[state_at(n, e)] = state[n][e] * entry(p.key_gate, 8 * n + 2 * (lane % 4) + e % 2) *
                                   (kValueGate ? entry(p.value_gate, column_of(e)) : 1.0f);
  }

  __device__ __forceinline__ void sweep(int n, int chunks) {
    if constexpr (kValueGate) {
      if (n + 1 < chunks) load_gates(n + 1);
      ptx::copies_commit();
      ptx::copies_wait<1>();
      __syncwarp();
    }
#pragma unroll 1
    for (int block = 0; block < kTokens / kBlock; ++block) sweep_block(n, block);
  }

  __device__ __forceinline__ void sweep_block(int n, int block) {
    const int g = lane / 4, t = lane % 4;
    const uint32_t stage = shared + n % Shared::kStages * Shared::kStage;
    const int first = kBlock * block;
    float unit = 1.0f, unscale = 1.0f, row_unit[2][2] = {{1.0f, 1.0f}, {1.0f, 1.0f}};
    if constexpr (kHalf) {
      float x = 0.0f;
#pragma unroll
      for (int k = 0; k < kRows / 8; ++k)
#pragma unroll
        for (int e = 0; e < 4; ++e) x = fmaxf(x, fabsf(state[k][e]));
      unit = power_below(__uint_as_float(__reduce_max_sync(kEveryLane, __float_as_uint(x))));
      unscale = inverse_of_power(unit);
      const uint32_t units = shared + Shared::kUnits + n % 2 * Shared::kUnitStage + (first + 2 * t) * 4;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 both = ptx::load_shared2(units + 32 * i);
        row_unit[i][0] = both.x;
        row_unit[i][1] = both.y;
      }
    }

    const uint32_t queries =
                       stage + first * (kRows * 2) + ptx::swizzled_chunk<kRows>(lane % 8 + lane / 16 * 8, lane / 8 % 2),
                   keys = stage + Shared::kKey + first * (kRows * 2) + ptx::swizzled_chunk<kRows>(lane % 16, lane / 16);
    float out[2][4] = {};  // column g + 8·(e / 2), token 8i + 2t + e % 2
#pragma unroll
    for (int k = 0; k < kRows / 16; ++k) {
      const float(&s0)[4] = state[2 * k], (&s1)[4] = state[2 * k + 1];
      const uint32_t left[4] = {
          pack<Element>(s0[0] * unscale, s0[1] * unscale), pack<Element>(s0[2] * unscale, s0[3] * unscale),
          pack<Element>(s1[0] * unscale, s1[1] * unscale), pack<Element>(s1[2] * unscale, s1[3] * unscale)};
      uint32_t right[4];
      ptx::load_matrices(right, steps_right<kRows>(queries, k));
      ptx::multiply_add<Element>(out[0], left, right[0], right[1]);
      ptx::multiply_add<Element>(out[1], left, right[2], right[3]);
    }
    if constexpr (kHalf) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) out[i][e] *= unit * inverse_of_power(row_unit[i][e % 2]);
    }

    uint32_t values[4], pairs[4];  // Cᵀ; Pᵀ: keys 0–7 and 8–15 of rows 0–7, the same of rows 8–15
    ptx::load_matrices_transposed(
        values, stage + Shared::kValue +
                    ptx::swizzled_chunk<kSweepColumns>(first + lane % 8 + lane / 16 * 8, 2 * warp + lane / 8 % 2));
    ptx::load_matrices(pairs, shared + Shared::kPairs + n % 2 * Shared::kPairStage + block * (kBlock * kBlock * 2) +
                                  pair_piece(lane % 8 + lane / 16 * 8, lane / 8 % 2));
    float column_total[2] = {1.0f, 1.0f};
    if constexpr (kValueGate) {
      gated_pairs(out, values, pairs, column_total, gates_of(n) + first * Shared::kColumnGateStride);
    } else {
      ptx::multiply_add<Element>(out[0], values, pairs[0], pairs[1]);
      ptx::multiply_add<Element>(out[1], values, pairs[2], pairs[3]);
    }

#pragma unroll
    for (int k = 0; k < kRows / 16; ++k) {
      uint32_t right[4];
      ptx::load_matrices_transposed(right, steps_right<kRows>(keys, k));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float(&s)[4] = state[2 * k + i];
        const float2 total = ptx::load_shared2(shared + Shared::kTotals + n % 2 * Shared::kTotalStage +
                                               (block * kRows + 16 * k + 8 * i + 2 * t) * 4);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          s[e] *= e % 2 ? total.y : total.x;
          if constexpr (kValueGate) s[e] *= column_total[e / 2];
        }
        ptx::multiply_add<Element>(s, values, right[2 * i], right[2 * i + 1]);
      }
    }

    if constexpr (kHalf) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) out[i][e] *= row_unit[i][e % 2];
    }
    if (p.float_out) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int64_t token = place.token(static_cast<int64_t>(n) * kTokens + first + 8 * i + 2 * t + e % 2);
          if (token < p.length && column_of(e) < p.columns)
            static_cast<float*>(p.out)[((place.b * p.length + token) * p.heads + place.h) * p.columns + column_of(e)] =
                out[i][e];
        }
      return;
    }
    // To the place of c, whose 16 columns this warp alone reads.
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        ptx::store_shared(
            stage + Shared::kValue + ptx::swizzled_chunk<kSweepColumns>(first + 8 * i + g, 2 * warp + half) + 4 * t,
            ptx::transpose_matrix(pack<Element>(out[i][2 * half], out[i][2 * half + 1])));
  }

  /// Value gates: out ∘ E + Σ over halvings; `values` become D_B ∘ c, `total` E_B of columns g and g + 8.
  __device__ __forceinline__ void gated_pairs(float (&out)[2][4], uint32_t (&values)[4], const uint32_t (&pairs)[4],
                                              float (&total)[2], uint32_t gates) const {
    const int g = lane / 4, t = lane % 4;
    float f[2][4], c[2][4];  // as out
    float log[2] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 two = unpack<Element>(values[half + 2 * i]);
        c[i][2 * half] = two.x;
        c[i][2 * half + 1] = two.y;
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          const float l =
              kLog2e * __uint_as_float(ptx::load_shared(gates + (8 * i + 2 * t + e % 2) * Shared::kColumnGateStride +
                                                        (g + 8 * half) * 4));
          log[half] += l;
          f[i][e] = exp2_approximate(l);
        }
      }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      log[half] += __shfl_xor_sync(kEveryLane, log[half], 1);
      log[half] += __shfl_xor_sync(kEveryLane, log[half], 2);
      total[half] = exp2f(log[half]);
    }
    // Products of runs of 2, 4 and 8 tokens, of this lane's run and of its neighbour's.
    float two[2][2], four[2][2], eight[2][2], other_two[2][2], other_four[2][2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        two[i][half] = f[i][2 * half] * f[i][2 * half + 1];
        other_two[i][half] = __shfl_xor_sync(kEveryLane, two[i][half], 1);
        four[i][half] = two[i][half] * other_two[i][half];
        other_four[i][half] = __shfl_xor_sync(kEveryLane, four[i][half], 2);
        eight[i][half] = four[i][half] * other_four[i][half];
      }
    // Keys to the middle of their runs, from the shortest on: d is D from each token to the end of the last one.
    const bool upper2 = t & 1, upper4 = t & 2;
    float d[2][4];
    uint32_t by1[4], by2[4], by4[4], by8[2];
    const auto weighted = [&](uint32_t(&to)[4]) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          to[half + 2 * i] = pack<Element>(c[i][2 * half] * d[i][2 * half], c[i][2 * half + 1] * d[i][2 * half + 1]);
    };
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        by1[e / 2 + 2 * i] = values[e / 2 + 2 * i];
        d[i][e] = e % 2 ? 1.0f : f[i][e + 1];
      }
    weighted(by2);
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) d[i][e] *= upper2 ? 1.0f : other_two[i][e / 2];
    weighted(by4);
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) d[i][e] *= upper4 ? 1.0f : other_four[i][e / 2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      by8[half] = pack<Element>(c[0][2 * half] * d[0][2 * half], c[0][2 * half + 1] * d[0][2 * half + 1]);
#pragma unroll
    for (int e = 0; e < 4; ++e) d[0][e] *= eight[1][e / 2];
    weighted(values);

    // Sums, from the longest run on: what lies before a run is multiplied by its gates.
    {
      float sum[4] = {};
      const uint32_t left[4] = {by8[0], by8[1], 0, 0};
      ptx::multiply_add<Element>(sum, left, pairs[2], 0);
#pragma unroll
      for (int e = 0; e < 4; ++e) out[1][e] = out[1][e] * eight[0][e / 2] + sum[e];
    }
    // Of Pᵀ's two diagonal eights, the pairs of one halving: row g, keys 2t and 2t + 1.
    const auto keep = [&](int which) {
      return (halving_of(g, 2 * t) == which ? 0xffffu : 0) | (halving_of(g, 2 * t + 1) == which ? 0xffff0000u : 0);
    };
    const auto sums = [&](float(&sum)[2][4], const uint32_t(&left)[4], uint32_t mask) {
      ptx::multiply_add<Element>(sum[0], left, pairs[0] & mask, 0);
      ptx::multiply_add<Element>(sum[1], left, 0, pairs[3] & mask);
    };
    {
      float sum[2][4] = {};
      sums(sum, by4, keep(4));
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (upper4) out[i][e] = out[i][e] * other_four[i][e / 2] + sum[i][e];
    }
    {
      float sum[2][4] = {};
      sums(sum, by2, keep(2));
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (upper2) out[i][e] = out[i][e] * other_two[i][e / 2] + sum[i][e];
    }
    {
      float sum[2][4] = {}, own[2][4] = {};
      sums(sum, by1, keep(1));
      sums(own, by1, keep(0));
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (e % 2) out[i][e] = out[i][e] * f[i][e - 1] + sum[i][e];
          out[i][e] = out[i][e] * f[i][e] + own[i][e];
        }
    }
  }
};

template <typename Element, int kRows, bool kValueGate>
__global__ void __launch_bounds__(kVectorThreads, kRows <= 64 ? 2 : 1)
    vector_sweep(const __grid_constant__ VectorSweepArguments p) {
  extern __shared__ __align__(1024) char memory[];
  const uint32_t shared = ptx::shared_address(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int chunks = static_cast<int>((p.length + kTokens - 1) / kTokens);
  const int tiles = (p.columns + kSweepColumns - 1) / kSweepColumns;
  const int64_t head = blockIdx.x / tiles;
  const VectorPlace place{head, head / p.heads, head % p.heads, static_cast<int>(blockIdx.x % tiles) * kSweepColumns,
                          p.reverse ? static_cast<int64_t>(chunks) * kTokens - 1 : -1};
  if (warp < 4) {
    VectorSweep<Element, kRows, kValueGate> columns{p, place, shared, warp, lane};
    columns.begin();
    __syncthreads();
    for (int n = 0; n < chunks; ++n) {
      columns.sweep(n, chunks);
      __syncthreads();
    }
    columns.end();
  } else {
    const VectorPreparation<Element, kRows> block{p, place, shared, warp - 4, lane};
    const auto load = [&](int n) {
      if (n < chunks) block.load(n);
      ptx::copies_commit();
    };
    load(0);
    load(1);
#pragma unroll 1
    for (int n = -1; n < chunks; ++n) {
      if (n > 0 && !p.float_out) block.store(n - 1);
      if (n >= 0) load(n + 2);
      if (n + 1 < chunks) {
        ptx::copies_wait<1>();
        __syncwarp();
        block.prepare(n + 1);
      }
      __syncthreads();
    }
    if (!p.float_out) block.store(chunks - 1);
  }
}

}  // namespace lethe::matrix_state
