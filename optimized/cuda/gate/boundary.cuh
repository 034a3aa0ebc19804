#pragma once
// The pruning boundary of each head, and the order of heads by the work that is left.
//
//   block (m, n) of queries × keys is left out where c_{first query of m} − c_{last key of n} < −2U + log ε − A,
//   A = log T by weight, T the tokens between the cuts around the query; log Σ_j exp(c_{last key of n} − c_j) over the keys j up to that by mass
//
// One thread a query block finds the first key block to visit by binary search: c falls with t, so D only rises along a row of blocks. A second
// search, in the first one's result, finds the last query block of a key block. Both search in shared memory where a head has few enough blocks,
// since each load of a search waits for the one before. The last CTA sorts the heads.
//
// U is given or computed from norms. These are read in pieces, while other CTAs scan the blocks' sums, and only of heads that some U could prune; the
// CTA that finishes the last part of a group of heads continues with their boundaries.

#include <cfloat>
#include <climits>

#include "optimized/cuda/arithmetic.cuh"
#include "optimized/cuda/gate/cuts.cuh"
#include "optimized/cuda/gate/prefix.cuh"
#include "optimized/cuda/gate/row_groups.cuh"
#include "optimized/cuda/gate/sections.hpp"
#include "optimized/cuda/gate/strong_gates.cuh"
#include "optimized/cuda/gate/switch.hpp"

