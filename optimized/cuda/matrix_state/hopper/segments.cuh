#pragma once
// A head's tokens in segments of kChunksOfSegment chunks. Of the state, the one before the segment and the segment's own sum are kept apart:
//
//   S = decay · before + sum     with gates; decay: their product since the segment's beginning
//   S = before + scale · sum     without: sums of unweighted products
//
// So a state has the same bits whether one CTA sweeps the whole head or each of its pieces has a CTA, which begins from a state that segment_sums and
// join_segments computed.

#include "optimized/cuda/launch.cuh"
#include "optimized/cuda/matrix_state/hopper/arguments.cuh"
#include "optimized/cuda/matrix_state/hopper/normalizer.cuh"

namespace lethe::matrix_state {

constexpr int kBlockFloats = 64 * 64;

/// A warpgroup's part of a state: 64 rows.
template <bool kGated>
struct State {
  float before[32], sum[32];
  float decay, scale;

  __device__ __forceinline__ explicit State(float write_scale) : decay(1.0f), scale(write_scale) {}

  __device__ __forceinline__ void clear_sum() {
    decay = 1.0f;
#pragma unroll
    for (int i = 0; i < 32; ++i) sum[i] = 0.0f;
  }

  __device__ __forceinline__ float value(int i) const { return joined(before[i], decay, sum[i], scale); }

  static __device__ __forceinline__ float joined(float before, float decay, float sum, float scale) {
    return kGated ? fmaf(decay, before, sum) : fmaf(scale, sum, before);
  }

  /// A segment ends.
  __device__ __forceinline__ void join() {
#pragma unroll
    for (int i = 0; i < 32; ++i) before[i] = value(i);
    clear_sum();
  }

  /// Over a chunk whose gates' product is `total`: before the chunk is added. `of_sum`: that, but for a power of two.
  __device__ __forceinline__ void forget(float total, float of_sum) {
    decay *= total;
#pragma unroll
    for (int i = 0; i < 32; ++i) sum[i] *= of_sum;
  }
  __device__ __forceinline__ void forget(float total) { forget(total, total); }
};

/// visit(i, whether it is inside, its place in [rows, stride]) of a lane's numbers of the state's rows from 64 · block and columns from 64 · tile on.
template <typename Visit>
__device__ __forceinline__ void each_of_block(int block, int tile, int rows, int columns, int stride, Place at,
                                              Visit&& visit) {
  const int row = 64 * block + 16 * at.block + at.lane / 4, column = 64 * tile + at.lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int r = row + 8 * (i / 2 % 2), c = column + 8 * (i / 4) + i % 2;
    visit(i, r < rows && c < columns, r * stride + c);
  }
}

/// A block of a head's state [rows, stride] contiguous, of its first columns: zeros beyond, or of a null pointer.
__device__ __forceinline__ void load_block(float (&to)[32], const float* from, int64_t head, int block, int tile,
                                           int rows, int columns, int stride, Place at) {
  each_of_block(block, tile, rows, columns, stride, at, [&](int i, bool inside, int place) {
    to[i] = from && inside ? from[head * rows * stride + place] : 0.0f;
  });
}

/// The same of a segment's state in the fragments' order, of `blocks` blocks.
__device__ __forceinline__ void load_block_of_segment(float (&to)[32], const float* from, int64_t segment, int block,
                                                      int blocks, Place at) {
  const float* own = from + (segment * blocks + block) * kBlockFloats + (32 * at.block + at.lane) * 4;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const float4 x = load_global4(own + n * kComputing * 4);
    to[4 * n] = x.x;
    to[4 * n + 1] = x.y;
    to[4 * n + 2] = x.z;
    to[4 * n + 3] = x.w;
  }
}

/// To there.
__device__ __forceinline__ void store_block_of_segment(float* to, const float (&from)[32], int64_t segment, int block,
                                                       int blocks, Place at) {
  float* own = to + (segment * blocks + block) * kBlockFloats + (32 * at.block + at.lane) * 4;
#pragma unroll
  for (int n = 0; n < 8; ++n)
    *reinterpret_cast<float4*>(own + n * kComputing * 4) = {from[4 * n], from[4 * n + 1], from[4 * n + 2],
                                                            from[4 * n + 3]};
}

/// value(i) of each number of a block to a head's state [rows, stride] contiguous.
template <typename Value>
__device__ __forceinline__ void store_block(float* to, int64_t head, int block, int tile, int rows, int columns,
                                            int stride, Place at, Value&& value) {
  each_of_block(block, tile, rows, columns, stride, at, [&](int i, bool inside, int place) {
    if (inside) to[head * rows * stride + place] = value(i);
  });
}

