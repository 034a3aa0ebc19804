#pragma once
// The gradients of both sides of a matrix state with a gate a row and one a column: of 32 tokens of one head at a time, in bfloat16. A CTA has
// one such chunk; or a whole head, from its last chunk on, and R with it.
//
// A side is two operands a, b and a gate a channel: q, k and f with the state's rows, dO, v and g with its columns. By halving (vector_sweep.cuh) a
// chunk's tokens have the same operands in B_ij = scale Σ_κ D_ijκ a_iκ b_jκ, which the other side reads, and as what multiplies the other side's B in
// the gradients (vector_gradient.cuh): each is made once, and each tensor read once.
//
//   1  gates; halves of 4, 2 and 1 tokens               B of pairs in one eight
//   2  halves of 16 and 8; E ∘ a and D_C ∘ b             B of other pairs
//   3  gradients of both sides, by S and R and the other side's B, E ∘ a and D_C ∘ b; of a whole head R before the chunk
//
// Channels are in panels of 32 with two warps each; a warp has 16 of them and all 32 tokens, channels along the rows of its fragments. A warp waits
// for those of the other side twice a chunk: before its gradients, and before it writes over what the other side's gradients are computed from.

#include "optimized/cuda/launch.cuh"
#include "optimized/cuda/matrix_state/vector_side_gradients.cuh"
#include "optimized/cuda/matrix_state/vector_side_pairs.cuh"

namespace lethe::matrix_state {

/// R of a whole head, in float, from the last chunk on: R ← E_C ∘ R ∘ E'_C + scale Σ_i (E_i ∘ q_i) (E'_i ∘ dO_i)ᵀ. A warp has blocks of 16 by 16 of
/// its own: of a side that has more panels, since the other's warps have more of S and R to multiply.
template <int kRowPanels, int kColumnPanels>
struct HeadGradient {
  using Shared = VectorSidesShared<kRowPanels, kColumnPanels>;
  using Blocks = SideBlocks<kRowPanels, kColumnPanels>;
  using Warp = SideWarp<kRowPanels, kColumnPanels>;
  static constexpr int kOne = Blocks::kOne, kMore = kRowPanels > kColumnPanels ? kRowPanels : kColumnPanels,
                       kOwners = kRowPanels == kColumnPanels ? Shared::kWarps : 2 * kMore,
                       kFirst = kColumnPanels > kRowPanels ? 2 * kRowPanels : 0, kEach = kOne / kOwners;
  static_assert(kOne % kOwners == 0);
  const VectorSidesArguments& p;
  const Warp& at;

