#pragma once
// A consumer warpgroup of the main backward kernel at head dim 256, where dV and dK of 64 keys take half of the registers of two warpgroups. Both have the
// same keys: warpgroup w computes Sᵀ and dPᵀ of queries 32w to 32w + 31 of a step, and of dV, dK and dQ the columns of panels w and w + 2. P and dS of
// both go through shared memory. backward_kernel.cuh has the equations and the barriers that all instances share. Here there are also
//
//   named barrier     arrives    waits   count   what a phase hands over
//   kScoresStored     both       both    256     P and dS of a step; after a tile's last dQ: the places of K and V
//   kWeightFree + w   C(1 − w)   Cw      256     P of the step before, and dS of the one before that, which the other has multiplied
//   kColumnSums       C1         C0      256     C1's part of a head's column sums

#include "optimized/cuda/arithmetic.cuh"
#include "optimized/cuda/hopper/backward_scores.cuh"
#include "optimized/cuda/hopper/ptx/copy.cuh"
#include "optimized/cuda/tile/row_sums.cuh"

namespace lethe::hopper::backward_pass {

/// Descriptors of a warpgroup's operands, those of a step for its first stage.
template <int kDim>
struct SplitOperands {
  using Shared = BackwardShared<kDim>;
  static constexpr int kHalf = Shared::kQueries / 2, kPanelBytes = Shared::kKeyPanelBytes;
  static_assert(Shared::kQueryPanelBytes == kPanelBytes);

  uint64_t key_rows, value_rows;                        // A of Sᵀ and dPᵀ
  uint64_t query_rows, output_rows;                     // their B, the warpgroup's queries
  uint64_t weight_rows, score_rows;                     // A of dV; of dK and, by columns, dQ
  uint64_t output_columns, query_columns, key_columns;  // B of dV, dK and dQ, the warpgroup's first panel
  uint64_t row_bias, delta, bias_ones;

  __device__ __forceinline__ SplitOperands(const Shared& shared, int warpgroup) {
    const auto rows = [](const uint8_t* panels) { return ptx::operand_descriptor(panels, 0); };
    const auto own_rows = [&](const uint8_t* panels) { return ptx::advance<kHalf * 128>(rows(panels), warpgroup); };
    const auto columns = [&](const uint8_t* panels) {
      return ptx::advance<kPanelBytes>(ptx::operand_descriptor(panels, 2 * kPanelBytes), warpgroup);
    };
    key_rows = rows(shared.key[0]), value_rows = rows(shared.value[0]);
    query_rows = own_rows(shared.query[0][0]), output_rows = own_rows(shared.grad_output[0][0]);
    weight_rows = rows(shared.weight), score_rows = rows(shared.grad_score[0]);
    output_columns = columns(shared.grad_output[0][0]), query_columns = columns(shared.query[0][0]);
    key_columns = columns(shared.key[0]);
    row_bias = ptx::advance<kHalf * sizeof(BiasColumn)>(bias_operand(shared.row_bias[0]), warpgroup);
    delta = ptx::advance<kHalf * sizeof(BiasColumn)>(bias_operand(shared.negative_delta[0]), warpgroup);
    bias_ones = ones_operand(shared.bias_ones);
  }

  /// Of the k-step of 16 columns of an operand's rows, from that of the first.
  __device__ static constexpr uint64_t along_row(int step) { return (step / 4) * (kPanelBytes / 16) + 2 * (step % 4); }
  /// Of 16 rows of an operand's columns.
  __device__ static constexpr uint64_t along_column(int step) { return 128 * step; }
};

/// All methods are for all threads of the warpgroup.
template <typename Element, int kDim, bool kFloatSums>
struct SplitConsumer : BackwardScores<Element, kDim, kFloatSums, true> {
  using Base = BackwardScores<Element, kDim, kFloatSums, true>;
  using Base::cta, Base::p, Base::shared, Base::warpgroup, Base::thread, Base::warp, Base::lane, Base::key_in_tile;
  using Base::enter_head, Base::read_step, Base::mask_scores, Base::weights, Base::store_column_sums;
  using Base::grad_value, Base::grad_key, Base::grad_query, Base::score, Base::grad_weight, Base::weight,
      Base::grad_score, Base::column_sums, Base::group_part, Base::bias;
  using Base::kQueries, Base::kKeys, Base::kOwnQueries, Base::kScores, Base::kDeltaStep;
  using Base::stage, Base::parity, Base::flags, Base::row, Base::more;
  using typename Base::Cta, typename Base::Registers, typename Base::Shared;
  using Major = ptx::Major;
  using Operands = SplitOperands<kDim>;
  static_assert(kFloatSums == kGate && kQueries == kGroupRows && kScores == 16);

