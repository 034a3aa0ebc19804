#pragma once
// The main kernel of the backward pass: one CTA a tile of 128 keys, which walks over the query tiles that see it.
//
//   Sᵀ = K Qᵀ        P = exp2(a·S + R_i + b_j)          dV += Pᵀ dO
//   dPᵀ = V dOᵀ      dS = P (dP − Δ_i)                  dK += dSᵀ Q,   dQ += dS K
//   a = scale·log₂e, R_i = log₂e (c_i − log_normalizer_i), b_j = −log₂e c_j, Δ_i = dO_i·o_i
//
// Two warpgroups own 64 keys each, in the rows of Sᵀ and dPᵀ, so that P and dS are register operands of the products that give dV
// and dK; dQ needs dS of both, from shared memory. A third warpgroup's first warp feeds them by the copy engine, its second adds dQ
// to global memory. (R_i + b_j) / a and −Δ_i are where the accumulators of Sᵀ and dPᵀ start from, so that the gate's bias, the masks
// and Δ cost nothing between a product and what waits for it. Sᵀ of the next tile is issued before dK of this one has ended.
//
// The row and column sums of dS, of which the gate's gradient is made, come from the tensor core: dQ and dK have eight columns more
// than the head, behind them a panel of ones.

#include "optimized/cuda/backward.hpp"
#include "optimized/cuda/ptx/copy.cuh"
#include "optimized/cuda/ptx/fragment.cuh"
#include "optimized/cuda/ptx/wgmma_with_sums.cuh"

namespace lethe {

struct BackwardParameters {
  CUtensorMap query, key, value, grad_output, grad_key, grad_value;
  const double* base;  // GatePlan's arrays
  const float* bias;
  const int32_t *cut_after, *block_cut_after, *last_query_block;
  BackwardWorkspace workspace;
  int query_length, query_offset;  // Tq, Tk − Tq
  int heads, group;                // H, Hq / H
  int query_tiles, key_tiles;      // ⌈Tq/tile⌉, N
  int padded_queries;              // Tp
  float scale, logit_scale;        // scale, a
  bool deterministic;
};

inline constexpr int kBackwardThreads = 384;
inline constexpr int kKeys = 128;  // a tile; 64 a warpgroup
inline constexpr int kStages = 2;

/// What one CTA holds in shared memory. Panels are [rows][64] of 16 bits, swizzled.
template <int kDim>
struct alignas(1024) BackwardShared {
  static constexpr int kQueries = kTileQueries<kDim>;
  static constexpr int kPanels = kDim / 64;
  static constexpr int kQueryPanelBytes = kQueries * 128;
  static constexpr int kKeyPanelBytes = kKeys * 128;
  // Where a head has two panels the ones must lie one panel stride behind them; where it has one, anywhere behind (kOnesStep).
  static constexpr int kQueryPanels = kPanels == 1 ? 1 : kPanels + 1;

  uint8_t key[kPanels][kKeyPanelBytes];
  uint8_t value[kPanels][kKeyPanelBytes];
  uint8_t query[kStages][kQueryPanels][kQueryPanelBytes];
  uint8_t grad_output[kStages][kPanels][kQueryPanelBytes];
  uint8_t grad_score[kStages][2][kQueryPanelBytes];  // dS [query][key], one panel a warpgroup
  uint8_t ones[16 * 128];
  float grad_query[2][kSliceFloats];
  float row_bias[kStages][kQueries];
  float negative_delta[kStages][kQueries];
  float frame[kStages];  // (c at the query tile's frame − c at the key tile's) / scale
  uint64_t query_full[kStages], query_empty[kStages], output_full[kStages], output_empty[kStages];
};

/// The query tiles of one key tile: over the query heads of its group, and in each from the diagonal to the last that sees it.
/// Producer, consumers and the warp that adds dQ walk in step.
struct BackwardWalk {
  const int32_t* last_query_block;  // of the group's first head, at this key tile
  int key_tiles, group, query_tiles, tiles_a_block, first;
  int head = -1, tile = 0, end = 0;

