#pragma once
// The gradients of query, key, log f and β inside one chunk of one head, a CTA for 64 channels of it, from what the sweeps have left: S before the
// chunk, R after it, the residuals r and the gradient m of the values. With n = β ∘ r:
//
//   M_ij = scale dO_i·n_j, j ≤ i        Z_ij = −m_i·n_j, j < i
//   dq_i = γ_i ∘ (scale S dO_i) + Σ_j D_ij ∘ M_ij k_j
//   dk_i = D_Ci ∘ (R n_i) − γ_i ∘ (S m_i) + Σ_{l ≥ i} D_li ∘ (M_li q_l + Z_li k_l) + Σ_j D_ij ∘ Z_ij k_j
//
// So the gradients are those of a state that n is written to, and that q reads and k reads before its token writes: vector_gradient.cuh with two
// readers, by the same halvings. d log f sums exactly what a gate separates, by halving too.
//
// float16 is divided by one unit for all of a chunk: nothing later than the chunk is in any of these sums, but what later chunks' sums share.

#include "optimized/cuda/launch.cuh"
#include "optimized/cuda/matrix_state/delta_keys_block.cuh"
#include "optimized/cuda/matrix_state/delta_keys_gradient_tiles.cuh"

namespace lethe::matrix_state {

template <typename Element, int kRows, int kColumns>
struct DeltaKeyGradient : DeltaKeyGradientTiles<Element, kRows, kColumns> {
  using Tiles = DeltaKeyGradientTiles<Element, kRows, kColumns>;
  using Tiles::multiply_pairs;
  using Tiles::p, Tiles::warp, Tiles::lane, Tiles::b, Tiles::h, Tiles::first, Tiles::index, Tiles::tile, Tiles::kSteps;
  using Tiles::small, Tiles::at, Tiles::to_words, Tiles::load_state, Tiles::channel_of, Tiles::fetch_gates,
      Tiles::prefetch;
  using typename Tiles::Memory;

