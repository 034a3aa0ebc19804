// Forgetting Attention, forward.
//
//   x_ij = scale·log₂e·q_i·k_j + b_j,  b_j = −log₂e·(c_j − F);  m_i ≥ max_j x_ij − 8;  l_i = Σ_j 2^(x_ij − m_i)
//   o_i = Σ_j 2^(x_ij − m_i) v_j / l_i;  log_normalizer_i = ln 2·(m_i + log₂ l_i) + c_i − F
//
// The gate enters as a column term only: along a row c_i is a constant that the softmax divides out. F, the prefix before the tile's
// first row, keeps every number small; b_j is the plan's float local part plus one number a block, the difference of two doubles.
//
// One CTA an SM, three warpgroups. Warpgroup 0: one thread fetches tiles and feeds the copy engine (Q once a tile, K with its bias
// and V in rings of their own). Warpgroups 1 and 2: 64 query rows each. A thread holds 2 rows × 32 columns of S, its part of O, and
// P of the previous block as the next product's operand. Key blocks run from the diagonal down to the pruning boundary. Within a
// warpgroup the exponentials of block n run under P·V of block n+1; between the two, a pair of named barriers makes one's products
// run under the other's exponentials. The running maximum moves only where a row outgrew it by 2^8, so that O is rarely rescaled.

#include <algorithm>
#include <stdexcept>

#include "optimized/cuda/check.hpp"
#include "optimized/cuda/ptx/copy.cuh"
#include "optimized/cuda/ptx/fragment.cuh"
#include "optimized/cuda/ptx/wgmma.cuh"
#include "optimized/cuda/tensor_map.hpp"
#include "optimized/kernels.hpp"

