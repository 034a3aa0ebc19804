#pragma once
// A warp's 16 tokens of a chunk that delta_keys_prepare.cuh prepares.

#include <cstring>

#include "optimized/cuda/matrix_state/delta_keys_factors.cuh"
#include "optimized/cuda/matrix_state/delta_keys_parts.cuh"
#include "optimized/cuda/ptx/copy_async.cuh"
#include "optimized/cuda/ptx/prefetch.cuh"

namespace lethe::matrix_state {

template <int kRows>
struct DeltaKeyMemory {
  struct Small {
    float totals[kWarps][kRows];                         ///< of 16 tokens' gates: the product
    uint32_t rounded[kWarps - 2][kRows / 2];             ///< that of the second and third 16 tokens in float16
    alignas(16) float key_unit[kChunk], factor[kChunk];  ///< factor: −β times the key's unit twice
  };
  /// A warp's own rows of the query lie where its blocks of the solution come, and of the read keys where it solves its block: both are read no more
  /// by then, and other warps have never read them.
  static constexpr int kTile = kRows / 64 * kPanel, kReadKey = kTile, kWriteKey = 2 * kTile, kSolution = 0,
                       kScratch = kReadKey, kScratchStride = kPanel / kWarps, kFactors = 3 * kTile,
                       kSmall = kFactors + kWarps * DeltaKeyFactors::kBytes,
                       kBytes = kSmall + static_cast<int>(sizeof(Small)),
                       kStride = (kBytes + 1023) / 1024 * 1024;  ///< of several chunks'
  static_assert(3 * kStride <= 227 * 1024);
};

/// Which pairs (row g or g + 8, column c of the same eight) a halving of n tokens is right for: those whose halving it is. 0: none.
__device__ __forceinline__ int delta_halving(int row, int column) {
  return column >= row ? 0 : 1 << (31 - __clz(row ^ column));
}

/// A warp's 16 tokens, lane 4g + t: rows g and g + 8, of step s channels 32s + 8t ….
template <typename Element, int kRows>
struct DeltaKeyBlock {
  static constexpr int kSteps = kRows / 32;
  using Memory = DeltaKeyMemory<kRows>;
  using Small = typename Memory::Small;
  const DeltaKeyArguments& p;
  char* const memory;
  const int block, lane;
  const int64_t b, h, first;  ///< first: the block's first token

  __device__ __forceinline__ Small& small() const { return *reinterpret_cast<Small*>(memory + Memory::kSmall); }
  __device__ __forceinline__ uint32_t tile(int offset) const { return ptx::shared_address(memory) + offset; }

  /// Begins to bring the gates of the warp's tokens.
  __device__ __forceinline__ void prefetch_gates() const {
#pragma unroll
    for (int i = lane; i < 16 * kSteps; i += 32) {
      const int64_t token = min(first + i / kSteps, p.length - 1);
      ptx::prefetch(static_cast<const float*>(p.gate.data) + b * p.gate.batch_stride + token * p.gate.token_stride +
                    h * p.gate.head_stride + min(i % kSteps * 32, p.rows - 1));
    }
  }
  __device__ __forceinline__ DeltaKeyFactors factors() const {
    return DeltaKeyFactors(tile(Memory::kFactors) + block * DeltaKeyFactors::kBytes, lane);
  }
  /// The lane's first gate. Computed once a chunk: its address in 64 bits takes more instructions than what it loads.
  __device__ __forceinline__ const float* first_gate() const {
    return static_cast<const float*>(p.gate.data) +
           (b * p.gate.batch_stride + (first + lane / 16 * 8) * p.gate.token_stride + h * p.gate.head_stride +
            lane % 16 * 2);
  }
  /// Of step s, whose first one is at `from`.
  __device__ __forceinline__ void load_gates(DeltaKeyFactors::Logs& to, const float* from, int s) const {
    const int channel = 32 * s + lane % 16 * 2,
              inside = channel < p.rows ? static_cast<int>(min(p.length - first, int64_t{16})) - lane / 16 * 8 : 0;
#pragma unroll
    for (int i = 0; i < 8; ++i, from += p.gate.token_stride)
      to[i] = i < inside ? load_global2(from) : float2{0.0f, 0.0f};
  }

  __device__ __forceinline__ uint32_t own_row(int offset, int half, int s) const {
    return tile(offset) + tile_piece(16 * block + lane / 4 + 8 * half, 4 * s + lane % 4);
  }

