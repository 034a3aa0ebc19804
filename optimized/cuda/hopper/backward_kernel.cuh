#pragma once
// What the main kernel of the backward pass computes: a CTA takes one tile of 128 keys after the other, and with each walks over the query
// tiles that see it.
//
//   Sᵀ = K Qᵀ        P = exp2(a·S + R_i + b_j)          dV += Pᵀ dO
//   dPᵀ = V dOᵀ      dS = P (dP − Δ_i)                  dK += dSᵀ Q,   dQ += dS K
//   a = scale·log₂e, R_i = log₂e (c_i − log_normalizer_i), b_j = −log₂e c_j, Δ_i = dO_i·o_i
//
// Two warpgroups own 64 keys each, in the rows of Sᵀ and dPᵀ, so that P and dS are register operands of the products that give dV
// and dK; dQ needs dS of both, from shared memory. Of a third warpgroup two threads feed them by the copy engine, one says what the
// steps are, and a warp adds dQ to global memory; these are at the next tile while the two end one. R_i / a and −Δ_i come with one more
// k-step of Sᵀ and dPᵀ (bias_step.cuh), and b_j is one number a row of Sᵀ, the third operand of a multiplication: the gate's bias and Δ
// cost nothing between a product and what waits for it. A step multiplies the dQ of the step before, for which the other warpgroup's dS has
// long been there: so neither waits for the other unless it is about half a step ahead, and one computes exponentials while the other's
// products run. Sᵀ of the next tile is issued before dK of this one has ended, and at D = 64, where there are registers for it, before dQ
// has. Near strong gates (gate/strong_gates.cuh) R's k-step adds zeros on the diagonal, where R_i + b_j comes in double, and elsewhere b_j is
// counted from behind the tile.
//
// The row and column sums of dS, of which the gate's gradient is made, come in one of two ways, an instance of the kernel each:
//
//   16-bit sums   of dS as it is rounded, from the tensor core: dQ and dK have eight columns more than the head, behind them a panel of ones.
//                 Where both warpgroups have the same rows of dS, one of them sums.
//   float sums    of dS before it is rounded. A thread has two keys' rows of dSᵀ. It adds up the queries of each key, in two registers
//                 over the head. Of rows it makes one of two things, as the step says (gate/row_groups.cuh). Where the gate hardly decays, one sum
//                 of 64 rows: what it has of that leaves with dQ of the step, behind it, and is added up at the very end. Where it does, a sum
//                 of each row: it adds up the two keys of each query, what its warp's 16 keys make of a query is exchanged among lanes
//                 (tile/row_sums.cuh), and the warp that adds dQ to global memory adds up the eight warps'.

#include <numbers>

#include "optimized/cuda/hopper/backward_output.cuh"
#include "optimized/cuda/hopper/backward_producer.cuh"
#include "optimized/cuda/hopper/ptx/fragment.cuh"
#include "optimized/cuda/hopper/ptx/wgmma_with_sums.cuh"
#include "optimized/cuda/tile/row_sums.cuh"