namespace lethe {
namespace {

using ptx::Major;
using ptx::RingPosition;

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;
constexpr int kColumns = 128;  // of a key block
constexpr int kTileSlots = 2;
constexpr float kRescaleAbove = 8;  // log₂; 2^8 is far from any 16-bit overflow

// Sizes of a kernel. At head dim 64 the exponentials take as long as the products: three warpgroups hide more latency than two.
template <int kDim>
struct Sizes {
  static constexpr int kWarpgroups = kDim == 64 ? 3 : 2;
  static constexpr int kRows = kWarpgroups * 64;
  static constexpr int kThreads = (kWarpgroups + 1) * 128;
  static constexpr int kProducerRegisters = kDim == 64 ? 32 : 40, kConsumerRegisters = kDim == 64 ? 160 : 232;
  static constexpr int kStages = kDim == 64 ? 3 : 2;
  static constexpr bool kBiasAhead = kDim == 128;  // registers for the bias while the scores are still computed
};

struct ForwardParameters {
  CUtensorMap query, key, value, output;
  GatePlan plan;
  float scale_log2;
  int query_length, key_length, heads, query_heads, query_blocks, query_tiles, key_blocks, tiles;
  int section;  // heads whose keys and values share the L2 cache at a time
  float* log_normalizer;
  unsigned long long* visited_pairs;
  int* next_tile;
};

struct Tile {
  int batch, head, row, query;  // query head; row = batch · query_heads + head; first query
  int first, last;              // key blocks, both included
};

// Longest first: sections of heads, inside a section from the last query block down, heads innermost.
template <int kRows>
__device__ Tile tile_at(const ForwardParameters& a, int index) {
  const int per_section = a.section * a.query_tiles, rows = a.tiles / a.query_tiles;
  const int section = index / per_section, within = index % per_section;
  const int width = min(a.section, rows - section * a.section);
  Tile tile;
  tile.row = section * a.section + within % width;
  tile.query = (a.query_tiles - 1 - within / width) * kRows;
  tile.batch = tile.row / a.query_heads;
  tile.head = tile.row % a.query_heads;
  const int last_position = min(tile.query + kRows, a.query_length) - 1 + a.key_length - a.query_length;
  tile.last = last_position / kColumns;
  return tile;
}

template <int kDim>
struct alignas(1024) Shared {
  static constexpr int kStages = Sizes<kDim>::kStages, kRows = Sizes<kDim>::kRows;
  char query[kRows * kDim * 2];
  char output[kRows * kDim * 2];
  char key[kStages][kColumns * kDim * 2];
  char value[kStages][kColumns * kDim * 2];
  float bias[kStages][kColumns];
  float block_bias[kStages];
  int tile[kTileSlots], first[kTileSlots];
  uint64_t query_full, query_empty;
  uint64_t key_full[kStages], key_empty[kStages], value_full[kStages], value_empty[kStages];
  uint64_t tile_full[kTileSlots], tile_empty[kTileSlots];
};

// Causal pairs of a block: row r of `rows` sees clamp(first_visible + r, 0, 128) columns.
__device__ long long causal_pairs(int rows, int first_visible) {
  const long long empty = min(rows, max(0, -first_visible)), full = max(static_cast<int>(empty), min(rows, kColumns - first_visible));
  return (full - empty) * first_visible + (full * (full - 1) - empty * (empty - 1)) / 2 + (rows - full) * kColumns;
}

template <int kDim>
__device__ void produce(const ForwardParameters& a, Shared<kDim>& shared) {
  constexpr int kStages = Sizes<kDim>::kStages, kRows = Sizes<kDim>::kRows;
  const int group = a.query_heads / a.heads, offset = a.key_length - a.query_length;
  RingPosition at, previous, tile_slot;  // a block's value follows its key one step later, in the same stage of its own ring
  uint32_t query_parity = 1;
  const auto load = [&](char* destination, int rows, const CUtensorMap& map, uint64_t* full, int head, int token, int batch) {
#pragma unroll
    for (int panel = 0; panel < kDim / 64; ++panel)
      ptx::load_tile(destination + panel * rows * 128, &map, full, panel * 64, head, token, batch);
  };
  int index = blockIdx.x;
  while (true) {
    const bool done = index >= a.tiles;
    ptx::mbarrier_wait_patiently(&shared.tile_empty[tile_slot.index], tile_slot.parity ^ 1);
    Tile tile;
    if (!done) {
      tile = tile_at<kRows>(a, index);
      tile.first = a.plan.first_key_block[tile.row * a.query_blocks + tile.query / static_cast<int>(kGateBlock)];
    }
    shared.tile[tile_slot.index] = done ? -1 : index;
    shared.first[tile_slot.index] = tile.first;
    ptx::mbarrier_arrive(&shared.tile_full[tile_slot.index]);
    tile_slot.advance(kTileSlots);
    if (done) break;
    index = gridDim.x + atomicAdd(a.next_tile, 1);

    const int64_t tokens = static_cast<int64_t>(tile.row) * a.key_blocks * kColumns;
    const double* base = a.plan.base + static_cast<int64_t>(tile.row) * (a.key_blocks + 1);
    const double frame = base[(tile.query + offset) / kColumns];
    const int key_head = tile.head / group;
    const int rows = min(kRows, a.query_length - tile.query);
    long long pairs = 0;
    const auto load_value = [&](int block) {
      ptx::mbarrier_wait_patiently(&shared.value_empty[previous.index], previous.parity ^ 1);
      ptx::mbarrier_arrive_expect(&shared.value_full[previous.index], kColumns * kDim * 2);
      load(shared.value[previous.index], kColumns, a.value, &shared.value_full[previous.index], key_head, block * kColumns, tile.batch);
    };
#pragma unroll 1
    for (int block = tile.last; block >= tile.first; --block) {
      ptx::mbarrier_wait_patiently(&shared.key_empty[at.index], at.parity ^ 1);
      shared.block_bias[at.index] = static_cast<float>((frame - base[block]) * static_cast<double>(kLog2E));
      uint64_t* full = &shared.key_full[at.index];
      ptx::mbarrier_arrive_expect(full, kColumns * kDim * 2 + kColumns * 4);
      load(shared.key[at.index], kColumns, a.key, full, key_head, block * kColumns, tile.batch);
      ptx::load_run(shared.bias[at.index], a.plan.bias + tokens + block * kColumns, kColumns * 4, full);
      if (block == tile.last) {
        ptx::mbarrier_wait_patiently(&shared.query_empty, query_parity);
        query_parity ^= 1;
        ptx::mbarrier_arrive_expect(&shared.query_full, kRows * kDim * 2);
        load(shared.query, kRows, a.query, &shared.query_full, tile.head, tile.query, tile.batch);
      } else {
        load_value(block + 1);
      }
      previous = at;
      at.advance(kStages);
      pairs += causal_pairs(rows, tile.query + offset - block * kColumns + 1);
    }
    load_value(tile.first);
    atomicAdd(a.visited_pairs + tile.row, static_cast<unsigned long long>(pairs));
  }
}

// What a thread knows of its two rows, and its part of S, P and O.
template <int kDim>
struct Rows {
  float scores[64];
  float output[kDim / 2];
  uint32_t weights[32];
  float maximum[2], sum[2];
  int position[2], first_visible[2];  // of the row among the keys; first key after the last cut
};

// Two rows' S → 2^(x − m): adds the bias, masks, moves the maximum where it must. Returns whether O has to shrink, by `shrink`.
template <bool kMasked, bool kFirst, int kDim, typename Bias>
__device__ bool exponentiate(Rows<kDim>& rows, float scale, const Bias& bias, float block_bias, int first_column, float (&shrink)[2]) {
  float (&x)[64] = rows.scores;
  const int lane_column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    const float2 b = bias(j);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      x[4 * j + 2 * h] = fmaf(x[4 * j + 2 * h], scale, b.x);
      x[4 * j + 2 * h + 1] = fmaf(x[4 * j + 2 * h + 1], scale, b.y);
    }
  }
  if constexpr (kMasked) {
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      const int column = first_column + i / 4 * 8 + lane_column + i % 2, h = i / 2 % 2;
      if (column > rows.position[h] || column < rows.first_visible[h]) x[i] = -INFINITY;
    }
  }
  float start[2];
  bool grew = false;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float largest = fmaxf(x[2 * h], x[2 * h + 1]);
