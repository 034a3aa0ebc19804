#pragma once
// The states before each chunk and their gradients after it, of a gate a row and one a column, in bfloat16: what vector_sides.cuh reads. They are
// sums of float16 operands with units: of operands in bfloat16, which gates near 1 round on both sides, d log f and d log g are 0.36 % off over
// thousands of tokens, so 0.25 %.
//
//   S ← E_C ∘ S ∘ E'_C + Σ_j (D_Cj ∘ k_j) (D'_Cj ∘ v_j)ᵀ                 from the first chunk on
//   R ← E_C ∘ R ∘ E'_C + scale Σ_i (E_i ∘ q_i) (E'_i ∘ dO_i)ᵀ            from the last chunk on
//
// A CTA is a head. From the first chunk on it reads each tensor once, makes both sums, S from its own and leaves the other; then it goes back over
// those, which are partly still in the L2 cache. Where the kernel after it has whole heads, it makes S alone. Channels are in panels of 32 with two
// warps each, 16 a warp; states in blocks of 16 by 16, spread over the warps.

#include "optimized/cuda/launch.cuh"
#include "optimized/cuda/matrix_state/vector_side_operands.cuh"

namespace lethe::matrix_state {

struct VectorSideStatesArguments {
  VectorSide sides[2];  ///< rows, columns; without gradients
  int64_t length;
  int batch, heads;
  float scale;
  const float *initial, *grad_last;  ///< [B, H, rows, columns]; null: zeros
  float* grad_initial;               ///< the same; null: not wanted
  uint4 *states, *grad_states;       ///< in bfloat16, [B·H, chunks, blocks, lane]
  float *sums, *totals;              ///< of R, [B·H, chunks, blocks, lane, 8]; E_C, [B·H, chunks, channels]
};

template <int kRowPanels, int kColumnPanels, bool kBoth>
struct VectorSideStatesShared {
  static constexpr int kPanels = kRowPanels + kColumnPanels, kWarps = 2 * kPanels, kTile = kSideTokens * 32 * 2;
  /// Two stages of a, if R is made, and b, tokens by channels, and gates; E ∘ a and D_C ∘ b, channels by tokens; of each channel E_C, the unit of
  /// D_C ∘ b and that of E ∘ a.
  static constexpr int kOperand = kPanels * kTile, kRight = kBoth ? kOperand : 0, kGates = kRight + kOperand,
                       kStage = kGates + 2 * kOperand, kScaled = 2 * kStage, kTotals = kScaled + kRight + kOperand,
                       kBytes = kTotals + kPanels * 32 * 16;
  static_assert(kPanels < 3 || 3 * (kBytes + 1024) <= 228 * 1024);
};

/// A head's states: of block b = row block · column blocks + column block, rows and columns of its fragments as of a product's sums.
template <int kRowPanels, int kColumnPanels, bool kBoth>
struct SideStates {
  using Element = __nv_bfloat16;
  using Shared = VectorSideStatesShared<kRowPanels, kColumnPanels, kBoth>;
  static constexpr int kWarps = Shared::kWarps, kColumnBlocks = 2 * kColumnPanels,
                       kBlocks = 2 * kRowPanels * kColumnBlocks, kEach = (kBlocks + kWarps - 1) / kWarps;
  const VectorSideStatesArguments& p;
  uint32_t shared;
  int warp, lane;
  int64_t head;
  int chunks;
  float state[kEach][2][4];

