#pragma once
// Rows of a chunk's tiles as float16 divided by powers of two, by a warp its 16; and their weighted triangles.

#include "optimized/cuda/hopper/ptx/largest.cuh"
#include "optimized/cuda/hopper/ptx/store_run.cuh"
#include "optimized/cuda/matrix_state/delta_parts.cuh"

namespace lethe::matrix_state {

/// Sums of wgmma in the order of mma.sync's.
__device__ __forceinline__ Sums& by_tiles(float (&sums)[32]) { return reinterpret_cast<Sums&>(sums); }

template <typename Element>
using PairOf = std::conditional_t<std::is_same_v<Element, __half>, __half2, __nv_bfloat162>;

/// A register as the vector type of 16-bit arithmetic, and back.
template <typename Element>
__device__ __forceinline__ PairOf<Element> pair_of(uint32_t word) {
  PairOf<Element> pair;
  memcpy(&pair, &word, sizeof pair);
  return pair;
}
template <typename Pair>
__device__ __forceinline__ uint32_t word_of(const Pair& pair) {
  uint32_t word;
  memcpy(&word, &pair, sizeof word);
  return word;
}

/// A lane's part of a row of a tile of kPanels panels: half of each panel's. The rows of eight lanes are in different banks.
template <int kPanels>
struct RowPart {
  int row;
  uint32_t address;  ///< of the first piece

  __device__ __forceinline__ RowPart(uint32_t tile, int block, int lane)
      : row(16 * block + lane % 16), address(tile + tile_piece(row, lane / 16 * 4)) {}

  /// The address of a piece of 16 bytes.
  __device__ __forceinline__ uint32_t piece(int i) const { return at_piece(address, i % 4) + i / 4 * kPanel; }

  /// visit(a piece's number, its address)
  template <typename Visit>
  __device__ __forceinline__ void each(Visit&& visit) const {
#pragma unroll
    for (int i = 0; i < 4 * kPanels; ++i) visit(i, piece(i));
  }
};

/// Of four numbers at least 0, two of them another lane's.
template <typename Element>
__device__ __forceinline__ float largest_of_two_lanes(PairOf<Element> most) {
  most = __hmax2(most, pair_of<Element>(__shfl_xor_sync(kAllLanes, word_of(most), 16)));
  const float2 both = unpack<Element>(word_of(most));
  return fmaxf(both.x, both.y);
}

/// The largest number of a row, of which two lanes have the parts.
template <typename Element, int kPieces>
__device__ __forceinline__ float largest_of_row(const uint4 (&pieces)[kPieces]) {
  PairOf<Element> most = __habs2(pair_of<Element>(pieces[0].x));
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const uint32_t words[4] = {pieces[i].x, pieces[i].y, pieces[i].z, pieces[i].w};
#pragma unroll
    for (int e = 0; e < 4; ++e) most = __hmax2(most, __habs2(pair_of<Element>(words[e])));
  }
  return largest_of_two_lanes<Element>(most);
}

template <int kPanels>
__device__ __forceinline__ void load_row(uint4 (&pieces)[4 * kPanels], const RowPart<kPanels>& part) {
  part.each([&](int i, uint32_t address) { pieces[i] = ptx::load_words(address); });
}

template <typename Element>
__device__ __forceinline__ uint32_t scaled_to_half(uint32_t word, float factor) {
  const float2 pair = unpack<Element>(word);
  return pack<__half>(pair.x * factor, pair.y * factor);
}
template <typename Element>
__device__ __forceinline__ uint4 scaled_to_half(const uint4& x, float factor) {
  return {scaled_to_half<Element>(x.x, factor), scaled_to_half<Element>(x.y, factor),
          scaled_to_half<Element>(x.z, factor), scaled_to_half<Element>(x.w, factor)};
}

template <typename Element, int kPanels>
__device__ __forceinline__ void store_row(const uint4 (&pieces)[4 * kPanels], const RowPart<kPanels>& part,
                                          float factor) {
  part.each([&](int i, uint32_t address) { ptx::store_words(address, scaled_to_half<Element>(pieces[i], factor)); });
}