#pragma unroll
    for (int j = 1; j < 16; ++j) largest = fmaxf(largest, fmaxf(x[4 * j + 2 * h], x[4 * j + 2 * h + 1]));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2)) + block_bias;
    if constexpr (kFirst) {
      rows.maximum[h] = largest;
      rows.sum[h] = 0;
    } else {
      const float maximum = largest > rows.maximum[h] + kRescaleAbove ? largest : rows.maximum[h];
      grew |= maximum != rows.maximum[h];
      shrink[h] = kMasked && maximum == -INFINITY ? 1 : ptx::exp2_approximate(rows.maximum[h] - maximum);
      rows.sum[h] *= shrink[h];
      rows.maximum[h] = maximum;
    }
    start[h] = kMasked && rows.maximum[h] == -INFINITY ? 0 : block_bias - rows.maximum[h];  // a row may see nothing yet
  }
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    x[i] = ptx::exp2_approximate(x[i] + start[i / 2 % 2]);
    rows.sum[i / 2 % 2] += x[i];
  }
  return !kFirst && __any_sync(~0u, grew);
}

template <typename Element, int kDim>
__device__ void pack_weights(Rows<kDim>& rows) {
#pragma unroll
  for (int i = 0; i < 32; ++i) rows.weights[i] = ptx::pack<Element>(rows.scores[2 * i], rows.scores[2 * i + 1]);
}

template <typename Element, int kDim>
__device__ void issue_scores(Rows<kDim>& rows, uint64_t query, uint64_t key) {
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    const int panel = step / 4, within = step % 4 * (32 >> 4);
    ptx::wgmma<Major::kK, Major::kK>(Element{}, rows.scores, query + panel * (Sizes<kDim>::kRows * 128 >> 4) + within,
                                     key + panel * (kColumns * 128 >> 4) + within, step > 0);
  }
  ptx::wgmma_commit();
}

template <typename Element, int kDim>
__device__ void issue_output(Rows<kDim>& rows, uint64_t value, bool accumulate) {
#pragma unroll
  for (int step = 0; step < kColumns / 16; ++step)
    ptx::wgmma<Major::kMN>(Element{}, rows.output, rows.weights[4 * step], rows.weights[4 * step + 1], rows.weights[4 * step + 2],
                           rows.weights[4 * step + 3], value + step * (2048 >> 4), accumulate || step > 0);
  ptx::wgmma_commit();
}

