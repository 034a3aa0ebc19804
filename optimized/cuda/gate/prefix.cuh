#pragma once
// The gate's prefix sums in two levels, and the places of its cuts.
//
//   c_t = Σ_{l ≤ t} log f_l = base[t / 128] + local_t;  bias_t = −log₂e · local_t
//
// One warp a block of 128 tokens sums in double and rounds the local part once; in a strong block it keeps the rounding error. One CTA a
// head then scans the blocks' sums. A kernel family derives its own operands on the way: `Derived` is a device functor with
//   clear(row)                     sets the counters of (batch, query head) `row`
//   store_tokens(token, to_end)    of four tokens, c at their block's end − c_t; 0 past Tk
//   store_base(entry, base)        of GatePrefix::base

#include <climits>
#include <numbers>

#include "optimized/cuda/gate/plan.hpp"
#include "optimized/cuda/launch.cuh"
#include "optimized/gate.hpp"

namespace lethe::gate {

inline constexpr int kBlock = kGateBlock;
inline constexpr int kWarps = 8;
inline constexpr int kScanThreads = 256;

template <typename T>
__device__ T shuffle_up(T value, int offset) {
  return __shfl_up_sync(~0u, value, offset);
}

template <typename T, typename Combine>
__device__ T scan_warp_up(T value, T neutral, Combine combine) {  // inclusive, towards higher lanes
  for (int offset = 1; offset < 32; offset *= 2) {
    const T below = shuffle_up(value, offset);
    value = combine(threadIdx.x % 32 >= offset ? below : neutral, value);
  }
  return value;
}

struct LocalArguments {
  const float* log_forget;
  int64_t batch_stride, token_stride, head_stride;
  int length, heads, blocks;
  GatePrefix prefix;
  WorkOrder order;
};

// The first kernel sets the counters for all that follow.
template <typename Derived>
__device__ void clear_counters(const WorkOrder& order, const Derived& derived, int batch, int heads) {
  for (int head = threadIdx.x; head < heads; head += blockDim.x) {
    const int row = batch * heads + head;
    order.largest_square[row] = order.largest_square[gridDim.y * heads + row] = 0;
    order.parts_done[row] = 0;
    if (row == 0) *order.heads_done = 0;
    derived.clear(row);
  }
}

// The last cut at or before each token of a lane and the first after it, inside the block.
struct LaneCuts {
  int before[4], after[4];
};

// Completes a lane's own cuts by those of the other lanes. Returns the block's last cut, or −1, and its first, or INT32_MAX.
__device__ inline int2 join_cuts(LaneCuts& cuts, int last, int first) {
  if (!__any_sync(~0u, last >= 0)) return {-1, INT_MAX};  // cuts are rare
  const int lane = threadIdx.x % 32;
  const int up_to_here = scan_warp_up(last, -1, [](int x, int y) { return max(x, y); });
  int from_here = first;
  for (int offset = 1; offset < 32; offset *= 2) {
    const int above = __shfl_down_sync(~0u, from_here, offset);
    if (lane + offset < 32) from_here = min(from_here, above);
  }
  const int below = __shfl_up_sync(~0u, up_to_here, 1), above = __shfl_down_sync(~0u, from_here, 1);
  for (int i = 0; i < 4; ++i) {
    if (cuts.before[i] < 0 && lane > 0) cuts.before[i] = below;
    if (cuts.after[i] == INT_MAX && lane < 31) cuts.after[i] = above;
  }
  return {__shfl_sync(~0u, up_to_here, 31), __shfl_sync(~0u, from_here, 0)};
}

// Of a block, by a warp, into every lane: Σ exp(c_last − c_j) over its tokens j from the last cut on. to_end: c_last − c_j of the lane's tokens.
__device__ inline float mass_of_block(const double (&to_end)[4], int first_token, int last_cut) {
  float mass = 0;
  for (int i = 0; i < 4; ++i)
    if (first_token + i >= last_cut) mass += exp2f(static_cast<float>(to_end[i] * std::numbers::log2e));
  for (int offset = 16; offset > 0; offset /= 2) mass += __shfl_xor_sync(~0u, mass, offset);
  return mass;
}

// One warp a (block, head); a lane owns four tokens. Eight heads in one CTA: their gates are mostly adjacent in memory and are read together. Leaves
// for the scan each block's own sum, its last cut in block_cut_before[n+1] (or −1), its first in block_cut_after[n] (or INT32_MAX) and its own mass
// in mass[n+1].
template <typename Derived>
__global__ void __launch_bounds__(32 * kWarps) sum_blocks(LocalArguments a, Derived derived) {
  const int block = blockIdx.x, batch = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  let_next_kernel_start();
  if (block == 0 && blockIdx.z == 0) clear_counters(a.order, derived, batch, a.heads);
  __shared__ __align__(16) float gates[kWarps][kBlock + 4];  // four more: no two of a warp's stores meet in a bank
  for (int first_head = blockIdx.z * kWarps; first_head < a.heads; first_head += gridDim.z * kWarps) {
    constexpr int kLoads = kBlock / 32;
    float loaded[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int token = block * kBlock + 32 * i + threadIdx.x / kWarps, head = first_head + threadIdx.x % kWarps;
      loaded[i] = token < a.length && head < a.heads
                      ? a.log_forget[batch * a.batch_stride + token * a.token_stride + head * a.head_stride]
                      : 0;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kLoads; ++i) gates[threadIdx.x % kWarps][32 * i + threadIdx.x / kWarps] = loaded[i];
    __syncthreads();
    const int head = first_head + warp;
    if (head >= a.heads) continue;
    const int64_t row = static_cast<int64_t>(batch) * a.heads + head;
    const int first = block * kBlock + lane * 4;
    const float4 four = *reinterpret_cast<const float4*>(&gates[warp][lane * 4]);
    const float gate[4] = {four.x, four.y, four.z, four.w};
    LaneCuts cuts;
    double local[4], sum = 0;
    int last_cut = -1, first_cut = INT_MAX;
    for (int i = 0; i < 4; ++i) {
      const bool cut = gate[i] < static_cast<float>(kStrongGate);
      sum += cut ? 0.0f : gate[i] < INFINITY ? gate[i] : NAN;
      if (cut) last_cut = first + i;
      local[i] = sum;
      cuts.before[i] = last_cut;
    }
    for (int i = 3; i >= 0; --i) {
      cuts.after[i] = first_cut;
      if (cuts.before[i] == first + i) first_cut = first + i;
    }
    const double inclusive = scan_warp_up(sum, 0.0, [](double x, double y) { return x + y; });
    const double block_sum = __shfl_sync(~0u, inclusive, 31);
    const int2 block_cuts = join_cuts(cuts, last_cut, first_cut);
    const int64_t at = (row * a.blocks + block) * kBlock + lane * 4;
    float bias[4], rest[4];
    double to_end[4];
    for (int i = 0; i < 4; ++i) {
      const double from_block = inclusive - sum + local[i];
      const double exact = first + i < a.length ? -std::numbers::log2e * from_block : 0;
      bias[i] = static_cast<float>(exact);
      rest[i] = static_cast<float>(exact - bias[i]);
      to_end[i] = first + i < a.length ? block_sum - from_block : 0;
    }
    *reinterpret_cast<float4*>(a.prefix.bias + at) = make_float4(bias[0], bias[1], bias[2], bias[3]);
    if (block_sum < kStrongSum)
      *reinterpret_cast<float4*>(a.prefix.bias_rest + at) = make_float4(rest[0], rest[1], rest[2], rest[3]);
    derived.store_tokens(at, to_end);
    if (a.prefix.mass) {
      const float mass = mass_of_block(to_end, first, block_cuts.x);
      if (lane == 0) a.prefix.mass[row * (a.blocks + 1) + block + 1] = mass;
    }
    const auto places = [](const int(&token)[4]) {
      const auto place = [&](int i) -> uint8_t {
        return token[i] < 0 || token[i] == INT_MAX ? kNoCut : token[i] % kBlock;
      };
      return make_uchar4(place(0), place(1), place(2), place(3));
    };
    *reinterpret_cast<uchar4*>(a.prefix.cut_before + at) = places(cuts.before);
    *reinterpret_cast<uchar4*>(a.prefix.cut_after + at) = places(cuts.after);
    if (lane == 0) {
      a.prefix.block_sum[row * a.blocks + block] = block_sum;
      a.prefix.block_cut_before[row * (a.blocks + 1) + block + 1] = block_cuts.x;
      a.prefix.block_cut_after[row * (a.blocks + 1) + block] = block_cuts.y;
    }
  }
}

// The sum, the mass and the last cut before block n, and the first cut in it or later, scanned from the end: n counts both ways.
struct OfBlocks {
  double sum;
  int last_cut, first_cut;
  float mass;
};

__device__ inline OfBlocks shuffle_up(OfBlocks value, int offset) {
  return {shuffle_up(value.sum, offset), shuffle_up(value.last_cut, offset), shuffle_up(value.first_cut, offset),
          shuffle_up(value.mass, offset)};
}

// Blocks x, then blocks y. The mass of x, less what y's gates forget, is added unless y has a cut; a cut at token 0 has nothing before it.
__device__ inline OfBlocks joined(const OfBlocks& x, const OfBlocks& y, bool by_mass) {
  float mass = y.mass;
  if (by_mass && y.last_cut <= 0) mass += x.mass * exp2f(static_cast<float>(y.sum * std::numbers::log2e));
  return {x.sum + y.sum, max(x.last_cut, y.last_cut), min(x.first_cut, y.first_cut), mass};
}

// Inclusive: write(i, combination of read(0) … read(i)), by a whole CTA. A number may be written where it was read.
template <typename T, typename Read, typename Combine, typename Write>
__device__ void scan(int count, T neutral, Read read, Combine combine, Write write) {
  __shared__ T totals[kScanThreads / 32];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int each = (count + kScanThreads - 1) / kScanThreads;
  const int begin = min(count, thread * each), end = min(count, begin + each);
  T total = neutral;
  for (int i = begin; i < end; ++i) total = combine(total, read(i));
  const T inclusive = scan_warp_up(total, neutral, combine);
  if (lane == 31) totals[warp] = inclusive;
  __syncthreads();
  T running = neutral;
  for (int w = 0; w < warp; ++w) running = combine(running, totals[w]);
  const T below = shuffle_up(inclusive, 1);
  if (lane > 0) running = combine(running, below);
  for (int i = begin; i < end; ++i) {
    running = combine(running, read(i));
    write(i, running);
  }
  __syncthreads();
}

// By one CTA a head: the sum and cuts before each block. Its three scans are one, and their operands are fetched at once.
template <typename Derived>
__device__ void scan_blocks(const GatePrefix& prefix, const Derived& derived, int row, int blocks) {
  const int64_t first = row * int64_t{blocks + 1};
  const double* sums = prefix.block_sum + row * int64_t{blocks};
  int32_t *cut_before = prefix.block_cut_before + first, *cut_after = prefix.block_cut_after + first;
  float* mass = prefix.mass ? prefix.mass + first : nullptr;
  scan<OfBlocks>(
      blocks + 1, {0, 0, INT_MAX, 0},
      [&](int n) {
        if (n == 0) return OfBlocks{0, 0, INT_MAX, 0};
        return OfBlocks{sums[n - 1], cut_before[n], cut_after[blocks - n], mass ? mass[n] : 0};
      },
      [&](const OfBlocks& x, const OfBlocks& y) { return joined(x, y, mass != nullptr); },
      [&](int n, const OfBlocks& value) {
        prefix.base[first + n] = value.sum;
        derived.store_base(first + n, value.sum);
        cut_before[n] = value.last_cut;
        cut_after[blocks - n] = value.first_cut;
        if (mass) mass[n] = value.mass;
      });
}

}  // namespace lethe::gate
