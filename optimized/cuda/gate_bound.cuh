#pragma once
// What pruning leaves out of each head, and the order of heads by the work that is left. Included by gate_plan.cu alone.
//
//   block (m, n) of queries × keys is left out where c_{first query of m} − c_{last key of n} < δ = −2U − log Tk + log ε
//
// One thread a query block finds the first key block to visit by binary search: c falls with t, so along a row of blocks D only
// rises. The last query block of a key block is a second search, in the first one's result. Both search in shared memory where a head
// has few enough blocks, for each load of a search waits for the one before. The last CTA sorts the heads.

#include <cfloat>
#include <climits>

#include "optimized/cuda/gate_prefix.cuh"
#include "optimized/cuda/ptx/fragment.cuh"

namespace lethe::gate {

inline constexpr double kNormSlack = 1 + 1e-5;  // the norms' own rounding

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
  int heads, query_heads, query_blocks, key_blocks, offset;  // offset = Tk − Tq
  double scale, log_length, log_tolerance;
  const float* logit_bound;
  bool boundary_given;
  GatePlan plan;
};

// Could a bound U of the logits, which is never negative, prune this query head?
__device__ inline bool can_be_pruned(const BoundArguments& a, int64_t row) {
  return a.plan.base[row * (a.key_blocks + 1) + a.key_blocks] < a.log_tolerance - a.log_length;
}

__device__ inline void scan_blocks(const BoundArguments& a, int row) {
  const int64_t blocks = a.key_blocks;
  double* base = a.plan.base + row * (blocks + 1);
  int32_t* cut_before = a.plan.block_cut_before + row * (blocks + 1);
  int32_t* cut_after = a.plan.block_cut_after + row * (blocks + 1);
  if (threadIdx.x == 0) {
    base[0] = 0;
    cut_before[0] = 0;
    cut_after[blocks] = INT_MAX;
  }
  __syncthreads();
  scan<true>(base, blocks + 1, 0.0, [](double x, double y) { return x + y; });
  for (int n = threadIdx.x; n <= blocks; n += kScanThreads) {
    const double in_log2 = base[n] * kLog2E;
    const float high = static_cast<float>(in_log2);
    a.plan.base_log2[row * (blocks + 1) + n] = {high, static_cast<float>(in_log2 - high)};
  }
  scan<true>(cut_before, blocks + 1, 0, [](int x, int y) { return max(x, y); });
  scan<false>(cut_after, blocks + 1, INT_MAX, [](int x, int y) { return min(x, y); });
}

__device__ inline void find_boundary(const BoundArguments& a, int row) {
  const int64_t blocks = a.key_blocks, tokens = blocks * kBlock;
  constexpr int kStaged = 1024;
  __shared__ double staged_base[kStaged + 1];
  __shared__ int32_t staged_first_key[kStaged];
  const bool staged = blocks <= kStaged;  // and no more query blocks
  const double* base = a.plan.base + row * (blocks + 1);
  int32_t* first_key = a.plan.first_key_block + static_cast<int64_t>(row) * a.query_blocks;
  if (staged) {
    for (int n = threadIdx.x; n <= blocks; n += kScanThreads) staged_base[n] = base[n];
    base = staged_base;
  }
  int32_t* last_query = a.plan.last_query_block + row * blocks;
  const bool pruning = a.log_tolerance > -DBL_MAX && !a.boundary_given;
  double threshold = -DBL_MAX;  // but for cuts
  if (pruning && can_be_pruned(a, row)) {
    const int pairs = gridDim.x, group = a.query_heads / a.heads, batch = row / a.query_heads,
              head = row % a.query_heads / group;
    const double bound = a.logit_bound
                             ? a.logit_bound[row]
                             : fabs(a.scale) * sqrt(double(a.plan.largest_square[row])) *
                                   sqrt(double(a.plan.largest_square[pairs + batch * a.heads + head])) * kNormSlack;
    threshold = -2 * bound - a.log_length + a.log_tolerance;
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
      if (pruning) {
        const double c = base[block] - a.plan.bias[row * tokens + position] / kLog2E;
        const int cut =
            max(a.plan.cut_before[row * tokens + position], a.plan.block_cut_before[row * (blocks + 1) + block]);
        first = first_where(block, [&](int n) { return c - base[n + 1] >= threshold && n * kBlock + kBlock > cut; });
      }
      first_key[m] = first;
    }
    if (staged) staged_first_key[m] = first;
    visited += block - first + 1;
  }
  visited = __reduce_add_sync(~0u, visited);
  if (threadIdx.x % 32 == 0) atomicAdd(&head_blocks, visited);
  __syncthreads();
  if (threadIdx.x == 0) a.plan.head_blocks[row] = head_blocks;
  if (staged) first_key = staged_first_key;
  for (int n = threadIdx.x; n < a.key_blocks; n += kScanThreads)
    last_query[n] = first_where(a.query_blocks, [&](int m) { return first_key[m] > n; }) - 1;
}