/// Rows become float16 divided by their units, which are known.
template <typename Element, int kPanels>
__device__ __forceinline__ void divide_rows(uint32_t tile, const float* units, int block, int lane) {
  const RowPart<kPanels> part(tile, block, lane);
  uint4 pieces[4 * kPanels];
  load_row(pieces, part);
  store_row<Element>(pieces, part, reciprocal_of_power(units[part.row]));
}

/// The same by units of their largest numbers.
template <typename Element, int kPanels>
__device__ __forceinline__ void divide_rows_by_largest(uint32_t tile, float* units, int block, int lane) {
  const RowPart<kPanels> part(tile, block, lane);
  uint4 pieces[4 * kPanels];
  load_row(pieces, part);
  const float unit = power_of_two_below(largest_of_row<Element>(pieces));
  store_row<Element>(pieces, part, reciprocal_of_power(unit));
  if (lane < 16) units[part.row] = unit;
}

/// A warp's 16 rows of kTiles tiles to images of these, by the copy engine, as a bulk group of lane 0: what all lanes have written and fenced.
template <int kTiles>
__device__ __forceinline__ void store_images(uint4* images, const char* tiles, int block, int lane) {
  constexpr int kBytes = kPanel / kWarps;
  if (lane > 0) return;
#pragma unroll
  for (int i = 0; i < kTiles; ++i)
    ptx::store_run(images + (i * kPanel + block * kBytes) / 16, tiles + i * kPanel + block * kBytes, kBytes);
  ptx::bulk_commit();
}
/// A warp: until lane 0's bulk groups have read shared memory, which may be written again.
__device__ __forceinline__ void wait_for_stores(int lane) {
  if (lane == 0) ptx::bulk_wait_read<0>();
  __syncwarp();
}

// By warps of few registers, a piece at a time.

/// The largest number of this lane's row.
template <typename Element, int kPanels>
__device__ __forceinline__ float measure_row(const RowPart<kPanels>& part) {
  PairOf<Element> most = pair_of<Element>(0);
  part.each([&](int, uint32_t address) {
    const uint4 x = ptx::load_words(address);
    for (const uint32_t word : {x.x, x.y, x.z, x.w}) most = __hmax2(most, __habs2(pair_of<Element>(word)));
  });
  return largest_of_two_lanes<Element>(most);
}

/// Rows become float16 divided by the powers of two below their largest numbers: returns that of this lane's row.
template <typename Element, int kPanels>
__device__ __forceinline__ float measure_and_divide_row(const RowPart<kPanels>& part) {
  const float most = measure_row<Element>(part), factor = reciprocal_of_power(power_of_two_below(most));
  part.each([&](int, uint32_t address) {
    ptx::store_words(address, scaled_to_half<Element>(ptx::load_words(address), factor));
  });
  return most;
}

// The same of two rows at once, so that a warp waits for memory half as often.

template <typename Element, int kPanels>
__device__ __forceinline__ float2 measure_rows(const RowPart<kPanels>& first, const RowPart<kPanels>& second) {
  PairOf<Element> most[2] = {pair_of<Element>(0), pair_of<Element>(0)};
#pragma unroll
  for (int i = 0; i < 4 * kPanels; ++i) {
    const uint4 x[2] = {ptx::load_words(first.piece(i)), ptx::load_words(second.piece(i))};
#pragma unroll
    for (int e = 0; e < 2; ++e)
      for (const uint32_t word : {x[e].x, x[e].y, x[e].z, x[e].w})
        most[e] = __hmax2(most[e], __habs2(pair_of<Element>(word)));
  }
  return {largest_of_two_lanes<Element>(most[0]), largest_of_two_lanes<Element>(most[1])};
}

