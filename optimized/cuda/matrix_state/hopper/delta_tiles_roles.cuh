#pragma once
// What a CTA of delta_sweep.cuh does beside its state where W and P are tiles (delta_sweep_tiles.cuh).
//
//   a warp         tiles of a chunk, W, gates and strengths, which the solve has left; measures rows of V;
//                  sends O of three chunks before                                                          → full, values, sent
//   two warps      make the rows of K float16, then weigh W                                                → rows, prepared
//   a warp         measures the other rows of V; units                                                     → values, weighed
//   a warpgroup    measures the rows of Q, which become float16; P                                         → prepared
//                  of float16 it is prepared before P, and makes A of P and W's tile                       → folded
//
// In the tiles of K and Q, P and W blocks of 16 tokens lie the other way round, the last one first. So the sums that a step of a product with a lower
// triangle adds to are the first ones, and blocks after the diagonal's are never read: a token without a number reaches no earlier block.

#include "optimized/cuda/hopper/ptx/largest.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_sweep_roles.cuh"

namespace lethe::matrix_state {

/// Where a block of 16 tokens lies among four, or which one lies there.
__device__ __forceinline__ constexpr int mirrored(int block) { return kWarps - 1 - block; }
/// The token of a lane's first number in tile c of 8 columns.
__device__ __forceinline__ int mirrored_token(int c, int lane) {
  return 16 * mirrored(c / 2) + c % 2 * 8 + lane % 4 * 2;
}

/// Two numbers times a power of two, as float16. Those of bfloat16 are multiplied as a pair, which is exact but for what float16 has as 0.
template <typename Element>
__device__ __forceinline__ uint32_t divided_to_half(uint32_t word, float factor) {
  if constexpr (std::is_same_v<Element, __half>) return scaled_to_half<Element>(word, factor);
  const uint32_t bits = __float_as_uint(factor), factors = __byte_perm(bits, bits, 0x3232);
  const float2 pair = unpack<Element>(word_of(__hmul2(pair_of<Element>(word), pair_of<Element>(factors))));
  return pack<__half>(pair.x, pair.y);
}

template <typename Element>
__device__ __forceinline__ uint4 divided_to_half(const uint4& x, float factor) {
  return {divided_to_half<Element>(x.x, factor), divided_to_half<Element>(x.y, factor),
          divided_to_half<Element>(x.z, factor), divided_to_half<Element>(x.w, factor)};
}

/// A warp's rows of products with mirrored keys, times the gates between them, up to the diagonal's block; after a cut what it hides is 0.
__device__ __forceinline__ void weigh_pairs_by_gates(float (&sums)[32], const ChunkGates& gates, int block, int lane) {
  const int i0 = 16 * block + lane / 4;
  const float sum[2] = {gates.sum[i0], gates.sum[i0 + 8]};
#pragma unroll
  for (int k = 0; k < kWarps; ++k) {
    if (k > block) break;
#pragma unroll
    for (int c = 2 * mirrored(k); c < 2 * mirrored(k) + 2; ++c) {
      const float2 before = *reinterpret_cast<const float2*>(&gates.sum[mirrored_token(c, lane)]);
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[4 * c + e] *= exp2_approximate(sum[e / 2] - (e % 2 ? before.y : before.x));
    }
  }
  if (gates.first_seen[kChunk - 1] == 0) return;
  const int first_seen[2] = {gates.first_seen[i0], gates.first_seen[i0 + 8]};
#pragma unroll
  for (int c = 0; c < 8; ++c)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (mirrored_token(c, lane) + e % 2 < first_seen[e / 2]) sums[4 * c + e] = 0.0f;
}

/// The same rows, up to the diagonal, times factors of their columns and rows; zeros after it in its block.
__device__ __forceinline__ void weigh_mirrored_pairs(float (&sums)[32], const float2 (&factors)[kWarps][2],
                                                     const float (&of_rows)[2], int block, int lane) {
  const int first = lane % 4 * 2 - lane / 4;  // of a lane's first column after its first row
#pragma unroll
  for (int k = 0; k < kWarps; ++k) {
    if (k > block) break;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      float& x = sums[8 * mirrored(k) + e];
      const float2 factor = factors[k][e / 4];
      const bool later = k == block && first + e % 2 + e / 4 * 8 - e / 2 % 2 * 8 > 0;
      x = later ? 0.0f : x * (e % 2 ? factor.y : factor.x) * of_rows[e / 2 % 2];
    }
  }
}

