// The gate's plan: prefix sums in two levels, cuts, and what pruning leaves out.
//
//   c_t = Σ_{l ≤ t} log f_l = base[t / 128] + local_t;  bias_t = −log₂e · local_t
//   block (m, n) of queries × keys is left out where c_{first query of m} − c_{last key of n} < δ = −2U − log Tk + log ε
//
// One warp a block of 128 tokens sums in double and rounds the local part once. Then one CTA a head scans the blocks' sums and
// finds, one thread a query block, the first key block to visit by binary search: c falls with t, so along a row of blocks D only
// rises. The last query block of a key block is a second search, in the first one's result. The last CTA sorts the heads. Where U
// comes from norms they are found between scan and search, and only for heads that some U could prune. Each kernel starts under the
// end of the one before it.

#include <algorithm>
#include <cfloat>
#include <climits>
#include <cmath>
#include <stdexcept>

#include "optimized/cuda/check.hpp"
#include "optimized/cuda/gate_switch.hpp"
#include "optimized/cuda/launch.hpp"
#include "optimized/cuda/ptx/barrier.cuh"
#include "optimized/cuda/ptx/fragment.cuh"
#include "optimized/kernels.hpp"

namespace lethe {
namespace {

constexpr double kCut = -10000.0;  // a gate below this is a cut
constexpr double kLog2E = 1.4426950408889634;
constexpr int kBlock = kGateBlock;
constexpr int kWarps = 8;
constexpr int kScanThreads = 256;
constexpr double kNormSlack = 1 + 1e-5;  // the norms' own rounding

template <typename T, typename Combine>
__device__ T scan_warp_up(T value, T neutral, Combine combine) {  // inclusive, towards higher lanes
  for (int offset = 1; offset < 32; offset *= 2) {
    const T below = __shfl_up_sync(~0u, value, offset);
    value = combine(value, threadIdx.x % 32 >= offset ? below : neutral);
  }
  return value;
}

struct LocalArguments {
  const float* log_forget;
  int64_t batch_stride, token_stride, head_stride;
  int length, heads, blocks;
  GatePlan plan;
};

// The plan's counters; the first kernel sets them for all that follow.
__device__ void clear_counters(const GatePlan& plan, int batch, int heads) {
  for (int head = threadIdx.x; head < heads; head += blockDim.x) {
    const int row = batch * heads + head;
    plan.pairs[row] = 0;
    plan.largest_square[row] = plan.largest_square[gridDim.y * heads + row] = 0;
  }
  if (threadIdx.x == 0 && batch == 0) *plan.next_tile = *plan.heads_done = plan.repeats[0] = 0;
}

// One warp a (block, head); a lane owns four tokens. Leaves for the scan each block's own sum in base[n+1], its last cut in
// block_cut_before[n+1] (or −1) and its first in block_cut_after[n] (or INT32_MAX).
__global__ void __launch_bounds__(32 * kWarps) sum_blocks(LocalArguments a) {
  const int block = blockIdx.x, batch = blockIdx.y, lane = threadIdx.x % 32;
  ptx::let_next_kernel_start();
  if (block == 0) clear_counters(a.plan, batch, a.heads);
  const auto sum_of = [](double x, double y) { return x + y; };
  const auto largest = [](int x, int y) { return max(x, y); };
  for (int head = threadIdx.x / 32; head < a.heads; head += kWarps) {
    const float* gate = a.log_forget + batch * a.batch_stride + head * a.head_stride;
    const int64_t row = static_cast<int64_t>(batch) * a.heads + head;
    const int first = block * kBlock + lane * 4;
    double local[4], sum = 0;
    int before[4], after[4], last_cut = -1, first_cut = INT_MAX;
    for (int i = 0; i < 4; ++i) {
      const int token = first + i;
      const double log_forget = token < a.length ? gate[token * a.token_stride] : 0.0;
      const bool cut = log_forget < kCut;
      sum += cut ? 0.0 : log_forget;
      if (cut) last_cut = token;
      local[i] = sum;
      before[i] = last_cut;
    }
    for (int i = 3; i >= 0; --i) {
      const bool cut = before[i] == first + i;
      after[i] = first_cut;
      if (cut) first_cut = first + i;
    }
    const double inclusive = scan_warp_up(sum, 0.0, sum_of);
    const int inclusive_cut = scan_warp_up(last_cut, -1, largest);
    const int cut_below = __shfl_up_sync(~0u, inclusive_cut, 1);
    int cut_from_here = first_cut;  // inclusive scan towards lower lanes: the first cut in this lane or above
    for (int offset = 1; offset < 32; offset *= 2) {
      const int above = __shfl_down_sync(~0u, cut_from_here, offset);
      if (lane + offset < 32) cut_from_here = min(cut_from_here, above);
    }
    const int cut_above = __shfl_down_sync(~0u, cut_from_here, 1);
    const int64_t at = (row * a.blocks + block) * kBlock + lane * 4;
    float bias[4];
    for (int i = 0; i < 4; ++i) {
      bias[i] = first + i < a.length ? static_cast<float>(-kLog2E * (inclusive - sum + local[i])) : 0.0f;
      if (before[i] < 0 && lane > 0) before[i] = cut_below;
      if (after[i] == INT_MAX && lane < 31) after[i] = cut_above;
    }
    *reinterpret_cast<float4*>(a.plan.bias + at) = make_float4(bias[0], bias[1], bias[2], bias[3]);
    *reinterpret_cast<int4*>(a.plan.cut_before + at) = make_int4(before[0], before[1], before[2], before[3]);
    *reinterpret_cast<int4*>(a.plan.cut_after + at) = make_int4(after[0], after[1], after[2], after[3]);
    if (lane == 31) {
      a.plan.base[row * (a.blocks + 1) + block + 1] = inclusive;
      a.plan.block_cut_before[row * (a.blocks + 1) + block + 1] = inclusive_cut;
    }
    if (lane == 0) a.plan.block_cut_after[row * (a.blocks + 1) + block] = cut_from_here;
  }
}

// Inclusive scan of `values[count]` in place by the whole CTA, ascending or descending.
template <bool kAscending, typename T, typename Combine>
__device__ void scan(T* values, int count, T neutral, Combine combine) {
  __shared__ T totals[kScanThreads / 32];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int each = (count + kScanThreads - 1) / kScanThreads;
  const auto at = [&](int i) { return kAscending ? i : count - 1 - i; };
  const int begin = min(count, thread * each), end = min(count, begin + each);
  T total = neutral;
  for (int i = begin; i < end; ++i) total = combine(total, values[at(i)]);
  const T inclusive = scan_warp_up(total, neutral, combine);
  if (lane == 31) totals[warp] = inclusive;
  __syncthreads();
  T running = neutral;
  for (int w = 0; w < warp; ++w) running = combine(running, totals[w]);
  const T below = __shfl_up_sync(~0u, inclusive, 1);
  if (lane > 0) running = combine(running, below);
  for (int i = begin; i < end; ++i) values[at(i)] = running = combine(running, values[at(i)]);
  __syncthreads();
}

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
__device__ bool can_be_pruned(const BoundArguments& a, int64_t row) {
  return a.plan.base[row * (a.key_blocks + 1) + a.key_blocks] < a.log_tolerance - a.log_length;
}

__device__ void scan_blocks(const BoundArguments& a, int row) {
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
  scan<true>(cut_before, blocks + 1, 0, [](int x, int y) { return max(x, y); });
  scan<false>(cut_after, blocks + 1, INT_MAX, [](int x, int y) { return min(x, y); });
}

__device__ void find_boundary(const BoundArguments& a, int row) {
  const int64_t blocks = a.key_blocks, tokens = blocks * kBlock;
  const double* base = a.plan.base + row * (blocks + 1);
  int32_t* first_key = a.plan.first_key_block + static_cast<int64_t>(row) * a.query_blocks;
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
    visited += block - first + 1;
  }
  visited = __reduce_add_sync(~0u, visited);
  if (threadIdx.x % 32 == 0) atomicAdd(&head_blocks, visited);
  __syncthreads();
  if (threadIdx.x == 0) a.plan.head_blocks[row] = head_blocks;
  for (int n = threadIdx.x; n < a.key_blocks; n += kScanThreads)
    last_query[n] = first_where(a.query_blocks, [&](int m) { return first_key[m] > n; }) - 1;
}

// order[0 … count) = heads by falling sums of `group` numbers, ties in their own order. Where heads are many any order will do.
__device__ void sort_heads(int32_t* order, const int32_t* blocks, int count, int group) {
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

constexpr int kNormRows = 256;  // of a CTA

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

// The plan where there is no gate: everything is visited.
__global__ void __launch_bounds__(kScanThreads) open_plan(const __grid_constant__ BoundArguments a) {
  const int row = blockIdx.x, group = a.query_heads / a.heads;
  for (int m = threadIdx.x; m < a.query_blocks; m += kScanThreads)
    a.plan.first_key_block[int64_t{row} * a.query_blocks + m] = 0;
  for (int n = threadIdx.x; n < a.key_blocks; n += kScanThreads)
    a.plan.last_query_block[int64_t{row} * a.key_blocks + n] = a.query_blocks - 1;
  if (threadIdx.x > 0) return;
  a.plan.head_order[row] = row;
  if (row % group == 0) a.plan.key_head_order[row / group] = row / group;
  a.plan.pairs[row] = 0;
  if (row == 0) *a.plan.next_tile = a.plan.repeats[0] = 0;
}

int64_t blocks_of(int64_t length) { return (length + kGateBlock - 1) / kGateBlock; }

}  // namespace

GatePlan gate_plan_in(void* memory, const Shape& shape) {
  const int64_t rows = shape.batch * shape.query_heads, keys = blocks_of(shape.key_length),
                queries = blocks_of(shape.query_length);
  char* next = static_cast<char*>(memory);
  const auto take = [&]<typename T>(T*& array, int64_t count) {
    array = reinterpret_cast<T*>(next);
    next += (count * sizeof(T) + 255) / 256 * 256;
  };
  GatePlan plan;
  take(plan.base, rows * (keys + 1));
  take(plan.bias, rows * keys * kGateBlock);
  take(plan.cut_before, rows * keys * kGateBlock);
  take(plan.cut_after, rows * keys * kGateBlock);
  take(plan.block_cut_before, rows * (keys + 1));
  take(plan.block_cut_after, rows * (keys + 1));
  take(plan.first_key_block, rows * queries);
  take(plan.last_query_block, rows * keys);
  take(plan.largest_square, 2 * rows);
  take(plan.head_blocks, rows);
  take(plan.head_order, rows);
  take(plan.key_head_order, shape.batch * shape.heads);
  take(plan.next_tile, 1);
  take(plan.heads_done, 1);
  take(plan.pairs, rows);
  take(plan.repeats, 1 + rows * queries);
  take(plan.end, 0);
  return plan;
}

size_t gate_plan_bytes(const Shape& shape) { return reinterpret_cast<size_t>(gate_plan_in(nullptr, shape).end); }

void launch_gate_plan(const GatePlanArguments& a) {
  const Shape& s = a.shape;
  const int64_t blocks = blocks_of(s.key_length), rows = s.batch * s.query_heads;
  const BoundArguments bound{int(s.heads),
                             int(s.query_heads),
                             int(blocks_of(s.query_length)),
                             int(blocks),
                             int(s.key_length - s.query_length),
                             a.scale,
                             std::log(double(s.key_length)),
                             a.log_pruning_tolerance,
                             a.logit_bound,
                             a.boundary_given,
                             a.plan};
  if constexpr (!kGate) {
    open_plan<<<rows, kScanThreads, 0, a.stream>>>(bound);
    cuda_check(cudaGetLastError(), "gate plan");
    return;
  }
  sum_blocks<<<dim3(blocks, s.batch), 32 * kWarps, 0, a.stream>>>(
      {a.log_forget, a.gate_batch_stride, a.gate_token_stride, a.gate_head_stride, int(s.key_length),
       int(s.query_heads), int(blocks), a.plan});
  cuda_check(cudaGetLastError(), "gate plan");
  const bool norms_needed = std::isfinite(a.log_pruning_tolerance) && !a.logit_bound && !a.boundary_given;
  if (!norms_needed) {
    launch_overlapping(scan_and_bound<true, true>, rows, kScanThreads, 0, a.stream, bound);
    return;
  }
  launch_overlapping(scan_and_bound<true, false>, rows, kScanThreads, 0, a.stream, bound);
  const bool bfloat16 = a.dtype == Dtype::kBFloat16;
  const auto norms = s.key_dim == 64
                         ? (bfloat16 ? find_largest_square<__nv_bfloat16, 64> : find_largest_square<__half, 64>)
                         : (bfloat16 ? find_largest_square<__nv_bfloat16, 128> : find_largest_square<__half, 128>);
  const int64_t chunks = (std::max(s.query_length, s.key_length) + kNormRows - 1) / kNormRows;
  launch_overlapping(norms, dim3(chunks * (s.query_heads + s.heads), s.batch), 32 * kWarps, 0, a.stream,
                     {a.query, a.key, int(s.query_length), int(s.key_length), bound});
  launch_overlapping(scan_and_bound<false, true>, rows, kScanThreads, 0, a.stream, bound);
}

}  // namespace lethe
