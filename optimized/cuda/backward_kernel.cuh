#pragma once
// The main kernel of the backward pass: one CTA a tile of 128 keys, which walks over the query tiles that see it.
//
//   Sᵀ = K Qᵀ        P = exp2(a·S + R_i + b_j)          dV += Pᵀ dO
//   dPᵀ = V dOᵀ      dS = P (dP − Δ_i)                  dK += dSᵀ Q,   dQ += dS K
//   a = scale·log₂e, R_i = log₂e (c_i − log_normalizer_i), b_j = −log₂e c_j, Δ_i = dO_i·o_i
//
// Two warpgroups own 64 keys each, in the rows of Sᵀ and dPᵀ, so that P and dS are register operands of the products that give dV
// and dK; dQ needs dS of both, from shared memory. A third warpgroup's first warp feeds them by the copy engine, its second adds dQ
// to global memory. R_i / a and −Δ_i are where the accumulators of Sᵀ and dPᵀ start from, and b_j is one number a row of Sᵀ, the third
// operand of a multiplication: the gate's bias, the masks and Δ cost nothing between a product and what waits for it. Sᵀ of the next
// tile is issued before dK of this one has ended.
//
// The row and column sums of dS, of which the gate's gradient is made, come from the tensor core: dQ and dK have eight columns more
// than the head, behind them a panel of ones.

#include <climits>

#include "optimized/cuda/backward_producer.cuh"
#include "optimized/cuda/ptx/copy.cuh"
#include "optimized/cuda/ptx/fragment.cuh"
#include "optimized/cuda/ptx/wgmma_with_sums.cuh"

namespace lethe {

template <typename Element, int kDim>
__device__ void BackwardCta<Element, kDim>::consume(int warpgroup, int thread) {
  using ptx::Major;
  constexpr int kScores = kQueries / 2;  // accumulators of a 64 × kQueries product
  const int warp = thread / 32, lane = thread % 32;
  const int column = 2 * (lane % 4);  // of the accumulators' first register: query
  const int key =
      key_tile * kKeys + 64 * warpgroup + 16 * warp + lane / 4;  // and key; registers 2, 3 (mod 4) hold key + 8

  const uint64_t key_rows = ptx::operand_descriptor(shared.key[0] + warpgroup * 64 * 128, 0);      // A of Sᵀ
  const uint64_t value_rows = ptx::operand_descriptor(shared.value[0] + warpgroup * 64 * 128, 0);  // A of dPᵀ
  const uint8_t* key_panel = shared.key[kPanels == 1 ? 0 : warpgroup];                             // B of dQ
  const uint64_t key_columns = ptx::operand_descriptor(key_panel, shared.ones - key_panel);
  // Where this lane's rows of dS go: transposed 8×8 matrices (keys 0..7, 8..15 of the warp) × (queries 0..7, 8..15).
  const uint32_t score_offset = warpgroup * Shared::kQueryPanelBytes +
                                ptx::swizzled_offset(8 * (lane / 16) + lane % 8, 16 * warp + 8 * (lane / 8 % 2));

  constexpr int kSums = kGate ? 4 : 0;  // accumulators of the columns that sum dS
  float grad_value[kDim / 2], grad_key[kDim / 2 + kSums], grad_query[32 + kSums], score[kScores], grad_weight[kScores];
  uint32_t grad_score[kScores / 2];  // dS, 16 bits
#pragma unroll
  for (int i = 0; i < kDim / 2; ++i) grad_value[i] = 0;
#pragma unroll
  for (int i = 0; i < kDim / 2 + kSums; ++i) grad_key[i] = 0;

  BackwardWalk at = walk();
  bool more = at.next_head();
  float key_bias[2] = {}, weight_bias[2] = {};  // b_j; the same from the frame of the tile that `at` stands on
  const auto enter_head = [&] {
    if constexpr (!kGate) return;
    const int64_t row = row_of_heads(at.head) * p.key_tiles + key_tile;
    key_bias[0] = p.bias[row * kKeys + key - key_tile * kKeys];
    key_bias[1] = p.bias[row * kKeys + key - key_tile * kKeys + 8];
  };
  // Sᵀ's accumulators of the tile that `at` stands on.
  const auto start_scores = [&](int stage) {
    float frame, masked_tile;
    load_pair(ptx::shared_address(&shared.frame[stage]), frame, masked_tile);
    if constexpr (kGate) {
      weight_bias[0] = key_bias[0] + frame;
      weight_bias[1] = key_bias[1] + frame;
    }
    const uint32_t row_address = ptx::shared_address(&shared.row_bias[stage][column]);
#pragma unroll
    for (int j = 0; j < kQueries / 8; ++j) {
      load_pair(row_address + 32 * j, score[4 * j], score[4 * j + 1]);
      load_pair(row_address + 32 * j, score[4 * j + 2], score[4 * j + 3]);
    }
    if (more && masked_tile != 0) {
      const float masked = p.logit_scale > 0 ? -INFINITY : INFINITY;
      const int position = p.query_offset + at.tile * kQueries;
      const int64_t row = row_of_heads(at.head) * p.key_tiles + key_tile;
      const int next_cut =
          kGate ? p.block_cut_after[row + row_of_heads(at.head) + 1] : INT_MAX;  // one entry more a head
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int from = key + 8 * half - position - column;
        const int cut = kGate ? min(p.cut_after[row * kKeys + key - key_tile * kKeys + 8 * half], next_cut) : INT_MAX;
        const int to = kGate ? cut - position - column : INT_MAX;
#pragma unroll
        for (int j = 0; j < kQueries / 8; ++j) {
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (8 * j + e < from || 8 * j + e >= to) score[4 * j + 2 * half + e] = masked;
        }
      }
    }
  };
  const auto issue_scores = [&](int stage) {
    const uint64_t query_rows = ptx::operand_descriptor(shared.query[stage][0], 0);
    ptx::pin(score);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step)
      ptx::wgmma<Major::kK, Major::kK>(
          Element{}, score, key_rows + (step / 4) * (Shared::kKeyPanelBytes / 16) + 2 * (step % 4),
          query_rows + (step / 4) * (Shared::kQueryPanelBytes / 16) + 2 * (step % 4), true);
  };

  ptx::RingPosition ring;
  if (more) {
    enter_head();
    ptx::mbarrier_wait(&shared.query_full[0], 0);
    start_scores(0);
    issue_scores(0);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(score);
  }