template <int kBlocks, bool kNormalized>
struct SumsShared {
  static constexpr int kStages = kNormalized ? 3 : 4, kStage = (kBlocks + 1) * kPanel, kThreads = kBlocks * kComputing;
  /// A chunk's numbers of the column that is apart.
  struct Column {
    SplitVector values;
    float unit;
  };
  static constexpr int kChunks = kChunksOfSegment<kBlocks>;
  static constexpr int kGates = kStages * kStage, kColumns = (kGates + kChunks * sizeof(ChunkGates) + 15) / 16 * 16,
                       kFull = kColumns + (kNormalized ? kChunks * sizeof(Column) : 0);
  static constexpr int kBytes = kFull + kStages * sizeof(uint64_t) + kBeyondSplitVector;
  static_assert((4 - kBlocks) * (kBytes + 1024) <= 228 * 1024);
};

/// A CTA: a segment's own sum of a tile of columns, 64 rows a warpgroup; of a normalised call also that of the column apart.
template <typename Element, bool kGated, int kBlocks, bool kNormalized>
__global__ void __launch_bounds__(SumsShared<kBlocks, kNormalized>::kThreads, 4 - kBlocks)
    segment_sums(const __grid_constant__ SegmentArguments p) {
  using Shared = SumsShared<kBlocks, kNormalized>;
  extern __shared__ __align__(1024) char memory[];
  let_next_kernel_start();
  ChunkGates* const all_gates = reinterpret_cast<ChunkGates*>(memory + Shared::kGates);
  uint64_t* const full = reinterpret_cast<uint64_t*>(memory + Shared::kFull);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, block = warp / kWarps;
  const Place place{warp % kWarps, lane};
  const int tile = blockIdx.x % p.tiles;
  const int64_t own = blockIdx.x / p.tiles % p.head_count, head = p.first_head + own, b = head / p.heads,
                h = head % p.heads;
  const SegmentOrder order(p.length, p.reverse, kChunksOfSegment<kBlocks>);
  const int index = static_cast<int>(blockIdx.x) / (p.head_count * p.tiles), count = order.count(index);
  const auto first_of = [&](int n) { return static_cast<int64_t>(order.chunk(index, n)) * kChunk; };

  const auto copy = [&](int n) {
    if (threadIdx.x > 0 || n >= count) return;
    char* const to = memory + n % Shared::kStages * Shared::kStage;
    uint64_t* const barrier = &full[n % Shared::kStages];
    ptx::mbarrier_arrive_expect(barrier, Shared::kStage);
    load_tile_of<kBlocks>(to, p.maps[0], p.key, barrier, 0, first_of(n), b, h);
    load_tile_of<1>(to + kBlocks * kPanel, p.maps[1], p.value, barrier, 64 * tile, first_of(n), b, h);
  };
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shared::kStages; ++i) ptx::mbarrier_init(&full[i], 1);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  if (!p.beside_previous) wait_for_previous_kernel();
  for (int n = 0; n < Shared::kStages - 1; ++n) copy(n);
  if constexpr (kGated) {
    const float* gate = p.gate.log_forget + b * p.gate.batch_stride + h * p.gate.head_stride;
    for (int n = warp; n < count; n += kBlocks * kWarps)
      prepare_gates(all_gates[n], load_gates(gate, p.gate.token_stride, first_of(n), p.length, p.reverse, lane), 1.0f,
                    p.scale, p.reverse, lane);
  }
  auto* const columns = reinterpret_cast<typename Shared::Column*>(memory + Shared::kColumns);
  if constexpr (kNormalized) {
    for (int n = warp; n < count; n += kBlocks * kWarps)
      prepare_column<Element>(columns[n].values, columns[n].unit,
                              load_column(p.column, head, order.chunks, first_of(n), lane), lane);
    ptx::fence_async_shared();
  }

  State<kGated> state(p.scale);
  state.clear_sum();
  StateColumn last;
  for (int n = 0; n < count; ++n) {
    __syncthreads();  // all warps are done with the chunk before, whose stage is filled again; the gates are there
    copy(n + Shared::kStages - 1);
    if constexpr (kGated) state.forget(all_gates[n].total);
    ptx::mbarrier_wait(&full[n % Shared::kStages], n / Shared::kStages & 1);
    const char* stage = memory + n % Shared::kStages * Shared::kStage;
    const auto add = [&](auto&& column) {
      add_to_state<Element, kGated ? Weights::kGates : Weights::kNone>(
          state.sum, stage + block * kPanel, stage + kBlocks * kPanel, all_gates[n].write, 1.0f, place, column);
    };
    if constexpr (kNormalized) {
      ColumnProduct<Element> product(columns[n].values);
      add(product);
      if constexpr (kGated) last.forget(all_gates[n].total);
      last.add(product, columns[n].unit);
    } else {
      add(NoColumn{});
    }
  }
  const int64_t at = (int64_t{1} * tile * p.head_count + own) * p.segments + index;
  store_block_of_segment(p.states, state.sum, at, block, kBlocks, place);
  if constexpr (kNormalized)
    each_of_column(place, [&](int half, int row) { p.vectors[(at * kBlocks + block) * 64 + row] = last.sum[half]; });
  if (kGated && threadIdx.x == 0) p.decays[at] = state.decay;
  if (p.beside_previous) wait_for_previous_kernel();  // for those after this one
}