namespace lethe::gate {

// The first of [0, count) for which `holds`, which stays true once it is; count where none does.
template <typename Predicate>
__device__ int first_where(int count, Predicate holds) {
  int low = 0, high = count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (holds(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

struct BoundArguments {
  int rows, heads, query_heads, query_blocks, key_blocks, offset;  // rows = batch · query_heads; offset = Tk − Tq
  int key_length;
  double scale, log_tolerance;
  const float* logit_bound;
  bool boundary_given;
  Sections sections;
  GatePrefix prefix;
  Boundary boundary;
  WorkOrder order;
};

// Whether a bound U of the logits, which is never negative, could prune this query head. By a whole warp, from the blocks' sums: the same answer in
// every CTA, whatever has been scanned.
__device__ inline bool can_be_pruned(const BoundArguments& a, int64_t row) {
  if (a.boundary_given) return false;
  double sum = 0;
  for (int n = threadIdx.x % 32; n < a.key_blocks; n += 32) sum += a.prefix.block_sum[row * a.key_blocks + n];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  return sum < a.log_tolerance;
}

// The tokens between the cuts around a position.
__device__ inline int sequence_length(const BoundArguments& a, int row, int position, bool has_cuts) {
  if (!has_cuts) return a.key_length;
  const int next = visibility_of_keys(a.prefix, row, a.key_blocks, position / kGateBlock).cuts.next_cut(position);
  return min(next, a.key_length) - visibility_of_queries(a.prefix, row, a.key_blocks).cuts.last_cut(position);
}

// Above the rounding of GatePrefix::mass, so that the bound holds; below log T − log(T − 128) for T up to 2·10⁶, so that no block is visited that is
// skipped by weight.
inline constexpr double kMassSlack = 5e-5;

__device__ inline void find_boundary(const BoundArguments& a, int row) {
  constexpr int kBlock = kGateBlock;
  const int64_t blocks = a.key_blocks;
  constexpr int kStaged = 1024;
  __shared__ double staged_limit[kStaged + 1];
  __shared__ int32_t staged_first_key[kStaged];
  const bool staged = blocks <= kStaged;  // and no more query blocks
  const double* base = a.prefix.base + row * (blocks + 1);
  const bool has_cuts = a.prefix.block_cut_before[row * (blocks + 1) + blocks] > 0;
  const float* mass = a.prefix.mass ? a.prefix.mass + row * (blocks + 1) : nullptr;
  // What is subtracted from a query's c before it is compared.
  const auto limit_before = [&](int n) { return mass ? base[n] - log(double(mass[n])) - kMassSlack : base[n]; };
  int32_t* first_key = a.boundary.first_key_block + static_cast<int64_t>(row) * a.query_blocks;
  if (staged) {
    for (int n = threadIdx.x; n <= blocks; n += kScanThreads) staged_limit[n] = limit_before(n);
  }
  const bool pruning = a.log_tolerance > -DBL_MAX && !a.boundary_given;
  double log_share = -DBL_MAX;  // −2U + log ε; but for cuts
  if (pruning && can_be_pruned(a, row)) {
    const int group = a.query_heads / a.heads, batch = row / a.query_heads, head = row % a.query_heads / group;
    const float* squares = a.order.largest_square;
    const double bound = a.logit_bound
                             ? a.logit_bound[row]
                             : fabs(a.scale) * sqrt(double(__ldcg(squares + row))) *
                                   sqrt(double(__ldcg(squares + a.rows + batch * a.heads + head))) * kNormSlack;
    if (!isnan(bound)) log_share = -2 * bound + a.log_tolerance;  // no bound, no pruning
  }
  __shared__ int head_blocks;
  if (threadIdx.x == 0) head_blocks = 0;
  __syncthreads();
  int visited = 0;
  for (int m = threadIdx.x; m < a.query_blocks; m += kScanThreads) {
    const int position = m * kBlock + a.offset, block = position / kBlock;
    int first = 0;
    if (a.boundary_given) {
      first = first_key[m];
    } else {
      // blocks before a cut or outside the window are never visited
      if (has_cuts || a.prefix.window <= position)
        first = visibility_of_queries(a.prefix, row, a.key_blocks).first_key(position) / kBlock;
      if (pruning) {
        const double c = prefix_at(a.prefix, row, a.key_blocks, position);
        const double threshold =
            mass ? log_share : log_share - log(double(sequence_length(a, row, position, has_cuts)));
        first += first_where(block - first, [&](int n) {
          const int end = first + n + 1;
          return c - (staged ? staged_limit[end] : limit_before(end)) >= threshold;
        });
      }
      first_key[m] = first;
    }
    if (staged) staged_first_key[m] = first;
    visited += block - first + 1;
  }
  visited = __reduce_add_sync(~0u, visited);
  if (threadIdx.x % 32 == 0) atomicAdd(&head_blocks, visited);
  __syncthreads();
  if (threadIdx.x == 0) a.order.head_blocks[row] = head_blocks;
  if (staged) first_key = staged_first_key;
  const double* sums = a.prefix.block_sum + row * blocks;
  const int32_t* cuts = a.prefix.block_cut_after + row * (blocks + 1);
  const auto decays = [&](int n) { return gate_decays(sums[n], cuts[n] < (n + 1) * kBlock); };
  for (int n = threadIdx.x; n < a.key_blocks; n += kScanThreads) {
    const int before = max(n - 1, 0);
    a.boundary.last_query_block[row * blocks + n] =
        first_where(a.query_blocks, [&](int m) { return first_key[m] > n; }) - 1;
    a.boundary.near_strong[row * blocks + n] = fmin(sums[n], sums[before]) < kStrongSum;
    a.prefix.separate_rows[row * (blocks + 1) + n] = decays(n) || decays(before);
  }
  if (threadIdx.x == 0) a.prefix.separate_rows[row * (blocks + 1) + blocks] = 0;
}

// order[0 … count) = heads by falling sums of `group` numbers, ties in their own order, as place_of_rank puts them. With more than kLargest heads any
// order will do.
__device__ inline void sort_heads(int32_t* order, const int32_t* blocks, int count, int group, int section) {
  constexpr int kLargest = 2048;
  __shared__ int work[kLargest], most;
  __syncthreads();
  if (threadIdx.x == 0) most = 0;
  __syncthreads();
  if (count <= kLargest) {
    for (int i = threadIdx.x; i < count; i += kScanThreads) {
      work[i] = 0;
      for (int g = 0; g < group; ++g) work[i] += __ldcg(blocks + i * group + g);
      atomicMax(&most, work[i]);
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += kScanThreads) {
    int place = i;
    if (count <= kLargest) {
      int rank = 0, long_heads = 0;
      for (int other = 0; other < count; ++other) {
        rank += work[other] > work[i] || (work[other] == work[i] && other < i);
        long_heads += work[other] > most / 2;
      }
      place = place_of_rank(rank, count, long_heads, section);
    }
    order[place] = i;
  }
}

// The order of a head's tiles of queries, and the section, which all heads take from this row. With cuts: a sequence's tiles together, which share
// its keys in the L2 cache, the longest sequence first, its last tile first. With more than kLargest tiles the last is first.
__device__ inline void order_tiles(const BoundArguments& a, int row) {
  constexpr int kLargest = 2048;  // a power of two
  __shared__ int first_block[kLargest], most;
  __shared__ alignas(16) uint32_t work[kLargest];  // of a tile's sequence, then the tile: no two are equal
  const int tile_rows = a.sections.tile_rows, tiles = (a.key_length - a.offset + tile_rows - 1) / tile_rows;
  const int32_t* first_key = a.boundary.first_key_block + static_cast<int64_t>(row) * a.query_blocks;
  const bool by_work = kGate && tiles <= kLargest &&
                       a.prefix.block_cut_before[static_cast<int64_t>(row) * (a.key_blocks + 1) + a.key_blocks] > 0;
  const auto blocks_of = [&](int t) {
    return (min((t + 1) * tile_rows + a.offset, a.key_length) - 1) / kGateBlock - first_block[t] + 1;
  };
  if (threadIdx.x == 0) most = 1;
  for (int t = threadIdx.x; by_work && t < tiles; t += kScanThreads)
    first_block[t] = first_key[t * tile_rows / kGateBlock];
  __syncthreads();
  for (int t = threadIdx.x; by_work && t < (tiles + 3) / 4 * 4; t += kScanThreads) {
    work[t] = 0;
    if (t >= tiles) break;
    const int last = t + first_where(tiles - t, [&](int i) { return first_block[t + i] > first_block[t]; }) - 1,
              blocks = blocks_of(last);
    work[t] = static_cast<uint32_t>(min(blocks, INT_MAX / kLargest)) * kLargest + t;
    atomicMax(&most, blocks);
  }
  __syncthreads();
  for (int t = threadIdx.x; t < tiles; t += kScanThreads) {
    int place = tiles - 1 - t;
    if (by_work) {
      place = 0;
      const uint32_t own = work[t];
#pragma unroll 4
      for (int other = 0; other < tiles; other += 4) {
        const uint4 four = *reinterpret_cast<const uint4*>(work + other);
        place += (four.x > own) + (four.y > own) + (four.z > own) + (four.w > own);
      }
    }
    a.order.tile_order[place] = t;
  }
  // The tiles of one head of short sequences end unevenly; those of some less so.
  const bool short_sequences = by_work && 4 * most <= a.key_blocks;
  if (threadIdx.x == 0)
    *a.order.query_section = max(a.sections.queries, short_sequences ? min(a.rows, a.sections.short_queries) : 1);
}

// By a whole CTA that has done `parts` of `counter`: whether all `expected` are done. If so, the others' writes are visible to it.
__device__ inline bool done_last(int32_t* counter, int parts, int expected) {
  __shared__ int done;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    done = atomicAdd(counter, parts) + parts;
  }
  __syncthreads();
  const bool last = done == expected;
  if (last) __threadfence();
  return last;
}

// By the CTA that has found `found` boundaries: the last of all puts the heads in order.
__device__ inline void order_heads(const BoundArguments& a, int found) {
  if (!done_last(a.order.heads_done, found, a.rows)) return;
  const int group = a.query_heads / a.heads;
  sort_heads(a.order.head_order, a.order.head_blocks, a.rows, 1, a.sections.queries);
  sort_heads(a.order.key_head_order, a.order.head_blocks, a.rows / group, group, a.sections.keys);
}

// One CTA a (batch, query head), where U is given or not needed.
template <typename Derived>
__global__ void __launch_bounds__(kScanThreads)
    scan_and_bound(const __grid_constant__ BoundArguments a, Derived derived) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int row = blockIdx.x;
  scan_blocks(a.prefix, derived, row, a.key_blocks);
  __syncthreads();
  find_boundary(a, row);
  __syncthreads();
  if (row == 0) order_tiles(a, row);
  if (a.boundary_given || a.log_tolerance > -DBL_MAX) {
    order_heads(a, 1);
  } else if (threadIdx.x == 0) {  // nothing is pruned: heads are alike, but for cuts
    const int group = a.query_heads / a.heads;
    a.order.head_order[row] = row;
    if (row % group == 0) a.order.key_head_order[row / group] = row / group;
  }
}

struct NormArguments {
  Operand query, key;
  int dim, query_length, key_length, query_chunks, key_chunks;  // of kNormRows
  BoundArguments bound;
};

// Rows of one CTA: 64 KiB where a row has kDim elements, 16 loads a thread. kDim is a power of two.
template <int kDim>
inline constexpr int kNormRows = 16 * kScanThreads * 8 / kDim;

// Largest ‖row‖² of a chunk of a head: 16 bytes a lane, several rows in flight; non-negative floats compare like their bits. A row has at most kDim
// elements of 16 bits, a multiple of 8, or floats of two such elements each.
template <typename Element, int kDim>
__device__ void find_largest_square(const Operand& operand, int dim, int batch, int head, int length, int chunk,
                                    float* result) {
  constexpr int kLanes = kDim / 8, kRowsPerPass = kScanThreads / kLanes, kPasses = kNormRows<kDim> / kRowsPerPass;
  const int lane = threadIdx.x % kLanes;
  const uint16_t* rows =
      static_cast<const uint16_t*>(operand.data) + batch * operand.batch_stride + head * operand.head_stride;
  uint4 chunks[kPasses];
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const int token =
        min(chunk * kNormRows<kDim> + pass * kRowsPerPass + static_cast<int>(threadIdx.x) / kLanes, length - 1);
    chunks[pass] = uint4{0, 0, 0, 0};
    if (lane * 8 < dim) chunks[pass] = *reinterpret_cast<const uint4*>(rows + token * operand.token_stride + lane * 8);
  }
  float largest = 0;
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    float square = 0;
    for (const uint32_t packed : {chunks[pass].x, chunks[pass].y, chunks[pass].z, chunks[pass].w}) {
      if constexpr (std::is_same_v<Element, float>) {
        const float number = __uint_as_float(packed);
        square += number * number;
      } else {
        const float2 pair = unpack<Element>(packed);
        square += pair.x * pair.x + pair.y * pair.y;
      }
    }
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) square += __shfl_xor_sync(~0u, square, offset);
    largest = fmaxf(largest, square);
  }
  for (int offset = 16; offset >= kLanes; offset /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, offset));
  if (threadIdx.x % 32 == 0) atomicMax(reinterpret_cast<int*>(result), __float_as_int(largest));
}

