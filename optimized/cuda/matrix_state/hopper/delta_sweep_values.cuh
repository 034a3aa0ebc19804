#pragma once
// A warpgroup of delta_sweep.cuh that carries 64 columns of the state, of a forward.
//
// It holds the transposes of S, X, R and O: a warp 16 columns of the values, whose numbers no other warp needs. So what a product leaves in registers is,
// rounded, the left operand of the next one, and the warps don't meet. O leaves by way of V's place, which each warp has read, so that a chunk's stage is empty when its
// state is there.
//
//   Sᵀ Kᵀ                         wgmma, from S rounded to float16
//   Xᵀ = Vᵀ − γ Sᵀ Kᵀ
//   R                             mma.sync, block after block of 16 tokens: R_b = Y_b − W_b β Y_b, Y_b = X_b − Σ_c G_bc β R_c of the blocks c before it
//   Sᵀ Qᵀ, in the registers of Xᵀ; Sᵀ = γ_C Sᵀ + (D_C β R)ᵀ K    wgmma
//   Oᵀ = γ Sᵀ Qᵀ + Rᵀ (P β)ᵀ      mma.sync, under the one before

#include "optimized/cuda/matrix_state/hopper/delta_sweep_roles.cuh"

namespace lethe::matrix_state {

/// sums += left · Lᵀ, of a lower triangle L by blocks of 16 × 16: each of 32 lanes, two right operands side by side.
__device__ __forceinline__ void add_triangle(float (&sums)[32], const uint32_t (&left)[16], const uint4* blocks,
                                             int lane) {
#pragma unroll
  for (int k = 0; k < kWarps; ++k) {
    const uint32_t a[4] = {left[4 * k], left[4 * k + 1], left[4 * k + 2], left[4 * k + 3]};
#pragma unroll
    for (int i = k; i < kWarps; ++i) {
      const uint4 words = blocks[32 * lower_block(i, k) + lane];
      ptx::multiply_add<__half>(by_tiles(sums)[2 * i], a, words.x, words.y);
      ptx::multiply_add<__half>(by_tiles(sums)[2 * i + 1], a, words.z, words.w);
    }
  }
}

/// Xᵀ becomes Rᵀ, block after block of tokens; `rounded` gets it as a left operand. `blocks`, `rest`: triangle(), rest(). Of float16 alone G would cost what keys
/// that correlate cancel.
__device__ __forceinline__ void solve_tokens(float (&sums)[32], uint32_t (&rounded)[16], const uint4* blocks,
                                             const uint4* rest, int lane) {
  Sums& x = by_tiles(sums);
  const auto add = [&](const uint32_t(&left)[4], int i, const uint4& words) {
    ptx::multiply_add<__half>(x[2 * i], left, words.x, words.y);
    ptx::multiply_add<__half>(x[2 * i + 1], left, words.z, words.w);
  };
#pragma unroll
  for (int k = 0; k < kWarps; ++k) {
    uint32_t left[4];
    pack_left<__half>(left, x, k, 1.0f);
    add(left, k, blocks[32 * lower_block(k, k) + lane]);
    pack_left<__half>(left, x, k, 1.0f);
#pragma unroll
    for (int i = k + 1; i < kWarps; ++i) {
      add(left, i, rest[block_below(i, k) + lane]);
      add(left, i, blocks[32 * lower_block(i, k) + lane]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) rounded[4 * k + i] = left[i];
  }
}

/// Sums as a left operand, their columns times `factors`.
__device__ __forceinline__ void pack_weighted(uint32_t (&left)[16], const float (&sums)[32], const float* factors,
                                              int lane) {
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    const float2 factor = *reinterpret_cast<const float2*>(&factors[8 * c + lane % 4 * 2]);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      left[2 * c + half] = pack<__half>(sums[4 * c + 2 * half] * factor.x, sums[4 * c + 2 * half + 1] * factor.y);
  }
}

/// A chunk's numbers of this lane's columns of sums of 64 tokens.
__device__ __forceinline__ void load_columns(float2 (&own)[8], const float* numbers, int lane) {
#pragma unroll
  for (int c = 0; c < 8; ++c) own[c] = *reinterpret_cast<const float2*>(&numbers[8 * c + lane % 4 * 2]);
}

/// Vᵀ over the tokens' units: 16 columns of V from `tile`.
template <typename Element>
__device__ __forceinline__ void load_values(float (&values)[32], uint32_t tile, const float* reciprocal, int block,
                                            int lane) {
  float2 over[8];
  load_columns(over, reciprocal, lane);
#pragma unroll
  for (int k = 0; k < kWarps; ++k) {
    uint32_t words[4];
    load_transposed_left(words, tile, k, block, lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 v = unpack<Element>(words[i]);
      values[8 * k + 2 * i] = v.x * over[2 * k + i / 2].x;
      values[8 * k + 2 * i + 1] = v.y * over[2 * k + i / 2].y;
    }
  }
}

/// sums become `from` less their columns times `factors`.
__device__ __forceinline__ void subtract_columns(float (&sums)[32], const float (&from)[32],
                                                 const float2 (&factors)[8]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) sums[i] = fmaf(-(i % 2 ? factors[i / 4].y : factors[i / 4].x), sums[i], from[i]);
}

