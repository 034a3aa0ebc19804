#pragma once
// The pairs of tokens of a chunk that delta_keys_prepare.cuh prepares, of which a warp has 16 as readers.

#include "optimized/cuda/matrix_state/delta_keys_tokens.cuh"
#include "optimized/cuda/ptx/multiply.cuh"

namespace lethe::matrix_state {

/// By which number of lanes the halving of n pairs is: the other half's pair at the same place.
__device__ constexpr int delta_pair_lanes(int n) { return n == 1 ? 8 : n == 2 ? 4 : 16; }

/// Whose halving it is that pairs `row` and `column` meet in: of so many pairs. 0: none.
__device__ __forceinline__ int delta_halving(int row, int column) {
  return column >= row ? 0 : 1 << (31 - __clz(row ^ column));
}

/// The products of two words of two float16. Of what a factor up to 1 makes small, 2^-25 of the largest number is lost.
__device__ __forceinline__ uint32_t multiply_halves(uint32_t x, uint32_t factor) {
  const __half2 product = __hmul2(halves(x), halves(factor));
  uint32_t word;
  memcpy(&word, &product, 4);
  return word;
}

template <typename Element, int kRows>
struct DeltaKeyBlock : DeltaKeyRows<Element, kRows> {
  using Base = DeltaKeyRows<Element, kRows>;
  using Base::record, Base::block, Base::lane, Base::small, Base::tile, Base::own_piece;
  using typename Base::Memory, typename Base::Record;

  /// Sums of keys' rows (reader 0) and of queries' rows (1) by keys of the block: by halvings of 1, 2 and 4 pairs of tokens, of which two pairs have one, and
  /// within pairs.
  struct Pairs {
    float halvings[3][2][2][4] =
        {};  ///< [][reader][of the column's pair which]: as mma.sync has even tokens' rows, then odd ones'
    float beside[2] = {};  ///< odd tokens' rows by even tokens
    float own[2] = {};     ///< queries by their own keys
  };

  /// Four channels of the lane's two tokens as operands: [token], [which two].
  using Operands = uint32_t[2][2];
  __device__ __forceinline__ static void multiply(float (&sum)[4], const Operands& left, const uint32_t (&right)[2]) {
    ptx::multiply_add<__half>(sum, {left[0][0], left[1][0], left[0][1], left[1][1]}, right[0], right[1]);
  }
  using Four = float[4];
  __device__ __forceinline__ static void pack_four(uint32_t (&to)[2], const Four& x) {
    to[0] = pack<__half>(x[0], x[1]), to[1] = pack<__half>(x[2], x[3]);
  }

  /// Eight channels of the lane's two tokens, as they are stored.
  struct Rows {
    uint32_t query[2][4], read_key[2][4], write_key[2][4];
  };

  /// Adds to sums what channels 4·part … of a lane's eight give. To the two words of `tiles` from 2·part on: rows with the gates of their 16 tokens, since
  /// their beginning or until their end.
  __device__ __forceinline__ void halve(const float (&gates)[2][8], const uint4 (&query)[2], const uint4 (&key)[2],
                                        int part, Pairs& pairs, Rows& tiles) const {
    const auto factors = [&](const float* units) {
      const float2 two = *reinterpret_cast<const float2*>(&units[16 * block + this->own(0)]);
      return float2{reciprocal_of_power(two.x) * kRowScale, reciprocal_of_power(two.y) * kRowScale};
    };
    const float2 of_query = factors(small().query_unit), of_key = factors(small().key_unit);
    // Rows with the gates of their pair; the gates of a run of pairs.
    Four asked[2], read[2], written[2], run;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto of = [&](const uint4& x, float factor) {
        const float2 two = unpack<Element>(part == 0 ? (i == 0 ? x.x : x.y) : (i == 0 ? x.z : x.w));
        return float2{two.x * factor, two.y * factor};
      };
      const float2 q0 = of(query[0], of_query.x), q1 = of(query[1], of_query.y), k0 = of(key[0], of_key.x),
                   k1 = of(key[1], of_key.y);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int c = 2 * i + e;
        const float q[2] = {e ? q0.y : q0.x, e ? q1.y : q1.x}, k[2] = {e ? k0.y : k0.x, e ? k1.y : k1.x},
                    even = gates[0][4 * part + c], odd = gates[1][4 * part + c];
        run[c] = even * odd;
        written[0][c] = k[0] * odd, written[1][c] = k[1];
        read[0][c] = k[0] * even, read[1][c] = k[1] * run[c];
        asked[0][c] = q[0] * even, asked[1][c] = q[1] * run[c];
        pairs.beside[0] = fmaf(k[1], written[0][c], pairs.beside[0]);
        pairs.beside[1] = fmaf(q[1], written[0][c], pairs.beside[1]);
        pairs.own[0] = fmaf(q[0], k[0], pairs.own[0]);
        pairs.own[1] = fmaf(q[1], k[1], pairs.own[1]);
      }
    }
    Operands asked_words, read_words, written_words;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      pack_four(asked_words[half], asked[half]);
      pack_four(read_words[half], read[half]);
      pack_four(written_words[half], written[half]);
    }
    // Gates before and after the lane's pair in runs of 2, 4 and 8 pairs.
    Four up, down;
    uint32_t up_words[3][2], down_words[3][2];