/// The largest numbers of a lane's parts of two rows, a panel at a time: in fewer registers.
template <typename Element, int kPanels>
__device__ __forceinline__ float2 largest_of_rows(uint32_t first, uint32_t second) {
  uint32_t most[2] = {};
#pragma unroll 1
  for (int panel = 0; panel < kPanels; ++panel, first += kPanel, second += kPanel)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 x[2] = {ptx::load_words(at_piece(first, i)), ptx::load_words(at_piece(second, i))};
#pragma unroll
      for (int e = 0; e < 2; ++e)
        for (const uint32_t word : {x[e].x, x[e].y, x[e].z, x[e].w})
          most[e] = ptx::larger_magnitudes<Element>(most[e], word);
    }
  return {largest_of_two_lanes<Element>(pair_of<Element>(most[0] & 0x7fff7fffu)),
          largest_of_two_lanes<Element>(pair_of<Element>(most[1] & 0x7fff7fffu))};
}

template <typename Element, int kPanels>
__device__ __forceinline__ float2 measure_and_divide_rows(const RowPart<kPanels>& first,
                                                          const RowPart<kPanels>& second) {
  const float2 most = measure_rows<Element>(first, second),
               factor = {reciprocal_of_power(power_of_two_below(most.x)),
                         reciprocal_of_power(power_of_two_below(most.y))};
#pragma unroll
  for (int i = 0; i < 4 * kPanels; ++i) {
    const uint4 x = ptx::load_words(first.piece(i)), y = ptx::load_words(second.piece(i));
    ptx::store_words(first.piece(i), scaled_to_half<Element>(x, factor.x));
    ptx::store_words(second.piece(i), scaled_to_half<Element>(y, factor.y));
  }
  return most;
}

/// A warp's rows of products with keys, times D: keys up to the row, zeros after it. With gates tiles after the diagonal block are left as they are, but for
/// these zeros, which have no branches: those take longer than the numbers.
__device__ __forceinline__ void weigh_lower_pairs(float (&sums)[32], const ChunkGates& gates, bool gated, int block,
                                                  int lane) {
  const int i0 = 16 * block + lane / 4, t = lane % 4;
  if (gated) {
    const int first_seen[2] = {gates.first_seen[i0], gates.first_seen[i0 + 8]};
    const bool cuts = gates.first_seen[kChunk - 1] > 0;
    const float sum[2] = {gates.sum[i0], gates.sum[i0 + 8]};
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      if (c / 2 > block) break;
      const int j = 8 * c + 2 * t;
      const float2 sum_j = *reinterpret_cast<const float2*>(&gates.sum[j]);
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[4 * c + e] *= exp2_approximate(sum[e / 2] - (e % 2 ? sum_j.y : sum_j.x));
      if (cuts)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (!sees(i0 + 8 * (e / 2), j + e % 2, first_seen[e / 2])) sums[4 * c + e] = 0.0f;
    }
  }
  const int last = i0 - 2 * t;
#pragma unroll
  for (int c = 0; c < 8; ++c)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (8 * c + e % 2 - 8 * (e / 2) > last) sums[4 * c + e] = 0.0f;
}

/// A warp's rows of products of keys with queries, times D: queries from the row's token on, zeros before it. With gates tiles before the diagonal block are
/// left as they are, but for these zeros.
__device__ __forceinline__ void weigh_later_pairs(float (&sums)[32], const ChunkGates& gates, bool gated, int block,
                                                  int lane) {
  const int j0 = 16 * block + lane / 4, t = lane % 4;
  if (gated) {
    const bool cuts = gates.first_seen[kChunk - 1] > 0;
    const float sum[2] = {gates.sum[j0], gates.sum[j0 + 8]};
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      if (c / 2 < block) continue;
      const int i = 8 * c + 2 * t;
      const float2 sum_i = *reinterpret_cast<const float2*>(&gates.sum[i]);
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[4 * c + e] *= exp2_approximate((e % 2 ? sum_i.y : sum_i.x) - sum[e / 2]);
      if (cuts) {
        const int2 first_seen = *reinterpret_cast<const int2*>(&gates.first_seen[i]);
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (!sees(i + e % 2, j0 + 8 * (e / 2), e % 2 ? first_seen.y : first_seen.x)) sums[4 * c + e] = 0.0f;
      }
    }
  }
  const int first = j0 - 2 * t;
#pragma unroll
  for (int c = 0; c < 8; ++c)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (8 * c + e % 2 - 8 * (e / 2) < first) sums[4 * c + e] = 0.0f;
}

