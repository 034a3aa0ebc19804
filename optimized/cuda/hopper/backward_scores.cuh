#pragma once
// What a consumer warpgroup of the main backward kernel has of a step before its products: the step's numbers, the gate's part of its scores,
// and their mask.

#include <numbers>

#include "optimized/cuda/hopper/backward_shared.cuh"
#include "optimized/cuda/hopper/ptx/fragment.cuh"
#include "optimized/cuda/hopper/ptx/wgmma.cuh"

namespace lethe::hopper::backward_pass {

/// The state of one thread of a consumer warpgroup. All methods are for all threads of the warpgroup.
/// kEdges: the instance for windows and packed sequences, whose steps mostly say where their keys' queries end.
template <typename Element, int kDim, bool kFloatSums, bool kSumsRows, bool kEdges = false>
struct BackwardScores {
  using Cta = BackwardCta<Element, kDim, kFloatSums>;
  using Shared = typename Cta::Shared;

  static constexpr int kQueries = Cta::kQueries, kKeys = Cta::kKeys, kPanels = Cta::kPanels, kGroups = Cta::kGroups;
  static constexpr bool kSplit = Shared::kSplit;
  static constexpr int kOwnQueries = kSplit ? kQueries / 2 : kQueries;  // of a step's scores: a warpgroup's
  static constexpr int kOwnColumns = kSplit ? kDim / 2 : kDim;          // of dV and dK
  static constexpr int kScores = kOwnQueries / 2;                       // accumulators of a 64 × kOwnQueries product
  static constexpr int kDeltaStep =
      kDim == 64 ? 3 : 6;  // the k-step of dPᵀ that Δ is subtracted before: the fastest places
  // Is dV waited for before dQ and dK are issued, so that its operand's registers are free and Sᵀ can follow them at once? Float sums
  // then come before those products, not under them. The faster places.
  static constexpr bool kScoresFollow = kDim == 64;
  static constexpr int kSums = kGate && !kFloatSums ? 4 : 0,
                       kRowSums = kSumsRows ? kSums : 0;  // accumulators of columns that sum dS

  Cta& cta;
  const BackwardParameters& p;
  Shared& shared;
  const int warpgroup, thread, warp, lane;
  const int column;           // of the accumulators' first register: query
  const int64_t key_place;    // in shared.key_bias
  const int64_t key_in_tile;  // of Sᵀ's and dPᵀ's registers 0, 1 (mod 4); 2 and 3 are 8 further
  // b_j of a head's keys, from where every step reads them: registers are what this kernel is short of.
  const uint32_t key_bias_address;

  // Arrays in registers, of an object apart: the compiler keeps a struct in memory until the last loop over its arrays is unrolled, and
  // until then it can hoist nothing that comes from the struct.
  struct Registers {
    float grad_value[kOwnColumns / 2], grad_key[kOwnColumns / 2 + kSums], grad_query[32 + kRowSums];
    float score[kScores], grad_weight[kScores];
    uint32_t weight[kScores / 2];      // P, 16 bits
    uint32_t grad_score[kScores / 2];  // dS, 16 bits
    float column_sums[2] = {0, 0};     // of dS in float, of this thread's two keys over its queries of the head
    float group_part[2] = {0, 0};  // of a group of rows, this step's and the step before's; 0 where each row has a sum
    float bias[2];                 // what is added to Sᵀ's two rows
  };
  float (&grad_value)[kOwnColumns / 2], (&grad_key)[kOwnColumns / 2 + kSums], (&grad_query)[32 + kRowSums];
  float (&score)[kScores], (&grad_weight)[kScores];
  uint32_t (&weight)[kScores / 2], (&grad_score)[kScores / 2];
  float (&column_sums)[2], (&group_part)[2], (&bias)[2];

  // The step: its place in a ring of two stages, and what describe_steps() published of it. The stage is in a uniform register, as what is
  // computed from it: descriptors and addresses of barriers.
  static_assert(kStages == 2);
  int stage = ptx::in_uniform_register(0);
  uint32_t parity = 0;
  uint32_t flags = 0;
  int row;  // b·Hq + h of the step before
  bool more;

  __device__ __forceinline__ BackwardScores(Cta& cta, int warpgroup, int thread, Registers& registers)
      : cta(cta), p(cta.p), shared(cta.shared), warpgroup(warpgroup), thread(thread), warp(thread / 32),
        lane(thread % 32), column(2 * (lane % 4) + (kSplit ? kOwnQueries * warpgroup : 0)),
        key_place(64 * warpgroup + 16 * warp + lane / 4), key_in_tile(kSplit ? key_place % kKeys : key_place),
        key_bias_address(ptx::shared_address(&shared.key_bias[key_place])), grad_value(registers.grad_value),
        grad_key(registers.grad_key), grad_query(registers.grad_query), score(registers.score),
        grad_weight(registers.grad_weight), weight(registers.weight), grad_score(registers.grad_score),
        column_sums(registers.column_sums), group_part(registers.group_part), bias(registers.bias) {}

  // ---- the gate's part of a head and of a step ----

  __device__ __forceinline__ double prefix_of_key(int row, int further) const {
    return prefix_at(p.plan.prefix, row, cta.key_blocks(), cta.tile().key_tile * kKeys + int(key_in_tile) + further);
  }

