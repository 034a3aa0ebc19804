#pragma once
// The gate's gradient by many CTAs a head: four kernels, each of which leaves a number or a map of every block of 128 tokens to the next.
//
//   weigh_blocks      the map of Z over a block; joins the groups of row sums
//   share_rows        Z at the block's start, r / Z; the map of u over the block
//   sum_blocks_taken  u after the block's end, and from it u; the sum of u − Σ dS over the block
//   suffix_sums       the sum over all later blocks, and from it d log f
//
// A CTA applies the maps of all blocks before its own itself, in the order of the kernel with one CTA a head: the same bits, and no other CTA is
// waited for. At T = 65536 that are 504 at most, of four cycles each.

#include "optimized/cuda/gate/gradient_steps.cuh"

namespace lethe::gate_gradient {

inline constexpr int kPieceThreads = 32 * kPieceWarps;

// What adds a number, as a map.
struct Added {
  double number;
  __device__ double operator()(double x) const { return x + number; }
};

// `maps` applied to 0 in their order, by a whole CTA: the loads at once, then one warp.
template <typename Number, typename Map, typename Stored>
__device__ Number apply_all(const Stored* maps, int count) {
  constexpr int kAtOnce = 512;
  __shared__ Stored staged[kAtOnce];
  __shared__ Number result;
  Number number = 0;
  for (int begin = 0; begin < count; begin += kAtOnce) {
    const int now = min(kAtOnce, count - begin);
    if (begin > 0) __syncthreads();
    for (int i = threadIdx.x; i < now; i += kPieceThreads) staged[i] = maps[begin + i];
    __syncthreads();
    if (threadIdx.x >= 32) continue;
#pragma unroll 8
    for (int i = 0; i < now; ++i) number = Map{staged[i]}(number);
  }
  if (threadIdx.x == 0) result = number;
  __syncthreads();
  return result;
}

// A CTA's eight blocks.
struct Piece {
  int64_t row_of_heads, maps;  // the latter: of the head's first block in the arrays of blocks
  int index, count;