// Blocks of a triangle, a left operand's. A warp has a row of a lower one; of an upper one, whose blocks are those of its transpose, a column.

/// Where a warp's block of 16 columns k is among those of its triangle.
template <bool kUpper>
__device__ __forceinline__ int block_at(int block, int k) {
  return 32 * (kUpper ? lower_block(k, block) : lower_block(block, k));
}

/// A block's words, which are a left operand; or as two right ones of its transpose, side by side.
template <bool kAsRight>
__device__ __forceinline__ uint4 block_of(const uint32_t (&left)[4]) {
  return kAsRight ? uint4{left[0], left[2], left[1], left[3]} : uint4{left[0], left[1], left[2], left[3]};
}

/// A block times factors of its columns, two of each tile, and of its rows.
__device__ __forceinline__ void weigh_block(uint32_t (&left)[4], const uint4& words, const float2& near,
                                            const float2& far, const float (&outer)[2]) {
  const uint32_t of[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpack<__half>(of[i]), w = i < 2 ? near : far;
    left[i] = pack<__half>(pair.x * w.x * outer[i % 2], pair.y * w.y * outer[i % 2]);
  }
}

/// All blocks of a triangle, by four warps: those of numbers warp, warp + 4 and warp + 8. factor(column): of two; outer(row). A lower one's become right operands.
template <bool kUpper, typename Factor, typename Outer>
__device__ __forceinline__ void weigh_triangle(uint4* blocks, const Factor& factor, const Outer& outer, int warp,
                                               int lane) {
  const auto weigh = [&]<int kCount>(int first) {  // so many at once, so that a warp waits for memory once
    uint4 words[kCount];
    float2 near[kCount], far[kCount];
    float of_row[kCount][2];
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      const int number = first + kWarps * n, i = row_of_lower_block(number),
                j = number - lower_block(i, 0), column = 16 * (kUpper ? i : j) + lane % 4 * 2,
                row = 16 * (kUpper ? j : i) + lane / 4;
      words[n] = blocks[32 * number + lane];
      near[n] = factor(column), far[n] = factor(column + 8);
      of_row[n][0] = outer(row), of_row[n][1] = outer(row + 8);
    }
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      uint32_t left[4];
      weigh_block(left, words[n], near[n], far[n], of_row[n]);
      blocks[32 * (first + kWarps * n) + lane] = block_of<!kUpper>(left);
    }
  };
  weigh.template operator()<2>(warp);
  if (warp + 2 * kWarps < kLowerBlocks) weigh.template operator()<1>(warp + 2 * kWarps);
}

/// Sums become a warp's blocks of a triangle, by factors of their columns and rows. Blocks that are not in it are made, too, without a branch.
template <bool kUpper>
__device__ __forceinline__ void store_weighted(uint4* blocks, const Sums& sums, const float* factors,
                                               const float (&outer)[2], int block, int lane) {
  const uint32_t to = ptx::shared_address(blocks + lane);
#pragma unroll
  for (int k = 0; k < kWarps; ++k) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&x)[4] = sums[2 * k + i / 2];
      const float2 factor = *reinterpret_cast<const float2*>(&factors[16 * k + 8 * (i / 2) + lane % 4 * 2]);
      words[i] = pack<__half>(x[i % 2 * 2] * factor.x * outer[i % 2], x[i % 2 * 2 + 1] * factor.y * outer[i % 2]);
    }
    ptx::store_words_where(kUpper ? k >= block : k <= block, to + 16 * block_at<kUpper>(block, k),
                           block_of<!kUpper>(words));
  }
}

/// Blocks of an upper triangle as a left operand.
__device__ __forceinline__ void load_blocks(uint32_t (&left)[16], const uint4* blocks, int block, int lane) {
#pragma unroll
  for (int k = 0; k < kWarps; ++k) {
    uint4 words{};
    if (k >= block) words = blocks[block_at<true>(block, k) + lane];
    left[4 * k] = words.x, left[4 * k + 1] = words.y, left[4 * k + 2] = words.z, left[4 * k + 3] = words.w;
  }
}

}  // namespace lethe::matrix_state