#pragma unroll 1
  while (more) {
    const int stage = ptx::in_uniform_register(ring.index);  // so that descriptors are made in uniform registers
    const int step_head = at.head;

    ptx::mbarrier_wait(&shared.output_full[stage], ring.parity);
    const uint32_t delta_address = ptx::shared_address(&shared.negative_delta[stage][column]);
#pragma unroll
    for (int j = 0; j < kQueries / 8; ++j) {
      load_pair(delta_address + 32 * j, grad_weight[4 * j], grad_weight[4 * j + 1]);
      load_pair(delta_address + 32 * j, grad_weight[4 * j + 2], grad_weight[4 * j + 3]);
    }
    const uint64_t output_rows = ptx::operand_descriptor(shared.grad_output[stage][0], 0);
    ptx::pin(grad_weight);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step)
      ptx::wgmma<Major::kK, Major::kK>(
          Element{}, grad_weight, value_rows + (step / 4) * (Shared::kKeyPanelBytes / 16) + 2 * (step % 4),
          output_rows + (step / 4) * (Shared::kQueryPanelBytes / 16) + 2 * (step % 4), true);
    ptx::wgmma_commit();

    uint32_t weight[kScores / 2];  // P, 16 bits
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      const float bias = kGate ? weight_bias[i % 2] : -0.0f;  // minus zero: what a sum may leave out
      score[2 * i] = ptx::exp2_approximate(fmaf(score[2 * i], p.logit_scale, bias));
      score[2 * i + 1] = ptx::exp2_approximate(fmaf(score[2 * i + 1], p.logit_scale, bias));
      weight[i] = ptx::pack<Element>(score[2 * i], score[2 * i + 1]);
    }
    const uint64_t output_columns = ptx::operand_descriptor(shared.grad_output[stage][0], Shared::kQueryPanelBytes);
    ptx::pin(weight);
    ptx::pin(grad_value);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kQueries / 16; ++step)
      ptx::wgmma<Major::kMN>(Element{}, grad_value, weight[4 * step], weight[4 * step + 1], weight[4 * step + 2],
                             weight[4 * step + 3], output_columns + 128 * step, true);
    ptx::wgmma_commit();

    ptx::wgmma_wait<1>();  // dPᵀ
    ptx::pin(grad_weight);
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      // of the weights in float: of their 16 bits d log f would leave its budget where a gate hardly forgets
      grad_score[i] = ptx::pack<Element>(score[2 * i] * grad_weight[2 * i], score[2 * i + 1] * grad_weight[2 * i + 1]);
    }
    const uint32_t score_address = ptx::shared_address(shared.grad_score[stage][0]) + score_offset;
