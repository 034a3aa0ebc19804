// Forgetting Attention, forward.
//
//   x_ij = scale·log₂e·q_i·k_j + b_j,  b_j = −log₂e·(c_j − F);  l_i = Σ_j 2^(x_ij − m_i)
//   o_i = Σ_j 2^(x_ij − m_i) v_j / l_i;  log_normalizer_i = ln 2·(m_i + log₂ l_i) + c_i − F
//
// The gate enters as a column term only: along a row c_i is a constant that the softmax divides out. F, the prefix before the tile's
// first row, keeps every number small; b_j is the plan's float local part plus one number a block, the difference of two doubles.
//
// m_i may be any number near the row's maximum: it is found in the first blocks (the diagonal's) and then left alone, so that no
// clean block pays for a maximum or waits for one. Where later logits outgrow it so far that a weight might leave its 16-bit format
// (2^120 in bfloat16, 2^23 in float16), the row's sum shows it: the tile goes on a list, and a second launch computes it again with a
// maximum per block.
//
// One CTA an SM. Warpgroup 0: one thread hands out tiles and feeds the copy engine (Q once a tile, K with its bias and V in rings of
// their own), up to a tile ahead. The others: 64 query rows each. A thread holds 2 rows × 32 columns of S, its part of O, and P of
// the previous block as the next product's operand. Key blocks run from the diagonal down to the pruning boundary. Within a
// warpgroup the exponentials of block n run under P·V of block n+1; among warpgroups, named barriers pass the turn to issue products,
// so that one's products run under the others' exponentials.

#include <algorithm>
#include <stdexcept>

#include "optimized/cuda/check.hpp"
#include "optimized/cuda/forward_output.cuh"
#include "optimized/cuda/forward_softmax.cuh"
#include "optimized/cuda/forward_tiles.cuh"
#include "optimized/cuda/ptx/copy.cuh"
#include "optimized/cuda/ptx/fragment.cuh"
#include "optimized/cuda/ptx/wgmma.cuh"
#include "optimized/cuda/tensor_map.hpp"
#include "optimized/kernels.hpp"