/// A warp: issues the copies of chunk n's O after the state's warps have stored it. The fence, after that wait, orders their writes before the copies.
template <typename Element, int kBlocks, int kGroups, bool kReads, bool kKeeps>
__device__ __forceinline__ void DeltaSweep<Element, kBlocks, kGroups, kReads, kKeeps>::send_output(int n) const {
  ptx::mbarrier_wait(&small().stored, n % 2);
  ptx::fence_async_shared();
  if (lane < kWarps * kGroups) {
    const int group = lane / kWarps, token = 16 * (lane % kWarps);
    ptx::store_tile(&p.maps[3], memory + Shared::kState + group * kPanel + 128 * token, 64 * (tile + group), h,
                    static_cast<int>(first_of(n)) + token, b);
    ptx::bulk_commit();
  }
}
/// The same warp: waits until these copies have read O; then the next chunk's may be stored.
template <typename Element, int kBlocks, int kGroups, bool kReads, bool kKeeps>
__device__ __forceinline__ void DeltaSweep<Element, kBlocks, kGroups, kReads, kKeeps>::release_output() const {
  ptx::bulk_wait_read<0>();
  arrive_warp(sent(), lane);
}

/// A warp: makes two of four blocks of K's rows float16, which change places; then weighs the same rows of W's blocks.
template <typename Element, int kBlocks, int kGroups, bool kReads, bool kKeeps>
__device__ __forceinline__ void DeltaSweep<Element, kBlocks, kGroups, kReads, kKeeps>::divide_keys(int half) const {
  const int row = 16 * half + lane % 16, other = 16 * mirrored(half) + lane % 16;  // these change places
  const uint32_t first = tile_piece(row, lane / 16 * 4), second = tile_piece(other, lane / 16 * 4);
  ptx::RingPosition at;
  for (int n = 0; n < p.chunks; ++n, at.advance(Shared::kStages)) {
    ptx::mbarrier_wait(&small().full[at.index], at.parity);
    const float* const unit = solved(at.index).key_unit;
    const float factor[2] = {reciprocal_of_power(unit[row]), reciprocal_of_power(unit[other])};
    const uint32_t key = ptx::shared_address(stage(at.index)) + Shared::kKey;
    const auto place = [&](uint32_t of, int i) { return at_piece(key + of, i % 4) + i / 4 * kPanel; };
    uint4 x = ptx::load_words(place(first, 0)), y = ptx::load_words(place(second, 0));
#pragma unroll 2
    for (int i = 0; i < 4 * kBlocks; ++i) {  // a piece is loaded while the one before it is divided
      const uint4 own = x, others = y;
      const int next = min(i + 1, 4 * kBlocks - 1);
      x = ptx::load_words(place(first, next)), y = ptx::load_words(place(second, next));
      ptx::store_words(place(second, i), divided_to_half<Element>(own, factor[0]));
      ptx::store_words(place(first, i), divided_to_half<Element>(others, factor[1]));
    }
    ptx::fence_async_shared();
    arrive_warp(&small().rows[at.index], lane);
    ptx::mbarrier_wait(&small().weighed[at.index], at.parity);
#pragma unroll 1
    for (int i = 0; i < 2; ++i) weigh_inverse(i ? mirrored(half) : half, n, at);
    ptx::fence_async_shared();
    arrive_warp(&small().prepared[at.index], lane);
  }
}