template <typename Element, int kDim>
__device__ void consume(const ForwardParameters& a, Shared<kDim>& shared) {
  constexpr int kStages = Sizes<kDim>::kStages, kRows = Sizes<kDim>::kRows, kWarpgroups = Sizes<kDim>::kWarpgroups;
  const int warpgroup = ptx::uniform(threadIdx.x / 128) - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int offset = a.key_length - a.query_length;
  const uint64_t query_operand = ptx::operand_descriptor(shared.query + warpgroup * 64 * 128, 0);
  const auto key_operand = [&](uint32_t stage) { return ptx::operand_descriptor(shared.key[stage], 0); };
  const auto value_operand = [&](uint32_t stage) { return ptx::operand_descriptor(shared.value[stage], kColumns * 128); };
  const uint32_t bias_address = ptx::shared_address(shared.bias[0]) + lane % 4 * 8;
  const auto load_bias = [&](uint32_t stage, int j) { return ptx::load_pair(bias_address + stage * kColumns * 4 + j * 32); };
  const auto release = [&](uint64_t* barrier) {  // one arrival a warp, once all its lanes are through
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(barrier);
  };
  // Turns: warpgroup w issues its products when barrier kTurns + w has heard from the one before it; 0 begins.
  constexpr uint32_t kTurns = 1, kStores = kTurns + kWarpgroups;
  const uint32_t my_turn = kTurns + warpgroup, next_turn = kTurns + (warpgroup + 1) % kWarpgroups;
  if (warpgroup == kWarpgroups - 1) ptx::named_barrier_arrive(next_turn, 256);

  Rows<kDim> rows;
  RingPosition at, previous, tile_slot;  // of a block's key; of the block before it, whose value comes now
  uint32_t query_parity = 0;
  while (true) {
    ptx::mbarrier_wait(&shared.tile_full[tile_slot.index], tile_slot.parity);
    const int index = ptx::uniform(shared.tile[tile_slot.index]), first = ptx::uniform(shared.first[tile_slot.index]);
    release(&shared.tile_empty[tile_slot.index]);
    tile_slot.advance(kTileSlots);
    if (index < 0) break;
    const Tile tile = tile_at<kRows>(a, index);
    const int64_t tokens = static_cast<int64_t>(tile.row) * a.key_blocks * kColumns;
    const int64_t blocks = static_cast<int64_t>(tile.row) * (a.key_blocks + 1);
    const auto visible_from = [&](int position) {
      return max(a.plan.cut_before[tokens + position], a.plan.block_cut_before[blocks + position / kColumns]);
    };
    const int last_position = min(tile.query + kRows, a.query_length) - 1 + offset;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      rows.position[h] = tile.query + warpgroup * 64 + warp * 16 + lane / 4 + 8 * h + offset;
      rows.first_visible[h] = visible_from(min(rows.position[h], last_position));
    }
    // Blocks above `unmasked` hold the diagonal, blocks below `cut_block` reach behind a cut.
    const int unmasked = (tile.query + offset + 1) / kColumns - 1;
    const int cut_block = ptx::uniform((visible_from(last_position) + kColumns - 1) / kColumns);
    float shrink[2];

    ptx::mbarrier_wait(&shared.query_full, query_parity);
    query_parity ^= 1;
    ptx::mbarrier_wait(&shared.key_full[at.index], at.parity);
    ptx::wgmma_fence();
    issue_scores<Element>(rows, query_operand, key_operand(at.index));
    ptx::wgmma_wait<0>();
    ptx::pin(rows.scores);
    exponentiate<true, true>(rows, a.scale_log2, [&](int j) { return load_bias(at.index, j); }, shared.block_bias[at.index], tile.last * kColumns, shrink);
    release(&shared.key_empty[at.index]);
    previous = at;
    at.advance(kStages);
    pack_weights<Element>(rows);

    bool accumulate = false;
    int block = tile.last - 1;
    const auto step = [&]<bool kMasked>() {
      ptx::mbarrier_wait(&shared.key_full[at.index], at.parity);
      ptx::mbarrier_wait(&shared.value_full[previous.index], previous.parity);
      ptx::named_barrier_sync(my_turn, 256);
      ptx::pin(rows.scores);
      ptx::pin(rows.output);
      ptx::pin(rows.weights);
      ptx::wgmma_fence();
      issue_scores<Element>(rows, query_operand, key_operand(at.index));
      issue_output<Element>(rows, value_operand(previous.index), accumulate);
      ptx::named_barrier_arrive(next_turn, 256);
      [[maybe_unused]] float2 bias[16];
      if constexpr (Sizes<kDim>::kBiasAhead) {
#pragma unroll
        for (int j = 0; j < 16; ++j) bias[j] = load_bias(at.index, j);
      }
      const float block_bias = shared.block_bias[at.index];
      ptx::wgmma_wait<1>();
      ptx::pin(rows.scores);
      const auto bias_of = [&](int j) {
        if constexpr (Sizes<kDim>::kBiasAhead) return bias[j];
        else return load_bias(at.index, j);
      };
      const bool grew = exponentiate<kMasked, false>(rows, a.scale_log2, bias_of, block_bias, block * kColumns, shrink);
      // Released under a condition that needs every exponential and always holds: so the compiler can't sink them below the wait.
      __syncwarp();
      if (lane == 0 && !(rows.sum[0] + rows.sum[1] < 0)) ptx::mbarrier_arrive(&shared.key_empty[at.index]);
      ptx::wgmma_wait<0>();
      ptx::pin(rows.output);
      ptx::pin(rows.weights);
      release(&shared.value_empty[previous.index]);
      if (grew) {
#pragma unroll
        for (int i = 0; i < kDim / 2; ++i) rows.output[i] *= shrink[i / 2 % 2];
      }
      pack_weights<Element>(rows);
      accumulate = true;
      previous = at;
      at.advance(kStages);
      --block;
    };
    // First the diagonal's blocks and the clean ones down to the last cut; then, masked again, whatever lies behind it.
#pragma unroll 1
    for (const int masked_down_to : {max(first, unmasked + 1), first}) {
#pragma unroll 1
      while (block >= masked_down_to) step.template operator()<true>();
#pragma unroll 1
      while (block >= max(first, cut_block)) step.template operator()<false>();
    }
    release(&shared.query_empty);

    ptx::mbarrier_wait(&shared.value_full[previous.index], previous.parity);
    ptx::pin(rows.output);
    ptx::pin(rows.weights);
    ptx::wgmma_fence();
    issue_output<Element>(rows, value_operand(previous.index), accumulate);
    ptx::wgmma_wait<0>();
    ptx::pin(rows.output);
    release(&shared.value_empty[previous.index]);

    const double* base = a.plan.base + blocks;
    const double frame = base[(tile.query + offset) / kColumns];
    float inverse[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sum = rows.sum[h];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      inverse[h] = 1 / sum;
      const int position = rows.position[h];
      if (lane % 4 == 0 && position <= last_position) {
        const double c = base[position / kColumns] - frame - static_cast<double>(a.plan.bias[tokens + position] * kLn2);
        const int64_t token = static_cast<int64_t>(tile.batch) * a.query_length + position - offset;
        a.log_normalizer[token * a.query_heads + tile.head] =
            kLn2 * (rows.maximum[h] + ptx::log2_approximate(sum)) + static_cast<float>(c);
      }
    }
    if (threadIdx.x % 128 == 0) ptx::bulk_wait_read<0>();  // the previous tile's store has left the buffer
    ptx::named_barrier_sync(kStores + warpgroup, 128);
    const uint32_t matrix = lane / 8, row = warpgroup * 64 + warp * 16 + matrix % 2 * 8 + lane % 8;
#pragma unroll
    for (int j = 0; j < kDim / 8; j += 2) {
      const uint32_t column = 8 * j + matrix / 2 * 8;
      float scaled[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) scaled[i] = rows.output[4 * j + i] * inverse[i / 2 % 2];
      ptx::store_matrices(ptx::shared_address(shared.output) + column / 64 * kRows * 128 + ptx::swizzled_offset(row, column % 64),
                          ptx::pack<Element>(scaled[0], scaled[1]), ptx::pack<Element>(scaled[2], scaled[3]),
                          ptx::pack<Element>(scaled[4], scaled[5]), ptx::pack<Element>(scaled[6], scaled[7]));
    }
    ptx::fence_async_shared();
    ptx::named_barrier_sync(kStores + warpgroup, 128);
    if (threadIdx.x % 128 == 0) {
#pragma unroll
      for (int panel = 0; panel < kDim / 64; ++panel)
        ptx::store_tile(&a.output, shared.output + panel * kRows * 128 + warpgroup * 64 * 128, panel * 64, tile.head,
                        tile.query + warpgroup * 64, tile.batch);
      ptx::bulk_commit();
    }
  }
  if (threadIdx.x % 128 == 0) ptx::bulk_wait<0>();
}