  __device__ __forceinline__ static void make_gates(EightGates& to, float (&logs)[2], const float (&raw)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float log = raw[j] * kLog2e;
      logs[j / 2] += log;
      to.f[j] = exp2_approximate(log);
    }
    to.multiply();
  }
  __device__ __forceinline__ uint32_t operand_at(int which) const {
    return at(Memory::kOperands) + (warp * 12 + which) * 512 + lane * 16;
  }
  // Left operands of halves of 16 · (1 + wide) tokens of block m: of the lower half keys, of the upper one those of reader r.
  __device__ __forceinline__ static int operand_of(int wide, int m, int r) {
    return r == 0 ? 6 * wide + m : 6 * wide + 4 + (wide ? m - 2 : m / 2);
  }
  __device__ __forceinline__ uint32_t products_at(int m, int half) const {
    return at(Memory::kProducts) + (warp * 4 + m) * 256 + (lane / 4 + 8 * half) * 16;
  }
  /// Block m's q and k, transposed: rows of the state by tokens.
  __device__ __forceinline__ void load_block(float (&to)[2][2][4], int m) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint32_t words[4];
      load_transposed_left(words, at(r ? Memory::kKey : Memory::kQuery), m, warp, lane);
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 two = unpack<__half>(words[half + 2 * i]);
          to[r][i][2 * half] = two.x, to[r][i][2 * half + 1] = two.y;
        }
    }
  }

  /// The operands of halves of 16 and 32 tokens, and the products of gates. Returns E_C of the channels.
  __device__ __forceinline__ void prepare(const float (&raw)[8][4], float (&total)[2]) const {
    const int t = lane % 4;
    const bool upper2 = t & 1, upper4 = t & 2;
    EightGates gates[8];
    float logs[2] = {};
    ChunkProducts runs;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      make_gates(gates[i], logs, raw[i]);
      runs.eight[i][0] = gates[i].eight[0], runs.eight[i][1] = gates[i].eight[1];
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) total[half] = exp2f(quad_total(logs[half]));
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      float rows[2][2][4];
      load_block(rows, m);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        uint32_t by16[4], by32[4];
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const EightGates& run = gates[2 * m + i];
            const int j = 2 * half;
            const float up[2] = {rows[r][i][j] * run.up(j, upper2, upper4),
                                 rows[r][i][j + 1] * run.up(j + 1, upper2, upper4)},
                        down[2] = {rows[1][i][j] * run.down(j, upper2, upper4),
                                   rows[1][i][j + 1] * run.down(j + 1, upper2, upper4)};
            const float up16 = runs.up16(m, i, half), up32 = runs.up32(m, i, half), down16 = runs.down16(m, i, half),
                        down32 = runs.down32(m, i, half);
            by16[half + 2 * i] =
                m % 2 ? pack<__half>(up[0] * up16, up[1] * up16) : pack<__half>(down[0] * down16, down[1] * down16);
            by32[half + 2 * i] =
                m / 2 ? pack<__half>(up[0] * up32, up[1] * up32) : pack<__half>(down[0] * down32, down[1] * down32);
          }
        if (r == 0 || m % 2) ptx::store_words(operand_at(operand_of(0, m, r)), {by16[0], by16[1], by16[2], by16[3]});
        if (r == 0 || m / 2) ptx::store_words(operand_at(operand_of(1, m, r)), {by32[0], by32[1], by32[2], by32[3]});
      }
      if (t == 0)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          ptx::store_words(
              products_at(m, half),
              {__float_as_uint(runs.eight[2 * m][half]), __float_as_uint(runs.eight[2 * m + 1][half]),
               __float_as_uint(runs.sixteen(m ^ 1, half)), __float_as_uint(runs.half_chunk(1 - m / 2, half))});
    }
    __syncwarp();
  }

  // Of row block r and column block c of a tile of pairs a right operand whose columns are its rows; or its columns.
  __device__ __forceinline__ void load_pairs(uint32_t (&to)[4], int reader, int r, int c) const {
    load_right_columns(to, at(Memory::kPairs + reader * kPanel), c, r, lane);
  }
  __device__ __forceinline__ void load_pairs_transposed(uint32_t (&to)[4], int reader, int r, int c) const {
    load_right_rows(to, at(Memory::kPairs + reader * kPanel), r, c, lane);
  }

  /// This warp's 16 channels of all tokens.
  __device__ __forceinline__ void run() const {
    const int g = lane / 4, t = lane % 4;
    const bool upper2 = t & 1, upper4 = t & 2;
    using Numbers = DeltaKeyTokens::Numbers;
    float residual_unit, written_unit, unit;
    const typename Tiles::Units units = Tiles::units_of(Tiles::fetch_unit());
    {
      typename Tiles::TokenWords residual, written;
      typename Tiles::GradientRows gradient;
      typename Tiles::Rows rows;
      Tiles::fetch_tokens(residual, p.arrays.residual);
      Tiles::fetch_tokens(written, p.arrays.written);
      Tiles::fetch_gradient(gradient);
      Tiles::fetch_rows(rows);
      const int64_t token = first + threadIdx.x % kChunk;
      const float beta = load_global(p.beta.log_forget + b * p.beta.batch_stride +
                                     min(token, p.length - 1) * p.beta.token_stride + h * p.beta.head_stride);
      prefetch();
      residual_unit = Tiles::store_tokens(residual, units, 0, Memory::kResidual);
      written_unit = Tiles::store_tokens(written, units, 1, Memory::kWritten);
      Tiles::store_gradient(gradient);
      if (threadIdx.x < kChunk) small().beta[threadIdx.x] = token < p.length ? beta : 0.0f;
      unit = Tiles::store_rows_of(rows);  // all threads meet in it
    }
    const float pair_unit = multiply_pairs(residual_unit, written_unit) * unit;
    __syncthreads();
    float raw[8][4], total[2];
#pragma unroll
    for (int i = 0; i < 8; ++i) fetch_gates(raw[i], i);
    prepare(raw, total);
    uint32_t before[kSteps][4], after[kSteps][4];
    const float before_unit = load_state(before, p.arrays.before, units, 2),
                after_unit = load_state(after, p.arrays.after, units, 3);
    float of_states[2] = {}, shared_terms[4][2] = {};
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 x = unpack<__half>(before[k][i]), r = unpack<__half>(after[k][i]);
        of_states[i % 2] += x.x * r.x + x.y * r.y;
      }