  __device__ bool next_head() {
    while (++head < group) {
      tile = first;
      end = min((last_query_block[int64_t{head} * key_tiles] + 1) * tiles_a_block, query_tiles);
      if (tile < end) return true;
    }
    return false;
  }
  __device__ bool next() { return ++tile < end || next_head(); }
};

// A counter in global memory that hands a query tile from one CTA to the next.
__device__ inline int32_t load_acquire(const int32_t* counter) {
  int32_t value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}
__device__ inline void store_release(int32_t* counter, int32_t value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}

/// Two floats from shared memory, loaded anew each time: a copy between registers would be a read of an accumulator, for which
/// ptxas ends the pipeline of products.
__device__ inline void load_pair(uint32_t address, float& first, float& second) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(first), "=f"(second) : "r"(address) : "memory");
}

/// In units of a descriptor, 16 bytes: a step of 16 rows in an operand of one panel whose further columns are always the same 16
/// rows of ones. The start moves on by 2048 bytes, and the distance from it to the ones shrinks by as much.
inline constexpr uint64_t kOnesStep = 128 - (uint64_t{128} << 16);

/// Named barriers; the last three have one for each warpgroup.
enum BackwardBarrier : uint32_t { kScoresStored = 1, kSliceEmpty = 2, kSliceFull = 4, kWarpgroup = 6 };

template <typename Element, int kDim>
struct BackwardCta {
  using Shared = BackwardShared<kDim>;
  static constexpr int kQueries = Shared::kQueries;
  static constexpr int kPanels = Shared::kPanels;

  const BackwardParameters& p;
  Shared& shared;
  int key_tile, head, batch;  // head: of keys

  __device__ int64_t row_of_heads(int in_group) const { return int64_t{batch * p.heads + head} * p.group + in_group; }  // b·Hq + h

  __device__ BackwardWalk walk() const {
    const int first = max(0, key_tile * kKeys - p.query_offset) / kQueries;
    return {p.last_query_block + row_of_heads(0) * p.key_tiles + key_tile, p.key_tiles, p.group, p.query_tiles, kKeys / kQueries, first};
  }

  __device__ void load();        // one thread of the producer warp
  __device__ void add_slices();  // the second warp
  __device__ void consume(int warpgroup, int thread);
};

/// Keys ride on the first query tile's barrier, values on the first dO's: Sᵀ can start before the values are there.
template <typename Element, int kDim>
__device__ void BackwardCta<Element, kDim>::load() {
  constexpr uint32_t kTileBytes = kPanels * Shared::kQueryPanelBytes + kQueries * sizeof(float);
  constexpr uint32_t kKeyBytes = kPanels * Shared::kKeyPanelBytes;
  BackwardWalk at = walk();
  ptx::RingPosition ring;
  bool first = true;
#pragma unroll 1
  for (bool more = at.next_head(); more; more = at.next(), ring.advance(kStages), first = false) {
    const int stage = ring.index;
    const int query_head = head * p.group + at.head;
    const double* base = p.base + row_of_heads(at.head) * (p.key_tiles + 1);
    const int64_t row = row_of_heads(at.head) * p.padded_queries + at.tile * kQueries;
    const float frame = float((base[(p.query_offset + at.tile * kQueries) / kKeys] - base[key_tile]) / double{p.scale});

    ptx::mbarrier_wait(&shared.query_empty[stage], ring.parity ^ 1);
    shared.frame[stage] = frame;
    ptx::mbarrier_arrive_expect(&shared.query_full[stage], kTileBytes + (first ? kKeyBytes : 0));
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      if (first) ptx::load_tile(shared.key[panel], &p.key, &shared.query_full[stage], 64 * panel, head, key_tile * kKeys, batch);
      ptx::load_tile(shared.query[stage][panel], &p.query, &shared.query_full[stage], 64 * panel, query_head, at.tile * kQueries, batch);
    }
    ptx::load_run(shared.row_bias[stage], p.workspace.row_bias + row, kQueries * sizeof(float), &shared.query_full[stage]);

    ptx::mbarrier_wait(&shared.output_empty[stage], ring.parity ^ 1);
    ptx::mbarrier_arrive_expect(&shared.output_full[stage], kTileBytes + (first ? kKeyBytes : 0));
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      if (first) ptx::load_tile(shared.value[panel], &p.value, &shared.output_full[stage], 64 * panel, head, key_tile * kKeys, batch);
      ptx::load_tile(shared.grad_output[stage][panel], &p.grad_output, &shared.output_full[stage], 64 * panel, query_head, at.tile * kQueries, batch);
    }
    ptx::load_run(shared.negative_delta[stage], p.workspace.negative_delta + row, kQueries * sizeof(float), &shared.output_full[stage]);
  }
}