/// A warp's 16 columns of the values of 64 tokens, on their way from its sums of the transpose to memory by the place in which V's were.
class DeltaColumns {
  static constexpr int kRow = 128;  // bytes of shared memory: a token's
  uint32_t place_, from_;           // in a tile: where a lane stores its rows of matrices, and loads
  char* to_;                        // the lane's first token
  int64_t sixteen_;                 // bytes to the lane's next one
  int tokens_;                      // from the lane's first one to the end; 0 past the last column

  __device__ static uint32_t place_of(int token, int piece) { return token * kRow + ((piece ^ token % 8) << 4); }

 public:
  /// `column`: the first of a head's 64; `first`: token. The result is [B, T, H, columns] contiguous.
  __device__ DeltaColumns(const DeltaSweepArguments& p, int column, int64_t first, int64_t b, int h, int block,
                          int lane) {
    // Eight lanes at a time load from every second token, whose pieces are in different banks.
    const int pair = lane / 2, token = pair % 4 * 2 + pair / 4 % 2 + pair / 8 * 8;
    place_ = place_of(lane % 8 + lane / 16 * 8, 2 * block + lane / 8 % 2);
    from_ = place_of(token, 2 * block + lane % 2);
    const int64_t bytes = int64_t{2} * p.heads * p.columns;
    const int own = column + 16 * block + lane % 2 * 8;
    to_ = static_cast<char*>(p.values) + (b * p.length + first + token) * bytes + (int64_t{h} * p.columns + own) * 2;
    sixteen_ = 16 * bytes;
    tokens_ = own < p.columns ? static_cast<int>(p.length - first) - token : 0;
  }

  /// A chunk's, after those before it. `tile`: of V, whose columns of this warp have been read.
  __device__ __forceinline__ void store(const uint32_t (&packed)[16], uint32_t tile) {
    __syncwarp();
#pragma unroll
    for (int k = 0; k < kWarps; ++k)
      ptx::store_matrices_transposed(tile + place_ + k * 16 * kRow, packed[4 * k], packed[4 * k + 1], packed[4 * k + 2],
                                     packed[4 * k + 3]);
    __syncwarp();
#pragma unroll
    for (int k = 0; k < kWarps; ++k) {
      const uint4 words = ptx::load_words(tile + from_ + k * 16 * kRow);
      if (tokens_ > 16 * k) *reinterpret_cast<uint4*>(to_ + k * sixteen_) = words;
    }
    ptx::fence_async_shared();  // the copy engine writes there next
    to_ += kWarps * sixteen_;
    tokens_ -= kChunk;
  }
};

/// state += left · keys, of 64 tokens and all rows of the state: issued.
template <int kBlocks>
__device__ __forceinline__ void issue_update(float (&state)[32 * kBlocks], const uint32_t (&left)[16],
                                             const char* keys) {
  const uint64_t right = ptx::operand_descriptor(keys, kPanel);
#pragma unroll
  for (int k = 0; k < 4; ++k)
    ptx::wgmma<ptx::Major::kMN>(__half{}, state, left[4 * k], left[4 * k + 1], left[4 * k + 2], left[4 * k + 3],
                                ptx::advance<kStepBytes<ptx::Major::kMN>>(right, k), true);
}