namespace lethe {

template <typename Element, int kDim, bool kFloatSums>
template <bool kSumsRows>
__device__ void BackwardCta<Element, kDim, kFloatSums>::consume(int warpgroup, int thread) {
  using ptx::Major;
  constexpr int kScores = kQueries / 2;  // accumulators of a 64 × kQueries product
  const int warp = thread / 32, lane = thread % 32;
  const int column = 2 * (lane % 4);  // of the accumulators' first register: query
  const auto of_warpgroup = [&](const uint8_t* rows) {
    return ptx::advance<64 * 128>(ptx::operand_descriptor(rows, 0), warpgroup);
  };
  const uint64_t key_rows = ptx::keep(of_warpgroup(shared.key[0]));     // A of Sᵀ
  const uint64_t value_rows = of_warpgroup(shared.value[0]);            // A of dPᵀ
  const uint8_t* key_panel = shared.key[kPanels == 1 ? 0 : warpgroup];  // B of dQ
  const uint64_t key_columns = ptx::operand_descriptor(key_panel, shared.ones - key_panel);
  // Of the first stage: B of Sᵀ, dPᵀ, dV and dK, and A of dQ, whose rows are each warpgroup's own 64 of 128 queries at D = 64, all 64
  // at D = 128.
  const uint64_t first_query_rows = ptx::operand_descriptor(shared.query[0][0], 0);
  const uint64_t first_output_rows = ptx::operand_descriptor(shared.grad_output[0][0], 0);
  const uint64_t first_output_columns = ptx::operand_descriptor(shared.grad_output[0][0], Shared::kQueryPanelBytes);
  const uint64_t first_query_columns = ptx::operand_descriptor(
      shared.query[0][0], kPanels == 1 ? uint32_t(shared.ones - shared.query[0][0]) : Shared::kQueryPanelBytes);
  const uint64_t first_score_rows =
      kPanels == 1 ? of_warpgroup(shared.grad_score[0][0]) : ptx::operand_descriptor(shared.grad_score[0][0], 0);
  // The second stage's queries lie further on, and so much nearer to the ones.
  constexpr int kStageBytes = sizeof shared.query[0];
  constexpr int kQueryColumnsStride = kPanels == 1 ? kStageBytes - (kStageBytes << 16) : kStageBytes;
  const uint64_t first_row_bias = bias_operand(shared.row_bias[0]),
                 first_delta = bias_operand(shared.negative_delta[0]);
  const uint64_t bias_ones = ones_operand(shared.bias_ones);
  // Where this lane's rows of dS go: transposed 8×8 matrices (keys 0..7, 8..15 of the warp) × (queries 0..7, 8..15).
  const uint32_t score_offset = warpgroup * Shared::kQueryPanelBytes +
                                ptx::swizzled_offset(8 * (lane / 16) + lane % 8, 16 * warp + 8 * (lane / 8 % 2));

  constexpr int kDeltaStep = kDim == 64 ? 3 : 6;  // before which k-step of dPᵀ Δ is taken off: the fastest places
  // Is dV waited for before dQ and dK are issued, so that its operand's registers are free and Sᵀ can follow them at once? Then sums in
  // float stand before those products, not under them. The faster places.
  constexpr bool kScoresFollow = kDim == 64;
  constexpr int kSums = kGate && !kFloatSums ? 4 : 0,
                kRowSums = kSumsRows ? kSums : 0;  // accumulators of columns that sum dS
  float grad_value[kDim / 2], grad_key[kDim / 2 + kSums], grad_query[32 + kRowSums];
  float score[kScores], grad_weight[kScores];
  uint32_t grad_score[kScores / 2];  // dS, 16 bits
  float column_sums[2] = {0, 0};     // of dS in float, of this thread's two keys over its queries of the head
  float group_part[2] = {0, 0};  // of a group of rows, this step's and that of the step before; 0 where rows are apart

  // of Sᵀ's and dPᵀ's registers 0, 1 (mod 4); 2 and 3 are 8 further
  const auto key_in_tile = [&] { return 64 * warpgroup + 16 * warp + lane / 4; };
  const auto prefix_of_key = [&](int row, int further) {
    return prefix_at(p.plan.prefix, row, p.key_tiles, tile().key_tile * kKeys + key_in_tile() + further);
  };
  // b_j of a head's keys, from where every step reads them: registers are what this kernel is short of.
  const uint32_t key_bias_address = ptx::shared_address(&shared.key_bias[key_in_tile()]);
  // `meanwhile` runs while they come from global memory.
  const auto enter_head = [&](int row, auto meanwhile) {
    float numbers[2];  // since before the tile
    bool near = false;
    if constexpr (kGate) {
      const float* bias = p.plan.prefix.bias + (int64_t{row} * p.key_tiles + tile().key_tile) * kKeys + key_in_tile();
      numbers[0] = bias[0], numbers[1] = bias[8];
      near = near_strong_gates();
    }
    meanwhile();
    if (kGate && lane % 4 == 0) {
      if (near) {  // to behind it: keys near its end have weight
        const double end = p.plan.prefix.base[int64_t{row} * (p.key_tiles + 1) + tile().key_tile + 1];
        for (int h = 0; h < 2; ++h)
          numbers[h] = static_cast<float>((end - prefix_of_key(row, 8 * h)) * std::numbers::log2e);
      }
      // NaN reaches the queries that see it by their own numbers; from here it would get through the mask to others, too
      for (int h = 0; h < 2; ++h) shared.key_bias[key_in_tile() + 8 * h] = isnan(numbers[h]) ? 0 : numbers[h];
    }
    __syncwarp();
  };
  const auto store_sums = [&](int row, float first, float second) {
    if (!kGate || lane % 4 != 0) return;
    float* sums = p.workspace.column_sums + (int64_t{row} * p.key_tiles + tile().key_tile) * kKeys + key_in_tile();
    sums[0] = first;
    sums[8] = second;
  };
  float bias[2];  // what is to be added to Sᵀ's two rows of the step, and what else is to be known of it
  uint32_t flags = 0;
  // Of a step on the diagonal near strong gates, whose k-step added nothing: all of R_i / a + b_j / a.
  const auto add_decay = [&](int stage) {
    bias[0] = bias[1] = -0.0f;
    const int64_t row = shared.step[stage].row;
    const double* of_queries =
        p.workspace.row_number + row * p.padded_queries + shared.step[stage].position - p.query_offset + column;
    const double of_keys[2] = {prefix_of_key(row, 0) * p.inverse_scale, prefix_of_key(row, 8) * p.inverse_scale};
#pragma unroll
    for (int i = 0; i < kScores; ++i)
      score[i] += static_cast<float>(of_queries[i / 4 * 8 + i % 2] - of_keys[i / 2 % 2]);
  };
  const auto mask_scores = [&](int stage) {
    if (kGate && flags & BackwardStep::kDiagonal) add_decay(stage);
    const float masked = p.logit_scale > 0 ? -INFINITY : INFINITY;
    const int position = shared.step[stage].position + column;
    const auto mask_where = [&](const int(&bound)[2], auto hidden) {
#pragma unroll
      for (int i = 0; i < kScores; ++i)
        if (hidden(i / 4 * 8 + i % 2, bound[i / 2 % 2])) score[i] = masked;
    };
    const int key_tile = tile().key_tile, first = key_tile * kKeys + key_in_tile() - position;
    mask_where({first, first + 8}, [](int query, int from) { return query < from; });
    if (!kGate || !(flags & BackwardStep::kCut)) return;
    const int64_t heads = shared.step[stage].row, row = heads * p.key_tiles + key_tile;
    const uint8_t* cut_after = p.plan.prefix.cut_after + row * kKeys + key_in_tile();
    const int next = p.plan.prefix.block_cut_after[row + heads + 1];  // one entry more a head
    const auto bound = [&](uint8_t place) { return min(first_cut_at(place, key_tile), next) - position; };
    mask_where({bound(cut_after[0]), bound(cut_after[8])}, [](int query, int cut) { return query >= cut; });
  };
  const auto issue_scores = [&](int stage) {
    const uint64_t query_rows = ptx::advance<sizeof shared.query[0]>(first_query_rows, stage);
    ptx::pin(score);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step)
      ptx::wgmma<Major::kK, Major::kK>(
          Element{}, score, key_rows + (step / 4) * (Shared::kKeyPanelBytes / 16) + 2 * (step % 4),
          query_rows + (step / 4) * (Shared::kQueryPanelBytes / 16) + 2 * (step % 4), step > 0);
    issue_bias(score, bias_ones, ptx::advance<sizeof shared.row_bias[0]>(first_row_bias, stage));
  };

