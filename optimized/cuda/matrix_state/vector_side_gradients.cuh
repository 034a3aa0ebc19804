#pragma once
// The gradients of a warp's 16 channels in vector_sides.cuh: those of vector_gradient.cuh, with operands and B from shared memory.

#include "optimized/cuda/matrix_state/vector_block.cuh"
#include "optimized/cuda/matrix_state/vector_side_operands.cuh"

namespace lethe::matrix_state {

template <int kRowPanels, int kColumnPanels>
struct SideGradients {
  using Element = __nv_bfloat16;
  using Warp = SideWarp<kRowPanels, kColumnPanels>;
  using Operands = SideOperands<kRowPanels, kColumnPanels>;
  using Shared = VectorSidesShared<kRowPanels, kColumnPanels>;
  static constexpr int kMaxPanels = kRowPanels > kColumnPanels ? kRowPanels : kColumnPanels;
  const VectorSidesArguments& p;
  const Warp& at;

  /// Calls work with each 16 of the other side's channels.
  template <typename Work>
  __device__ __forceinline__ void each_step(Work work) const {
#pragma unroll
    for (int panel = 0; panel < kMaxPanels; ++panel) {
      if (panel >= Warp::panels_of(1 - at.side)) break;
      work(2 * panel);
      work(2 * panel + 1);
    }
  }

  /// A left operand at the lane's address: of S or R rows by columns, or columns by rows.
  __device__ __forceinline__ void load_state(uint32_t from, uint32_t (&to)[4]) const {
    if (at.side) ptx::load_matrices_transposed(to, from);
    else ptx::load_matrices(to, from);
  }

  __device__ __forceinline__ void run(const Operands& operands) const {
    const int lane = at.lane, g = lane / 4, t = lane % 4, other_side = 1 - at.side;
    // Of S and R the block of 16 by 16 of the warp's channels and the first of the other side's, and the bytes to the next one.
    const int own = at.place.row / 16 + at.half, step = (at.side ? 1 : 2 * kRowPanels) * 512,
              row = at.side ? lane % 8 + lane / 16 * 8 : lane % 16, piece = at.side ? lane / 8 % 2 : lane / 16;
    const uint32_t states = at.shared + Shared::kStates + (at.side ? 2 * kRowPanels : 1) * own * 512 +
                            pair_piece(row, piece),
                   pairs = at.pairs_of(other_side),
                   other_tile = at.shared + Warp::first_panel(other_side) * Shared::kTile;

    float sixteens[4][2];  // products of the gates of each block
    {
      const ChunkProducts runs = operands.products();
#pragma unroll
      for (int m = 0; m < 4; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) sixteens[m][h] = runs.sixteen(m, h);
    }
    // ⟨S, R⟩ of each channel, times all gates of the chunk: what every gate of a block separates, of other blocks, begins with it. By lane, summed over the
    // lanes of a channel at the end.
    float shared_terms[4][2] = {};
    each_step([&](int c) {
      uint32_t s[4], r[4];
      load_state(states + c * step, s);
      load_state(states + c * step + Shared::kState, r);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 a = unpack<Element>(s[i]), b = unpack<Element>(r[i]),
                     gates = ptx::load_floats(
                         at.shared + Shared::kTotals +
                         (Warp::first_panel(other_side) * Shared::kPanel + 16 * c + 8 * (i / 2) + 2 * t) * 4);
        shared_terms[0][i % 2] += a.x * (b.x * gates.x) + a.y * (b.y * gates.y);
      }
    });
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      shared_terms[0][h] *= (sixteens[0][h] * sixteens[1][h]) * (sixteens[2][h] * sixteens[3][h]);
#pragma unroll
      for (int m = 1; m < 4; ++m) shared_terms[m][h] = shared_terms[0][h];
    }