namespace lethe {
namespace {

using ptx::Major;
using ptx::RingPosition;

constexpr float kLn2 = 0.6931471805599453f;

template <typename Element, int kDim>
__device__ void issue_scores(Rows<kDim>& rows, uint64_t query, uint64_t key) {
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    const int panel = step / 4, within = step % 4 * (32 >> 4);
    ptx::wgmma<Major::kK, Major::kK>(Element{}, rows.x, query + panel * (Sizes<kDim>::kRows * 128 >> 4) + within,
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

template <typename Element, int kDim, bool kRepeat>
__device__ void consume(const ForwardParameters& a, Shared<kDim>& shared) {
  constexpr int kStages = Sizes<kDim>::kStages, kRows = Sizes<kDim>::kRows, kWarpgroups = Sizes<kDim>::kWarpgroups;
  const int warpgroup = ptx::uniform(threadIdx.x / 128) - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int offset = a.key_length - a.query_length;
  const auto query_operand = [&](uint32_t slot) { return ptx::operand_descriptor(shared.query[slot] + warpgroup * 64 * 128, 0); };
  const auto key_operand = [&](uint32_t stage) { return ptx::operand_descriptor(shared.key[stage], 0); };
  const auto value_operand = [&](uint32_t stage) { return ptx::operand_descriptor(shared.value[stage], kColumns * 128); };
  const uint32_t bias_address = ptx::shared_address(shared.bias[0]) + lane % 4 * 8;
  const uint32_t block_bias_address = ptx::shared_address(shared.block_bias);
  const auto load_bias = [&](uint32_t stage, int j) { return ptx::load_pair(bias_address + stage * kColumns * 4 + j * 32); };
  const auto release = [&](uint64_t* barrier) {
    __syncwarp();
    if (lane < kArrivalsOfAWarp) ptx::mbarrier_arrive(barrier);
  };
  // Turns: warpgroup w issues its products when barrier kTurns + w has heard from the one before it; 0 begins.
  constexpr uint32_t kTurns = 1, kStores = kTurns + kWarpgroups;
  const uint32_t my_turn = kTurns + warpgroup, next_turn = kTurns + (warpgroup + 1) % kWarpgroups;
  if (warpgroup == kWarpgroups - 1) ptx::named_barrier_arrive(next_turn, 256);

  Rows<kDim> rows;
  RingPosition at, previous, slot;  // of a block's key; of the block before it, whose value comes now; of the tile
  bool lent = false;  // the residual of the tile before leaves from where its queries were: they are handed back one tile late
  while (true) {
    ptx::mbarrier_wait(&shared.tile_full[slot.index], slot.parity);
    const Tile& next = shared.tile[slot.index];
    const Tile tile{next.batch, next.head, ptx::uniform(next.row), ptx::uniform(next.query), ptx::uniform(next.first), ptx::uniform(next.last)};
    if (tile.row < 0) break;
    const int64_t tokens = static_cast<int64_t>(tile.row) * a.key_blocks * kColumns;
    const int64_t blocks = static_cast<int64_t>(tile.row) * (a.key_blocks + 1);
    const auto visible_from = [&](int position) {
      return max(a.plan.cut_before[tokens + position], a.plan.block_cut_before[blocks + position / kColumns]);
    };
    const int last_position = min(tile.query + kRows, a.query_length) - 1 + offset;
    const int tile_row = warpgroup * 64 + warp * 16 + lane / 4;  // the thread's first row of the tile; its second is 8 further
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      rows.position[h] = tile.query + tile_row + 8 * h + offset;
      const int position = min(rows.position[h], last_position);
      rows.first_visible[h] = visible_from(position);
      if (lane % 4 == 0) {
        const double* base = a.plan.base + blocks;
        const double between = base[position / kColumns] - base[(tile.query + offset) / kColumns];
        shared.row_gate[tile_row + 8 * h] = static_cast<float>(between) - kLn2 * a.plan.bias[tokens + position];
      }
    }
    // Blocks above `unmasked` hold the diagonal, blocks below `cut_block` reach behind a cut.
    const int unmasked = (tile.query + offset + 1) / kColumns - 1;
    const int cut_block = ptx::uniform((visible_from(last_position) + kColumns - 1) / kColumns);

    ptx::mbarrier_wait(&shared.key_full[at.index], at.parity);
    ptx::wgmma_fence();
    issue_scores<Element>(rows, query_operand(slot.index), key_operand(at.index));
    ptx::wgmma_wait<0>();
    ptx::pin(rows.x);
    const float first_bias = ptx::load_float(block_bias_address + at.index * 4);
    add_bias(rows, a.scale_log2, [&](int j) { return load_bias(at.index, j); });
    mask(rows, tile.last * kColumns);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      rows.maximum[h] = -INFINITY;
      rows.sum[h] = 0;
    }
    follow_maximum<Element>(rows, first_bias);
    exponentiate(rows, first_bias);
    release(&shared.key_empty[at.index]);
    if (lent) {
      if (threadIdx.x % 128 == 0) ptx::bulk_wait_read<0>();
      release(&shared.tile_empty[slot.index ^ 1]);
    }
    lent = a.keep_residual;
    previous = at;
    at.advance(kStages);
    pack_weights<Element>(rows);

    bool accumulate = false;
    int block = tile.last - 1;
    const auto step = [&]<bool kMasked>() {
      ptx::mbarrier_wait(&shared.key_full[at.index], at.parity);
      ptx::mbarrier_wait(&shared.value_full[previous.index], previous.parity);
      const uint32_t stage = ptx::uniform(at.index), value_stage = ptx::uniform(previous.index), query_slot = ptx::uniform(slot.index);
      ptx::named_barrier_sync(my_turn, 256);
      ptx::pin(rows.x);
      ptx::pin(rows.output);
      ptx::pin(rows.weights);
      ptx::wgmma_fence();
      issue_scores<Element>(rows, query_operand(query_slot), key_operand(stage));
      issue_output<Element>(rows, value_operand(value_stage), accumulate);
      ptx::named_barrier_arrive(next_turn, 256);
      [[maybe_unused]] float2 bias[16];
      if constexpr (Sizes<kDim>::kBiasAhead) {
#pragma unroll
        for (int j = 0; j < 16; ++j) bias[j] = load_bias(stage, j);
      }
      const auto bias_of = [&](int j) {
        if constexpr (Sizes<kDim>::kBiasAhead) return bias[j];
        else return load_bias(stage, j);
      };
      const float block_bias = ptx::load_float(block_bias_address + stage * 4);
      ptx::wgmma_wait<1>();
      ptx::pin(rows.x);
      add_bias(rows, a.scale_log2, bias_of);
      if constexpr (kMasked) mask(rows, block * kColumns);
      [[maybe_unused]] bool moved;
      if constexpr (kMasked || kRepeat) moved = follow_maximum<Element>(rows, block_bias);
      exponentiate(rows, block_bias);
      // Released under a condition that needs every exponential and always holds: so the compiler can't sink them below the wait.
      __syncwarp();
      if (lane < kArrivalsOfAWarp && !(rows.sum[0] + rows.sum[1] < 0)) ptx::mbarrier_arrive(&shared.key_empty[stage]);
      ptx::wgmma_wait<0>();
      ptx::pin(rows.output);
      ptx::pin(rows.weights);
      release(&shared.value_empty[value_stage]);
      if constexpr (kMasked || kRepeat) {
        if (moved) {
#pragma unroll
          for (int i = 0; i < kDim / 2; ++i) rows.output[i] *= rows.shrink[i / 2 % 2];
        }
      }
      pack_weights<Element>(rows);
      accumulate = true;
      previous = at;
      at.advance(kStages);
      --block;
    };
    // First the diagonal's blocks and the clean ones down to the last cut; then, masked again, whatever lies behind it.
#pragma unroll 1
    for (const int masked_down_to : {max(tile.first, unmasked + 1), tile.first}) {
#pragma unroll 1
      while (block >= masked_down_to) step.template operator()<true>();
#pragma unroll 1
      while (block >= max(tile.first, cut_block)) step.template operator()<false>();
    }
    if (!kRepeat && __any_sync(~0u, !(rows.sum[0] + rows.sum[1] < kLargestSum<Element>)) && lane == 0 &&
        atomicExch(&shared.overflowed[slot.index], true) == false)
      a.repeats[1 + atomicAdd(a.repeats, 1)] = shared.index[slot.index];
    char* query_rows = shared.query[slot.index];
    if (!a.keep_residual) release(&shared.tile_empty[slot.index]);
    slot.advance(kTileSlots);

    ptx::mbarrier_wait(&shared.value_full[previous.index], previous.parity);
    ptx::pin(rows.output);
    ptx::pin(rows.weights);
    ptx::wgmma_fence();
    issue_output<Element>(rows, value_operand(previous.index), accumulate);
    ptx::wgmma_wait<0>();
    ptx::pin(rows.output);
    release(&shared.value_empty[previous.index]);

    float inverse[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float sum = sum_of_four(rows.sum[h]);
      inverse[h] = 1 / sum;
      const int query = tile.query + tile_row + 8 * h;
      if (lane % 4 == 0 && query < a.query_length)
        a.log_normalizer[(static_cast<int64_t>(tile.batch) * a.query_length + query) * a.query_heads + tile.head] =
            kLn2 * (rows.maximum[h] + ptx::log2_approximate(sum)) + shared.row_gate[tile_row + 8 * h];
    }
    if (threadIdx.x % 128 == 0) ptx::bulk_wait_read<0>();  // the previous tile's store has left the buffer
    ptx::named_barrier_sync(kStores + warpgroup, 128);
    const int first_row = warpgroup * 64 + warp * 16;
    stage_output<Element, false>(rows, inverse, ptx::shared_address(shared.output), kRows, first_row);
    if (a.keep_residual) stage_output<Element, true>(rows, inverse, ptx::shared_address(query_rows), kRows, first_row);
    ptx::fence_async_shared();
    ptx::named_barrier_sync(kStores + warpgroup, 128);
    if (threadIdx.x % 128 == 0) {
#pragma unroll
      for (int panel = 0; panel < kDim / 64; ++panel) {
        const int offset = panel * kRows * 128 + warpgroup * 64 * 128, query = tile.query + warpgroup * 64;
        ptx::store_tile(&a.output, shared.output + offset, panel * 64, tile.head, query, tile.batch);
        if (a.keep_residual) ptx::store_tile(&a.residual, query_rows + offset, panel * 64, tile.head, query, tile.batch);
      }
      ptx::bulk_commit();
    }
  }
  if (threadIdx.x % 128 == 0) ptx::bulk_wait<0>();
}

template <typename Element, int kDim, bool kRepeat>
__global__ void __launch_bounds__(Sizes<kDim>::kThreads, 1) forward(const __grid_constant__ ForwardParameters a) {
  if (kRepeat && blockIdx.x >= a.repeats[0]) return;
  extern __shared__ char memory[];
  auto& shared = *reinterpret_cast<Shared<kDim>*>((reinterpret_cast<uintptr_t>(memory) + 1023) / 1024 * 1024);
  using Size = Sizes<kDim>;
  constexpr int kReleases = Size::kWarpgroups * 4 * kArrivalsOfAWarp;
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&a.query, &a.key, &a.value, &a.output}) ptx::prefetch_tensor_map(map);
    for (int stage = 0; stage < Size::kStages; ++stage) {
      ptx::mbarrier_init(&shared.key_full[stage], 1);
      ptx::mbarrier_init(&shared.key_empty[stage], kReleases);
      ptx::mbarrier_init(&shared.value_full[stage], 1);
      ptx::mbarrier_init(&shared.value_empty[stage], kReleases);
    }
    for (int slot = 0; slot < kTileSlots; ++slot) {
      ptx::mbarrier_init(&shared.tile_full[slot], 1);
      ptx::mbarrier_init(&shared.tile_empty[slot], kReleases);
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    ptx::registers_shrink<Size::kProducerRegisters>();
    if (threadIdx.x == 0) produce<kDim, kRepeat>(a, shared);
  } else {
    ptx::registers_grow<Size::kConsumerRegisters>();
    consume<Element, kDim, kRepeat>(a, shared);
  }
}