  // Two stages; in a uniform register, as what is computed of it: descriptors and addresses of barriers.
  static_assert(kStages == 2);
  int stage = ptx::in_uniform_register(0);
  uint32_t parity = 0;
  // Each waits at a barrier of its own: where they run different instances of this function, synccheck takes one barrier that is met in
  // two places for divergence. And at another one the next time, or it could hear twice from a warpgroup that is fast before it waits.
  const auto tell_other_warpgroup = [&](int stage) {
    ptx::named_barrier_arrive(kTold + 2 * stage + 1 - warpgroup, 256);
  };
  const auto hear_other_warpgroup = [&](int stage) { ptx::named_barrier_sync(kTold + 2 * stage + warpgroup, 256); };
  // dQ of the step whose dS lies in a stage; of both warpgroups, so it is heard beforehand that they have stored it. Those fence dS off for
  // wgmma who have it read, as add_slices does with dQ's slices for the copy engine: where a thread fences off what it has just written it
  // waits until all of that has arrived.
  const auto issue_grad_query = [&](int stage) {
    const uint64_t score_rows = ptx::advance<sizeof shared.grad_score[0]>(first_score_rows, stage);
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step)
      ptx::wgmma<Major::kK, Major::kMN>(Element{}, grad_query,
                                        score_rows + (step / 4) * (Shared::kQueryPanelBytes / 16) + 2 * (step % 4),
                                        key_columns + kOnesStep * step, step > 0);
  };
  const auto write_slice = [&] {
    ptx::pin(grad_query);
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
  };
  const auto read_step = [&](int stage) {
    const BackwardStep step = shared.step[stage];
    flags = step.flags;
    bias[0] = bias[1] = -0.0f;  // minus zero: what a sum may leave out
    if constexpr (kGate) {
      bias[0] = ptx::load_float(key_bias_address) + step.frame;
      bias[1] = ptx::load_float(key_bias_address + 32) + step.frame;
    }
  };
