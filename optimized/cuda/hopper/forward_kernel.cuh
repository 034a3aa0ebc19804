#pragma once
// The forward kernel.
//
//   x_ij = scale·log₂e·q_i·k_j + b_j,  b_j = −log₂e·(c_j − F);  l_i = Σ_j 2^(x_ij − m_i)
//   o_i = Σ_j 2^(x_ij − m_i) v_j / l_i;  log_normalizer_i = ln 2·(m_i + log₂ l_i) + c_i − F
//
// The gate enters as a column term only: along a row c_i is a constant that the softmax divides out. F, the prefix before the block of the
// tile's first row, keeps every number small; b_j is the plan's float local part plus one number a block, the difference of two numbers
// of 48 bits. The local part, divided by the scale, comes with one more k-step of Q·K (bias_step.cuh), so that nothing between that product
// and the exponentials knows of it: m and the block's number are the third operand of the multiplication by the scale.
//
// m_i may be any number near the row's maximum: it is found in the first blocks (the diagonal's) and then left alone, so that no
// clean block pays for a maximum or waits for one. Where weights leave float16, or bfloat16's sum float's range (2^16, 2^100 times the
// weight of the largest logit found), the tile goes on a list, and a second launch computes it again with a maximum a row and block. Tiles
// whose queries stand in a strong block (gate/strong_gates.cuh) go on that list at once, and only the second launch computes them: it takes c_i for
// F, row by row, and adds c_i − c_j to each logit of the diagonal.
//
// One CTA an SM. Warpgroup 0: one thread hands out tiles, up to a tile ahead; three others feed the copy engine: one Q, once a tile, and K,
// one what the gate adds to K, one V. K and its bias share a ring, V has its own. The other warpgroups: 64 query rows each. A thread holds
// 2 rows × 32 columns of S, its part of O, and P of the previous block as the next product's operand. Key blocks run from the diagonal
// down to the pruning boundary. Within a warpgroup the exponentials of block n run under P·V of block n+1; among warpgroups, named
// barriers pass the turn to issue products, so that one's products run under the others' exponentials.

#include <numbers>

#include "optimized/cuda/hopper/forward_output.cuh"
#include "optimized/cuda/tile/softmax.cuh"
#include "optimized/cuda/hopper/forward_tiles.cuh"
#include "optimized/cuda/hopper/ptx/copy.cuh"
#include "optimized/cuda/hopper/ptx/fragment.cuh"
#include "optimized/cuda/hopper/ptx/wgmma.cuh"

namespace lethe {

inline constexpr float kLn2 = 0.6931471805599453f;

// S = Q·Kᵀ + the keys' bias. What follows the bias is added to a float of its size. A clean block lies before all of the warpgroup's
// queries: its keys with a small bias have weight, so the bias may come first, and then needs no turn: it fills the tensor core while the
// turn is passed on. Elsewhere it comes last.
template <typename Element, bool kClean, int kDim, typename AwaitTurn>
__device__ inline void issue_scores(Rows<kDim>& rows, uint64_t query, uint64_t key, uint32_t ones, uint64_t bias,
                                    AwaitTurn await_turn) {
  constexpr bool kBiasFirst = kGate && kClean && Sizes<kDim>::kBiasFirst;
  if constexpr (kBiasFirst) issue_dense_bias(rows.x, ones, bias, false);
  await_turn();
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    const int panel = step / 4, within = step % 4 * (32 >> 4);
    ptx::wgmma<ptx::Major::kK, ptx::Major::kK>(Element{}, rows.x,
                                               query + panel * (Sizes<kDim>::kRows * 128 >> 4) + within,
                                               key + panel * (kColumns * 128 >> 4) + within, step > 0 || kBiasFirst);
  }
  if constexpr (kGate && !kBiasFirst) issue_dense_bias(rows.x, ones, bias, true);
  ptx::wgmma_commit();
}

// O += P·V
template <typename Element, int kDim, typename PassTurn>
__device__ inline void issue_output(Rows<kDim>& rows, uint64_t value, bool accumulate, PassTurn pass_turn) {
  constexpr int kSteps = kColumns / 16;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (Sizes<kDim>::kPassEarly && step == kSteps - 1) pass_turn();
    ptx::wgmma<ptx::Major::kMN>(Element{}, rows.output, rows.weights[4 * step], rows.weights[4 * step + 1],
                                rows.weights[4 * step + 2], rows.weights[4 * step + 3], value + step * (2048 >> 4),
                                accumulate || step > 0);
  }
  if constexpr (!Sizes<kDim>::kPassEarly) pass_turn();
  ptx::wgmma_commit();
}