  const Operands operands;
  // Where this lane's rows of P and dS go, but for the 16-byte chunk of the row.
  const uint32_t row_offset;
  uint32_t output_parity = 0;

  __device__ __forceinline__ SplitConsumer(Cta& cta, int warpgroup, int thread, Registers& registers)
      : Base(cta, warpgroup, thread, registers), operands(shared, warpgroup),
        row_offset(ptx::swizzled_offset(16 * warp + lane % 16, 0)) {}

  // ---- products ----

  /// Sᵀ = K Qᵀ + R / a
  __device__ __forceinline__ void issue_scores(int stage) {
    const uint64_t query_rows = ptx::advance<sizeof(Shared::query[0])>(operands.query_rows, stage),
                   row_bias = ptx::advance<sizeof(Shared::row_bias[0])>(operands.row_bias, stage);
    ptx::undefined(score);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step)
      ptx::wgmma<Major::kK, Major::kK>(Element{}, score, operands.key_rows + Operands::along_row(step),
                                       query_rows + Operands::along_row(step), step > 0);
    issue_bias(score, operands.bias_ones, row_bias);
    ptx::wgmma_commit();
  }

  /// dPᵀ = V dOᵀ − Δ
  __device__ __forceinline__ void issue_grad_weight() {
    ptx::mbarrier_wait(&shared.output_full[0], output_parity);
    output_parity ^= 1;
    ptx::undefined(grad_weight);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      if (step == kDeltaStep) issue_bias(grad_weight, operands.bias_ones, operands.delta);
      ptx::wgmma<Major::kK, Major::kK>(Element{}, grad_weight, operands.value_rows + Operands::along_row(step),
                                       operands.output_rows + Operands::along_row(step), step > 0);
    }
    ptx::wgmma_commit();
  }

  /// dQ = dS K of the step whose dS is in a stage, 64 columns: those of panel w + 2·half.
  __device__ __forceinline__ void issue_grad_query(int half, int stage) {
    const uint64_t scores = ptx::advance<sizeof(Shared::grad_score[0])>(operands.score_rows, stage),
                   keys = operands.key_columns + half * (2 * Operands::kPanelBytes / 16);
    ptx::undefined(grad_query);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step)
      ptx::wgmma<Major::kMN, Major::kMN>(Element{}, grad_query, scores + Operands::along_column(step),
                                         keys + Operands::along_column(step), step > 0);
    ptx::wgmma_commit();
  }

  /// dV += Pᵀ dO
  __device__ __forceinline__ void issue_grad_value() {
#pragma unroll
    for (int step = 0; step < kQueries / 16; ++step)
      ptx::wgmma<Major::kK, Major::kMN>(Element{}, grad_value, operands.weight_rows + Operands::along_row(step),
                                        operands.output_columns + Operands::along_column(step), true);
    ptx::wgmma_commit();
  }

  /// dK += dSᵀ Q
  __device__ __forceinline__ void issue_grad_key() {
    const uint64_t scores = ptx::advance<sizeof(Shared::grad_score[0])>(operands.score_rows, stage),
                   queries = ptx::advance<sizeof(Shared::query[0])>(operands.query_columns, stage);
#pragma unroll
    for (int step = 0; step < kQueries / 16; ++step)
      ptx::wgmma<Major::kK, Major::kMN>(Element{}, grad_key, scores + Operands::along_row(step),
                                        queries + Operands::along_column(step), true);
    ptx::wgmma_commit();
  }

  // ---- between products ----

  /// dS = P (dP − Δ), of the weights in float
  __device__ __forceinline__ void grad_scores() {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      grad_weight[2 * i] *= score[2 * i], grad_weight[2 * i + 1] *= score[2 * i + 1];
      grad_score[i] = pack<Element>(grad_weight[2 * i], grad_weight[2 * i + 1]);
    }
  }

  /// This warpgroup's queries of P or dS into [key][query].
  __device__ __forceinline__ void store_rows(const uint8_t* rows, const uint32_t (&pairs)[kScores / 2]) const {
    const uint32_t address = ptx::shared_address(rows) + row_offset;
#pragma unroll
    for (int j = 0; j < kOwnQueries / 8; j += 2)
      ptx::store_matrices(address ^ (kOwnQueries / 8 * warpgroup + j + lane / 16) << 4, pairs[2 * j], pairs[2 * j + 1],
                          pairs[2 * j + 2], pairs[2 * j + 3]);
  }

  /// Float sums of dS: of this thread's two keys over its queries; and of each query over the warp's keys, or of all that the thread has.
  __device__ __forceinline__ void sum_grad_scores() {
    if constexpr (kFloatSums) {
      float of_key[2] = {grad_weight[0], grad_weight[2]};
#pragma unroll
      for (int i = 1; i < kScores; ++i)
        if (i != 2) of_key[i / 2 % 2] += grad_weight[i];
      column_sums[0] += of_key[0], column_sums[1] += of_key[1];
      group_part[0] = 0;
      if (flags & BackwardStep::kSeparateRows) {
        float row_sums[kScores / 2];
#pragma unroll
        for (int i = 0; i < kScores / 2; ++i)
          row_sums[i] = grad_weight[i / 2 * 4 + i % 2] + grad_weight[i / 2 * 4 + i % 2 + 2];
        const float sum = tile::sum_of_thirty_two_rows(row_sums, lane);
        shared.row_sums[stage][warp][kOwnQueries * warpgroup + tile::row_of_thirty_two(lane)] = sum;
      } else {
        group_part[0] = of_key[0] + of_key[1];
      }
    }
  }

  /// dQ to the slice that add_split_slices() adds to global memory; with a step's first half its group's part.
  __device__ __forceinline__ void write_slice(bool with_sums) {
    ptx::fence_registers(grad_query);
    ptx::named_barrier_sync(kSliceEmpty + warpgroup, 160);
    float* slice = shared.grad_query[warpgroup];
#pragma unroll
    for (int k = 0; k < 8; ++k)
      reinterpret_cast<float4*>(slice)[128 * k + thread] =
          float4{grad_query[4 * k], grad_query[4 * k + 1], grad_query[4 * k + 2], grad_query[4 * k + 3]};
    if (kFloatSums && with_sums) slice[64 * 64 + thread] = group_part[0];
    ptx::named_barrier_arrive(kSliceFull + warpgroup, 160);
  }

  // ---- the order ----

  /// Issues the next step's Sᵀ; after the last step a product of whatever is in the stage, which is not used.
  __device__ __forceinline__ void next_scores() {
    row = shared.step[stage].row;
    const int next = stage ^ 1;
    parity ^= stage;
    if (more) ptx::mbarrier_wait(&shared.query_full[next], parity);
    read_step(next);
    issue_scores(next);
  }

  /// Of step n, whose Sᵀ has arrived. The second half of its dQ is multiplied and written a step later, under what dS of that step is computed from: a
  /// tile's first one is of no step, computed from whatever is there, and added to nothing.
  __device__ __forceinline__ void step() {
    issue_grad_weight();
    issue_grad_query(1, stage ^ 1);
    weights();
    ptx::named_barrier_sync(kWeightFree + warpgroup, 256);
    store_rows(shared.weight, weight);
    ptx::wgmma_wait<1>();  // dPᵀ
    ptx::fence_registers(grad_weight);
    grad_scores();
    store_rows(shared.grad_score[stage], grad_score);
    ptx::fence_async_shared();
    ptx::named_barrier_sync(kScoresStored, 256);
    ptx::fence_registers(grad_value);
    ptx::fence_registers(grad_key);
    ptx::wgmma_fence();
    issue_grad_value();
    issue_grad_key();
    ptx::wgmma_wait<2>();  // dQ of the step before
    write_slice(false);
    issue_grad_query(0, stage);
    sum_grad_scores();
    next_scores();
    ptx::wgmma_wait<3>();  // dV, and so all that read dS of the step before
    release(&shared.output_empty[0], lane);
    ptx::named_barrier_arrive(kWeightFree + 1 - warpgroup, 256);
    ptx::wgmma_wait<2>();  // dK
    release(&shared.query_empty[stage], lane);
    ptx::wgmma_wait<1>();  // dQ
    write_slice(true);
    ptx::wgmma_wait<0>();
    ptx::fence_registers(grad_value);
    ptx::fence_registers(grad_key);
    ptx::fence_registers(score);
    stage ^= 1;
  }

  /// The column sums of the head that has ended, of both warpgroups' queries. Before C1 writes again both have met at kScoresStored.
  __device__ __forceinline__ void finish_head() {
    if constexpr (kFloatSums) {
      const float first = tile::sum_of_column(column_sums[0]), second = tile::sum_of_column(column_sums[1]);
      column_sums[0] = column_sums[1] = 0;
      float* others = shared.column_sums + key_in_tile;
      if (warpgroup == 1) {
        if (lane % 4 == 0) others[0] = first, others[8] = second;
        ptx::named_barrier_arrive(kColumnSums, 256);
      } else {
        ptx::named_barrier_sync(kColumnSums, 256);
        store_column_sums(row, first + others[0], second + others[8]);
      }
    }
  }

  /// Masking and head changes happen between inner loops.
  __device__ __forceinline__ void steps() {
    while (more) {
      uint32_t head_ends;
#pragma unroll 1
      do {
        more = !(flags & BackwardStep::kLast);
        head_ends = flags & BackwardStep::kLastOfHead;
        step();
      } while (!(head_ends | (flags & BackwardStep::kMasked)));
      if (head_ends) finish_head();
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
    for (int i = 0; i < kDim / 4; ++i) grad_value[i] = grad_key[i] = 0;
    if (warpgroup == 0)
      for (int in_group = 0; in_group < p.group; ++in_group)  // a head may see none of these keys
        store_column_sums(cta.row_of_heads(in_group), 0, 0);
  }

  /// The first Sᵀ of a key tile.
  __device__ __forceinline__ void prologue(int first_row) {
    enter_head(first_row, [&] {
      ptx::mbarrier_wait(&shared.query_full[stage], parity);
      issue_scores(stage);
    });
    read_step(stage);
    ptx::wgmma_wait<0>();
    ptx::fence_registers(score);
    if (flags & BackwardStep::kMasked) mask_scores(stage);
  }

  /// The warpgroup's two panels of dV or dK, times `factor`, over V or K.
  __device__ __forceinline__ void stage_gradient(uint8_t (&panels)[4][Shared::kKeyPanelBytes], float factor,
                                                 const float (&grad)[kDim / 4]) const {
    const auto pair = [&](int i) { return pack<Element>(grad[i] * factor, grad[i + 1] * factor); };
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t address = ptx::shared_address(panels[warpgroup + 2 * half]) + row_offset;
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        const int i = 32 * half + 4 * j;
        ptx::store_matrices(address ^ (j + lane / 16) << 4, pair(i), pair(i + 2), pair(i + 4), pair(i + 6));
      }
    }
  }

  /// dV and dK. Returns, in thread 0, when the copy engine has read them.
  __device__ __forceinline__ void store_gradients() {
    ptx::named_barrier_sync(kWarpgroup + warpgroup, 128);  // it has read those of the tile before
    stage_gradient(shared.value, 1, grad_value);
    stage_gradient(shared.key, p.scale, grad_key);
    ptx::fence_async_shared();
    ptx::named_barrier_sync(kWarpgroup + warpgroup, 128);
    if (thread != 0) return;
    const BackwardTile at = cta.tile();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int panel = warpgroup + 2 * half;
      ptx::store_tile(&p.grad_value, shared.value[panel], 64 * panel, at.head, at.key_tile * kKeys, at.batch);
      ptx::store_tile(&p.grad_key, shared.key[panel], 64 * panel, at.head, at.key_tile * kKeys, at.batch);
    }
    ptx::bulk_commit();
    ptx::bulk_wait_read<0>();
  }

  __device__ __forceinline__ void consume() {
    ptx::named_barrier_arrive(kWeightFree + 1 - warpgroup, 256);
    ptx::undefined(grad_query);
#pragma unroll 1
    for (bool any = cta.enter_tile(); any; any = cta.next_tile(lane)) {
      clear();
      const int first = cta.first_in_group();
      more = first >= 0;
      if (more) {
        prologue(cta.row_of_heads(first));
        steps();
        issue_grad_query(1, stage ^ 1);
        ptx::wgmma_wait<0>();
        write_slice(false);
        ptx::named_barrier_sync(kScoresStored, 256);  // nothing reads K or V any more
      }
      store_gradients();
      if (thread == 0) {
        ptx::mbarrier_arrive(&shared.keys_free[cta.tiles % kTileSlots]);
        ptx::mbarrier_arrive(&shared.values_free[cta.tiles % kTileSlots]);
      }
      __syncwarp();
    }
    if (thread == 0) ptx::bulk_wait<0>();
    ptx::named_barrier_sync(kWeightFree + warpgroup, 256);
    ptx::named_barrier_sync(kSliceEmpty + warpgroup, 160);  // handed back once more than it is written
  }
};

}  // namespace lethe::hopper::backward_pass