#pragma unroll
    for (int level = 0; level < 3; ++level) {
      const bool upper = delta_pair(lane / 4) >> level & 1;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float other = __shfl_xor_sync(kAllLanes, run[c], delta_pair_lanes(1 << level));
        run[c] *= other;
        if (level == 0) up[c] = upper ? other : 1.0f, down[c] = upper ? 1.0f : other;
        else ptx::multiply_one(upper, up[c], down[c], other);
      }
      pack_four(up_words[level], up);
      pack_four(down_words[level], down);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int to = 2 * part + i;
        tiles.query[half][to] = multiply_halves(asked_words[half][i], up_words[2][i]);
        tiles.read_key[half][to] = multiply_halves(read_words[half][i], up_words[2][i]);
        tiles.write_key[half][to] = multiply_halves(written_words[half][i], down_words[2][i]);
      }
      // A lane's rows count where it is in the upper half of a run, and as columns where it is in the lower one.
#pragma unroll
    for (int level = 0; level < 3; ++level) {
      Operands key_rows, query_rows, columns;
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const auto weighted = [&](uint32_t word, const uint32_t(&words)[3][2]) {
            return level == 0 ? word : multiply_halves(word, words[max(level - 1, 0)][i]);
          };
          key_rows[half][i] = weighted(read_words[half][i], up_words);
          query_rows[half][i] = weighted(asked_words[half][i], up_words);
          columns[half][i] = weighted(written_words[half][i], down_words);
        }
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        multiply(pairs.halvings[level][0][column], key_rows, columns[column]);
        multiply(pairs.halvings[level][1][column], query_rows, columns[column]);
      }
    }
  }

  /// Adds to sums what step s's channels give, and leaves the rows in tiles, with the gates of their 16 tokens, and in the record, with those of the chunk.
  __device__ __forceinline__ void halve(const float (&gates)[2][8], int s, Pairs& pairs) const {
    uint4 query[2], key[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      query[half] = ptx::load_words(tile(0) + own_piece(half, s));
      key[half] = ptx::load_words(tile(Memory::kReadKey) + own_piece(half, s));
    }
    Rows tiles;
#pragma unroll
    for (int part = 0; part < 2; ++part) halve(gates, query, key, part, pairs, tiles);
    const int channel = 32 * s + 8 * (lane % 4);
    const auto store = [&](int of_tile, int of_record, const uint32_t(&rows)[2][4], const uint32_t* factors) {
      const uint4 x = *reinterpret_cast<const uint4*>(factors + channel / 2);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t(&row)[4] = rows[half], at = own_piece(half, s);
        ptx::store_words(tile(of_tile) + at, {row[0], row[1], row[2], row[3]});
        *reinterpret_cast<uint4*>(record + of_record + at) = {
            multiply_halves(row[0], x.x), multiply_halves(row[1], x.y), multiply_halves(row[2], x.z),
            multiply_halves(row[3], x.w)};
      }
    };
    store(0, Record::kQuery, tiles.query, small().before[block]);
    store(Memory::kReadKey, Record::kReadKey, tiles.read_key, small().before[block]);
    store(Memory::kWriteKey, Record::kWriteKey, tiles.write_key, small().after[block]);
  }

  /// Sums of the block's own pairs by one reader to their places, through 16 rows of 20 floats.
  __device__ __forceinline__ void place(Sums& to, const Pairs& pairs, int reader, float* scratch) const {
    constexpr int kStride = 20;
    const int g = lane / 4, t = lane % 4, row = delta_pair(g);
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = delta_pair(2 * t + e), n = delta_halving(row, column);
        // By masks: for a choice by lane the compiler branches.
        const auto masked = [](float x, bool is) { return __float_as_uint(x) & (is ? 0xffffffffu : 0u); };
        const auto met = [&](int which, float itself) {
          uint32_t bits = masked(itself, row == column);
#pragma unroll
          for (int level = 0; level < 3; ++level)
            bits |= masked(pairs.halvings[level][reader][which][2 * half + e], n == 1 << level);
          return __uint_as_float(bits);
        };
        const float even = half     ? pairs.beside[reader]
                           : reader ? pairs.own[0]
                                    : 0.0f,
                    odd = half && reader ? pairs.own[1] : 0.0f;
        *reinterpret_cast<float2*>(scratch + (2 * row + half) * kStride + 2 * column) = {met(0, even), met(1, odd)};
      }
    __syncwarp();
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      if (c / 2 != block) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 two = *reinterpret_cast<const float2*>(scratch + (g + 8 * half) * kStride + 8 * (c % 2) + 2 * t);
        to[c][2 * half] = two.x, to[c][2 * half + 1] = two.y;
      }
    }
    __syncwarp();
  }

  /// The pairs of the block's rows with earlier blocks' tokens.
  __device__ __forceinline__ void multiply_earlier(Sums& keys, Sums& queries) const {
    const int t = lane % 4;
#pragma unroll 2
    for (int k = 0; k < kRows / 16; ++k) {
      uint32_t asked[4], keyed[4];
      load_left(asked, tile(0), block, k, lane);
      load_left(keyed, tile(Memory::kReadKey), block, k, lane);
      const auto total = [&](int of, int eight) {
        const float2 two = *reinterpret_cast<const float2*>(&small().totals[of][16 * k + 8 * eight + 2 * t]);
        return pack<__half>(two.x, two.y);
      };
#pragma unroll
      for (int j = kWarps - 2; j >= 0; --j) {
        if (j >= block) continue;
        // Blocks 2 and 3 meet 0 and 1 in the middle of the chunk.
        if (block == 3 && j == 1)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const uint32_t factor = total(2, i / 2);
            asked[i] = multiply_halves(asked[i], factor);
            keyed[i] = multiply_halves(keyed[i], factor);
          }
        uint32_t right[4];
        load_right_columns(right, tile(Memory::kWriteKey), k, j, lane);
        if (block >= 2 && j == 0)
#pragma unroll
          for (int i = 0; i < 4; ++i) right[i] = multiply_halves(right[i], total(1, i % 2));
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
