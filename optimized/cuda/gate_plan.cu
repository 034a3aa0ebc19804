// The gate's plan: prefix sums in two levels, cuts, and what pruning leaves out.
//
//   c_t = Σ_{l ≤ t} log f_l = base[t / 128] + local_t;  bias_t = −log₂e · local_t
//   block (m, n) of queries × keys is left out where c_{first query of m} − c_{last key of n} < δ = −2U − log Tk + log ε
//
// Two kernels. One warp a block of 128 tokens sums in double and rounds the local part once. Then one CTA a head scans the
// blocks' sums and finds, one thread a query block, the first key block to visit by binary search: c falls with t, so along a row
// of blocks D only rises. The last query block of a key block is a second search, in the first one's result.

#include <cfloat>
#include <climits>
#include <cmath>
#include <stdexcept>

#include "optimized/cuda/check.hpp"
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

// One warp a (block, head); a lane owns four tokens. Leaves for the scan each block's own sum in base[n+1], its last cut in
// block_cut_before[n+1] (or −1) and its first in block_cut_after[n] (or INT32_MAX).
__global__ void __launch_bounds__(32 * kWarps) sum_blocks(LocalArguments a) {
  const int block = blockIdx.x, batch = blockIdx.y, lane = threadIdx.x % 32;
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
  __shared__ T totals[kScanThreads];
  const int thread = threadIdx.x;
  const int each = (count + kScanThreads - 1) / kScanThreads;
  const auto at = [&](int i) { return kAscending ? i : count - 1 - i; };
  const int begin = min(count, thread * each), end = min(count, begin + each);
  T total = neutral;
  for (int i = begin; i < end; ++i) total = combine(total, values[at(i)]);
  totals[thread] = total;
  __syncthreads();
  for (int offset = 1; offset < kScanThreads; offset *= 2) {
    const T below = thread >= offset ? totals[thread - offset] : neutral;
    __syncthreads();
    totals[thread] = combine(totals[thread], below);
    __syncthreads();
  }
  T running = thread > 0 ? totals[thread - 1] : neutral;
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

__global__ void __launch_bounds__(kScanThreads) scan_and_bound(BoundArguments a) {
  const int row = blockIdx.x;  // batch · query_heads + query head
  const int64_t blocks = a.key_blocks, tokens = blocks * kBlock;
  double* base = a.plan.base + row * (blocks + 1);
  int32_t* cut_before = a.plan.block_cut_before + row * (blocks + 1);
  int32_t* cut_after = a.plan.block_cut_after + row * (blocks + 1);
  int32_t* first_key = a.plan.first_key_block + static_cast<int64_t>(row) * a.query_blocks;
  int32_t* last_query = a.plan.last_query_block + row * blocks;
  if (threadIdx.x == 0) {
    base[0] = 0;
    cut_before[0] = 0;
    cut_after[blocks] = INT_MAX;
  }
  __syncthreads();
  scan<true>(base, blocks + 1, 0.0, [](double x, double y) { return x + y; });
  scan<true>(cut_before, blocks + 1, 0, [](int x, int y) { return max(x, y); });
  scan<false>(cut_after, blocks + 1, INT_MAX, [](int x, int y) { return min(x, y); });

  const bool pruning = a.log_tolerance > -DBL_MAX && !a.boundary_given;
  double threshold = 0;
  if (pruning) {
    const int pairs = gridDim.x, group = a.query_heads / a.heads, batch = row / a.query_heads, head = row % a.query_heads / group;
    const double bound = a.logit_bound ? a.logit_bound[row]
                                       : fabs(a.scale) * sqrt(double(a.plan.largest_square[row])) *
                                             sqrt(double(a.plan.largest_square[pairs + batch * a.heads + head])) * kNormSlack;
    threshold = -2 * bound - a.log_length + a.log_tolerance;
  }
  for (int m = threadIdx.x; m < a.query_blocks && !a.boundary_given; m += kScanThreads) {
    const int position = m * kBlock + a.offset, block = position / kBlock;
    int first = 0;
    if (pruning) {
      const double c = base[block] - a.plan.bias[row * tokens + position] / kLog2E;
      const int cut = max(a.plan.cut_before[row * tokens + position], cut_before[block]);
      first = first_where(block, [&](int n) { return c - base[n + 1] >= threshold && n * kBlock + kBlock > cut; });
    }
    first_key[m] = first;
  }
  __syncthreads();
  for (int n = threadIdx.x; n < a.key_blocks; n += kScanThreads)
    last_query[n] = first_where(a.query_blocks, [&](int m) { return first_key[m] > n; }) - 1;
}

struct NormArguments {
  Operand operand;
  int length;
  float* largest_square;  // [B, heads], zero before
};

// Largest ‖row‖² of a head: 16 bytes a lane, several rows a warp; non-negative floats compare like their bits.
template <typename Element, int kDim>
__global__ void __launch_bounds__(32 * kWarps) find_largest_square(NormArguments a) {
  constexpr int kLanes = kDim / 8, kRowsPerPass = 32 * kWarps / kLanes, kPasses = 8;
  const int head = blockIdx.y, batch = blockIdx.z, lane = threadIdx.x % kLanes;
  const Element* rows = static_cast<const Element*>(a.operand.data) + batch * a.operand.batch_stride + head * a.operand.head_stride;
  float largest = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const int token = (blockIdx.x * kPasses + pass) * kRowsPerPass + threadIdx.x / kLanes;
    float square = 0;
    if (token < a.length) {
      const uint4 chunk = *reinterpret_cast<const uint4*>(rows + token * a.operand.token_stride + lane * 8);
      for (const uint32_t packed : {chunk.x, chunk.y, chunk.z, chunk.w}) {
        const float2 pair = ptx::unpack<Element>(packed);
        square += pair.x * pair.x + pair.y * pair.y;
      }
    }
    for (int offset = kLanes / 2; offset > 0; offset /= 2) square += __shfl_xor_sync(~0u, square, offset);
    largest = fmaxf(largest, square);
  }
  for (int offset = 16; offset > 0; offset /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, offset));
  if (threadIdx.x % 32 == 0) atomicMax(reinterpret_cast<int*>(a.largest_square) + batch * gridDim.y + head, __float_as_int(largest));
}