/// dQ of a step lies in two slices, one a warpgroup; in the fixed order a key tile adds to a query tile after all later key tiles.
/// Those start their walks no later (the grid then runs backwards), so that nobody waits for a CTA that has not begun.
template <typename Element, int kDim>
__device__ void BackwardCta<Element, kDim>::add_slices() {
  const bool leader = threadIdx.x % 32 == 0;
  BackwardWalk at = walk();
#pragma unroll 1
  for (bool more = at.next_head(); more; more = at.next()) {
    float* slices = p.workspace.grad_query + (row_of_heads(at.head) * (p.padded_queries / kQueries) + at.tile) * 2 * kSliceFloats;
    int32_t* turn = p.workspace.turns + row_of_heads(at.head) * (p.padded_queries / kQueries) + at.tile;
    const int last_key_tile = min(p.query_offset + at.tile * kQueries + kQueries - 1, p.query_offset + p.query_length - 1) / kKeys;
    if (leader) ptx::bulk_wait_read<1>();
    __syncwarp();
    ptx::named_barrier_arrive(kSliceEmpty, 160);
    if (leader) ptx::bulk_wait_read<0>();
    __syncwarp();
    ptx::named_barrier_arrive(kSliceEmpty + 1, 160);
    if (p.deterministic && leader) {
      while (load_acquire(turn) != last_key_tile - key_tile) {
      }
    }
    __syncwarp();
#pragma unroll
    for (int warpgroup = 0; warpgroup < 2; ++warpgroup) {
      ptx::named_barrier_sync(kSliceFull + warpgroup, 160);
      if (leader) {
        ptx::reduce_add_run(slices + warpgroup * kSliceFloats, shared.grad_query[warpgroup], sizeof shared.grad_query[0]);
        ptx::bulk_commit();
      }
    }
    if (p.deterministic && leader) {
      ptx::bulk_wait<0>();
      store_release(turn, last_key_tile - key_tile + 1);
    }
  }
  if (leader) ptx::bulk_wait<0>();
}