#pragma unroll 1
  for (bool any = enter_tile(); any; any = next_tile(lane)) {
    const auto let_key_gradient_go = [&] {  // of the tile before
      if (thread == 0) ptx::bulk_wait_read<0>();
      __syncwarp();
    };
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) grad_value[i] = 0;
#pragma unroll
    for (int i = 0; i < kDim / 2 + kSums; ++i) grad_key[i] = 0;
    for (int in_group = 0; in_group < p.group; ++in_group)  // a head may see none of these keys
      store_sums(row_of_heads(in_group), 0, 0);
    const int first = first_in_group();
    const bool has_steps = first >= 0;
    bool more = has_steps;
    if (has_steps) {
      enter_head(row_of_heads(first), [&] {
        ptx::mbarrier_wait(&shared.query_full[stage], parity);
        ptx::forget(score);
        issue_scores(stage);
        ptx::wgmma_commit();
      });
      read_step(stage);
      ptx::wgmma_wait<0>();
      ptx::pin(score);
      if (flags & BackwardStep::kMasked) mask_scores(stage);
      let_key_gradient_go();  // where it lies dS goes, which both warpgroups store once they have heard from both
      // The first step's dQ is of no step: made of whatever lies there, and added to nothing.
      tell_other_warpgroup(stage ^ 1);
    }
    while (more) {
      int row;
      bool head_ends;
      // What few steps need stands behind a loop of those that need none of it: a step that jumps over it takes longer. The code is the same, for
      // there are no registers for two loops.
#pragma unroll 1
      do {
        more = !(flags & BackwardStep::kLast);
        head_ends = flags & BackwardStep::kLastOfHead;

        ptx::mbarrier_wait(&shared.output_full[stage], parity);
        const uint64_t output_rows = ptx::advance<sizeof shared.grad_output[0]>(first_output_rows, stage);
        ptx::forget(grad_weight);
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < kDim / 16; ++step) {
          if (step == kDeltaStep)
            issue_bias(grad_weight, bias_ones, ptx::advance<sizeof shared.negative_delta[0]>(first_delta, stage));
          ptx::wgmma<Major::kK, Major::kK>(
              Element{}, grad_weight, value_rows + (step / 4) * (Shared::kKeyPanelBytes / 16) + 2 * (step % 4),
              output_rows + (step / 4) * (Shared::kQueryPanelBytes / 16) + 2 * (step % 4), step > 0);
        }
        ptx::wgmma_commit();

        uint32_t weight[kScores / 2];  // P, 16 bits
#pragma unroll
        for (int i = 0; i < kScores / 2; ++i) {
          score[2 * i] = ptx::exp2_approximate(fmaf(score[2 * i], p.logit_scale, bias[i % 2]));
          score[2 * i + 1] = ptx::exp2_approximate(fmaf(score[2 * i + 1], p.logit_scale, bias[i % 2]));
          weight[i] = ptx::pack<Element>(score[2 * i], score[2 * i + 1]);
        }
        const uint64_t output_columns = ptx::advance<sizeof shared.grad_output[0]>(first_output_columns, stage);
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
          grad_weight[2 * i] *= score[2 * i], grad_weight[2 * i + 1] *= score[2 * i + 1];
          grad_score[i] = ptx::pack<Element>(grad_weight[2 * i], grad_weight[2 * i + 1]);
        }
        // What a thread can add up of dS alone: of its two keys, and of the two of each query or of groups of queries; then what a warp can add
        // up of its rows. ptxas must keep the longer of these where it is called, or it stands before what others wait for.
        const auto sum_rows_apart = [&] {
          float row_sums[kScores / 2];
          ptx::pin(grad_weight);
          ptx::keep_order<0>(flags);
#pragma unroll
          for (int i = 0; i < kScores; ++i) {
            column_sums[i / 2 % 2] += grad_weight[i];
            if (i % 4 < 2) row_sums[i / 4 * 2 + i % 2] = grad_weight[i] + grad_weight[i + 2];
          }
          ptx::pin(column_sums);
          ptx::pin(row_sums);
          ptx::keep_order<1>(flags);
          float2* sums = reinterpret_cast<float2*>(shared.row_sums[stage + kStages * parity][4 * warpgroup + warp]);
#pragma unroll
          for (int i = 0; i < kQueries / 64; ++i) sums[32 * i + lane] = sums_of_rows(row_sums + 16 * i, lane);
          ptx::keep_order<2>(flags);
        };
        const auto sum_row_groups = [&] {
          float group_sums[kGroups];
          ptx::pin(grad_weight);
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
          ptx::pin(column_sums);
          ptx::pin(group_sums);
          group_part[0] = group_sums[0];
          if constexpr (kGroups == 2) group_part[0] = part_of_group(group_sums[0], group_sums[1], lane);
        };
        const auto release_output = [&] { release(&shared.output_empty[stage], lane); };
        const auto sum_grad_scores = [&] {
          if constexpr (kFloatSums) {
            group_part[1] = group_part[0];
            group_part[0] = 0;
            if (flags & BackwardStep::kRowsApart) sum_rows_apart();
            else sum_row_groups();
          }
        };

        // The other's dS of the step before is there, and it has done with that of the step before that, over which this one's goes.
        hear_other_warpgroup(stage ^ 1);
        ptx::fence_async_shared();
        const uint32_t score_address = ptx::shared_address(shared.grad_score[stage][0]) + score_offset;