// order[0 … count) = heads by falling sums of `group` numbers, ties in their own order. Where heads are many any order will do.
__device__ inline void sort_heads(int32_t* order, const int32_t* blocks, int count, int group) {
  constexpr int kLargest = 2048;
  __shared__ int work[kLargest];
  __syncthreads();
  if (count <= kLargest) {
    for (int i = threadIdx.x; i < count; i += kScanThreads) {
      work[i] = 0;
      for (int g = 0; g < group; ++g) work[i] += __ldcg(blocks + i * group + g);
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += kScanThreads) {
    int rank = i;
    if (count <= kLargest) {
      rank = 0;
      for (int other = 0; other < count; ++other)
        rank += work[other] > work[i] || (work[other] == work[i] && other < i);
    }
    order[rank] = i;
  }
}

// One CTA a (batch, query head). `kScan` and `kBound` choose the halves: both at once, or one before and one behind the norms.
template <bool kScan, bool kBound>
__global__ void __launch_bounds__(kScanThreads) scan_and_bound(const __grid_constant__ BoundArguments a) {
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  const int row = blockIdx.x;  // batch · query_heads + query head
  if constexpr (kScan) scan_blocks(a, row);
  if constexpr (kBound) {
    find_boundary(a, row);
    const int group = a.query_heads / a.heads;
    if (!a.boundary_given && a.log_tolerance <= -DBL_MAX) {  // nothing is pruned: all heads are alike
      if (threadIdx.x == 0) {
        a.plan.head_order[row] = row;
        if (row % group == 0) a.plan.key_head_order[row / group] = row / group;
      }
      return;
    }
    __shared__ int done;
    if (threadIdx.x == 0) {
      __threadfence();
      done = atomicAdd(a.plan.heads_done, 1) + 1;
    }
    __syncthreads();
    if (done < gridDim.x) return;
    __threadfence();
    const int rows = gridDim.x;
    sort_heads(a.plan.head_order, a.plan.head_blocks, rows, 1);
    sort_heads(a.plan.key_head_order, a.plan.head_blocks, rows / group, group);
  }
}

struct NormArguments {
  Operand query, key;
  int query_length, key_length;
  BoundArguments bound;
};

inline constexpr int kNormRows = 256;  // of a CTA

// Largest ‖row‖² of a head: 16 bytes a lane, several rows in flight; non-negative floats compare like their bits. Neighbouring CTAs
// read the heads of the same tokens, which lie side by side.
template <typename Element, int kDim>
__global__ void __launch_bounds__(32 * kWarps) find_largest_square(const __grid_constant__ NormArguments a) {
  constexpr int kLanes = kDim / 8, kRowsPerPass = 32 * kWarps / kLanes, kPasses = kNormRows / kRowsPerPass;
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  const BoundArguments& bound = a.bound;
  const int column = blockIdx.x % (bound.query_heads + bound.heads),
            chunk = blockIdx.x / (bound.query_heads + bound.heads);
  const bool of_query = column < bound.query_heads;
  const int head = of_query ? column : column - bound.query_heads, batch = blockIdx.y, lane = threadIdx.x % kLanes;
  const int group = of_query ? 1 : bound.query_heads / bound.heads, length = of_query ? a.query_length : a.key_length;
  bool needed = false;
  for (int g = 0; g < group; ++g) needed |= can_be_pruned(bound, int64_t{batch} * bound.query_heads + head * group + g);
  if (!needed || chunk * kNormRows >= length) return;

  const Operand& operand = of_query ? a.query : a.key;
  const Element* rows =
      static_cast<const Element*>(operand.data) + batch * operand.batch_stride + head * operand.head_stride;
  uint4 chunks[kPasses];
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const int token = min(chunk * kNormRows + pass * kRowsPerPass + static_cast<int>(threadIdx.x) / kLanes, length - 1);
    chunks[pass] = *reinterpret_cast<const uint4*>(rows + token * operand.token_stride + lane * 8);
  }
  float largest = 0;
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    float square = 0;
    for (const uint32_t packed : {chunks[pass].x, chunks[pass].y, chunks[pass].z, chunks[pass].w}) {
      const float2 pair = ptx::unpack<Element>(packed);
      square += pair.x * pair.x + pair.y * pair.y;
    }
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) square += __shfl_xor_sync(~0u, square, offset);
    largest = fmaxf(largest, square);
  }
  for (int offset = 16; offset >= kLanes; offset /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, offset));
  float* of_operand = bound.plan.largest_square + (of_query ? 0 : gridDim.y * bound.query_heads);
  if (threadIdx.x % 32 == 0)
    atomicMax(reinterpret_cast<int*>(of_operand) + batch * (of_query ? bound.query_heads : bound.heads) + head,
              __float_as_int(largest));
}

}  // namespace lethe::gate