    const EightMasks masks(g, t);
    const auto no_unit = [] { return 1.0f; };
    const uint32_t rows_at = pairs + ptx::swizzled_chunk<kTokens>(lane % 8 + lane / 16 * 8, lane / 8 % 2),
                   transposed_at = pairs + ptx::swizzled_chunk<kTokens>(lane % 16, lane / 16);
    // B of row block r and column block c as a right operand whose columns are its rows; or its columns.
    const auto load_pairs = [&](int r, int c, uint32_t(&to)[4]) {
      ptx::load_matrices(to, steps_right<kTokens>(rows_at, c) + 16 * r * (kTokens * 2));
    };
    const auto load_pairs_transposed = [&](int r, int c, uint32_t(&to)[4]) {
      ptx::load_matrices_transposed(to, steps_right<kTokens>(transposed_at, c) + 16 * r * (kTokens * 2));
    };
    const uint32_t channels_at = at.channels_at(0) + ptx::swizzled_chunk<kTokens>(lane % 16, lane / 16);
    const uint32_t tokens_at = other_tile + ptx::swizzled_chunk<kTokens>(lane % 16, lane / 16);

#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const bool upper32 = m / 2, upper16 = m % 2;
      VectorBlock<Element> block(t);
      float(&q)[2][4] = block.q, (&k)[2][4] = block.k, (&dq)[2][4] = block.dq, (&dk)[2][4] = block.dk;
      EightGates(&run)[2] = block.run;
      float sibling[2], other_half[2];  // products of the block's sibling of 16 and of the other 32 tokens
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float2 eights = ptx::load_floats(at.products_at(m, h));
        block.eights[0][h] = eights.x;
        block.eights[1][h] = eights.y;
        sibling[h] = sixteens[m ^ 1][h];
        other_half[h] = sixteens[m ^ 2][h] * sixteens[m ^ 3][h];
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) run[i].f[j] = __uint_as_float(ptx::load_word(at.gate_at(2 * m + i, j)));
        run[i].multiply();
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float2 a = unpack<Element>(operands.left[m][h + 2 * i]),
                       b = unpack<Element>(operands.right[m][h + 2 * i]);
          q[i][2 * h] = a.x, q[i][2 * h + 1] = a.y, k[i][2 * h] = b.x, k[i][2 * h + 1] = b.y;
        }
      }
      // States outside the chunk.
      each_step([&](int c) {
        uint32_t left[4], right[4];
        const uint32_t from = steps_right<kTokens>(tokens_at, m) + c * (16 * kTokens * 2);
        load_state(states + c * step, left);
        ptx::load_matrices_transposed(right, from);
        ptx::multiply_add<Element>(dq[0], left, right[0], right[1]);
        ptx::multiply_add<Element>(dq[1], left, right[2], right[3]);
        load_state(states + c * step + Shared::kState, left);
        ptx::load_matrices_transposed(right, from + Shared::kRight);
        ptx::multiply_add<Element>(dk[0], left, right[0], right[1]);
        ptx::multiply_add<Element>(dk[1], left, right[2], right[3]);
      });
      block.multiply();
      // Halves of 32 and 16 tokens: rows of the upper half by the lower one's keys, or keys of the lower one by the upper one's queries: those of block n.
      const auto add_half = [&](int level, int n, bool is_upper, float(&gradient)[2][4], const float(&factor)[2]) {
        uint32_t left[4], right[4];
        ptx::load_matrices(left, steps_right<kTokens>(channels_at, n) + level * Shared::kOperand);
        if (is_upper) load_pairs(m, n, right);
        else load_pairs_transposed(n, m, right);
        block.add_product(gradient[0], factor, left, right[0], right[1], no_unit);
        block.add_product(gradient[1], factor, left, right[2], right[3], no_unit);
      };
      // What the tokens give to the gates of the blocks of the other half of their run of 64 or 32, by lane.
      float to_half[2], to_sibling[2];
      constexpr float kOne[2] = {1.0f, 1.0f};
      if (upper32) {
        block.query_sums(to_half);
        add_half(0, 0, true, dq, other_half);
        add_half(0, 1, true, dq, kOne);
      } else {
        block.key_sums(to_half);
        add_half(0, 2, false, dk, other_half);
        add_half(0, 3, false, dk, kOne);
      }
      if (upper16) {
        block.query_sums(to_sibling);
        add_half(1, m - 1, true, dq, sibling);
      } else {
        block.key_sums(to_sibling);
        add_half(1, m + 1, false, dk, sibling);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        to_sibling[h] *= sibling[h];
        to_half[h] *= other_half[h] * (upper16 == upper32 ? sibling[h] : 1.0f);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int other = 0; other < 4; ++other) {
          shared_terms[other][h] += other / 2 == m / 2 ? 0.0f : to_half[h];
          shared_terms[other][h] += other == (m ^ 1) ? to_sibling[h] : 0.0f;
        }
      uint32_t diagonal[4], transposed[4];
      load_pairs(m, m, diagonal);
      load_pairs_transposed(m, m, transposed);
      block.halve(masks, diagonal, transposed, no_unit, pairs, m);
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) ptx::store_word(at.gate_at(2 * m + i, j), __float_as_uint(block.y[i][j]));
      store_block(m, dq, dk);
    }
    __syncwarp();
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float total = quad_total(shared_terms[m][h]);
        if (t == 0) ptx::store_word(sums_at(m) + (g + 8 * h) * 4, __float_as_uint(total));
      }
    __syncwarp();
    store_gates();
  }

  __device__ __forceinline__ uint32_t sums_at(int m) const {
    return at.shared + Shared::kProducts + (at.warp * 4 + m) * 128;
  }

  /// Stores dq and dk of a block through the warp's operands of halves of 8, which no warp needs any more: 16 tokens by 32 bytes of each, blocks in turn in two
  /// places.
  __device__ __forceinline__ void store_block(int m, const float (&dq)[2][4], const float (&dk)[2][4]) const {
    const VectorSide& own = p.sides[at.side];
    const uint32_t stage = at.channels_at(2);
    const int g = at.lane / 4, t = at.lane % 4, pieces = m % 2 * 4;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const auto put = [&](int piece, const float(&x)[2][4]) {
          ptx::store_word(stage + ptx::swizzled_chunk<kTokens>(8 * i + g, pieces + piece + h) + 4 * t,
                          ptx::transpose_matrix(pack<Element>(x[i][2 * h], x[i][2 * h + 1])));
        };
        put(0, dq);
        put(2, dk);
      }
    __syncwarp();
    const int row = at.lane % 16, piece = at.lane / 16, channel = at.place.row + 16 * at.half + 8 * piece;
    const int64_t token = at.place.first() + kBlock * m + row,
                  to = ((at.place.b * p.length + token) * p.heads + at.place.h) * own.channels + channel;
    if (token >= p.length || channel >= own.channels) return;
    const auto put = [&](void* gradient, int first) {
      *reinterpret_cast<uint4*>(static_cast<char*>(gradient) + to * 2) =
          ptx::load_words(stage + ptx::swizzled_chunk<kTokens>(row, pieces + first + piece));
    };
    if (own.grad_left) put(own.grad_left, 0);
    put(own.grad_right, 2);
  }

  /// Stores d log f, which is in the place of the gates but for what the tokens of a block have in common.
  __device__ __forceinline__ void store_gates() const {
    const VectorSide& own = p.sides[at.side];
    const int piece = at.lane % 4, channel = at.place.row + 16 * at.half + 4 * piece;
    if (channel >= own.channels) return;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int row = 8 * i + at.lane / 8 + at.lane / 4 % 2 * 4;
      const int64_t token = at.place.first() + row;
      const uint4 x = ptx::load_words(at.shared + Shared::kGates + at.panel * (2 * Shared::kTile) +
                                      side_gate_offset(row, 16 * at.half + 4 * piece)),
                  y = ptx::load_words(sums_at(i / 2) + piece * 16);
      const auto sum = [](uint32_t a, uint32_t b) { return __uint_as_float(a) + __uint_as_float(b); };
      if (token < p.length)
        *reinterpret_cast<float4*>(own.grad_gate +
                                   ((at.place.b * p.length + token) * p.heads + at.place.h) * own.channels +
                                   channel) = {sum(x.x, y.x), sum(x.y, y.y), sum(x.z, y.z), sum(x.w, y.w)};
    }
  }
};

}  // namespace lethe::matrix_state