  /// Where a lane's part of row g or g + 8 of the query (0) or key (1) comes, before its chunk is begun: of a chunk's block what its warp needs until
  /// then for nothing else, its factors and the second half of its own rows of the query.
  __device__ __forceinline__ uint32_t coming_at(int operand, int half, int s) const {
    constexpr int kPiece = 32 * 16, kPieces = DeltaKeyFactors::kBytes / kPiece;
    const int i = (2 * operand + half) * kSteps + s;
    return (i < kPieces ? tile(Memory::kFactors) + block * DeltaKeyFactors::kBytes + i * kPiece
                        : tile(kPanel) + block * 2048 + (i - kPieces) * kPiece) +
           lane * 16;
  }
  /// Begins to bring the warp's rows to where `at` has room for them, zeros outside.
  __device__ __forceinline__ void bring_rows(const DeltaKeyBlock& at) const {
    const int channel = lane % 4 * 8;
#pragma unroll
    for (int operand = 0; operand < 2; ++operand)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Operand& from = operand ? p.key : p.query;
        const int64_t token = first + lane / 4 + 8 * half;
        const char* const row =
            static_cast<const char*>(from.data) +
            (b * from.batch_stride + min(token, p.length - 1) * from.token_stride + h * from.head_stride) * 2;
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          const bool inside = token < p.length && 32 * s + channel < p.rows;
          ptx::copy_chunk(at.coming_at(operand, half, s), inside ? row + (32 * s + channel) * 2 : row, inside);
        }
      }
    ptx::copies_commit();
  }

  /// A lane's part of two rows.
  using Rows = uint4[2][kSteps];
  __device__ __forceinline__ void load_rows(Rows& rows, int operand) const {
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
#pragma unroll
      for (int half = 0; half < 2; ++half) rows[half][s] = ptx::load_words(coming_at(operand, half, s));
  }
  /// The rows divided by their units, to a tile.
  __device__ __forceinline__ void divide(const Rows& rows, int offset, float (&unit)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t most = 0;
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const uint4& x = rows[half][s];
        for (uint32_t word : {x.x, x.y, x.z, x.w}) most = larger_pair<Element>(most, word);
      }
      const float2 largest = unpack<Element>(most);
      unit[half] = row_unit(quad_max(fmaxf(largest.x, largest.y)));
      const float factor = reciprocal_of_power(unit[half]) * kRowScale;
      const auto divided = [&](uint32_t word) {
        if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
          // Exact, by a power of two: one instruction for two.
          __nv_bfloat162 pair;
          memcpy(&pair, &word, 4);
          pair = __hmul2(pair, __float2bfloat162_rn(factor));
          memcpy(&word, &pair, 4);
          const float2 two = unpack<Element>(word);
          return pack<__half>(two.x, two.y);
        } else {
          const float2 two = unpack<Element>(word);
          return pack<__half>(two.x * factor, two.y * factor);
        }
      };
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const uint4& x = rows[half][s];
        ptx::store_words(own_row(offset, half, s), {divided(x.x), divided(x.y), divided(x.z), divided(x.w)});
      }
    }
  }

  /// Sums of keys' rows, then of queries' rows, by keys: of rows and columns below 8 and of both above, each by a halving of 1, 2 and 4 tokens, of
  /// which each pair has one; and of rows above and columns below. `own`: of queries alone, rows below by columns below and above by above.
  struct Pairs {
    float near[3][4] = {}, far[3][4] = {}, across[4] = {}, own[2][4] = {};
    /// To near[0] and far[0], of row g and column 2t + e of an eight, the sums of their halving; zeros from the diagonal on.
    __device__ __forceinline__ void select(int g, int t) {
      const auto select = [&](float(&sums)[3][4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int n = delta_halving(g, 2 * t + i % 2);
          sums[0][i] = n == 1 ? sums[0][i] : n == 2 ? sums[1][i] : n == 4 ? sums[2][i] : 0.0f;
        }
      };
      select(near);
      select(far);
    }
  };

  /// Eight channels' factors as float16, and channels times them: of what they make small, 2^-25 of the largest number is lost.
  __device__ __forceinline__ static uint4 pack_factors(const float (&factor)[8]) {
    return {pack<__half>(factor[0], factor[1]), pack<__half>(factor[2], factor[3]), pack<__half>(factor[4], factor[5]),
            pack<__half>(factor[6], factor[7])};
  }
  __device__ __forceinline__ static uint32_t product(uint32_t word, uint32_t factor) {
    const __half2 product = __hmul2(halves(word), halves(factor));
    memcpy(&word, &product, 4);
    return word;
  }
  __device__ __forceinline__ static uint4 product(const uint4& row, const uint4& factor) {
    return {product(row.x, factor.x), product(row.y, factor.y), product(row.z, factor.z), product(row.w, factor.w)};
  }

  /// Two rows' channels times factors, as operands.
  struct Operands {
    uint32_t words[2][4];
    __device__ __forceinline__ Operands(const uint4 (&x)[2], const uint4 (&factor)[2]) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 row = product(x[half], factor[half]);
        words[half][0] = row.x, words[half][1] = row.y, words[half][2] = row.z, words[half][3] = row.w;
      }
    }
    /// sum += rows `rows` of these and of `asked` · rows `columns` of these: 0 for g, 1 for g + 8.
    __device__ __forceinline__ void multiply(float (&sum)[4], const Operands& asked, int rows, int columns) const {
#pragma unroll
      for (int k = 0; k < 4; k += 2)
        ptx::multiply_add<__half>(sum,
                                  {words[rows][k], asked.words[rows][k], words[rows][k + 1], asked.words[rows][k + 1]},
                                  words[columns][k], words[columns][k + 1]);
    }
  };

  /// The factors of step s's channels, and what all 16 tokens' gates come to.
  __device__ __forceinline__ void store_factors(const DeltaKeyFactors& factors, const DeltaKeyFactors::Logs& gates,
                                                int s) const {
    const float2 log = factors.store(gates);
    const float total[2] = {exp2f(log.x), exp2f(log.y)};
    if (lane >= 16) return;
    const int channel = 32 * s + 2 * lane;
    *reinterpret_cast<float2*>(&small().totals[block][channel]) = {total[0], total[1]};
    if (block == 1 || block == 2) small().rounded[block - 1][channel / 2] = pack<__half>(total[0], total[1]);
  }

  /// Adds to sums what step s's channels give, and leaves in the tiles the rows with the gates of their 16 tokens.
  __device__ __forceinline__ void halve(const DeltaKeyFactors& factors, int s, Pairs& pairs) const {
    using Factors = DeltaKeyFactors;
    uint4 query[2], key[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      query[half] = ptx::load_words(own_row(0, half, s));
      key[half] = ptx::load_words(own_row(Memory::kReadKey, half, s));
    }
#pragma unroll
    for (int n = 0; n < 3; ++n) {
      constexpr Factors::Table kOf[3] = {Factors::kOfOne, Factors::kOfTwo, Factors::kOfFour};
      const uint4 factor[2] = {factors.load(kOf[n], 0), factors.load(kOf[n], 1)};
      const Operands keyed(key, factor), asked(query, factor);
      keyed.multiply(pairs.near[n], asked, 0, 0);
      keyed.multiply(pairs.far[n], asked, 1, 1);
    }
    const uint4 up[2] = {factors.load(Factors::kUp, 0), factors.load(Factors::kUp, 1)},
                down[2] = {factors.load(Factors::kDown, 0), factors.load(Factors::kDown, 1)};
    {
      const uint4 factor[2] = {down[0], up[1]};
      const Operands keyed(key, factor), asked(query, factor);
      keyed.multiply(pairs.across, asked, 1, 0);
    }
    // Queries by their own eight's keys, without gates.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 &q = query[0], &r = query[1], &k = key[half];
      ptx::multiply_add<__half>(pairs.own[half], {q.x, r.x, q.y, r.y}, k.x, k.y);
      ptx::multiply_add<__half>(pairs.own[half], {q.z, r.z, q.w, r.w}, k.z, k.w);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 across = factors.load(Factors::kAcross, half), of_read = half ? across : up[0],
                  of_write = half ? down[1] : across;
      ptx::store_words(own_row(0, half, s), product(query[half], of_read));
      ptx::store_words(own_row(Memory::kReadKey, half, s), product(key[half], of_read));
      ptx::store_words(own_row(Memory::kWriteKey, half, s), product(key[half], of_write));
    }
  }

  /// The rows of the tiles with the gates since the chunk's beginning, or until its end, to the record.
  __device__ __forceinline__ void store_rows(char* record) const {
    constexpr int kPieces = kRows / 8, kAtOnce = 32 / kPieces;
    using Record = DeltaKeyRecord<kRows>;
    const int piece = lane % kPieces;
    float before[8], after[8];
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      before[c] = after[c] = 1.0f;
#pragma unroll
      for (int i = 0; i < kWarps; ++i) {
        const float total = small().totals[i][8 * piece + c];
        if (i < block) before[c] *= total;
        if (i > block) after[c] *= total;
      }
    }
    const uint4 of_read = pack_factors(before), of_write = pack_factors(after);
    const uint32_t first_row = tile_piece(16 * block + lane / kPieces, piece),
                   first_read = first_row ^ (p.last_rows_first ? 7 * 1024 : 0);
