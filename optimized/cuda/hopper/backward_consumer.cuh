#pragma once
// What a consumer warpgroup of the main backward kernel computes: dV and dK of its 64 keys, its part of dQ, and the sums of dS.
// backward_kernel.cuh has the equations and the barriers.

#include "optimized/cuda/arithmetic.cuh"
#include "optimized/cuda/hopper/backward_operands.cuh"
#include "optimized/cuda/hopper/backward_output.cuh"
#include "optimized/cuda/hopper/backward_scores.cuh"
#include "optimized/cuda/hopper/ptx/wgmma_with_sums.cuh"
#include "optimized/cuda/ptx/keep_order.cuh"
#include "optimized/cuda/tile/row_sums.cuh"

namespace lethe::hopper::backward_pass {

/// `kSumsRows`: this warpgroup's dQ has the columns that sum rows of dS. All methods are for all threads of the warpgroup.
template <typename Element, int kDim, bool kFloatSums, bool kSumsRows, bool kEdges>
struct BackwardConsumer : BackwardScores<Element, kDim, kFloatSums, kSumsRows, kEdges> {
  using Base = BackwardScores<Element, kDim, kFloatSums, kSumsRows, kEdges>;
  using Base::cta, Base::p, Base::shared, Base::warpgroup, Base::thread, Base::warp, Base::lane, Base::key_in_tile;
  using Base::enter_head, Base::read_step, Base::mask_scores, Base::weights, Base::store_column_sums;
  using Base::grad_value, Base::grad_key, Base::grad_query, Base::score, Base::grad_weight, Base::weight,
      Base::grad_score, Base::column_sums, Base::group_part, Base::bias;
  using Base::kQueries, Base::kKeys, Base::kPanels, Base::kGroups, Base::kScores, Base::kDeltaStep, Base::kScoresFollow,
      Base::kSums, Base::kRowSums;
  using Base::stage, Base::parity, Base::flags, Base::row, Base::more;
  using typename Base::Cta, typename Base::Registers, typename Base::Shared;
  using Major = ptx::Major;

  const BackwardOperands<kDim> operands;
  // Where this lane's rows of dS go: transposed 8×8 matrices (keys 0..7, 8..15 of the warp) × (queries 0..7, 8..15).
  const uint32_t score_offset;

  __device__ __forceinline__ BackwardConsumer(Cta& cta, int warpgroup, int thread, Registers& registers)
      : Base(cta, warpgroup, thread, registers), operands(shared, warpgroup),
        score_offset(warpgroup * Shared::kQueryPanelBytes +
                     ptx::swizzled_offset(8 * (lane / 16) + lane % 8, 16 * warp + 8 * (lane / 8 % 2))) {}

  // ---- products ----

  /// Sᵀ = K Qᵀ + R / a
  __device__ __forceinline__ void issue_scores(int stage) {
    const uint64_t query_rows = operands.query_rows(stage);
    ptx::fence_registers(score);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step)
      ptx::wgmma<Major::kK, Major::kK>(
          Element{}, score, operands.key_rows + (step / 4) * (Shared::kKeyPanelBytes / 16) + 2 * (step % 4),
          query_rows + (step / 4) * (Shared::kQueryPanelBytes / 16) + 2 * (step % 4), step > 0);
    issue_bias(score, operands.bias_ones, operands.row_bias(stage));
    ptx::wgmma_commit();
  }