#pragma unroll
    for (int half = 0; half < 2; ++half)
      of_states[half] = quad_total(of_states[half]) * total[half] * before_unit * after_unit;

    const EightMasks masks(g, t);
    const int64_t stride = static_cast<int64_t>(p.heads) * p.rows;
    float* const grad_gate = p.grad_gate + (b * p.length + first + 2 * t) * stride + h * p.rows + channel_of(0);
    const int left = static_cast<int>(min(p.length - first - 2 * t, static_cast<int64_t>(kChunk)));
    const bool inside[2] = {channel_of(0) < p.rows, channel_of(1) < p.rows};
#pragma unroll 1
    for (int m = 0; m < 4; ++m) {
      const bool upper32 = m / 2, upper16 = m % 2;
      DeltaKeyTokens block(t);
      EightGates(&run)[2] = block.run;
      Numbers(&read)[2] = block.read;
      Numbers &write = block.write, &read_terms = block.read_terms, &write_terms = block.write_terms;
      float sibling[2], other_half[2];  // products of the block's sibling of 16 and of the other 32 tokens
      float logs[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) fetch_gates(logs[i], 2 * m + i);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 four = ptx::load_words(products_at(m, half));
        block.eights[0][half] = __uint_as_float(four.x);
        block.eights[1][half] = __uint_as_float(four.y);
        sibling[half] = __uint_as_float(four.z);
        other_half[half] = __uint_as_float(four.w);
      }
      load_block(block.reader, m);
      const Numbers& k = block.reader[1];
      // States outside the chunk.
      const auto of_state = [&](Numbers& sum, const uint32_t(&state)[kSteps][4], int offset) {
#pragma unroll
        for (int c = 0; c < kSteps; ++c) {
          uint32_t right[4];
          load_right_columns(right, at(offset), c, m, lane);
          ptx::multiply_add<__half>(sum[0], state[c], right[0], right[1]);
          ptx::multiply_add<__half>(sum[1], state[c], right[2], right[3]);
        }
      };
      of_state(read[0], before, Memory::kGradient);
      of_state(read[1], before, Memory::kWritten);
      of_state(write, after, Memory::kResidual);
      {
        float unused[2] = {};
#pragma unroll
        for (int i = 0; i < 2; ++i) make_gates(run[i], unused, logs[i]);
      }
      Numbers reader16[2], reader32[2], key16, key32;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = 16 * m + 8 * i + 2 * t;
        const float2 gradient_unit = *reinterpret_cast<const float2*>(&small().gradient_unit[token]),
                     beta = *reinterpret_cast<const float2*>(&small().beta[token]);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int half = j / 2;
          read[0][i][j] *= before_unit * (j % 2 ? gradient_unit.y : gradient_unit.x);
          read[1][i][j] *= -before_unit * written_unit;
          write[i][j] *= after_unit * residual_unit * (j % 2 ? beta.y : beta.x);
          const float up = run[i].up(j, upper2, upper4);
          read_terms[i][j] = 0.0f;
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            block.reader8[r][i][j] = block.reader[r][i][j] * up;
            reader16[r][i][j] = i ? block.reader8[r][i][j] * block.eights[0][half] : block.reader8[r][i][j];
            reader32[r][i][j] = reader16[r][i][j] * (upper16 ? sibling[half] : 1.0f);
            read_terms[i][j] += read[r][i][j] * reader32[r][i][j] * (upper32 ? other_half[half] : 1.0f);
          }
          block.key8[i][j] = k[i][j] * run[i].down(j, upper2, upper4);
          key16[i][j] = i ? block.key8[i][j] : block.key8[i][j] * block.eights[1][half];
          key32[i][j] = key16[i][j] * (upper16 ? 1.0f : sibling[half]);
          write_terms[i][j] = write[i][j] * key32[i][j] * (upper32 ? 1.0f : other_half[half]);
        }
      }
      // What the tokens give to the gates of the blocks of the other half of their run of 64 or 32, by lane.
      float to_half[2], to_sibling[2];
      const auto row_sums = [](const Numbers& x, float(&to)[2]) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
          to[half] = (x[0][2 * half] + x[0][2 * half + 1]) + (x[1][2 * half] + x[1][2 * half + 1]);
      };
      // Halves of 32 and 16 tokens: readers of the upper half by the lower one's keys, or keys of the lower one by the upper one's readers.
      const auto half_of = [&](Numbers& sum, int wide, int reader, int r, int c, bool upper) {
        uint32_t operand[4], right[4];
        to_words(operand, ptx::load_words(operand_at(upper ? operand_of(wide, c, 0) : operand_of(wide, r, reader))));
        if (upper) load_pairs(right, reader, r, c);
        else load_pairs_transposed(right, reader, r, c);
        ptx::multiply_add<__half>(sum[0], operand, right[0], right[1]);
        ptx::multiply_add<__half>(sum[1], operand, right[2], right[3]);
      };
      const auto add = [&](const Numbers& sum, Numbers& gradient, Numbers& terms, const Numbers& operand,
                           const float(&factor)[2]) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const float x = sum[i][j] * pair_unit;
            gradient[i][j] = gradient[i][j] * factor[j / 2] + x;
            terms[i][j] += x * operand[i][j];
          }
      };
      if (upper32) {
        row_sums(read_terms, to_half);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          Numbers sum = {};
          half_of(sum, 1, r, m, 0, true);
          half_of(sum, 1, r, m, 1, true);
          add(sum, read[r], read_terms, reader32[r], other_half);
        }
      } else {
        row_sums(write_terms, to_half);
        Numbers sum = {};
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          half_of(sum, 1, r, 2, m, false);
          half_of(sum, 1, r, 3, m, false);
        }
        add(sum, write, write_terms, key32, other_half);
      }
      if (upper16) {
        row_sums(read_terms, to_sibling);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          Numbers sum = {};
          half_of(sum, 0, r, m, m - 1, true);
          add(sum, read[r], read_terms, reader16[r], sibling);
        }
      } else {
        row_sums(write_terms, to_sibling);
        Numbers sum = {};
#pragma unroll
        for (int r = 0; r < 2; ++r) half_of(sum, 0, r, m + 1, m, false);
        add(sum, write, write_terms, key16, sibling);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int other = 0; other < 4; ++other) {
          shared_terms[other][half] += other / 2 == m / 2 ? 0.0f : to_half[half];
          shared_terms[other][half] += other == (m ^ 1) ? to_sibling[half] : 0.0f;
        }
      BlockPairs pairs[2];
      float2 own[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        load_pairs(pairs[r].diagonal, r, m, m);
        load_pairs_transposed(pairs[r].transposed, r, m, m);
        own[r] = *reinterpret_cast<const float2*>(&small().own[16 * m + 8 * r + 2 * t]);
        own[r] = {own[r].x * unit, own[r].y * unit};
      }
      block.halve(masks, pairs, pair_unit, own);
      // To the places of q and k, whose 16 channels this warp alone reads. The block's own part of d log f waits for the others'.
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int j = 2 * half; j < 2 * half + 2; ++j)
            if (16 * m + 8 * i + j % 2 < left && inside[half])
              grad_gate[(16 * m + 8 * i + j % 2) * stride + 8 * half] = block.y[i][j];
          const uint32_t to = at(0) + tile_piece(16 * m + 8 * i + g, 2 * warp + half) + 4 * t;
          const int j = 2 * half;
          ptx::store_word(to + Memory::kQuery, ptx::transposed(pack<Element>(read[0][i][j], read[0][i][j + 1])));
          ptx::store_word(to + Memory::kKey, ptx::transposed(pack<Element>(read[1][i][j] + write[i][j],
                                                                           read[1][i][j + 1] + write[i][j + 1])));
        }
    }
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) shared_terms[m][half] = quad_total(shared_terms[m][half]);
    // What the blocks have left of d log f: all of it is loaded before any of it is stored.
    float own_part[8][4] = {};
    const auto each_gate = [&](auto use) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (8 * i + j % 2 < left && inside[j / 2])
            use(own_part[i][j], grad_gate[(8 * i + j % 2) * stride + 8 * (j / 2)], i, j);
    };
    each_gate([](float& number, const float& y, int, int) { number = y; });
    each_gate([&](float& number, float& y, int i, int j) {
      y = (number + shared_terms[i / 2][j / 2]) * unit + of_states[j / 2];
    });
    __syncthreads();
    store();
  }

  /// This warp's 16 tokens of dq and dk, and of dβ.
  __device__ __forceinline__ void store() const {
    const int piece = lane % 8, channel = 64 * tile + 8 * piece;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 16 * warp + 4 * i + lane / 8;
      const uint4 dq = ptx::load_words(at(Memory::kQuery) + tile_piece(row, piece)),
                  dk = ptx::load_words(at(Memory::kKey) + tile_piece(row, piece));
      const int64_t token = first + row;
      if (token >= p.length || channel >= p.rows) continue;
      const int64_t to = (((b * p.length + token) * p.heads + h) * p.rows + channel) * 2;
      *reinterpret_cast<uint4*>(static_cast<char*>(p.grad_query) + to) = dq;
      *reinterpret_cast<uint4*>(static_cast<char*>(p.grad_key) + to) = dk;
    }
    const int64_t token = first + threadIdx.x;
    if (tile > 0 || threadIdx.x >= kChunk || token >= p.length) return;
    float sum = 0.0f;
    for (int w = 0; w < kSteps; ++w) sum += p.arrays.strength[(index * kSteps + w) * kChunk + threadIdx.x];
    p.grad_beta[(b * p.length + token) * p.heads + h] = sum;
  }
};

template <typename Element, int kRows, int kColumns>
__global__ void __launch_bounds__(kComputing, 2) delta_key_gradients(const __grid_constant__ DeltaKeyGradients p) {
  extern __shared__ __align__(1024) char memory[];
  // In the order in which chunks are swept from the last token back, all heads' together: the sweep may still run.
  const unsigned tiles = static_cast<unsigned>(p.rows + 63) / 64, order = blockIdx.x / tiles,
                 chunks = static_cast<unsigned>(p.chunks), heads = static_cast<unsigned>(p.heads),
                 all_heads = gridDim.x / tiles / chunks, head = order % all_heads,
                 chunk = chunks - 1 - order / all_heads;
  const DeltaKeyGradient<Element, kRows, kColumns> call{
      {p, memory, static_cast<int>(threadIdx.x / 32), static_cast<int>(threadIdx.x % 32), head / heads, head % heads,
       chunk * kChunk, head * chunks + chunk, static_cast<int>(blockIdx.x % tiles)}};
  wait_for_sweep(p, head, chunk);
  call.run();
  if (blockIdx.x + 1 == gridDim.x) wait_for_previous_kernel();  // the next one waits for this one alone
}

}  // namespace lethe::matrix_state
