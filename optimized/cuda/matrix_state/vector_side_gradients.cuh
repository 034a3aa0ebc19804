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

  /// next: the chunk whose gates come meanwhile; −1: none
  __device__ __forceinline__ void run(const Operands& operands, int next) const {
    const int lane = at.lane, g = lane / 4, t = lane % 4, other_side = 1 - at.side;
    // Of S and R the block of 16 by 16 of the warp's channels and the first of the other side's, and the bytes to the next one.
    const int own = at.place.row / 16 + at.half, step = (at.side ? 1 : 2 * kRowPanels) * 512;
    const uint32_t states = at.shared + Shared::kStates + (at.side ? 2 * kRowPanels : 1) * own * 512 +
                            (at.side ? pair_piece(lane % 8 + lane / 16 * 8, lane / 8 % 2)
                                     : pair_piece(lane % 16, lane / 16)),
                   pairs = at.pairs_of(other_side),
                   other_tile = at.shared + Warp::first_panel(other_side) * Shared::kTile;

    {
      const uint32_t(&a)[4] = operands.left[0], (&b)[4] = operands.right[0];
      ptx::store_words(at.operands_at(0), {a[0], a[1], a[2], a[3]});
      ptx::store_words(at.operands_at(0) + 512, {b[0], b[1], b[2], b[3]});
    }
    const EightMasks masks(g, t);
    const auto no_unit = [] { return 1.0f; };
    const uint32_t rows_at = pairs + ptx::swizzled_chunk<kSideTokens>(lane % 8 + lane / 16 * 8, lane / 8 % 2),
                   transposed_at = pairs + ptx::swizzled_chunk<kSideTokens>(lane % 16, lane / 16);
    // B of row block r and column block c as a right operand whose columns are its rows; or its columns.
    const auto load_pairs = [&](int r, int c, uint32_t(&to)[4]) {
      ptx::load_matrices(to, steps_right<kSideTokens>(rows_at, c) + 16 * r * (kSideTokens * 2));
    };
    const auto load_pairs_transposed = [&](int r, int c, uint32_t(&to)[4]) {
      ptx::load_matrices_transposed(to, steps_right<kSideTokens>(transposed_at, c) + 16 * r * (kSideTokens * 2));
    };
    // A block of S or R as a left operand whose rows are the warp's channels.
    const auto load_state = [&](uint32_t(&to)[4], uint32_t from) {
      if (at.side) ptx::load_matrices_transposed(to, from);
      else ptx::load_matrices(to, from);
    };
    const uint32_t channels_at = at.channels_at(0) + ptx::swizzled_chunk<kSideTokens>(lane % 16, lane / 16);
    const uint32_t tokens_at = other_tile + ptx::swizzled_chunk<kSideTokens>(lane % 16, lane / 16);

#pragma unroll
    for (int m = 0; m < kSideBlocks; ++m) {
      VectorBlock<Element> block(t);
      float(&q)[2][4] = block.q, (&k)[2][4] = block.k, (&dq)[2][4] = block.dq, (&dk)[2][4] = block.dk;
      EightGates(&run)[2] = block.run;
      float sibling[2];  // products of the other block's gates
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float2 eights = ptx::load_floats(at.products_at(m, h)),
                     of_sibling = ptx::load_floats(at.products_at(m ^ 1, h));
        block.eights[0][h] = eights.x;
        block.eights[1][h] = eights.y;
        sibling[h] = of_sibling.x * of_sibling.y;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) run[i].f[j] = __uint_as_float(ptx::load_word(at.gate_at(2 * m + i, j)));
        run[i].multiply();
      }
      const auto unpack_operands = [&](const uint32_t(&a)[4], const uint32_t(&b)[4]) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const float2 x = unpack<Element>(a[h + 2 * i]), z = unpack<Element>(b[h + 2 * i]);
            q[i][2 * h] = x.x, q[i][2 * h + 1] = x.y, k[i][2 * h] = z.x, k[i][2 * h + 1] = z.y;
          }
      };
      const auto load_operands = [&] {
        const uint4 left = ptx::load_words(at.operands_at(m)), right = ptx::load_words(at.operands_at(m) + 512);
        const uint32_t a[4] = {left.x, left.y, left.z, left.w}, b[4] = {right.x, right.y, right.z, right.w};
        unpack_operands(a, b);
      };
      if (m == 0) unpack_operands(operands.left[0], operands.right[0]);
      else load_operands();
      // What every gate of the chunk separates, by lane.
      float terms[2] = {};
      // States outside the chunk.
      each_step([&](int c) {
        uint32_t s[4], r[4], right[4];
        const uint32_t from = steps_right<kSideTokens>(tokens_at, m) + c * (16 * kSideTokens * 2);
        load_state(s, states + c * step);
        ptx::load_matrices_transposed(right, from);
        ptx::multiply_add<Element>(dq[0], s, right[0], right[1]);
        ptx::multiply_add<Element>(dq[1], s, right[2], right[3]);
        load_state(r, states + c * step + Shared::kState);
        ptx::load_matrices_transposed(right, from + Shared::kRight);
        ptx::multiply_add<Element>(dk[0], r, right[0], right[1]);
        ptx::multiply_add<Element>(dk[1], r, right[2], right[3]);
        if (m > 0) return;
          // ⟨S, R⟩ of each channel, times the other side's gates.
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 x = unpack<Element>(s[i]), z = unpack<Element>(r[i]),
                       gates = ptx::load_floats(
                           at.shared + Shared::kTotals +
                           (Warp::first_panel(other_side) * Shared::kPanel + 16 * c + 8 * (i / 2) + 2 * t) * 4);
          terms[i % 2] += x.x * (z.x * gates.x) + x.y * (z.y * gates.y);
        }
      });
      if (m == 0) {
#pragma unroll
        for (int h = 0; h < 2; ++h) terms[h] *= block.eights[0][h] * block.eights[1][h] * sibling[h];
        ptx::store_floats(terms_at(), terms[0], terms[1]);
      } else {
        const float2 common = ptx::load_floats(terms_at());
        terms[0] = common.x, terms[1] = common.y;
      }
      block.multiply();
      // Halves of 16 tokens: rows of the upper one by the lower one's keys, or keys of the lower one by the upper one's queries. And what the tokens
      // give to the gates of the other block, by lane.
      float to_sibling[2];
      {
        uint32_t left[4], right[4];
        ptx::load_matrices(left, steps_right<kSideTokens>(channels_at, m ^ 1));
        if (m) {
          block.query_sums(to_sibling);
          load_pairs(1, 0, right);
        } else {
          block.key_sums(to_sibling);
          load_pairs_transposed(1, 0, right);
        }
        float(&gradient)[2][4] = m ? dq : dk;
        block.add_product(gradient[0], sibling, left, right[0], right[1], no_unit);
        block.add_product(gradient[1], sibling, left, right[2], right[3], no_unit);
      }
      if (m == kSideBlocks - 1 && next >= 0) {
        __syncwarp();
        at.load_gates(next);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float total = quad_total(terms[h] + to_sibling[h] * sibling[h]);
        if (t == 0) ptx::store_word(sums_at(m ^ 1) + (g + 8 * h) * 4, __float_as_uint(total));
      }
      uint32_t diagonal[4], transposed[4];
      load_pairs(m, m, diagonal);
      load_pairs_transposed(m, m, transposed);
      block.halve(masks, diagonal, transposed, no_unit);
      // Loaded and multiplied once more: kept, they would take 24 registers.
      load_operands();
      block.multiply_two();
      block.neighbours(diagonal, no_unit, pairs + Shared::kDiagonal + kBlock * m * 4);
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) ptx::store_word(at.gate_at(2 * m + i, j), __float_as_uint(block.y[i][j]));
      __syncwarp();
      store_block(m, dq, dk);
    }
    __syncwarp();
    store_gates();
  }

  /// Where each block's 16 channels have the terms that all its gates have in common; and the lane its part of those that are common to both.
  __device__ __forceinline__ uint32_t sums_at(int m) const {
    return at.shared + Shared::kTerms + at.warp * Shared::kTermBytes + m * 64;
  }
  __device__ __forceinline__ uint32_t terms_at() const { return sums_at(2) + at.lane * 8; }

  /// Stores dq and dk of a block through the warp's operands of halves of 8, or what is after these, which no warp needs any more: 16 tokens by
  /// 32 bytes of each.
  __device__ __forceinline__ void store_block(int m, const float (&dq)[2][4], const float (&dk)[2][4]) const {
    const VectorSide& own = p.sides[at.side];
    const int64_t first = first_of_own();
    const int tokens = tokens_left(), step = p.heads * own.channels;
    const uint32_t stage = at.channels_at(1 + m),
                   to_stage = stage + ptx::swizzled_chunk<kSideTokens>(at.lane % 8 + at.lane / 16 * 8, at.lane / 8 % 2);
    const auto put = [&](uint32_t to, const float(&x)[2][4]) {
      uint32_t packed[4];
      VectorBlock<Element>::pack_left(x, packed);
      ptx::store_fragments_transposed(to, packed);
    };
    put(to_stage, dq);
    put(to_stage ^ 2 << 4, dk);
    __syncwarp();
    const int row = at.lane % 16, piece = at.lane / 16, channel = at.place.row + 16 * at.half + 8 * piece;
    if (kBlock * m + row >= tokens || channel >= own.channels) return;
    const uint32_t from = stage + ptx::swizzled_chunk<kSideTokens>(row, piece);
    const int64_t further = (first + (kBlock * m + row) * step + 8 * piece) * 2;
    if (own.grad_left) *reinterpret_cast<uint4*>(static_cast<char*>(own.grad_left) + further) = ptx::load_words(from);
    *reinterpret_cast<uint4*>(static_cast<char*>(own.grad_right) + further) = ptx::load_words(from ^ 2 << 4);
  }

  /// The chunk's tokens, where the sequence ends in it; and where the first one's gradients of the warp's channels are.
  __device__ __forceinline__ int tokens_left() const {
    return static_cast<int>(min(p.length - at.first_token(), static_cast<int64_t>(kSideTokens)));
  }
  __device__ __forceinline__ int64_t first_of_own() const {
    return ((at.place.b * p.length + at.first_token()) * p.heads + at.place.h) * p.sides[at.side].channels +
           at.place.row + 16 * at.half;
  }

  /// Stores d log f, which is in the place of the gates but for what the tokens of a block have in common.
  __device__ __forceinline__ void store_gates() const {
    const VectorSide& own = p.sides[at.side];
    const int piece = at.lane % 4, row = at.lane / 8 + at.lane / 4 % 2 * 4, tokens = tokens_left(),
              step = p.heads * own.channels;
    if (at.place.row + 16 * at.half + 4 * piece >= own.channels) return;
    const uint32_t from = at.shared + Shared::kGates + at.panel * (2 * Shared::kTile) +
                          side_gate_offset(row, 16 * at.half + 4 * piece),
                   sums = sums_at(0) + piece * 16;
    float* const to = own.grad_gate + first_of_own() + row * step + 4 * piece;
#pragma unroll
    for (int i = 0; i < 2 * kSideBlocks; ++i) {
      const uint4 x = ptx::load_words(from + 8 * i * (Shared::kPanel * 4)), y = ptx::load_words(sums + i / 2 * 64);
      const auto sum = [](uint32_t a, uint32_t b) { return __uint_as_float(a) + __uint_as_float(b); };
      const float4 sums_of_four = make_float4(sum(x.x, y.x), sum(x.y, y.y), sum(x.z, y.z), sum(x.w, y.w));
      if (8 * i + row < tokens) *reinterpret_cast<float4*>(to + 8 * i * step) = sums_of_four;
    }
  }
};

}  // namespace lethe::matrix_state