template <typename Element, int kDim, bool kRepeat>
__device__ inline void consume(const ForwardParameters& a, Shared<kDim>& shared) {
  constexpr int kStages = Sizes<kDim>::kStages, kRows = Sizes<kDim>::kRows, kWarpgroups = Sizes<kDim>::kWarpgroups;
  const int warpgroup = ptx::uniform(threadIdx.x / 128) - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int offset = a.key_length - a.query_length;
  const uint64_t first_query =
      ptx::keep(ptx::advance<64 * 128>(ptx::operand_descriptor(shared.query[0], 0), warpgroup));
  const uint64_t first_key = ptx::keep(ptx::operand_descriptor(shared.key[0], 0));
  const uint64_t first_value = ptx::keep(ptx::operand_descriptor(shared.value[0], kColumns * 128));
  const auto query_operand = [&](uint32_t slot) { return ptx::advance<sizeof shared.query[0]>(first_query, slot); };
  const auto key_operand = [&](uint32_t stage) { return ptx::advance<sizeof shared.key[0]>(first_key, stage); };
  const auto value_operand = [&](uint32_t stage) { return ptx::advance<sizeof shared.value[0]>(first_value, stage); };
  Rows<kDim> rows;
  const uint64_t first_start = bias_operand(shared.start.eights[0]);
  // Of a block whose logits get c_i − c_j later: zeros.
  const auto start_unless = [&](bool exact, uint32_t stage) {
    if (kRepeat && kGate && exact) return no_bias_operand(shared.start);
    return ptx::advance<sizeof shared.start.eights[0]>(first_start, stage);
  };
  const uint32_t ones = ones_in_registers(lane);
  const uint32_t first_end = ptx::shared_address(shared.block_end);
  TwoFloats frame{};                    // log₂e·F, of the tile
  [[maybe_unused]] OfRows row_frame{};  // log₂e·(c_i − F), in the second launch
  // A block's number: log₂e·(F − c behind the block), and then with c_i for F.
  const auto block_number = [&](uint32_t stage) {
    if constexpr (!kGate) return OfRows{0, 0};
    const float2 end = ptx::load_pair(first_end + stage * sizeof shared.block_end[0]);
    const float number = (frame.high - end.x) + (frame.low - end.y);
    return kRepeat ? OfRows{number + row_frame.row[0], number + row_frame.row[1]} : OfRows{number, number};
  };
  // Turns: warpgroup w issues its products (but for a bias that comes first) when barrier kTurns + w has heard from the one before it; 0
  // begins.
  constexpr uint32_t kTurns = 1, kStores = kTurns + kWarpgroups;
  const uint32_t my_turn = kTurns + warpgroup, next_turn = kTurns + (warpgroup + 1) % kWarpgroups;
  const auto await_turn = [&] { ptx::named_barrier_sync(my_turn, 256); };
  const auto pass_turn = [&] { ptx::named_barrier_arrive(next_turn, 256); };
  if (warpgroup == kWarpgroups - 1) pass_turn();

  // the thread's first row of a tile; its second is 8 further
  const int tile_row = warpgroup * 64 + warp * 16 + lane / 4;
  ptx::RingPosition at, previous, slot;  // of a block's key; of the block before it, whose value comes now; of the tile
  // The last block that this warpgroup's rows see. One that only the others' rows see is handed back unread.
  const auto own_last = [&](const Tile<kRows>& tile) {
    return ptx::uniform(own_last_block(tile, warpgroup, offset, a.key_length));
  };
  const auto pass_keys = [&](const Tile<kRows>& tile) {
    for (int block = ptx::uniform(tile.last); block > own_last(tile); --block) {
      ptx::mbarrier_wait(&shared.key_full[at.index], at.parity);
      release(&shared.key_empty[at.index], lane);
      at.advance(kStages);
    }
  };
  ptx::mbarrier_wait(&shared.tile_full[0], 0);
  if (shared.tile[0].row < 0) return;  // all are left to the second launch
  pass_keys(shared.tile[0]);
  ptx::mbarrier_wait(&shared.key_full[at.index], at.parity);
  ptx::wgmma_fence();
  const uint32_t first_stage = ptx::uniform(at.index);
  const auto no_turn = [] {};
  issue_scores<Element, false>(rows, query_operand(0), key_operand(first_stage), ones,
                               start_unless(shared.tile[0].strong, first_stage), no_turn);
  ptx::wgmma_wait<0>();
  ptx::pin(rows.x);
  // the residual of the tile before leaves from where its queries were: they are handed back one tile late
  bool lent = false;
  for (bool more = true; more;) {  // a tile's first scores are there
    const Tile<kRows>& held = shared.tile[slot.index];
    const int tile_batch = held.batch, tile_head = held.head, query = ptx::uniform(held.query);
    const int first = ptx::uniform(held.first), last = own_last(held), passed = ptx::uniform(held.last) - last;
    const int cut_block = ptx::uniform(held.cut_block);  // blocks below it reach behind a cut
    const int unmasked = block_below_diagonal(query + 64 * warpgroup + offset);
    const int last_position = min(query + kRows + offset, a.key_length) - 1;
    // of the plan's numbers of a tile's blocks and of the head's tokens
    const auto in_span = [&](int position) { return position / kColumns - (query + offset) / kColumns; };
    const auto token = [&](int position) {
      return static_cast<int64_t>(held.row) * a.key_blocks * kColumns + position;
    };
    const auto position_of = [&](int h) { return min(query + tile_row + 8 * h + offset, last_position); };
    const auto first_visible = [&](int h) {
      return first_visible_key(a, held, in_span(position_of(h)), position_of(h));
    };
    // log₂e·(c_i − c before a block) of row h.
    const auto decay_since = [&](int h, int block) {
      const double before = a.plan.prefix.base[int64_t{held.row} * (a.key_blocks + 1) + block];
      return two_floats((prefix_at(a.plan.prefix, held.row, a.key_blocks, position_of(h)) - before) * std::numbers::log2e);
    };
    frame = held.frame;
    if constexpr (kRepeat && kGate) {
      // F of the warpgroup's own: of what it sees clean nothing lies behind F, so that no sum of large numbers is small
      const int first_own = min(unmasked + 1, last);
      frame = a.plan.scratch.base_log2[int64_t{held.row} * (a.key_blocks + 1) + first_own];
      row_frame = {decay_since(0, first_own).high, decay_since(1, first_own).high};
    }
    const auto is_exact = [&](int block) { return kRepeat && held.strong && block > unmasked; };
    const auto mask_block = [&](int block, OfRows& bias) {
      if constexpr (kRepeat && kGate) {
        if (is_exact(block)) {
          const bool strong = a.plan.prefix.block_sum[int64_t{held.row} * a.key_blocks + block] < kStrongSum;
          const int64_t first_token = token(block * kColumns);
          add_decay(rows, {decay_since(0, block), decay_since(1, block)}, a.plan.prefix.bias + first_token,
                    strong ? a.plan.prefix.bias_rest + first_token : nullptr);
          bias = {0, 0};
        }
      }
      mask(rows, block * kColumns, query + tile_row + offset, block < cut_block, first_visible);
    };
    OfRows first_bias = block_number(at.index);
    scale_scores(rows, a.scale_log2);
    mask_block(last, first_bias);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      rows.maximum[h] = -INFINITY;
      rows.sum[h] = 0;
    }
    follow_maximum(rows, first_bias);
    exponentiate(rows, {offset_of(rows, 0, first_bias), offset_of(rows, 1, first_bias)});
    release(&shared.key_empty[at.index], lane);
    if (lent) {
      if (threadIdx.x % 128 == 0) ptx::bulk_wait_read<0>();
      release(&shared.tile_empty[slot.index ^ 1], lane);
    }
    lent = a.keep_residual;
    for (int i = 0; i < passed; ++i) {
      ptx::mbarrier_wait(&shared.value_full[previous.index], previous.parity);
      release(&shared.value_empty[previous.index], lane);
      previous.advance(kStages);
      await_turn();
      pass_turn();
    }
    previous = at;
    at.advance(kStages);
    pack_weights<Element>(rows);

    bool accumulate = false;
    int block = last - 1;
    const auto step = [&]<bool kMasked>() {
      ptx::mbarrier_wait(&shared.key_full[at.index], at.parity);
      const uint32_t stage = ptx::uniform(at.index), value_stage = ptx::uniform(previous.index),
                     query_slot = ptx::uniform(slot.index);
      ptx::mbarrier_wait(&shared.value_full[previous.index], previous.parity);
      ptx::pin(rows.x);
      ptx::pin(rows.output);
      ptx::pin(rows.weights);
      ptx::wgmma_fence();
      issue_scores<Element, !kMasked>(rows, query_operand(query_slot), key_operand(stage), ones,
                                      start_unless(kMasked && is_exact(block), stage), await_turn);
      issue_output<Element>(rows, value_operand(value_stage), accumulate, pass_turn);
      OfRows block_bias = block_number(stage);
      ptx::wgmma_wait<1>();
      ptx::pin(rows.x);
      if constexpr (kMasked || kRepeat) scale_scores(rows, a.scale_log2);
      if constexpr (kMasked) mask_block(block, block_bias);
      release(&shared.key_empty[stage], lane);  // before the exponentials: the next load takes as long as they do
      [[maybe_unused]] bool moved;
      if constexpr (kMasked || kRepeat) {
        moved = follow_maximum(rows, block_bias);
        exponentiate(rows, {offset_of(rows, 0, block_bias), offset_of(rows, 1, block_bias)});
      } else {
        // no row is without a maximum: each has seen itself
        exponentiate(rows, {block_bias.row[0] - rows.maximum[0], block_bias.row[1] - rows.maximum[1]}, a.scale_log2);
      }
      // Never so, but every exponential is needed to know: the compiler can't sink them below the wait.
      if (rows.sum[0] + rows.sum[1] < 0) ptx::mbarrier_arrive(&shared.key_empty[stage]);
      ptx::wgmma_wait<0>();
      ptx::pin(rows.output);
      ptx::pin(rows.weights);
      release(&shared.value_empty[value_stage], lane);
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
    for (const int masked_down_to : {max(first, unmasked + 1), first}) {
#pragma unroll 1
      while (block >= masked_down_to) step.template operator()<true>();
#pragma unroll 1
      while (block >= max(first, cut_block)) step.template operator()<false>();
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) rows.sum[h] = sum_of_four(rows.sum[h]);
    const bool fits = weights_fit<Element>(rows, accumulate);
    if (!kRepeat && !__all_sync(~0u, fits) && lane == 0 && atomicExch(&shared.listed[slot.index], true) == false)
      list_tile(a, shared.index[slot.index]);
    // c_i − F: what it takes from global memory is wanted behind the next product.
    float row_base[2] = {}, row_bias[2] = {};
    if constexpr (kGate && !kRepeat) {
      if (lane % 4 == 0) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int position = position_of(h);
          row_base[h] = held.base[in_span(position)];
          row_bias[h] = ptx::load_global(a.plan.prefix.bias + token(position));
        }
      }
    }
    char* query_rows = shared.query[slot.index];
    if (!a.keep_residual) release(&shared.tile_empty[slot.index], lane);
    slot.advance(kTileSlots);

    // The last values of this tile, and the first scores of the next one, behind the last tile of nothing. These have the time that the
    // output takes to leave.
    ptx::mbarrier_wait(&shared.tile_full[slot.index], slot.parity);
    more = ptx::uniform(shared.tile[slot.index].row) >= 0;
    if (more) {
      pass_keys(shared.tile[slot.index]);
      ptx::mbarrier_wait(&shared.key_full[at.index], at.parity);
    }
    ptx::mbarrier_wait(&shared.value_full[previous.index], previous.parity);
    const uint32_t stage = ptx::uniform(at.index), value_stage = ptx::uniform(previous.index),
                   query_slot = ptx::uniform(slot.index);
    ptx::pin(rows.x);
    ptx::pin(rows.output);
    ptx::pin(rows.weights);
    ptx::wgmma_fence();
    issue_output<Element>(rows, value_operand(value_stage), accumulate, no_turn);
    issue_scores<Element, false>(rows, query_operand(query_slot), key_operand(stage), ones,
                                 start_unless(shared.tile[slot.index].strong, stage), no_turn);
    ptx::wgmma_wait<1>();
    ptx::pin(rows.output);
    release(&shared.value_empty[value_stage], lane);
    previous.advance(kStages);

    float inverse[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      inverse[h] = 1 / rows.sum[h];
      const int row = query + tile_row + 8 * h;
      if (lane % 4 == 0 && row < a.query_length)
        a.log_normalizer[(static_cast<int64_t>(tile_batch) * a.query_length + row) * a.query_heads + tile_head] =
            kLn2 * (rows.maximum[h] + ptx::log2_approximate(rows.sum[h]) - row_bias[h]) + row_base[h];
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
        const int bytes = panel * kRows * 128 + warpgroup * 64 * 128, first_row = query + warpgroup * 64;
        ptx::store_tile(&a.output, shared.output + bytes, panel * 64, tile_head, first_row, tile_batch);
        if (a.keep_residual)
          ptx::store_tile(&a.residual, query_rows + bytes, panel * 64, tile_head, first_row, tile_batch);
      }
      ptx::bulk_commit();
    }
    ptx::wgmma_wait<0>();
    ptx::pin(rows.x);
  }
  if (threadIdx.x % 128 == 0) ptx::bulk_wait<0>();
}