  /// dPᵀ = V dOᵀ − Δ
  __device__ __forceinline__ void issue_grad_weight() {
    ptx::mbarrier_wait(&shared.output_full[stage], parity);
    const uint64_t output_rows = operands.output_rows(stage);
    ptx::undefined(grad_weight);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      if (step == kDeltaStep) issue_bias(grad_weight, operands.bias_ones, operands.delta(stage));
      ptx::wgmma<Major::kK, Major::kK>(
          Element{}, grad_weight, operands.value_rows + (step / 4) * (Shared::kKeyPanelBytes / 16) + 2 * (step % 4),
          output_rows + (step / 4) * (Shared::kQueryPanelBytes / 16) + 2 * (step % 4), step > 0);
    }
    ptx::wgmma_commit();
  }

  /// dV += Pᵀ dO
  __device__ __forceinline__ void issue_grad_value() {
    const uint64_t output_columns = operands.output_columns(stage);
    ptx::fence_registers(weight);
    ptx::fence_registers(grad_value);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kQueries / 16; ++step)
      ptx::wgmma<Major::kMN>(Element{}, grad_value, weight[4 * step], weight[4 * step + 1], weight[4 * step + 2],
                             weight[4 * step + 3], output_columns + 128 * step, true);
    ptx::wgmma_commit();
  }

  /// dQ = dS K of the step whose dS is in a stage; of both warpgroups, so wait_scores_ready() comes before it. The warpgroup that reads dS
  /// fences it for wgmma, as add_slices() fences dQ's slices for the copy engine: a thread that fences what it has just written waits until
  /// all of that has arrived.
  __device__ __forceinline__ void issue_grad_query(int stage) {
    const uint64_t score_rows = operands.score_rows(stage);
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step)
      ptx::wgmma<Major::kK, Major::kMN>(Element{}, grad_query,
                                        score_rows + (step / 4) * (Shared::kQueryPanelBytes / 16) + 2 * (step % 4),
                                        operands.key_columns + kOnesStep * step, step > 0);
    ptx::wgmma_commit();
  }

  /// dK += dSᵀ Q
  __device__ __forceinline__ void issue_grad_key() {
    const uint64_t query_columns = operands.query_columns(stage);
#pragma unroll
    for (int step = 0; step < kQueries / 16; ++step)
      ptx::wgmma<Major::kMN>(Element{}, grad_key, grad_score[4 * step], grad_score[4 * step + 1],
                             grad_score[4 * step + 2], grad_score[4 * step + 3],
                             query_columns + (kPanels == 1 ? kOnesStep : 128) * step, true);
    ptx::wgmma_commit();
  }

  // ---- between products ----

  /// dS = P (dP − Δ), once dPᵀ has arrived
  __device__ __forceinline__ void grad_scores() {
    ptx::wgmma_wait<1>();
    ptx::fence_registers(grad_weight);
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      // of the weights in float: of their 16 bits d log f would leave its budget where a gate hardly forgets
      grad_weight[2 * i] *= score[2 * i], grad_weight[2 * i + 1] *= score[2 * i + 1];
      grad_score[i] = pack<Element>(grad_weight[2 * i], grad_weight[2 * i + 1]);
    }
  }

  /// To shared memory, before dK's products, to which these registers then belong. The other warpgroup has then stored its dS of the step
  /// before, and no longer reads that of the step before that, over which this step's goes.
  __device__ __forceinline__ void store_grad_scores() {
    wait_scores_ready(stage ^ 1);
    ptx::fence_async_shared();
    const uint32_t score_address = ptx::shared_address(shared.grad_score[stage][0]) + score_offset;
#pragma unroll
    for (int j = 0; j < kQueries / 16; ++j)
      ptx::store_matrices_transposed(score_address + 2048 * j, grad_score[4 * j], grad_score[4 * j + 1],
                                     grad_score[4 * j + 2], grad_score[4 * j + 3]);
  }

  // Float sums of dS: what a thread can add up alone, of its two keys, and of the two of each query or of groups of queries; then what a warp
  // can add up of its rows. ptxas must keep the longer of these where it is called, or it moves before what others wait for.
  __device__ __forceinline__ void sum_separate_rows() {
    float row_sums[kScores / 2];
    ptx::fence_registers(grad_weight);
    ptx::keep_order<0>(flags);
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      column_sums[i / 2 % 2] += grad_weight[i];
      if (i % 4 < 2) row_sums[i / 4 * 2 + i % 2] = grad_weight[i] + grad_weight[i + 2];
    }
    ptx::fence_registers(column_sums);
    ptx::fence_registers(row_sums);
    ptx::keep_order<1>(flags);
    const uint32_t of_warp = uint32_t(ptx::opaque(threadIdx.x)) / 32;  // computed here: there is no register to hold it
    float2* sums = reinterpret_cast<float2*>(shared.row_sums[stage + kStages * parity][of_warp]);