#pragma unroll
    for (int i = 0; i < 16 / kAtOnce; ++i) {
      // By this differ the places of rows i·kAtOnce apart.
      const uint32_t further = i * kAtOnce * 128 ^ i * kAtOnce % 8 * 16, at = first_row ^ further;
      const auto store = [&](int from, int to, const uint4& factor, uint32_t place) {
        *reinterpret_cast<uint4*>(record + to + place) = product(ptx::load_words(tile(from) + at), factor);
      };
      store(0, Record::kQuery, of_read, first_read ^ further);
      store(Memory::kReadKey, Record::kReadKey, of_read, first_read ^ further);
      store(Memory::kWriteKey, Record::kWriteKey, of_write, at);
    }
  }

  /// The pairs of the block's rows with earlier blocks' tokens.
  __device__ __forceinline__ void multiply_earlier(Sums& keys, Sums& queries) const {
    if (block == 1) multiply_earlier_of<1>(keys, queries);
    if (block == 2) multiply_earlier_of<2>(keys, queries);
    if (block == 3) multiply_earlier_of<3>(keys, queries);
  }
  // In code without branches what a product reads comes while the one before it is computed.
  template <int kBlock>
  __device__ __forceinline__ void multiply_earlier_of(Sums& keys, Sums& queries) const {
    const int t = lane % 4;
    const auto weigh = [&](uint32_t& word, uint32_t factor) { word = product(word, factor); };
#pragma unroll 2
    for (int k = 0; k < kRows / 16; ++k) {
      uint32_t asked[4], keyed[4];
      load_left(asked, tile(0), kBlock, k, lane);
      load_left(keyed, tile(Memory::kReadKey), kBlock, k, lane);
      const auto total = [&](int of, int eight) { return small().rounded[of - 1][8 * k + 4 * eight + t]; };
#pragma unroll
      for (int j = kBlock - 1; j >= 0; --j) {
        // Blocks 2 and 3 meet 0 and 1 in the middle of the chunk.
        if (kBlock == 3 && j == 1)
#pragma unroll
          for (int i = 0; i < 4; ++i) weigh(asked[i], total(2, i / 2)), weigh(keyed[i], total(2, i / 2));
        uint32_t right[4];
        load_right_columns(right, tile(Memory::kWriteKey), k, j, lane);
        if (kBlock >= 2 && j == 0)
#pragma unroll
          for (int i = 0; i < 4; ++i) weigh(right[i], total(1, i % 2));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          ptx::multiply_add<__half>(keys[2 * j + i], keyed, right[2 * i], right[2 * i + 1]);
          ptx::multiply_add<__half>(queries[2 * j + i], asked, right[2 * i], right[2 * i + 1]);
        }
      }
    }
  }

  /// The sums' blocks up to the diagonal, rows and columns times factors, in two parts each.
  __device__ __forceinline__ void store_triangle(const Sums& sums, const float (&row)[2], const float* columns,
                                                 char* to) const {
#pragma unroll
    for (int k = 0; k < kWarps; ++k) {
      if (k > block) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&x)[4] = sums[2 * k + i / 2];
        const float2 column = *reinterpret_cast<const float2*>(&columns[16 * k + 8 * (i / 2) + lane % 4 * 2]);
        const BrainParts parts(x[i % 2 * 2] * row[i % 2] * column.x, x[i % 2 * 2 + 1] * row[i % 2] * column.y);
        uint32_t* const words =
            reinterpret_cast<uint32_t*>(to + triangle_matrix(2 * block + i % 2, 2 * k + i / 2)) + lane;
        words[0] = parts.high;
        words[kTriangle / 4] = parts.low;
      }
    }
  }
};

}  // namespace lethe::matrix_state