template <typename Element, int kDim, bool kRepeat>
__global__ void __launch_bounds__(Sizes<kDim>::kThreads, 1) forward(const __grid_constant__ ForwardParameters a) {
  let_next_kernel_start();
  if constexpr (kRepeat) {
    wait_for_previous_kernel();
    for (int row = blockIdx.x * Sizes<kDim>::kThreads + threadIdx.x; row < a.tiles / a.query_tiles;
         row += gridDim.x * Sizes<kDim>::kThreads)
      a.visited_pairs[row] = a.plan.scratch.pairs[row];
    if (blockIdx.x >= a.plan.scratch.repeats[0]) return;
  }
  extern __shared__ __align__(1024) char memory[];  // read as it is: a rounded pointer would lose its address space
  auto& shared = *reinterpret_cast<Shared<kDim>*>(memory);
  using Size = Sizes<kDim>;
  constexpr int kReleases = Size::kWarpgroups * 4 * kArrivalsOfAWarp;
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&a.query, &a.key, &a.value, &a.output}) ptx::prefetch_tensor_map(map);
    for (int stage = 0; stage < Size::kStages; ++stage) {
      ptx::mbarrier_init(&shared.key_full[stage], kGate ? 2 : 1);  // keys, and what the gate adds to them
      ptx::mbarrier_init(&shared.key_empty[stage], kReleases);
      ptx::mbarrier_init(&shared.value_full[stage], 1);
      ptx::mbarrier_init(&shared.value_empty[stage], kReleases);
    }
    ptx::mbarrier_init(&shared.tile_wanted, 1);
    for (int slot = 0; slot < kTileSlots; ++slot) {
      ptx::mbarrier_init(&shared.tile_known[slot], 1);
      ptx::mbarrier_init(&shared.tile_full[slot], 1);
      // and load_blocks' threads: for values, for what the gate adds
      ptx::mbarrier_init(&shared.tile_empty[slot], kReleases + (kGate ? 2 : 1));
    }
    ptx::mbarrier_init_fence();
  }
  if constexpr (kGate) {
    clear(shared.start, threadIdx.x, Size::kThreads);
    ptx::fence_async_shared();
  }
  if constexpr (!kRepeat) wait_for_previous_kernel();
  __syncthreads();
  if (threadIdx.x < 128) {
    ptx::registers_shrink<Size::kProducerRegisters>();
    if (threadIdx.x == 0) load_keys<kDim, kRepeat>(a, shared);
    if (threadIdx.x == 32) schedule<kDim, kRepeat>(a, shared);
    if (threadIdx.x == 64) load_values<kDim>(a, shared);
    if constexpr (kGate) {
      if (threadIdx.x == 96) load_gate<kDim>(a, shared);
    }
  } else {
    ptx::registers_grow<Size::kConsumerRegisters>();
    consume<Element, kDim, kRepeat>(a, shared);
  }
}

}  // namespace lethe