template <typename Element, int kDim>
__device__ void BackwardCta<Element, kDim>::consume(int warpgroup, int thread) {
  using ptx::Major;
  constexpr int kScores = kQueries / 2;  // accumulators of a 64 × kQueries product
  const int warp = thread / 32, lane = thread % 32;
  const int column = 2 * (lane % 4);                                       // of the accumulators' first register: query
  const int key = key_tile * kKeys + 64 * warpgroup + 16 * warp + lane / 4;  // and key; registers 2, 3 (mod 4) hold key + 8

  const uint64_t key_rows = ptx::operand_descriptor(shared.key[0] + warpgroup * 64 * 128, 0);      // A of Sᵀ
  const uint64_t value_rows = ptx::operand_descriptor(shared.value[0] + warpgroup * 64 * 128, 0);  // A of dPᵀ
  const uint8_t* key_panel = shared.key[kPanels == 1 ? 0 : warpgroup];                             // B of dQ
  const uint64_t key_columns = ptx::operand_descriptor(key_panel, shared.ones - key_panel);
  // Where this lane's rows of dS go: transposed 8×8 matrices (keys 0..7, 8..15 of the warp) × (queries 0..7, 8..15).
  const uint32_t score_offset = warpgroup * Shared::kQueryPanelBytes +
                                ptx::swizzled_offset(8 * (lane / 16) + lane % 8, 16 * warp + 8 * (lane / 8 % 2));

  float grad_value[kDim / 2], grad_key[kDim / 2 + 4], grad_query[36], score[kScores], grad_weight[kScores];
  uint32_t grad_score[kScores / 2];  // dS, 16 bits
#pragma unroll
  for (int i = 0; i < kDim / 2; ++i) grad_value[i] = 0;
#pragma unroll
  for (int i = 0; i < kDim / 2 + 4; ++i) grad_key[i] = 0;

  BackwardWalk at = walk();
  bool more = at.next_head();
  float key_bias[2];
  int first_cut, next_cut;  // no query at or behind it sees the tile's first key; the tile's last
  const auto enter_head = [&] {
    const int64_t row = row_of_heads(at.head) * p.key_tiles + key_tile;
    key_bias[0] = p.bias[row * kKeys + key - key_tile * kKeys] / p.logit_scale;
    key_bias[1] = p.bias[row * kKeys + key - key_tile * kKeys + 8] / p.logit_scale;
    next_cut = p.block_cut_after[row + row_of_heads(at.head) + 1];  // its rows have one entry more
    first_cut = min(p.cut_after[row * kKeys], next_cut);
  };
  // Sᵀ's accumulators of the tile that `at` stands on.
  const auto start_scores = [&](int stage) {
    const float bias[2] = {key_bias[0] + shared.frame[stage], key_bias[1] + shared.frame[stage]};
#pragma unroll
    for (int j = 0; j < kQueries / 8; ++j) {
      const float2 row = *reinterpret_cast<const float2*>(&shared.row_bias[stage][8 * j + column]);
      score[4 * j] = row.x + bias[0];
      score[4 * j + 1] = row.y + bias[0];
      score[4 * j + 2] = row.x + bias[1];
      score[4 * j + 3] = row.y + bias[1];
    }
    const int position = p.query_offset + at.tile * kQueries;
    if (more && (position < key_tile * kKeys + kKeys - 1 || position + kQueries > first_cut)) {
      const float masked = p.logit_scale > 0 ? -INFINITY : INFINITY;
      const int64_t row = row_of_heads(at.head) * p.key_tiles + key_tile;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int from = key + 8 * half - position - column;
        const int to = min(p.cut_after[row * kKeys + key - key_tile * kKeys + 8 * half], next_cut) - position - column;
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
      ptx::wgmma<Major::kK, Major::kK>(Element{}, score, key_rows + (step / 4) * (Shared::kKeyPanelBytes / 16) + 2 * (step % 4),
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
    const int stage = ptx::uniform(ring.index);  // so that descriptors are made in uniform registers
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
      ptx::wgmma<Major::kK, Major::kK>(Element{}, grad_weight, value_rows + (step / 4) * (Shared::kKeyPanelBytes / 16) + 2 * (step % 4),
                                       output_rows + (step / 4) * (Shared::kQueryPanelBytes / 16) + 2 * (step % 4), true);
    ptx::wgmma_commit();

    uint32_t weight[kScores / 2];  // P, 16 bits
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      score[2 * i] = ptx::exp2_approximate(score[2 * i] * p.logit_scale);
      score[2 * i + 1] = ptx::exp2_approximate(score[2 * i + 1] * p.logit_scale);
      weight[i] = ptx::pack<Element>(score[2 * i], score[2 * i + 1]);
    }
    const uint64_t output_columns = ptx::operand_descriptor(shared.grad_output[stage][0], Shared::kQueryPanelBytes);
    ptx::pin(weight);
    ptx::pin(grad_value);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kQueries / 16; ++step)
      ptx::wgmma<Major::kMN>(Element{}, grad_value, weight[4 * step], weight[4 * step + 1], weight[4 * step + 2], weight[4 * step + 3],
                             output_columns + 128 * step, true);
    ptx::wgmma_commit();

    ptx::wgmma_wait<1>();  // dPᵀ
    ptx::pin(grad_weight);
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      // At D = 64 the registers don't hold P in float beside everything else: its 16 bits are read back.
      const float2 p_pair = kDim == 64 ? ptx::unpack<Element>(weight[i]) : float2{score[2 * i], score[2 * i + 1]};
      grad_score[i] = ptx::pack<Element>(p_pair.x * grad_weight[2 * i], p_pair.y * grad_weight[2 * i + 1]);
    }
    const uint32_t score_address = ptx::shared_address(shared.grad_score[stage][0]) + score_offset;
#pragma unroll
    for (int j = 0; j < kQueries / 16; ++j)
      ptx::store_matrices_transposed(score_address + 2048 * j, grad_score[4 * j], grad_score[4 * j + 1], grad_score[4 * j + 2], grad_score[4 * j + 3]);
    ptx::fence_async_shared();
    ptx::named_barrier_sync(kScoresStored, 256);

    // dS's rows: at D = 64 each warpgroup takes 64 of the 128 queries, at D = 128 all 64 queries and a half of the head.
    const uint64_t score_rows = ptx::operand_descriptor(shared.grad_score[stage][0] + (kPanels == 1 ? warpgroup * 64 * 128 : 0), 0);
    ptx::pin(grad_score);
    ptx::pin(grad_key);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step)
      ptx::wgmma<Major::kK, Major::kMN>(Element{}, grad_query, score_rows + (step / 4) * (Shared::kQueryPanelBytes / 16) + 2 * (step % 4),
                                        key_columns + kOnesStep * step, step > 0);
    ptx::wgmma_commit();
    const uint64_t query_columns = ptx::operand_descriptor(
        shared.query[stage][0], kPanels == 1 ? uint32_t(shared.ones - shared.query[stage][0]) : Shared::kQueryPanelBytes);
