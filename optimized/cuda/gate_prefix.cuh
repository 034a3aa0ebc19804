#pragma once
// The gate's prefix sums in two levels, and where its cuts are. Included by gate_plan.cu alone.
//
//   c_t = Σ_{l ≤ t} log f_l = base[t / 128] + local_t;  bias_t = −log₂e · local_t;  start_t = (local_end − local_t) / scale
//
// One warp a block of 128 tokens sums in double and rounds the local part once; one CTA a head then scans the blocks' sums.

#include <climits>

#include "optimized/cuda/bias_step.cuh"
#include "optimized/cuda/ptx/barrier.cuh"
#include "optimized/kernels.hpp"

namespace lethe::gate {

inline constexpr double kCut = -10000.0;  // a gate below this is a cut
inline constexpr double kLog2E = 1.4426950408889634;
inline constexpr int kBlock = kGateBlock;
inline constexpr int kWarps = 8;
inline constexpr int kScanThreads = 256;

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
  double inverse_scale;
  bool with_start;
  GatePlan plan;
};

// The plan's counters; the first kernel sets them for all that follow.
__device__ inline void clear_counters(const GatePlan& plan, int batch, int heads) {
  for (int head = threadIdx.x; head < heads; head += blockDim.x) {
    const int row = batch * heads + head;
    plan.pairs[row] = 0;
    plan.largest_square[row] = plan.largest_square[gridDim.y * heads + row] = 0;
    plan.parts_done[row] = 0;
  }
  if (threadIdx.x == 0 && batch == 0) *plan.next_tile = *plan.heads_done = plan.repeats[0] = 0;
}

// One warp a (block, head), neighbouring heads in one CTA; a lane owns four tokens. Leaves for the scan each block's own sum, its last
// cut in block_cut_before[n+1] (or −1) and its first in block_cut_after[n] (or INT32_MAX).
static __global__ void __launch_bounds__(32 * kWarps) sum_blocks(LocalArguments a) {
  const int block = blockIdx.x, batch = blockIdx.y, lane = threadIdx.x % 32;
  ptx::let_next_kernel_start();
  if (block == 0 && blockIdx.z == 0) clear_counters(a.plan, batch, a.heads);
  const auto sum_of = [](double x, double y) { return x + y; };
  const auto largest = [](int x, int y) { return max(x, y); };
  for (int head = blockIdx.z * kWarps + threadIdx.x / 32; head < a.heads; head += gridDim.z * kWarps) {
    const float* gate = a.log_forget + batch * a.batch_stride + head * a.head_stride;
    const int64_t row = static_cast<int64_t>(batch) * a.heads + head;
    const int first = block * kBlock + lane * 4;
    double local[4], sum = 0;
    int before[4], after[4], last_cut = -1, first_cut = INT_MAX;
    for (int i = 0; i < 4; ++i) {
      const int token = first + i;
      const double log_forget = token < a.length ? gate[token * a.token_stride] : 0.0;
      const bool cut = log_forget < kCut;
      sum += cut ? 0.0 : log_forget < INFINITY ? log_forget : NAN;
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
    const double block_sum = __shfl_sync(~0u, inclusive, 31);
    float bias[4], start[4];
    for (int i = 0; i < 4; ++i) {
      const double from_block = inclusive - sum + local[i];
      bias[i] = first + i < a.length ? static_cast<float>(-kLog2E * from_block) : 0.0f;
      start[i] = first + i < a.length ? static_cast<float>((block_sum - from_block) * a.inverse_scale) : 0.0f;
      if (before[i] < 0 && lane > 0) before[i] = cut_below;
      if (after[i] == INT_MAX && lane < 31) after[i] = cut_above;
    }
    *reinterpret_cast<float4*>(a.plan.bias + at) = make_float4(bias[0], bias[1], bias[2], bias[3]);
    if (a.with_start) {
      BiasParts of_token[4];
      for (int i = 0; i < 4; ++i)
        of_token[i] = bias_parts(isnan(start[i]) ? 0 : start[i]);  // the block's sum has NaN, too
      for (int p = 0; p < 3; ++p) {
        const auto pair = [&](int i) { return __halves2bfloat162(of_token[i].part[p], of_token[i + 1].part[p]); };
        // not by memcpy: nvcc 13.0 makes stores of bytes of it, and converts the lower one as if it were a float16
        struct alignas(8) Four {
          __nv_bfloat162 low, high;
        };
        *reinterpret_cast<Four*>(&a.plan.start[at / 8].part[p][at % 8]) = {pair(0), pair(2)};
      }
    }
    *reinterpret_cast<int4*>(a.plan.cut_before + at) = make_int4(before[0], before[1], before[2], before[3]);
    *reinterpret_cast<int4*>(a.plan.cut_after + at) = make_int4(after[0], after[1], after[2], after[3]);
    if (lane == 31) {
      a.plan.block_sum[row * a.blocks + block] = inclusive;
      a.plan.block_cut_before[row * (a.blocks + 1) + block + 1] = inclusive_cut;
    }
    if (lane == 0) a.plan.block_cut_after[row * (a.blocks + 1) + block] = cut_from_here;
  }
}

// values[0 … count) = inclusive scan of what read(i) gives, by the whole CTA, ascending or descending.
template <bool kAscending, typename T, typename Read, typename Combine>
__device__ void scan(T* values, int count, T neutral, Read read, Combine combine) {
  __shared__ T totals[kScanThreads / 32];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int each = (count + kScanThreads - 1) / kScanThreads;
  const auto at = [&](int i) { return kAscending ? i : count - 1 - i; };
  const int begin = min(count, thread * each), end = min(count, begin + each);
  T total = neutral;
  for (int i = begin; i < end; ++i) total = combine(total, read(at(i)));
  const T inclusive = scan_warp_up(total, neutral, combine);
  if (lane == 31) totals[warp] = inclusive;
  __syncthreads();
  T running = neutral;
  for (int w = 0; w < warp; ++w) running = combine(running, totals[w]);
  const T below = __shfl_up_sync(~0u, inclusive, 1);
  if (lane > 0) running = combine(running, below);
  for (int i = begin; i < end; ++i) {
    running = combine(running, read(at(i)));
    values[at(i)] = running;
  }
  __syncthreads();
}

// By one CTA a head: what lies before each block.
__device__ inline void scan_blocks(const GatePlan& plan, int row, int64_t blocks) {
  const double* sums = plan.block_sum + row * blocks;
  double* base = plan.base + row * (blocks + 1);
  TwoFloats* base_log2 = plan.base_log2 + row * (blocks + 1);
  int32_t* cut_before = plan.block_cut_before + row * (blocks + 1);
  int32_t* cut_after = plan.block_cut_after + row * (blocks + 1);
  scan<true>(
      base, blocks + 1, 0.0, [&](int n) { return n == 0 ? 0 : sums[n - 1]; }, [](double x, double y) { return x + y; });
  for (int n = threadIdx.x; n <= blocks; n += kScanThreads) {
    const double in_log2 = base[n] * kLog2E;
    const float high = static_cast<float>(in_log2);
    base_log2[n] = {high, static_cast<float>(in_log2 - high), {0, 0}};
  }
  scan<true>(
      cut_before, blocks + 1, 0, [&](int n) { return n == 0 ? 0 : cut_before[n]; },
      [](int x, int y) { return max(x, y); });
  scan<false>(
      cut_after, blocks + 1, INT_MAX, [&](int n) { return n == blocks ? INT_MAX : cut_after[n]; },
      [](int x, int y) { return min(x, y); });
}

}  // namespace lethe::gate