  /// Calls work with each of the warp's blocks, row block · column blocks + column block.
  template <typename Work>
  __device__ __forceinline__ void each(Work work) const {
    if (static_cast<unsigned>(at.warp - kFirst) >= kOwners) return;
    for (int i = 0; i < kEach; ++i) work(at.warp - kFirst + i * kOwners);
  }
  /// Where the lane's four sums of columns 8·n to 8·n + 7 are.
  __device__ __forceinline__ uint32_t sums_at(int block, int n) const {
    return at.shared + Shared::kSums + ((block * 2 + n) * 32 + at.lane) * 16;
  }
  /// Calls work with each entry of a block that is inside the state, by its place in the registers, and where it is in [B, H, rows, columns].
  template <typename Work>
  __device__ __forceinline__ void each_entry(int block, Work work) const {
    const int rows = p.sides[0].channels, columns = p.sides[1].channels;
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = block / Blocks::kSteps * 16 + at.lane / 4 + 8 * (e / 2),
                  column = block % Blocks::kSteps * 16 + 8 * n + 2 * (at.lane % 4) + e % 2;
        if (row < rows && column < columns) work(n, e, (at.place.head * rows + row) * columns + column);
      }
  }
  __device__ __forceinline__ void load(int block, float (&to)[2][4]) const {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const uint4 x = ptx::load_words(sums_at(block, n));
      to[n][0] = __uint_as_float(x.x), to[n][1] = __uint_as_float(x.y);
      to[n][2] = __uint_as_float(x.z), to[n][3] = __uint_as_float(x.w);
    }
  }
  __device__ __forceinline__ void store(int block, const float (&x)[2][4]) const {
#pragma unroll
    for (int n = 0; n < 2; ++n)
      ptx::store_words(sums_at(block, n), {__float_as_uint(x[n][0]), __float_as_uint(x[n][1]), __float_as_uint(x[n][2]),
                                           __float_as_uint(x[n][3])});
  }

  __device__ __forceinline__ void begin() const {
    each([&](int block) {
      float x[2][4] = {};
      if (p.grad_last) each_entry(block, [&](int n, int e, int64_t from) { x[n][e] = p.grad_last[from]; });
      store(block, x);
    });
  }
  /// R after the chunk to where products read it, in bfloat16.
  __device__ __forceinline__ void leave() const {
    each([&](int block) {
      float x[2][4];
      load(block, x);
      Blocks::store(Blocks::place(at.shared, 1, block), at.lane,
                    {pack<__nv_bfloat16>(x[0][0], x[0][1]), pack<__nv_bfloat16>(x[0][2], x[0][3]),
                     pack<__nv_bfloat16>(x[1][0], x[1][1]), pack<__nv_bfloat16>(x[1][2], x[1][3])});
    });
  }
  /// R before the chunk, after the warps' E ∘ a in float16.
  __device__ __forceinline__ void step() const {
    const int lane = at.lane;
    const uint32_t tiles = at.shared + Shared::kHalf;
    each([&](int block) {
      const int row_block = block / Blocks::kSteps, column_block = block % Blocks::kSteps;
      const uint32_t left_at = tiles + row_block * (16 * kSideTokens * 2) +
                               ptx::swizzled_chunk<kSideTokens>(lane % 16, lane / 16),
                     right_at = tiles + kRowPanels * Shared::kTile + column_block * (16 * kSideTokens * 2) +
                                ptx::swizzled_chunk<kSideTokens>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
      float sum[2][4] = {}, x[2][4], gates[6];
#pragma unroll
      for (int m = 0; m < kSideBlocks; ++m) {
        uint32_t left[4], right[4];
        ptx::load_matrices(left, steps_right<kSideTokens>(left_at, m));
        ptx::load_matrices(right, steps_right<kSideTokens>(right_at, m));
        ptx::multiply_add<__half>(sum[0], left, right[0], right[1]);
        ptx::multiply_add<__half>(sum[1], left, right[2], right[3]);
      }
      const auto unit_of = [&](int warp) {
        return __uint_as_float(ptx::load_word(at.shared + Shared::kUnits + warp * 4));
      };
      const float unit = unit_of(row_block) * unit_of(2 * kRowPanels + column_block) * p.scale;
      const auto total_at = [&](int channel) { return at.shared + Shared::kTotals + channel * 4; };
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        gates[h] = __uint_as_float(ptx::load_word(total_at(16 * row_block + lane / 4 + 8 * h)));
        const float2 two =
            ptx::load_floats(total_at(Shared::kPanel * kRowPanels + 16 * column_block + 8 * h + 2 * (lane % 4)));
        gates[2 + 2 * h] = two.x;
        gates[3 + 2 * h] = two.y;
      }
      load(block, x);
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) x[n][e] = fmaf(x[n][e], gates[e / 2] * gates[2 + 2 * n + e % 2], sum[n][e] * unit);
      store(block, x);
    });
  }
  __device__ __forceinline__ void end() const {
    if (!p.grad_initial) return;
    each([&](int block) {
      float x[2][4];
      load(block, x);
      each_entry(block, [&](int n, int e, int64_t to) { p.grad_initial[to] = x[n][e]; });
    });
  }
};

template <int kRowPanels, int kColumnPanels, bool kWholeHeads>
__global__ void __launch_bounds__(64 * (kRowPanels + kColumnPanels), 3)
    vector_sides(const __grid_constant__ VectorSidesArguments p) {
  extern __shared__ __align__(1024) char memory[];
  let_next_kernel_start();
  const uint32_t shared = ptx::shared_address(memory);
  SideWarp<kRowPanels, kColumnPanels> at(p, shared, kWholeHeads);
  const HeadGradient<kRowPanels, kColumnPanels> grad_state{p, at};
  if constexpr (kWholeHeads) grad_state.begin();
  at.load_gates(at.place.chunk);
  at.load_rows();
  wait_for_previous_kernel();
#pragma unroll 1
  for (;;) {
    // Addresses anew in each chunk: kept from one to the next they took the registers of operands, which spilled.
    if constexpr (kWholeHeads) asm volatile("" : "+r"(at.lane), "+r"(at.shared));
    StateCopies<kRowPanels, kColumnPanels, kWholeHeads> states{p, at};
    states.load();
    ptx::copies_wait<1>();
    __syncwarp();
    SideOperands<kRowPanels, kColumnPanels> operands{p, at};
    EightGates run[2 * kSideBlocks];
    operands.multiply(run);
    ptx::copies_wait<0>();
    states.store();
    if constexpr (kWholeHeads) grad_state.leave();
    at.meet_panel();
    operands.within_eights(run);
    at.meet_side();
    const SidePairs<kRowPanels, kColumnPanels> pairs{p, at};
    pairs.within_eights();
    operands.load();
    at.meet_side();
    operands.store_last();
    operands.template beyond_eights<kWholeHeads>();
    at.meet_side();
    pairs.beyond_eights();
    __syncthreads();
    SideGradients<kRowPanels, kColumnPanels>{p, at}.run(operands, kWholeHeads ? at.place.chunk - 1 : -1);
    if constexpr (kWholeHeads) grad_state.step();
    if (!kWholeHeads || at.place.chunk == 0) break;
    --at.place.chunk;
    __syncthreads();
    at.load_rows();
  }
  if constexpr (kWholeHeads) grad_state.end();
}

}  // namespace lethe::matrix_state