#pragma unroll
    for (int step = 0; step < kQueries / 16; ++step)
      ptx::wgmma<Major::kMN>(Element{}, grad_key, grad_score[4 * step], grad_score[4 * step + 1], grad_score[4 * step + 2],
                             grad_score[4 * step + 3], query_columns + (kPanels == 1 ? kOnesStep : 128) * step, true);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();  // dQ, and dV: nobody reads dO any more
    if (lane == 0) ptx::mbarrier_arrive(&shared.output_empty[stage]);
    ptx::pin(grad_query);
    ptx::named_barrier_sync(kSliceEmpty + warpgroup, 160);
    float* slice = shared.grad_query[warpgroup];
#pragma unroll
    for (int k = 0; k < 8; ++k)
      reinterpret_cast<float4*>(slice)[128 * k + thread] =
          float4{grad_query[4 * k], grad_query[4 * k + 1], grad_query[4 * k + 2], grad_query[4 * k + 3]};
    if (lane % 4 == 0) {
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
    issue_scores(ptx::uniform(ring.index));  // behind the last tile for nothing: a branch around it would end the pipeline
    ptx::wgmma_commit();

    ptx::wgmma_wait<0>();  // dK: nobody reads this query tile any more; and the next Sᵀ
    ptx::pin(grad_key);
    ptx::pin(score);
    if (lane == 0) ptx::mbarrier_arrive(&shared.query_empty[stage]);
    if (at.head != step_head) {
      if (lane % 4 == 0) {
        float* sums = p.workspace.column_sums + row_of_heads(step_head) * p.key_tiles * kKeys + key;
        sums[0] = grad_key[kDim / 2];
        sums[8] = grad_key[kDim / 2 + 2];
      }
    }
#pragma unroll
    for (int i = kDim / 2; i < kDim / 2 + 4; ++i) grad_key[i] = at.head != step_head ? 0 : grad_key[i];
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
                          ptx::pack<Element>(grad_value[i + 2], grad_value[i + 3]), ptx::pack<Element>(grad_value[i + 4], grad_value[i + 5]),
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
  BackwardCta<Element, kDim> cta{p, shared, int(p.deterministic ? gridDim.x - 1 - blockIdx.x : blockIdx.x), int(blockIdx.y), int(blockIdx.z)};

  const uint32_t one = ptx::pack<Element>(1, 1);
  for (uint32_t i = threadIdx.x; i < sizeof shared.ones / 4; i += kBackwardThreads) reinterpret_cast<uint32_t*>(shared.ones)[i] = one;
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
      ptx::mbarrier_init(&shared.query_empty[stage], 8);  // one arrival a consumer warp
      ptx::mbarrier_init(&shared.output_empty[stage], 8);
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();

  const int warpgroup = threadIdx.x / 128;
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