  /// b_j of this thread's two keys to where the head's steps read them; `meanwhile` runs while they come from global memory.
  template <typename Meanwhile>
  __device__ __forceinline__ void enter_head(int row, Meanwhile meanwhile) {
    float numbers[2];  // since before the tile
    bool near = false;
    if constexpr (kGate) {
      const float* bias = p.plan.prefix.bias + (int64_t{row} * p.key_tiles + cta.tile().key_tile) * kKeys + key_in_tile;
      numbers[0] = bias[0], numbers[1] = bias[8];
      near = cta.near_strong_gates();
    }
    meanwhile();
    if (kGate && lane % 4 == 0) {
      if (near) {  // to after it: keys near its end have weight
        const double end =
            p.plan.prefix.base[int64_t{row} * (cta.key_blocks() + 1) + cta.block_of(cta.tile().key_tile) + 1];
        for (int h = 0; h < 2; ++h)
          numbers[h] = static_cast<float>((end - prefix_of_key(row, 8 * h)) * std::numbers::log2e);
      }
      // NaN reaches the queries that see it by their own numbers; from here it would get through the mask to others, too
      for (int h = 0; h < 2; ++h) shared.key_bias[key_place + 8 * h] = isnan(numbers[h]) ? 0 : numbers[h];
    }
    __syncwarp();
  }

  __device__ __forceinline__ void read_step(int stage) {
    const BackwardStep step = shared.step[stage];
    flags = step.flags;
    bias[0] = bias[1] = -0.0f;  // minus zero: what a sum may leave out
    if constexpr (kGate) {
      bias[0] = ptx::load_float(key_bias_address) + step.frame;
      bias[1] = ptx::load_float(key_bias_address + 32) + step.frame;
    }
  }

  /// Of a step on the diagonal near strong gates, whose k-step added nothing: all of R_i / a + b_j / a.
  __device__ __forceinline__ void add_decay(int stage) {
    bias[0] = bias[1] = -0.0f;
    const int64_t row = shared.step[stage].row;
    const double* of_queries =
        p.workspace.row_number + row * p.padded_queries + shared.step[stage].position - p.query_offset + column;
    const double of_keys[2] = {prefix_of_key(row, 0) * p.inverse_scale, prefix_of_key(row, 8) * p.inverse_scale};
#pragma unroll
    for (int i = 0; i < kScores; ++i)
      score[i] += static_cast<float>(of_queries[i / 4 * 8 + i % 2] - of_keys[i / 2 % 2]);
  }

  __device__ __forceinline__ void mask_scores(int stage) {
    if (kGate && flags & BackwardStep::kDiagonal) add_decay(stage);
    const float masked = p.logit_scale > 0 ? -INFINITY : INFINITY;
    const int position = shared.step[stage].position + column;
    const auto mask_where = [&](const int(&bound)[2], auto hidden) {
#pragma unroll
      for (int i = 0; i < kScores; ++i)
        if (hidden(i / 4 * 8 + i % 2, bound[i / 2 % 2])) score[i] = masked;
    };
    const auto ends = [](int query, int end) { return query >= end; };
    using Visible = Visibility<KeyBlockCuts>;
    const int key_tile = cta.tile().key_tile, key = key_tile * kKeys + int(key_in_tile);
    if constexpr (kEdges) {
      if (flags & BackwardStep::kCut && flags & (BackwardStep::kWindowEnds | BackwardStep::kOneEnd) &&
          !Visible::masks_last_key(position - column, key_tile * kKeys + kKeys - 1)) {
        const int end = int(flags >> BackwardStep::kEnd) - column, window_end = key + p.plan.prefix.window - position;
        const bool one = flags & BackwardStep::kOneEnd;
        mask_where({one ? end : window_end, one ? end : window_end + 8}, ends);
        return;
      }
    }
    mask_where({Visible::first_query(key) - position, Visible::first_query(key + 8) - position},
               [](int query, int from) { return query < from; });
    if (!kGate || !(flags & BackwardStep::kCut)) return;
    const Visible visible =
        visibility_of_keys(p.plan.prefix, shared.step[stage].row, cta.key_blocks(), cta.block_of(key_tile));
    mask_where({visible.end_query(key) - position, visible.end_query(key + 8) - position}, ends);
  }

  /// P = exp2(a·S + R_i + b_j)
  __device__ __forceinline__ void weights() {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      score[2 * i] = exp2_approximate(fmaf(score[2 * i], p.logit_scale, bias[i % 2]));
      score[2 * i + 1] = exp2_approximate(fmaf(score[2 * i + 1], p.logit_scale, bias[i % 2]));
      weight[i] = pack<Element>(score[2 * i], score[2 * i + 1]);
    }
  }

  /// Column sums of dS of this thread's two keys, to global memory.
  __device__ __forceinline__ void store_column_sums(int row, float first, float second) const {
    if (!kGate || lane % 4 != 0) return;
    float* sums = p.workspace.column_sums + (int64_t{row} * p.key_tiles + cta.tile().key_tile) * kKeys + key_in_tile;
    sums[0] = first;
    sums[8] = second;
  }
};

}  // namespace lethe::hopper::backward_pass