  /// Calls work with each of a warp's blocks and its place in `state`.
  template <typename Work>
  __device__ __forceinline__ void each(int first, Work work) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (first + i * kWarps < kBlocks) work(i, first + i * kWarps);
  }
  /// Calls work with each entry of a block that is inside the state, and where it is in [rows, columns].
  template <typename Work>
  __device__ __forceinline__ void each_entry(int block, float (&x)[2][4], Work work) const {
    const int rows = p.sides[0].channels, columns = p.sides[1].channels;
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = block / kColumnBlocks * 16 + lane / 4 + 8 * (e / 2),
                  column = block % kColumnBlocks * 16 + 8 * n + 2 * (lane % 4) + e % 2;
        if (row < rows && column < columns) work(x[n][e], (head * rows + row) * columns + column);
      }
  }
  __device__ __forceinline__ void begin(int first, const float* from) {
    each(first, [&](int i, int block) {
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) state[i][n][e] = 0.0f;
      if (from) each_entry(block, state[i], [&](float& x, int64_t at) { x = from[at]; });
    });
  }
  __device__ __forceinline__ int64_t place(int chunk, int block) const {
    return ((head * chunks + chunk) * kBlocks + block) * 32 + lane;
  }
  __device__ __forceinline__ void store(uint4* to, int chunk, int i, int block) const {
    const float(&x)[2][4] = state[i];
    to[place(chunk, block)] = {pack<Element>(x[0][0], x[0][1]), pack<Element>(x[0][2], x[0][3]),
                               pack<Element>(x[1][0], x[1][1]), pack<Element>(x[1][2], x[1][3])};
  }
  /// Calls work with the lane's rows g and g + 8 of a block and its columns 2t, 2t + 1 and those 8 further, as channels of all panels.
  template <typename Work>
  __device__ __forceinline__ void each_gate(int block, Work work) const {
    const int row = block / kColumnBlocks * 16 + lane / 4,
              column = 32 * kRowPanels + block % kColumnBlocks * 16 + 2 * (lane % 4);
#pragma unroll
    for (int n = 0; n < 6; ++n) work(n, n < 2 ? row + 8 * n : column + (n - 2) % 2 + (n - 2) / 2 * 8);
  }
  __device__ __forceinline__ void decay(int i, const float (&gates)[6]) {
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) state[i][n][e] *= gates[e / 2] * gates[2 + 2 * n + e % 2];
  }
  /// Adds a block's sum over the chunk's tokens of the scaled operands at `tiles`.
  __device__ __forceinline__ void add_products(int block, uint32_t tiles, float (&to)[2][4]) const {
    const uint32_t left_at = tiles + block / kColumnBlocks * (16 * kSideTokens * 2) +
                             ptx::swizzled_chunk<kSideTokens>(lane % 16, lane / 16),
                   right_at = tiles + kRowPanels * Shared::kTile + block % kColumnBlocks * (16 * kSideTokens * 2) +
                              ptx::swizzled_chunk<kSideTokens>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
    for (int m = 0; m < kSideBlocks; ++m) {
      uint32_t left[4], right[4];
      ptx::load_matrices(left, steps_right<kSideTokens>(left_at, m));
      ptx::load_matrices(right, steps_right<kSideTokens>(right_at, m));
      ptx::multiply_add<__half>(to[0], left, right[0], right[1]);
      ptx::multiply_add<__half>(to[1], left, right[2], right[3]);
    }
  }

  /// The chunk's share: S before it, then S after it; and the sum for R, where it is wanted.
  __device__ __forceinline__ void forward(int chunk) {
    each(warp, [&](int i, int block) {
      store(p.states, chunk, i, block);
      float gates[6], units[6];
      each_gate(block, [&](int n, int channel) {
        const float2 two = ptx::load_floats(shared + Shared::kTotals + channel * 16);
        gates[n] = two.x;
        units[n] = two.y;
      });
      decay(i, gates);
      float sum[2][4] = {};
      add_products(block, shared + Shared::kScaled + Shared::kRight, sum);
      const float unit = units[0] * units[2];  // those of a block's 16 rows and 16 columns
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) state[i][n][e] = fmaf(unit, sum[n][e], state[i][n][e]);
    });
    if constexpr (!kBoth) return;
    each(kWarps - 1 - warp, [&](int, int block) {
      float sum[2][4] = {};
      add_products(block, shared + Shared::kScaled, sum);
      const auto unit_of = [&](int channel) {
        return __uint_as_float(ptx::load_word(shared + Shared::kTotals + channel * 16 + 8));
      };
      const float unit =
          unit_of(block / kColumnBlocks * 16) * unit_of(32 * kRowPanels + block % kColumnBlocks * 16) * p.scale;
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[n][e] *= unit;
      float4* const to = reinterpret_cast<float4*>(p.sums) + 2 * place(chunk, block);
      to[0] = {sum[0][0], sum[0][1], sum[0][2], sum[0][3]};
      to[1] = {sum[1][0], sum[1][1], sum[1][2], sum[1][3]};
    });
    const int channel = 32 * warp + lane;
    if (channel < 32 * Shared::kPanels)
      p.totals[(head * chunks + chunk) * (32 * Shared::kPanels) + channel] =
          __uint_as_float(ptx::load_word(shared + Shared::kTotals + channel * 16));
  }

  /// R from the last chunk on, from the sums that forward() left: a warp reads its own, and all warps' E_C.
  __device__ __forceinline__ void back() {
    const int own = kWarps - 1 - warp;
    begin(own, p.grad_last);
    struct Share {
      float4 sums[2];
      float gates[6];  // E_C of the lane's two rows and four columns
    } next[kEach];
    const auto fetch = [&](int chunk) {
      if (chunk < 0) return;
      const float* const totals = p.totals + (head * chunks + chunk) * (32 * Shared::kPanels);
      each(own, [&](int i, int block) {
        const float* const from = p.sums + 8 * place(chunk, block);
        next[i].sums[0] = load_global4(from);
        next[i].sums[1] = load_global4(from + 4);
        each_gate(block, [&](int n, int channel) { next[i].gates[n] = load_global(totals + channel); });
      });
    };
    fetch(chunks - 1);
#pragma unroll 1
    for (int chunk = chunks - 1; chunk >= 0; --chunk) {
      Share now[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) now[i] = next[i];
      fetch(chunk - 1);
      each(own, [&](int i, int block) {
        store(p.grad_states, chunk, i, block);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const float4 sums = now[i].sums[n];
          const float four[4] = {sums.x, sums.y, sums.z, sums.w};
#pragma unroll
          for (int e = 0; e < 4; ++e)
            state[i][n][e] = fmaf(state[i][n][e], now[i].gates[e / 2] * now[i].gates[2 + 2 * n + e % 2], four[e]);
        }
      });
    }
    if (p.grad_initial)
      each(own, [&](int i, int block) {
        each_entry(block, state[i], [&](float& x, int64_t at) { p.grad_initial[at] = x; });
      });
  }
};