// The first CTAs scan one (batch, query head) each. Each of the others reads a chunk of one head, of queries or keys; neighbours read the heads of
// the same tokens, which are adjacent in memory.
template <typename Element, int kDim, typename Derived>
__global__ void __launch_bounds__(kScanThreads)
    scan_norms_and_bound(const __grid_constant__ NormArguments a, Derived derived) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  const BoundArguments& bound = a.bound;
  const int group = bound.query_heads / bound.heads, columns = bound.query_heads + bound.heads;
  const bool scans = blockIdx.x < bound.rows;
  const int piece = blockIdx.x - bound.rows;  // chunk · batch · columns
  const int column = scans ? blockIdx.x % bound.query_heads : piece % columns;
  const int batches = bound.rows / bound.query_heads,
            batch = scans ? blockIdx.x / bound.query_heads : piece / columns % batches,
            chunk = scans ? 0 : piece / columns / batches;
  const bool of_query = column < bound.query_heads;
  const int head = of_query ? column / group : column - bound.query_heads, key_row = batch * bound.heads + head,
            first_row = batch * bound.query_heads + head * group;

  // How many heads of the group could be pruned, and whether this CTA's own is among them.
  __shared__ int prunable_heads, own_prunable;
  if (threadIdx.x == 0) prunable_heads = own_prunable = 0;
  __syncthreads();
  for (int g = threadIdx.x / 32; g < group; g += kScanThreads / 32) {
    if (!can_be_pruned(bound, first_row + g) || threadIdx.x % 32 > 0) continue;
    atomicAdd(&prunable_heads, 1);
    if (of_query && column == head * group + g) own_prunable = true;
  }
  __syncthreads();

  if (scans) {
    scan_blocks(bound.prefix, derived, blockIdx.x, bound.key_blocks);
  } else {
    if (of_query ? !own_prunable || chunk >= a.query_chunks : prunable_heads == 0 || chunk >= a.key_chunks) return;
    if (of_query)
      find_largest_square<Element, kDim>(a.query, a.dim, batch, column, a.query_length, chunk,
                                         bound.order.largest_square + batch * bound.query_heads + column);
    else
      find_largest_square<Element, kDim>(a.key, a.dim, batch, head, a.key_length, chunk,
                                         bound.order.largest_square + bound.rows + key_row);
  }
  const int parts = group + prunable_heads * a.query_chunks + (prunable_heads > 0 ? a.key_chunks : 0);
  if (!done_last(bound.order.parts_done + key_row, 1, parts)) return;
  for (int g = 0; g < group; ++g) {
    find_boundary(bound, first_row + g);
    __syncthreads();
  }
  if (first_row == 0) order_tiles(bound, 0);
  order_heads(bound, group);
}

}  // namespace lethe::gate