#pragma unroll
    for (int j = 0; j < kQueries / 16; ++j)
      ptx::store_matrices_transposed(score_address + 2048 * j, grad_score[4 * j], grad_score[4 * j + 1],
                                     grad_score[4 * j + 2], grad_score[4 * j + 3]);
    ptx::fence_async_shared();
    ptx::named_barrier_sync(kScoresStored, 256);

    // dS's rows: at D = 64 each warpgroup takes 64 of the 128 queries, at D = 128 all 64 queries and a half of the head.
    const uint64_t score_rows =
        ptx::operand_descriptor(shared.grad_score[stage][0] + (kPanels == 1 ? warpgroup * 64 * 128 : 0), 0);
    ptx::pin(grad_score);
    ptx::pin(grad_key);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step)
      ptx::wgmma<Major::kK, Major::kMN>(Element{}, grad_query,
                                        score_rows + (step / 4) * (Shared::kQueryPanelBytes / 16) + 2 * (step % 4),
                                        key_columns + kOnesStep * step, step > 0);
    ptx::wgmma_commit();
    const uint64_t query_columns =
        ptx::operand_descriptor(shared.query[stage][0], kPanels == 1 ? uint32_t(shared.ones - shared.query[stage][0])
                                                                     : Shared::kQueryPanelBytes);
#pragma unroll
    for (int step = 0; step < kQueries / 16; ++step)
      ptx::wgmma<Major::kMN>(Element{}, grad_key, grad_score[4 * step], grad_score[4 * step + 1],
                             grad_score[4 * step + 2], grad_score[4 * step + 3],
                             query_columns + (kPanels == 1 ? kOnesStep : 128) * step, true);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();  // dQ, and dV: nobody reads dO any more
    release(&shared.output_empty[stage], lane);
    ptx::pin(grad_query);
    ptx::named_barrier_sync(kSliceEmpty + warpgroup, 160);
    float* slice = shared.grad_query[warpgroup];
#pragma unroll
    for (int k = 0; k < 8; ++k)
      reinterpret_cast<float4*>(slice)[128 * k + thread] =
          float4{grad_query[4 * k], grad_query[4 * k + 1], grad_query[4 * k + 2], grad_query[4 * k + 3]};
    if (kGate && lane % 4 == 0) {
      slice[64 * 64 + 16 * warp + lane / 4] = grad_query[32];
      slice[64 * 64 + 16 * warp + lane / 4 + 8] = grad_query[34];
    }
    ptx::fence_async_shared();
    ptx::named_barrier_arrive(kSliceFull + warpgroup, 160);

    ring.advance(kStages);
    more = at.next();
    if (more) {
      if (at.head != step_head) enter_head();
      ptx::mbarrier_wait(&shared.query_full[ring.index], ring.parity);
    }
    start_scores(ring.index);
    issue_scores(ptx::in_uniform_register(
        ring.index));  // behind the last tile for nothing: a branch around it would end the pipeline
    ptx::wgmma_commit();

    ptx::wgmma_wait<0>();  // dK: nobody reads this query tile any more; and the next Sᵀ
    ptx::pin(grad_key);
    ptx::pin(score);
    release(&shared.query_empty[stage], lane);
    if (kGate && at.head != step_head) {
      if (lane % 4 == 0) {
        float* sums = p.workspace.column_sums + row_of_heads(step_head) * p.key_tiles * kKeys + key;
        sums[0] = grad_key[kDim / 2];
        sums[8] = grad_key[kDim / 2 + 2];
      }
    }