/// A warp's 16 channels of a chunk, of the stage at `stage`: E ∘ a, where R is made, and D_C ∘ b, their units, and E_C.
template <int kRowPanels, int kColumnPanels, bool kBoth>
__device__ __forceinline__ void scale_side(uint32_t shared, uint32_t stage, int warp, int lane) {
  using Shared = VectorSideStatesShared<kRowPanels, kColumnPanels, kBoth>;
  using Element = __nv_bfloat16;
  const int panel = warp / 2, half = warp % 2, g = lane / 4, t = lane % 4;
  const bool upper2 = t & 1, upper4 = t & 2;
  const uint32_t gates = stage + Shared::kGates + panel * (2 * Shared::kTile),
                 from = stage + panel * Shared::kTile +
                        ptx::swizzled_chunk<32>(lane % 8 + lane / 16 * 8, 2 * half + lane / 8 % 2),
                 to = shared + Shared::kScaled + panel * Shared::kTile +
                      ptx::swizzled_chunk<kSideTokens>(16 * half + g, 0) + 4 * t;
  const uint32_t gates_at[2] = {gates + side_gate_offset(2 * t, 16 * half + g),
                                gates + side_gate_offset(2 * t, 16 * half + g + 8)};
  const auto put = [&](int eight, int h, int further, float x, float y) {
    ptx::store_word((to ^ eight << 4) + h * (8 * kSideTokens * 2) + further, pack<__half>(x, y));
  };
  const auto load = [&](int operand, uint32_t(&to)[kSideBlocks][4]) {
#pragma unroll
    for (int m = 0; m < kSideBlocks; ++m)
      ptx::load_matrices_transposed(to[m], from + operand * Shared::kRight + 16 * m * 64);
  };
  uint32_t left[kSideBlocks][4], right[kSideBlocks][4];
  float left_unit = 1.0f, inverse = 1.0f, totals[2] = {1.0f, 1.0f}, down[2 * kSideBlocks][2], odd[2 * kSideBlocks][2];
  ChunkProducts runs;
  if constexpr (kBoth) {
    load(0, left);
    left_unit = side_unit(left);
    inverse = inverse_of_power(left_unit);
  }
#pragma unroll
  for (int m = 0; m < kSideBlocks; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int eight = 2 * m + i;
      EightGates run;
#pragma unroll
      for (int j = 0; j < 4; ++j)
        run.f[j] = exp2_approximate(kLog2e *
                                    __uint_as_float(ptx::load_word(gates_at[j / 2] + (8 * eight + j % 2) * (32 * 4))));
      run.multiply();
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float two = run.other_two[h], four = run.other_four[h], f1 = run.f[2 * h + 1];
        runs.eight[eight][h] = run.eight[h];
        totals[h] *= run.eight[h];
        // As vector_sides.cuh multiplies where it has whole heads, so that no bit depends on which kernel makes R.
        if constexpr (kBoth) {
          const float up = (upper2 ? two : 1.0f) * (upper4 ? four : 1.0f), to_begin = run.f[2 * h] * up;
          const float2 a = product(unpack<Element>(left[m][h + 2 * i]), {to_begin, to_begin * f1});
          const float factor = inverse * runs.up32(m, i, h);
          put(eight, h, 0, a.x * factor, a.y * factor);
        }
        down[eight][h] = (upper2 ? 1.0f : two) * (upper4 ? 1.0f : four);
        odd[eight][h] = f1;
      }
    }
  }
  load(1, right);
  const float right_unit = side_unit(right);
  float after[2] = {inverse_of_power(right_unit), inverse_of_power(right_unit)};