template <typename Element>
void launch_norms(const Operand& operand, int64_t batch, int64_t length, int64_t heads, int64_t dim, float* largest_square, cudaStream_t stream) {
  const int rows = 32 * kWarps / (dim / 8) * 8;
  const dim3 grid((length + rows - 1) / rows, heads, batch);
  const NormArguments arguments{operand, static_cast<int>(length), largest_square};
  if (dim == 64) find_largest_square<Element, 64><<<grid, 32 * kWarps, 0, stream>>>(arguments);
  else find_largest_square<Element, 128><<<grid, 32 * kWarps, 0, stream>>>(arguments);
}

int64_t blocks_of(int64_t length) { return (length + kGateBlock - 1) / kGateBlock; }

}  // namespace

GatePlan gate_plan_in(void* memory, const Shape& shape) {
  const int64_t rows = shape.batch * shape.query_heads, keys = blocks_of(shape.key_length), queries = blocks_of(shape.query_length);
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
  take(plan.next_tile, 2);
  take(plan.repeats, 1 + rows * queries);
  take(plan.end, 0);
  return plan;
}

size_t gate_plan_bytes(const Shape& shape) {
  return reinterpret_cast<size_t>(gate_plan_in(nullptr, shape).end);
}

void launch_gate_plan(const GatePlanArguments& a) {
  const Shape& s = a.shape;
  const int64_t blocks = blocks_of(s.key_length);
  sum_blocks<<<dim3(blocks, s.batch), 32 * kWarps, 0, a.stream>>>({a.log_forget, a.gate_batch_stride, a.gate_token_stride,
                                                                   a.gate_head_stride, int(s.key_length), int(s.query_heads), int(blocks),
                                                                   a.plan});
  const int64_t rows = s.batch * s.query_heads;
  if (std::isfinite(a.log_pruning_tolerance) && !a.logit_bound && !a.boundary_given) {
    cuda_check(cudaMemsetAsync(a.plan.largest_square, 0, 2 * rows * sizeof(float), a.stream), "gate plan");
    const auto norms = a.dtype == Dtype::kBFloat16 ? launch_norms<__nv_bfloat16> : launch_norms<__half>;
    norms(a.query, s.batch, s.query_length, s.query_heads, s.key_dim, a.plan.largest_square, a.stream);
    norms(a.key, s.batch, s.key_length, s.heads, s.key_dim, a.plan.largest_square + rows, a.stream);
  }
  scan_and_bound<<<rows, kScanThreads, 0, a.stream>>>({int(s.heads), int(s.query_heads), int(blocks_of(s.query_length)), int(blocks),
                                                       int(s.key_length - s.query_length), a.scale, std::log(double(s.key_length)),
                                                       a.log_pruning_tolerance, a.logit_bound, a.boundary_given, a.plan});
  cuda_check(cudaGetLastError(), "gate plan");
}

}  // namespace lethe