template <typename Element, int kDim>
__global__ void __launch_bounds__(Sizes<kDim>::kThreads, 1) forward(const __grid_constant__ ForwardParameters a) {
  extern __shared__ char memory[];
  auto& shared = *reinterpret_cast<Shared<kDim>*>((reinterpret_cast<uintptr_t>(memory) + 1023) / 1024 * 1024);
  using Size = Sizes<kDim>;
  constexpr int kConsumerWarps = Size::kWarpgroups * 4;
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&a.query, &a.key, &a.value, &a.output}) ptx::prefetch_tensor_map(map);
    ptx::mbarrier_init(&shared.query_full, 1);
    ptx::mbarrier_init(&shared.query_empty, kConsumerWarps);
    for (int stage = 0; stage < Size::kStages; ++stage) {
      ptx::mbarrier_init(&shared.key_full[stage], 1);
      ptx::mbarrier_init(&shared.key_empty[stage], kConsumerWarps);
      ptx::mbarrier_init(&shared.value_full[stage], 1);
      ptx::mbarrier_init(&shared.value_empty[stage], kConsumerWarps);
    }
    for (int slot = 0; slot < kTileSlots; ++slot) {
      ptx::mbarrier_init(&shared.tile_full[slot], 1);
      ptx::mbarrier_init(&shared.tile_empty[slot], kConsumerWarps);
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    ptx::registers_shrink<Size::kProducerRegisters>();
    if (threadIdx.x == 0) produce(a, shared);
  } else {
    ptx::registers_grow<Size::kConsumerRegisters>();
    consume<Element>(a, shared);
  }
}