#pragma unroll
  for (int m = kSideBlocks - 1; m >= 0; --m) {
#pragma unroll
    for (int i = 1; i >= 0; --i) {
      const int eight = 2 * m + i;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float2 b = unpack<Element>(right[m][h + 2 * i]);
        const float to_end = down[eight][h] * after[h];
        put(eight, h, Shared::kRight, b.x * (to_end * odd[eight][h]), b.y * to_end);
        after[h] *= runs.eight[eight][h];
      }
    }
  }
  if (t < 2)
    ptx::store_words(
        shared + Shared::kTotals + (16 * warp + g + 8 * t) * 16,
        {__float_as_uint(t ? +totals[1] : +totals[0]), __float_as_uint(right_unit), __float_as_uint(left_unit), 0});
}

template <int kRowPanels, int kColumnPanels, bool kBoth>
__global__ void __launch_bounds__(64 * (kRowPanels + kColumnPanels), 3)
    vector_side_states(const __grid_constant__ VectorSideStatesArguments p) {
  using Shared = VectorSideStatesShared<kRowPanels, kColumnPanels, kBoth>;
  extern __shared__ __align__(1024) char memory[];
  let_next_kernel_start();
  const uint32_t shared = ptx::shared_address(memory);
  const int warp = __shfl_sync(kEveryLane, threadIdx.x / 32, 0), lane = threadIdx.x % 32, panel = warp / 2,
            side = panel >= kRowPanels, chunks = static_cast<int>((p.length + kSideTokens - 1) / kSideTokens);
  const unsigned head = blockIdx.x;
  RowTile place{head, head / static_cast<unsigned>(p.heads),  head % static_cast<unsigned>(p.heads),
                head, (panel - (side ? kRowPanels : 0)) * 32, chunks,
                0};
  const auto load = [&](int chunk) {
    if (chunk < chunks) {
      place.chunk = chunk;
      load_side<Shared, kBoth, true>(p.sides[side], place, p.length, shared + chunk % 2 * Shared::kStage, panel,
                                     warp % 2, lane);
    }
    ptx::copies_commit();
  };
  SideStates<kRowPanels, kColumnPanels, kBoth> states{p, shared, warp, lane, head, chunks};
  load(0);
  load(1);
  states.begin(warp, p.initial);
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    ptx::copies_wait<1>();
    __syncthreads();
    scale_side<kRowPanels, kColumnPanels, kBoth>(shared, shared + chunk % 2 * Shared::kStage, warp, lane);
    __syncthreads();
    load(chunk + 2);
    states.forward(chunk);
  }
  if constexpr (kBoth) {
    __syncthreads();
    states.back();
  }
  end_after_previous_kernel();
}

}  // namespace lethe::matrix_state