#pragma unroll
    for (int i = 0; i < kQueries / 64; ++i) sums[32 * i + lane] = tile::sums_of_rows(row_sums + 16 * i, lane);
    ptx::keep_order<2>(flags);
  }

  __device__ __forceinline__ void sum_row_groups() {
    float group_sums[kGroups];
    ptx::fence_registers(grad_weight);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const float* grad = grad_weight + kGroupRows / 2 * group;
      float of_key[2] = {grad[0], grad[2]};
#pragma unroll
      for (int i = 1; i < kGroupRows / 2; ++i)
        if (i != 2) of_key[i / 2 % 2] += grad[i];
      group_sums[group] = of_key[0] + of_key[1];
      column_sums[0] += of_key[0], column_sums[1] += of_key[1];
    }
    ptx::fence_registers(column_sums);
    ptx::fence_registers(group_sums);
    group_part[0] = group_sums[0];
    if constexpr (kGroups == 2) group_part[0] = tile::part_of_group(group_sums[0], group_sums[1], lane);
  }

  __device__ __forceinline__ void sum_grad_scores() {
    if constexpr (kFloatSums) {
      group_part[1] = group_part[0];
      group_part[0] = 0;
      if (flags & BackwardStep::kSeparateRows) sum_separate_rows();
      else sum_row_groups();
    }
  }

  /// dQ to the slice that add_slices() adds to global memory.
  __device__ __forceinline__ void write_slice() {
    ptx::fence_registers(grad_query);
    ptx::named_barrier_sync(kSliceEmpty + warpgroup, 160);
    float* slice = shared.grad_query[warpgroup];
#pragma unroll
    for (int k = 0; k < 8; ++k)
      reinterpret_cast<float4*>(slice)[128 * k + thread] =
          float4{grad_query[4 * k], grad_query[4 * k + 1], grad_query[4 * k + 2], grad_query[4 * k + 3]};
    if constexpr (kRowSums > 0) {
      if (lane % 4 == 0) {
        slice[64 * 64 + 16 * warp + lane / 4] = grad_query[32];
        slice[64 * 64 + 16 * warp + lane / 4 + 8] = grad_query[34];
      }
    }
    if constexpr (kFloatSums) slice[64 * 64 + thread] = group_part[1];
    ptx::named_barrier_arrive(kSliceFull + warpgroup, 160);
  }

  // Each warpgroup waits at a barrier of its own: where they run different instances of this struct, synccheck takes one barrier that is met
  // in two places for divergence. Two alternate: a fast warpgroup could otherwise arrive twice in one phase.
  __device__ __forceinline__ void arrive_scores_ready(int stage) const {
    ptx::named_barrier_arrive(kScoresReady + 2 * stage + 1 - warpgroup, 256);
  }
  __device__ __forceinline__ void wait_scores_ready(int stage) const {
    ptx::named_barrier_sync(kScoresReady + 2 * stage + warpgroup, 256);
  }

  // ---- the order ----

  /// dV has arrived, and with kPending = 1 dQ: nothing reads dO any more.
  template <int kPending>
  __device__ __forceinline__ void finish_grad_value() {
    ptx::wgmma_wait<kPending>();
    ptx::fence_registers(grad_value);
    release(&shared.output_empty[stage], lane);
  }

  /// Issues the next step's Sᵀ. After the last step this product and its description are of whatever is in the stage, perhaps of the next
  /// key tile, and are not used: a branch around them would end the pipeline.
  __device__ __forceinline__ void next_scores() {
    row = shared.step[stage].row;
    const int next = stage ^ 1;
    parity ^= stage;
    if (more) ptx::mbarrier_wait(&shared.query_full[next], parity);
    read_step(next);
    ptx::undefined(score);
    issue_scores(next);
  }

  __device__ __forceinline__ void step() {
    issue_grad_weight();
    weights();
    issue_grad_value();
    grad_scores();
    store_grad_scores();
    if constexpr (kScoresFollow) {
      finish_grad_value<0>();
      sum_grad_scores();
    }
    ptx::fence_registers(grad_score);
    ptx::fence_registers(grad_key);
    ptx::wgmma_fence();
    issue_grad_query(stage ^ 1);
    issue_grad_key();
    if constexpr (!kScoresFollow) {
      sum_grad_scores();
      finish_grad_value<1>();
      arrive_scores_ready(stage);
      write_slice();
    }
    next_scores();
    if constexpr (kScoresFollow) {
      ptx::wgmma_wait<2>();  // dQ
      arrive_scores_ready(stage);
      write_slice();
    }
    ptx::wgmma_wait<0>();  // dK, after which nothing reads this query tile, and the next Sᵀ
    ptx::fence_registers(grad_key);
    ptx::fence_registers(score);
    release(&shared.query_empty[stage], lane);
    stage ^= 1;
  }

  /// The column sums of the head that has ended.
  __device__ __forceinline__ void finish_head(uint32_t head_ends) {
    if constexpr (kFloatSums) {
      if (head_ends) {
        store_column_sums(row, tile::sum_of_column(column_sums[0]), tile::sum_of_column(column_sums[1]));
        column_sums[0] = column_sums[1] = 0;
      }
    } else if constexpr (kGate) {
      if (head_ends) store_column_sums(row, grad_key[kDim / 2], grad_key[kDim / 2 + 2]);
    }
#pragma unroll
    for (int i = kDim / 2; i < kDim / 2 + kSums; ++i) grad_key[i] = head_ends ? 0 : grad_key[i];
  }

  /// The steps of a key tile. Masking and head changes happen between inner loops: a step that jumps over them takes longer. The code
  /// of all steps is one, for there are no registers for a second copy.
  __device__ __forceinline__ void steps() {
    while (more) {
      uint32_t head_ends;
#pragma unroll 1
      do {
        more = !(flags & BackwardStep::kLast);
        head_ends = flags & BackwardStep::kLastOfHead;
        step();
      } while (!(head_ends | (flags & BackwardStep::kMasked)));
      finish_head(head_ends);
      if (!more) break;
      if (kGate && head_ends) {
        enter_head(shared.step[stage].row, [] {});
        read_step(stage);
      }
      if (flags & BackwardStep::kMasked) mask_scores(stage);
    }
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) grad_value[i] = 0;
#pragma unroll
    for (int i = 0; i < kDim / 2 + kSums; ++i) grad_key[i] = 0;
    for (int in_group = 0; in_group < p.group; ++in_group)  // a head may see none of these keys
      store_column_sums(cta.row_of_heads(in_group), 0, 0);
  }

  /// The copy engine has read dK of the tile before.
  __device__ __forceinline__ void wait_key_gradient_read() const {
    if (thread == 0) ptx::bulk_wait_read<0>();
    __syncwarp();
  }

  /// The first Sᵀ of a key tile, and what the first step waits for.
  __device__ __forceinline__ void prologue(int first_row) {
    enter_head(first_row, [&] {
      ptx::mbarrier_wait(&shared.query_full[stage], parity);
      ptx::undefined(score);
      issue_scores(stage);
    });
    read_step(stage);
    ptx::wgmma_wait<0>();
    ptx::fence_registers(score);
    if (flags & BackwardStep::kMasked) mask_scores(stage);
    wait_key_gradient_read();  // dS goes over it, which both warpgroups store after they have heard from each other
    // The first step's dQ is of no step: computed from whatever is there, and added to nothing.
    arrive_scores_ready(stage ^ 1);
  }

  /// dQ of the last step.
  __device__ __forceinline__ void epilogue() {
    wait_scores_ready(stage ^ 1);
    ptx::fence_async_shared();
    ptx::wgmma_fence();
    issue_grad_query(stage ^ 1);
    store_values();
    ptx::wgmma_wait<0>();
    if (kEdges && !p.trial_late) free_keys();
    group_part[1] = group_part[0];
    write_slice();
    if (kEdges && !p.trial_late) free_values();
    // Neither warpgroup then reads K or dS any more.
    arrive_scores_ready(stage);
    wait_scores_ready(stage);
  }

  /// K is no longer read: by this warp in the instance of short tiles, where the next K is soon waited for, else by either warpgroup.
  __device__ __forceinline__ void free_keys() const {
    uint64_t* free = &shared.keys_free[cta.tiles % kTileSlots];
    if constexpr (kEdges) release(free, lane);
    else if (thread == 0) ptx::mbarrier_arrive(free);
  }
  /// Nor V, where dV leaves from, by this warpgroup.
  __device__ __forceinline__ void free_values() const {
    if (thread == 0) {
      ptx::bulk_wait_read<0>();
      ptx::mbarrier_arrive(&shared.values_free[cta.tiles % kTileSlots]);
    }
    __syncwarp();
  }

  __device__ __forceinline__ void store_values() {  // where only this warpgroup reads, and has read
    cta.store_gradient(p.grad_value, shared.value[0], warpgroup, ptx::opaque(thread), 1, grad_value);
  }

  __device__ __forceinline__ void consume() {
#pragma unroll 1
    for (bool any = cta.enter_tile(); any; any = cta.next_tile(lane)) {
      clear();
      const int first = cta.first_in_group();
      const bool has_steps = first >= 0;
      more = has_steps;
      if (has_steps) prologue(cta.row_of_heads(first));
      steps();
      if (has_steps) {
        epilogue();
      } else {
        wait_key_gradient_read();
        store_values();
      }
      if (!kEdges || !has_steps || p.trial_late) {
        free_keys();
        free_values();
      }
      cta.store_gradient(p.grad_key, shared.grad_score[0][0], warpgroup, ptx::opaque(thread), p.scale, grad_key);
    }
    if (thread == 0) ptx::bulk_wait_read<0>();
    // The slice is handed back once more than it is written. Each way to say whose it is is the faster one, by what ptxas keeps in registers
    // for it: the other takes 3 and 6 per cent more.
    ptx::named_barrier_sync(kSliceEmpty + (kPanels == 1 ? warpgroup : ptx::opaque(threadIdx.x) / 128), 160);
  }
};

}  // namespace lethe::hopper::backward_pass