#pragma unroll
        for (int j = 0; j < kQueries / 16; ++j)  // before dK's products, to which these registers then belong
          ptx::store_matrices_transposed(score_address + 2048 * j, grad_score[4 * j], grad_score[4 * j + 1],
                                         grad_score[4 * j + 2], grad_score[4 * j + 3]);
        if constexpr (kScoresFollow) {
          ptx::wgmma_wait<0>();  // dV
          ptx::pin(grad_value);
          release_output();
          sum_grad_scores();
        }
        ptx::pin(grad_score);
        ptx::pin(grad_key);
        ptx::wgmma_fence();
        issue_grad_query(stage ^ 1);
        ptx::wgmma_commit();
        const uint64_t query_columns = ptx::advance<kQueryColumnsStride>(first_query_columns, stage);
#pragma unroll
        for (int step = 0; step < kQueries / 16; ++step)
          ptx::wgmma<Major::kMN>(Element{}, grad_key, grad_score[4 * step], grad_score[4 * step + 1],
                                 grad_score[4 * step + 2], grad_score[4 * step + 3],
                                 query_columns + (kPanels == 1 ? kOnesStep : 128) * step, true);
        ptx::wgmma_commit();
        if constexpr (!kScoresFollow) {
          sum_grad_scores();
          ptx::wgmma_wait<1>();  // dQ, and dV
          ptx::pin(grad_value);
          release_output();
          tell_other_warpgroup(stage);
          write_slice();
        }

        row = shared.step[stage].row;
        const int next = stage ^ 1;
        parity ^= stage;
        if (more) ptx::mbarrier_wait(&shared.query_full[next], parity);
        read_step(next);
        ptx::forget(score);
        // Behind the last step both are for nothing, of what may be on its way for the next key tile: a branch around them would end the
        // pipeline.
        issue_scores(next);
        ptx::wgmma_commit();
        if constexpr (kScoresFollow) {
          ptx::wgmma_wait<2>();  // dQ
          tell_other_warpgroup(stage);
          write_slice();
        }

        ptx::wgmma_wait<0>();  // dK: nobody reads this query tile any more; and the next Sᵀ
        ptx::pin(grad_key);
        ptx::pin(score);
        release(&shared.query_empty[stage], lane);
        stage = next;
      } while (!head_ends && !(flags & BackwardStep::kMasked));
      if constexpr (kFloatSums) {
        if (head_ends) {
          store_sums(row, sum_of_column(column_sums[0]), sum_of_column(column_sums[1]));
          column_sums[0] = column_sums[1] = 0;
        }
      } else if constexpr (kGate) {
        if (head_ends) store_sums(row, grad_key[kDim / 2], grad_key[kDim / 2 + 2]);
      }