  __device__ explicit Piece(const Parameters& p)
      : row_of_heads(blockIdx.x / p.pieces), maps(row_of_heads * p.pieces * kPieceWarps), index(blockIdx.x % p.pieces),
        count(p.pieces) {}
  __device__ int first_block() const { return index * kPieceWarps; }
  // Blocks before it where they are counted from the head's last one.
  __device__ int blocks_after() const { return (count - 1 - index) * kPieceWarps; }
  // The first token of a thread in a piece where lower threads have earlier tokens, or later ones.
  __device__ int first_token() const { return index * kPieceTokens + int(threadIdx.x) * kTokensAThread; }
  __device__ int first_token_from_end() const {
    return index * kPieceTokens + (kPieceThreads - 1 - int(threadIdx.x)) * kTokensAThread;
  }
};

template <typename RowSums>
__global__ void __launch_bounds__(kPieceThreads) weigh_blocks(const __grid_constant__ Parameters p, RowSums row_sums) {
  let_next_kernel_start();
  const Piece piece(p);
  const HeadOfGates head(p, piece.row_of_heads);
  const int first = piece.first_token();
  const Gates gates = head.load(first, false);
  row_sums.join_groups(piece.row_of_heads, min(p.query_length, piece.index * kPieceTokens),
                       min(p.query_length, (piece.index + 1) * kPieceTokens), p.query_length);
  const Affine map = scan_warp(weight_steps(head, gates, first).all);
  if (threadIdx.x % 32 == 31) p.weight_maps[piece.maps + piece.first_block() + threadIdx.x / 32] = map;
}

template <typename RowSums>
__global__ void __launch_bounds__(kPieceThreads) share_rows(const __grid_constant__ Parameters p, RowSums row_sums) {
  let_next_kernel_start();
  __shared__ Affine maps_of_warps[kPieceWarps];
  const Piece piece(p);
  const HeadOfGates head(p, piece.row_of_heads);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first = piece.first_token(), first_from_end = first + (31 - 2 * lane) * kTokensAThread;
  const Steps steps = weight_steps(head, head.load(first, false), first);
  const Gates gates = head.load(first_from_end, true);

  wait_for_previous_kernel();
  const OfTokens sums = load_row_sums(p, row_sums, piece.row_of_heads, first);
  float weight = apply_all<float, Affine>(p.weight_maps + piece.maps, piece.first_block());
  OfTokens shares = shares_of(steps, scan(steps.all, weight, maps_of_warps), sums, first, p.query_offset);
  shares.store(p.row_shares + head.row, first, head.key_length);

#pragma unroll
  for (float& share : shares.of) share = __shfl_sync(~0u, share, 31 - lane);
  const Affine map = scan_warp(taken_steps(head, gates, first_from_end, shares).all);
  if (lane == 31) p.taken_maps[piece.maps + piece.blocks_after() + kPieceWarps - 1 - warp] = map;
}

// Leaves u in the place of r / Z. Of each family its own: what two files define they must not share, for they are compiled for other GPUs.
template <typename RowSums>
__global__ void __launch_bounds__(kPieceThreads) sum_blocks_taken(const __grid_constant__ Parameters p) {
  let_next_kernel_start();
  __shared__ Affine maps_of_warps[kPieceWarps];
  const Piece piece(p);
  const HeadOfGates head(p, piece.row_of_heads);
  const int first = piece.first_token_from_end();
  const Gates gates = head.load(first, true);
  const OfTokens columns = OfTokens::load(p.column_sums + head.row, first, head.key_length);

  wait_for_previous_kernel();
  const Steps steps = taken_steps(head, gates, first, OfTokens::load(p.row_shares + head.row, first, head.key_length));
  float carry = apply_all<float, Affine>(p.taken_maps + piece.maps, piece.blocks_after());
  const OfTokens taken = taken_of(steps, scan(steps.all, carry, maps_of_warps));
  taken.store(p.row_shares + head.row, first, head.key_length);
  const double sum = scan_warp(SuffixSums(taken, columns, first, head.key_length).sum);
  if (threadIdx.x % 32 == 31) p.sums[piece.maps + piece.blocks_after() + threadIdx.x / 32] = sum;
}

// Sums of blocks are added in chunks of 32 that begin with the head's first block.
template <typename RowSums>
__global__ void __launch_bounds__(kPieceThreads) suffix_sums(const __grid_constant__ Parameters p) {
  let_next_kernel_start();
  const Piece piece(p);
  const HeadOfGates head(p, piece.row_of_heads);
  const int first = piece.first_token_from_end();
  const OfTokens columns = OfTokens::load(p.column_sums + head.row, first, head.key_length);
  uchar4 cuts = {};
  if (first < head.key_length) cuts = *reinterpret_cast<const uchar4*>(p.prefix.cut_before + head.row + first);
  const uint8_t each[] = {cuts.x, cuts.y, cuts.z, cuts.w};

  wait_for_previous_kernel();
  const SuffixSums sums(OfTokens::load(p.row_shares + head.row, first, head.key_length), columns, first,
                        head.key_length);
  constexpr int kPieces = kChunkTokens / kPieceTokens;
  const double* of_blocks = p.sums + piece.maps;
  const int after_chunk = max(0, (piece.count - (piece.index / kPieces + 1) * kPieces) * kPieceWarps);
  const double total = apply_all<double, Added>(of_blocks, after_chunk);
  const double after = sum_before(scan_warp(sums.sum), sums.sum, total, of_blocks + after_chunk,
                                  piece.blocks_after() + int(threadIdx.x) / 32 - after_chunk);
  store_gradient(p, piece.row_of_heads, first, after, sums, without_gradient(each, first));
}

}  // namespace lethe::gate_gradient