template <typename Element, int kDim>
void launch(const ForwardParameters& parameters, int grid, cudaStream_t stream) {
  constexpr int kBytes = sizeof(Shared<kDim>) + 1024;
  for (auto* kernel : {forward<Element, kDim, false>, forward<Element, kDim, true>}) {
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "forward");
    kernel<<<grid, Sizes<kDim>::kThreads, kBytes, stream>>>(parameters);
  }
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
  const auto output_map = [&](void* data) {
    return map({data, s.query_length * width, width, s.key_dim}, s.query_length, s.query_heads, 64);
  };
  p.output = output_map(arguments.values);
  p.residual = output_map(arguments.residual ? arguments.residual : arguments.values);
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
  p.keep_residual = arguments.residual != nullptr;
  p.visited_pairs = reinterpret_cast<unsigned long long*>(arguments.visited_pairs);
  p.next_tile = arguments.plan.next_tile;
  p.repeats = arguments.plan.repeats;
  cuda_check(cudaMemsetAsync(arguments.visited_pairs, 0, rows * sizeof(int64_t), arguments.stream), "forward");
  cuda_check(cudaMemsetAsync(p.next_tile, 0, sizeof(int), arguments.stream), "forward");
  cuda_check(cudaMemsetAsync(p.repeats, 0, sizeof(int), arguments.stream), "forward");
  const int grid = std::min(p.tiles, multiprocessors);
  const bool bfloat16 = arguments.dtype == Dtype::kBFloat16;
  if (s.key_dim == 64) (bfloat16 ? launch<__nv_bfloat16, 64> : launch<__half, 64>)(p, grid, arguments.stream);
  else (bfloat16 ? launch<__nv_bfloat16, 128> : launch<__half, 128>)(p, grid, arguments.stream);
  cuda_check(cudaGetLastError(), "forward");
}

}  // namespace lethe