/// A warp: row `of` of the blocks of a chunk's W.
template <typename Element, int kBlocks, int kGroups, bool kReads, bool kKeeps>
__device__ __forceinline__ void DeltaSweep<Element, kBlocks, kGroups, kReads, kKeeps>::weigh_inverse(
    int of, int n, const ptx::RingPosition& at) const {
  const SolvedChunk& chunk = solved(at.index);
  const float* const reciprocal = small().tokens[at.index].reciprocal();
  const uint32_t to = rows_address(ptx::shared_address(inverse_tile(n)), mirrored(of), lane);
  const int row = 16 * of + lane / 4;
  const float of_row[2] = {-chunk.unit[row] * reciprocal[row], -chunk.unit[row + 8] * reciprocal[row + 8]};
#pragma unroll
  for (int k = 0; k < kWarps; ++k) {
    if (k > of) break;
    float2 factor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 x = *reinterpret_cast<const float2*>(&reciprocal[16 * k + 8 * i + lane % 4 * 2]);
      factor[i] = {reciprocal_of_power(x.x), reciprocal_of_power(x.y)};
    }
    uint32_t left[4];
    weigh_block(left, chunk.inverse[32 * lower_block(of, 0) + 32 * k + lane], factor[0], factor[1], of_row);
    ptx::store_matrices(at_piece(to, 2 * mirrored(k)), left[0], left[1], left[2], left[3]);
  }
}