#pragma unroll
    for (int i = kDim / 2; i < kDim / 2 + kSums; ++i) grad_key[i] = at.head != step_head ? 0 : grad_key[i];
  }

  // dV over V's rows, that only this warpgroup read; dK over K, that both did.
  ptx::named_barrier_sync(kScoresStored, 256);
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel) {
    const uint32_t offset = warpgroup * 64 * 128 + ptx::swizzled_offset(16 * warp + lane % 16, 0);
    const uint32_t value_address = ptx::shared_address(shared.value[panel]) + offset;
    const uint32_t key_address = ptx::shared_address(shared.key[panel]) + offset;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const int i = 32 * panel + 4 * j;
      const uint32_t chunk = (j + lane / 16) << 4;  // 16-byte chunk of the row, before the swizzle
      ptx::store_matrices(value_address ^ chunk, ptx::pack<Element>(grad_value[i], grad_value[i + 1]),
                          ptx::pack<Element>(grad_value[i + 2], grad_value[i + 3]),
                          ptx::pack<Element>(grad_value[i + 4], grad_value[i + 5]),
                          ptx::pack<Element>(grad_value[i + 6], grad_value[i + 7]));
      ptx::store_matrices(key_address ^ chunk, ptx::pack<Element>(grad_key[i] * p.scale, grad_key[i + 1] * p.scale),
                          ptx::pack<Element>(grad_key[i + 2] * p.scale, grad_key[i + 3] * p.scale),
                          ptx::pack<Element>(grad_key[i + 4] * p.scale, grad_key[i + 5] * p.scale),
                          ptx::pack<Element>(grad_key[i + 6] * p.scale, grad_key[i + 7] * p.scale));
    }
  }
  ptx::fence_async_shared();
  ptx::named_barrier_sync(kWarpgroup + warpgroup, 128);
  if (thread == 0) {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const int token = key_tile * kKeys + 64 * warpgroup;
      ptx::store_tile(&p.grad_value, shared.value[panel] + warpgroup * 64 * 128, 64 * panel, head, token, batch);
      ptx::store_tile(&p.grad_key, shared.key[panel] + warpgroup * 64 * 128, 64 * panel, head, token, batch);
    }
    ptx::bulk_commit();
    ptx::bulk_wait_read<0>();
  }
}

template <typename Element, int kDim>
__global__ void __launch_bounds__(kBackwardThreads, 1) backward_tiles(const __grid_constant__ BackwardParameters p) {
  using Shared = BackwardShared<kDim>;
  extern __shared__ __align__(1024) uint8_t raw[];  // read as it is: a rounded pointer would lose its address space
  Shared& shared = *reinterpret_cast<Shared*>(raw);

  const uint32_t one = ptx::pack<Element>(1, 1);
  for (uint32_t i = threadIdx.x; i < sizeof shared.ones / 4; i += kBackwardThreads)
    reinterpret_cast<uint32_t*>(shared.ones)[i] = one;
  if constexpr (Shared::kPanels > 1) {
    for (int stage = 0; stage < kStages; ++stage)
      for (int i = threadIdx.x; i < Shared::kQueryPanelBytes / 4; i += kBackwardThreads)
        reinterpret_cast<uint32_t*>(shared.query[stage][Shared::kPanels])[i] = one;
  }
  ptx::fence_async_shared();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::mbarrier_init(&shared.query_full[stage], 1);
      ptx::mbarrier_init(&shared.output_full[stage], 1);
      ptx::mbarrier_init(&shared.query_empty[stage], 8 * kArrivalsOfAWarp);
      ptx::mbarrier_init(&shared.output_empty[stage], 8 * kArrivalsOfAWarp);
    }
    ptx::mbarrier_init_fence();
  }
  ptx::wait_for_previous_kernel();
  const BackwardTile tile = backward_tile_at(p, blockIdx.x);
  BackwardCta<Element, kDim> cta{p, shared, tile.key_tile, tile.head, tile.batch};
  __syncthreads();

  const int warpgroup = ptx::in_uniform_register(threadIdx.x / 128);
  if (warpgroup == 2) {
    ptx::registers_shrink<24>();
    if (threadIdx.x == 256) cta.load();
    if (threadIdx.x / 32 == 9) cta.add_slices();
  } else {
    ptx::registers_grow<240>();
    cta.consume(warpgroup, threadIdx.x % 128);
  }
}

}  // namespace lethe