#pragma unroll
      for (int i = kDim / 2; i < kDim / 2 + kSums; ++i) grad_key[i] = head_ends ? 0 : grad_key[i];
      if (!more) break;
      if (kGate && head_ends) {
        enter_head(shared.step[stage].row, [] {});
        read_step(stage);
      }
      if (flags & BackwardStep::kMasked) mask_scores(stage);
    }

    const auto store_values = [&] {  // where only this warpgroup reads, and has read
      store_gradient(p.grad_value, shared.value[0], warpgroup, ptx::anew(thread), 1, grad_value);
    };
    if (has_steps) {  // dQ of the last step
      hear_other_warpgroup(stage ^ 1);
      ptx::fence_async_shared();
      ptx::wgmma_fence();
      issue_grad_query(stage ^ 1);
      ptx::wgmma_commit();
      store_values();
      ptx::wgmma_wait<0>();
      group_part[1] = group_part[0];
      write_slice();
      // Neither warpgroup then reads K or dS any more.
      tell_other_warpgroup(stage);
      hear_other_warpgroup(stage);
    } else {
      let_key_gradient_go();
      store_values();
    }
    if (thread == 0) {
      ptx::mbarrier_arrive(&shared.keys_free[tiles % kTileSlots]);
      ptx::bulk_wait_read<0>();
      ptx::mbarrier_arrive(&shared.values_free[tiles % kTileSlots]);
    }
    __syncwarp();
    store_gradient(p.grad_key, shared.grad_score[0][0], warpgroup, ptx::anew(thread), p.scale, grad_key);
  }
  if (thread == 0) ptx::bulk_wait_read<0>();
  // The slice is handed back once more than it is written. Each way to say whose it is is the faster one, by what ptxas keeps in registers
  // for it: the other takes 3 and 6 per cent more.
  ptx::named_barrier_sync(kSliceEmpty + (kPanels == 1 ? warpgroup : ptx::anew(threadIdx.x) / 128), 160);
}

}  // namespace lethe