template <typename Element, int kBlocks, int kGroups, bool kReads, bool kKeeps>
__device__ __forceinline__ void DeltaSweep<Element, kBlocks, kGroups, kReads, kKeeps>::prepare_tiles() const {
  const int block = mirrored(static_cast<int>(threadIdx.x / 32 % kWarps));  // of tokens; as tiles are mirrored, these are the warp's rows of the product
  const bool gated = p.gate.log_forget != nullptr;
  const int g = lane / 4, t = lane % 4, i0 = 16 * block + g;
  const uint32_t diagonal = (2 * t <= g ? 0xffffu : 0) | (2 * t < g ? 0xffff0000u : 0);  // of 8 × 8 numbers
  ptx::RingPosition at;
  for (int n = 0; n < p.chunks; ++n, at.advance(Shared::kStages)) {
    char* const tiles = stage(at.index);
    DeltaTokens& tokens = small().tokens[at.index];
    SolvedChunk& chunk = solved(at.index);
    ptx::mbarrier_wait(&small().full[at.index], at.parity);
    float unit[2];
    {
      uint32_t queries[kBlocks][16];
      const uint32_t rows = rows_address(ptx::shared_address(tiles), block, lane);
      const uint32_t to = rows_address(ptx::shared_address(tiles), mirrored(block), lane);
      const auto place = [&](uint32_t of, int i) { return at_piece(of, 2 * (i % 4)) + i / 4 * kPanel; };
      const auto four = [&](int i) -> uint32_t(&)[4] {
        return reinterpret_cast<uint32_t(&)[4]>(queries[i / 4][4 * (i % 4)]);
      };
      uint32_t most[2] = {};
#pragma unroll
      for (int i = 0; i < 4 * kBlocks; ++i) ptx::load_matrices(four(i), place(rows, i));
#pragma unroll
      for (int i = 0; i < 16 * kBlocks; ++i)
        most[i % 2] = ptx::larger_magnitudes<Element>(most[i % 2], queries[i / 16][i % 16]);
      uint32_t both =
          ptx::larger_magnitudes<Element>(__byte_perm(most[0], most[1], 0x5410), __byte_perm(most[0], most[1], 0x7632));
#pragma unroll
      for (int step = 1; step < 4; step *= 2)
        both = ptx::larger_magnitudes<Element>(both, __shfl_xor_sync(kAllLanes, both, step));
      const float2 largest = unpack<Element>(both & 0x7fff7fffu);
      unit[0] = power_of_two_below(largest.x), unit[1] = power_of_two_below(largest.y);
      const float factor[2] = {reciprocal_of_power(unit[0]), reciprocal_of_power(unit[1])};
      ptx::named_barrier_sync(kPrepareBarrier, kComputing);  // all rows are in registers
#pragma unroll
      for (int i = 0; i < 4 * kBlocks; ++i) {
        uint32_t(&words)[4] = four(i);
#pragma unroll
        for (int e = 0; e < 4; ++e) words[e] = divided_to_half<Element>(words[e], factor[e % 2]);
        ptx::store_matrices(place(to, i), words[0], words[1], words[2], words[3]);
      }
    }
    ptx::fence_async_shared();
    ptx::named_barrier_sync(kPrepareBarrier, kComputing);  // all rows are float16
    ptx::mbarrier_wait(&small().rows[at.index], at.parity);
    float sums[32];
    ptx::undefined(sums);
    ptx::fence_registers(sums);
    ptx::wgmma_fence();
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
      issue_product<__half, ptx::Major::kK, ptx::Major::kK>(sums, tiles + m * kPanel,
                                                            tiles + Shared::kKey + m * kPanel, m > 0);
    ptx::wgmma_commit();
    ptx::mbarrier_wait(&small().weighed[at.index], at.parity);
    if constexpr (kFolded) arrive_warp(&small().prepared[at.index], lane);  // Q is there; A comes after W
    ptx::wgmma_wait<0>();
    ptx::fence_registers(sums);
    if (gated) weigh_pairs_by_gates(sums, tokens.gates, block, lane);
    const float* const pairs = small().units[at.index].of_pair();
    const uint16_t* const of_state = small().of_state[n % 2];
    float2 factors[kWarps][2];
#pragma unroll
    for (int k = 0; k < kWarps; ++k)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        factors[k][i] = *reinterpret_cast<const float2*>(&pairs[16 * k + 8 * i + 2 * t]);
    const float of_pairs[2] = {power_of(of_state[i0]), power_of(of_state[i0 + 8])};
    if (t == 0) out_unit(at.index)[i0] *= unit[0], out_unit(at.index)[i0 + 8] *= unit[1];
    if constexpr (kFolded) {
      weigh_mirrored_pairs(sums, factors, of_pairs, block, lane);
      ptx::mbarrier_wait(&small().prepared[at.index], at.parity);
      fold_solution(
          by_tiles(sums), block, [](int k) { return 2 * mirrored(k); },
          [&](float(&of)[2][4], const uint32_t(&left)[4], int k, int j) {
            uint32_t right[4];
            load_right_rows(right, ptx::shared_address(inverse_tile(n)), mirrored(k), mirrored(j), lane);
            ptx::multiply_add<__half>(of[0], left, right[0], right[1]);
            ptx::multiply_add<__half>(of[1], left, right[2], right[3]);
          });
    }
    const uint32_t pair_rows = rows_address(ptx::shared_address(pairs_tile(n)), mirrored(block), lane);
#pragma unroll
    for (int k = 0; k < kWarps; ++k) {
      if (k > block) break;
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* const x = &sums[8 * mirrored(k) + 2 * i];
        if constexpr (kFolded) {
          words[i] = pack<__half>(x[0], x[1]);
        } else {
          const float2 factor = factors[k][i / 2];
          words[i] = pack<__half>(x[0] * factor.x * of_pairs[i % 2], x[1] * factor.y * of_pairs[i % 2]);
        }
      }
      if (k == block) words[0] &= diagonal, words[2] = 0, words[3] &= diagonal;
      ptx::store_matrices(at_piece(pair_rows, 2 * mirrored(k)), words[0], words[1], words[2], words[3]);
    }
    ptx::fence_async_shared();
    arrive_warp(kFolded ? folded(n) : &small().prepared[at.index], lane);
  }
}

}  // namespace lethe::matrix_state