template <typename Element, int kDim>
void launch(const ForwardParameters& parameters, int grid, cudaStream_t stream) {
  constexpr int kBytes = sizeof(Shared<kDim>) + 1024;
  cuda_check(cudaFuncSetAttribute(forward<Element, kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "forward");
  forward<Element, kDim><<<grid, Sizes<kDim>::kThreads, kBytes, stream>>>(parameters);
}

}  // namespace

void launch_forward(const ForwardArguments& arguments) {
  const Shape& s = arguments.shape;
  int device, multiprocessors;
  cuda_check(cudaGetDevice(&device), "forward");
  if (const std::string reason = unsupported(s, arguments.dtype, compute_capability(device)); !reason.empty())
    throw std::invalid_argument(reason);
  cuda_check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "forward");
  const auto map = [&](const Operand& operand, int64_t length, int64_t heads, int rows) {
    return tensor_map(operand, arguments.dtype, s.batch, length, heads, s.key_dim, rows);
  };
  const int64_t width = s.query_heads * s.key_dim;
  ForwardParameters p;
  const int tile_rows = forward_tile_rows(s.key_dim);
  p.query = map(arguments.query, s.query_length, s.query_heads, tile_rows);
  p.key = map(arguments.key, s.key_length, s.heads, kColumns);
  p.value = map(arguments.value, s.key_length, s.heads, kColumns);
  p.output = map({arguments.values, s.query_length * width, width, s.key_dim}, s.query_length, s.query_heads, 64);
  p.plan = arguments.plan;
  p.scale_log2 = static_cast<float>(arguments.scale * 1.4426950408889634);
  p.query_length = s.query_length;
  p.key_length = s.key_length;
  p.heads = s.heads;
  p.query_heads = s.query_heads;
  p.query_blocks = (s.query_length + kGateBlock - 1) / kGateBlock;
  p.query_tiles = (s.query_length + tile_rows - 1) / tile_rows;
  p.key_blocks = (s.key_length + kColumns - 1) / kColumns;
  const int rows = s.batch * s.query_heads;
  p.tiles = rows * p.query_tiles;
  constexpr int64_t kCacheBytes = 32 << 20;
  const int64_t head_bytes = s.key_length * s.key_dim * 4 * s.heads / s.query_heads;
  p.section = std::clamp<int64_t>(kCacheBytes / std::max<int64_t>(1, head_bytes), 1, rows);
  p.log_normalizer = arguments.log_normalizer;
  p.visited_pairs = reinterpret_cast<unsigned long long*>(arguments.visited_pairs);
  p.next_tile = arguments.plan.next_tile;
  cuda_check(cudaMemsetAsync(arguments.visited_pairs, 0, rows * sizeof(int64_t), arguments.stream), "forward");
  cuda_check(cudaMemsetAsync(p.next_tile, 0, sizeof(int), arguments.stream), "forward");
  const int grid = std::min(p.tiles, multiprocessors);
  const bool bfloat16 = arguments.dtype == Dtype::kBFloat16;
  if (s.key_dim == 64) (bfloat16 ? launch<__nv_bfloat16, 64> : launch<__half, 64>)(p, grid, arguments.stream);
  else (bfloat16 ? launch<__nv_bfloat16, 128> : launch<__half, 128>)(p, grid, arguments.stream);
  cuda_check(cudaGetLastError(), "forward");
}

}  // namespace lethe