template <typename Element, int kBlocks, int kGroups, bool kReads, bool kKeeps>
__device__ __forceinline__ void DeltaSweep<Element, kBlocks, kGroups, kReads, kKeeps>::sweep_values(int group) const {
  const int column = 64 * (tile + group), columns = min(64, p.columns - column);
  float state[32 * kBlocks];                // divided by the units of weigh()
  const auto each = [&](const auto& use) {  // a number of the state, where it is in memory, and whether it is there
#pragma unroll
    for (int i = 0; i < 32 * kBlocks; ++i) {
      const int row = i / 4 * 8 + lane % 4 * 2 + i % 2, c = 16 * block + lane / 4 + i / 2 % 2 * 8;
      use(state[i], (int64_t{1} * head * p.rows + row) * p.columns + column + c, row < p.rows && c < columns);
    }
  };
  const int thread = 32 * block + lane;
  if (kHalves && second) {
    wait_for_solution(&p.handed_on[sweep_index()]);
    const float* const from = p.handed[sweep_index()].state + thread;
#pragma unroll
    for (int i = 0; i < 32; ++i) state[i] = from[kComputing * i];
  } else {
    each([&](float& number, int64_t place, bool there) { number = p.initial && there ? p.initial[place] : 0.0f; });
  }
  const auto scale_state = [&](float factor) {
#pragma unroll
    for (int i = 0; i < 32 * kBlocks; ++i) state[i] *= factor;
  };
  const auto measure = [&](int n) {  // the state before chunk n
    const float most = largest_of_sums(reinterpret_cast<const float(&)[kBlocks][32]>(state));
    if (lane == 0) small().largest[n % 2][group * kWarps + block] = most;
    arrive_warp(&small().measured[n % 2], lane);
  };
  measure(0);
  DeltaColumns results(p, column, first_of(0), b, h, block, lane);
  float unit = 1.0f;  // of the state
  ptx::RingPosition at;
  for (int n = 0; n < count(); ++n, at.advance(Shared::kStages)) {
    DeltaTokens& tokens = small().tokens[at.index];
    DeltaTokenUnits& units = small().units[at.index];
    const char* const query = stage(at.index);
    const char* const key = query + Shared::kKey;
    const char* const value = query + Shared::kValue + group * kPanel;
    if (n == 0) {
      ptx::mbarrier_wait(&small().prepared[0], 0);
      scale_state(small().first_reciprocal);
      unit = reciprocal_of_power(small().first_reciprocal);
    }
    uint32_t rounded[kBlocks][16];
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
      pack_sums<__half>(rounded[m], reinterpret_cast<const float(&)[kBlocks][32]>(state)[m], 1.0f);
    ptx::mbarrier_wait(&small().full[at.index], at.parity);
    ptx::mbarrier_wait(&small().prepared[at.index], at.parity);
    float x[32], out[32];
    ptx::undefined(x);
    ptx::fence_registers(x);
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) ptx::fence_registers(rounded[m]);
    ptx::wgmma_fence();
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) issue_product<__half, ptx::Major::kK>(x, rounded[m], key + m * kPanel, m > 0);
    ptx::wgmma_commit();
    const float decay = small().decay[at.index];
    unit = small().after[at.index];
    float values[32];
    float2 factors[8];
    load_values<Element>(values, ptx::shared_address(value), tokens.reciprocal(), block, lane);
    load_columns(factors, tokens.read_key(), lane);
    if constexpr (kBlocks == 1) scale_state(decay);
    ptx::wgmma_wait<0>();
    ptx::fence_registers(x);
    if constexpr (kBlocks > 1) scale_state(decay);
    subtract_columns(x, values, factors);
    uint32_t left[16], residual[16];
    solve_tokens(x, residual, triangle(n), rest(n), lane);
    ptx::undefined(out);  // there are no registers for these sums before
    ptx::fence_registers(out);
    ptx::wgmma_fence();
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) issue_product<__half, ptx::Major::kK>(out, rounded[m], query + m * kPanel, m > 0);
    ptx::wgmma_commit();
    pack_weighted(left, x, tokens.write(), lane);
    ptx::fence_registers(left);
    ptx::fence_registers(state);
    ptx::wgmma_fence();
    issue_update<kBlocks>(state, left, key);
    ptx::wgmma_commit();
    load_columns(factors, units.read_state(), lane);
    ptx::wgmma_wait<1>();
    ptx::fence_registers(out);
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) ptx::fence_registers(rounded[m]);
#pragma unroll
    for (int i = 0; i < 32; ++i) out[i] *= i % 2 ? factors[i / 4].y : factors[i / 4].x;
    add_triangle(out, residual, pairs(n), lane);
    scale_columns(by_tiles(out), out_unit(at.index), lane);
    pack_sums<Element>(residual, out, 1.0f);
    results.store(residual, ptx::shared_address(value));
    ptx::wgmma_wait<0>();
    ptx::fence_registers(state);
    ptx::fence_registers(left);
    arrive_warp(&small().empty[at.index], lane);
    measure(n + 1);
  }
  if (hands_on()) {
    float* const to = p.handed[sweep_index()].state + thread;
#pragma unroll
    for (int i = 0; i < 32; ++i) to[kComputing * i] = state[i];
    return arrive_warp(&small().stored, lane);
  }
  if (p.last) {
    scale_state(unit);
    each([&](float& number, int64_t place, bool there) {
      if (there) p.last[place] = number;
    });
  }
}

}  // namespace lethe::matrix_state