/// Before the pieces that hand states on.
__global__ inline void clear_marks(int32_t* marks, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  let_next_kernel_start();
  if (i < count) marks[i] = 0;
}

/// CTAs of a block of a tile, and of a normalised call one more, of the column apart.
constexpr int kJoiningThreads = 256, kJoiningCtas = kBlockFloats / 4 / kJoiningThreads;

/// A thread: the numbers of the column apart.
template <bool kGated, int kBlocks>
__device__ __forceinline__ void join_columns(const SegmentArguments& p, int64_t place, int64_t head, int block) {
  const int row = 64 * block + threadIdx.x;
  if (threadIdx.x >= 64) return;
  float x = p.initial && row < p.rows ? p.initial[(head * p.rows + row) * (p.columns + 1) + p.columns] : 0.0f;
  for (int64_t at = place * p.segments; at < (place + 1) * p.segments; ++at) {
    float& sum = p.vectors[at * kBlocks * 64 + row];
    sum = x = State<kGated>::joined(x, kGated ? p.decays[at] : 1.0f, sum, p.scale);
  }
}

/// A thread: four numbers of a tile of a head's state, after every segment in their order, in the place of the segment's own sum; where pieces alone need
/// them, of those before a piece.
template <bool kGated, int kBlocks, bool kNormalized>
__global__ void __launch_bounds__(kJoiningThreads) join_segments(const __grid_constant__ SegmentArguments p) {
  constexpr int kAtOnce = 16;  // sums that are on their way
  constexpr int kFloats = kBlocks * kBlockFloats, kCtas = kJoiningCtas + kNormalized;
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int64_t place = blockIdx.x / (kCtas * kBlocks), head = p.first_head + place % p.head_count;
  const int block = blockIdx.x / kCtas % kBlocks, stride = p.columns + kNormalized,
            piece = blockIdx.x % kCtas * kJoiningThreads + threadIdx.x;  // of four numbers
  if constexpr (kNormalized) {
    if (blockIdx.x % kCtas == kJoiningCtas) return join_columns<kGated, kBlocks>(p, place, head, block);
  }
  const int row = 64 * block + 16 * (piece / 32 % kWarps) + piece % 32 / 4,
            column = static_cast<int>(place / p.head_count) * 64 + 8 * (piece / kComputing) + piece % 4 * 2;
  float x[4];
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const int r = row + 8 * (e / 2), c = column + e % 2;
    x[e] = p.initial && r < p.rows && c < p.columns ? p.initial[(head * p.rows + r) * stride + c] : 0.0f;
  }
  float* const states = p.states + place * p.segments * kFloats + block * kBlockFloats + piece * 4;
  const float* decays = kGated ? p.decays + place * p.segments : nullptr;
  const SegmentOrder order(p.length, p.reverse, kChunksOfSegment<kBlocks>);
  // The segment with which the next piece begins: that of Piece, step by step.
  const int pieces = max(p.pieces, 1), step = order.segments / pieces, rest_of_step = order.segments % pieces;
  int next = step, rest = rest_of_step;
  for (int first = 0; first < p.segments; first += kAtOnce) {
    float4 sums[kAtOnce];
    float decay[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const bool there = first + i < p.segments;
      sums[i] = there ? load_global4(states + int64_t{1} * (first + i) * kFloats) : float4{};
      decay[i] = kGated && there ? load_global(decays + first + i) : 1.0f;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= p.segments) break;
      const float sum[4] = {sums[i].x, sums[i].y, sums[i].z, sums[i].w};
#pragma unroll
      for (int e = 0; e < 4; ++e) x[e] = State<kGated>::joined(x[e], decay[i], sum[e], p.scale);
      if (p.pieces > 0 && first + i + 1 < next) continue;
      *reinterpret_cast<float4*>(states + int64_t{1} * (first + i) * kFloats) = {x[0], x[1], x[2], x[3]};
      next += step + (rest + rest_of_step >= pieces);
      rest += rest_of_step - (rest + rest_of_step >= pieces ? pieces : 0);
    }
  }
}

}  // namespace lethe::matrix_state
