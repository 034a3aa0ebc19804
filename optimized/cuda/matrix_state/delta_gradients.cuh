#pragma once
// The delta rule's gradients inside one chunk of one head, a CTA each, from what the passes before have left: S before the chunk, R after it, the
// residual of each token and the whole gradient dN̄ of what it wrote. With m = β ∘ dN̄ and n = β ∘ r:
//
//   M_ij = scale · D_ij dO_i·n_j, j ≤ i      Z_ij = −D_ij m_i·n_j, j < i
//   dQ = scale · γ ∘ dO Sᵀ + M K             dK = D_C ∘ n Rᵀ − γ ∘ m Sᵀ + Mᵀ Q + (Z + Zᵀ) K             dβ = r · dN̄
//   d log f_l = Σ_{i ≥ l > j} (M_ij q_i·k_j + Z_ij k_i·k_j) + Σ_{i ≥ l} (what S shares in dQ and dK, times q_i and k_i)
//               + Σ_{j < l} (what R shares in dK) k_j + γ_C ⟨S, R⟩
//
// M and Z are float16 with one unit each; so are the rows of Q and K here, since nothing later than the chunk is in any of these sums.
#include "optimized/cuda/matrix_state/crossings.cuh"
#include "optimized/cuda/matrix_state/delta_parts.cuh"

namespace lethe::matrix_state {

template <int kTiles>
struct DeltaGradientsShared {
  alignas(16) ChunkGates gates;
  alignas(16) float beta[kChunk];
  float residual_unit[kTiles][kChunk], written_unit[kTiles][kChunk], gradient_unit[kTiles][kChunk];
  float largest[2][kWarps];
  float pairs[2][kWarps]
             [kChunk];  ///< sums of pairs that a gate separates, by tile of the keys' columns and block of 16 rows
  float rows[kChunk], columns[kChunk];  ///< shares of each token, by what reads S and by what R reads
  float states[kWarps];                 ///< of ⟨S, R⟩
};

template <int kTiles>
struct DeltaGradientsMemory {
  static constexpr int kGradient = 0, kResidual = kTiles * kPanel, kWritten = 2 * kTiles * kPanel,
                       kBefore = 3 * kTiles * kPanel, kAfter = 4 * kTiles * kPanel, kQuery = 5 * kTiles * kPanel,
                       kKey = kQuery + kPanel, kReads = kKey + kPanel, kCorrections = kReads + kPanel,
                       kOthers = kCorrections + kPanel;
  static constexpr int kBytes = kOthers + sizeof(DeltaGradientsShared<kTiles>);
};

/// This warp's rows of a tile's image.
__device__ __forceinline__ void copy_image(uint32_t tile, const uint4* from, int block, int lane) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at = 128 * block + 32 * i + lane;
    ptx::copy_chunk(tile + 16 * at, from + at);
  }
}

/// The largest number of this warp's rows of a tile.
template <typename Element>
__device__ __forceinline__ float largest_of_rows(uint32_t tile, int block, int lane) {
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint4 piece = ptx::load_words(tile + 16 * (128 * block + 32 * i + lane));
    const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
    for (uint32_t word : words) {
      const float2 pair = unpack<Element>(word);
      largest = fmaxf(largest, fmaxf(fabsf(pair.x), fabsf(pair.y)));
    }
  }
  return __uint_as_float(__reduce_max_sync(kAllLanes, __float_as_uint(largest)));
}

/// This warp's rows of a tile become float16 times `factor`.
template <typename Element>
__device__ __forceinline__ void convert_rows(uint32_t tile, float factor, int block, int lane) {
  const auto scaled = [&](uint32_t word) {
    const float2 pair = unpack<Element>(word);
    return pack<__half>(pair.x * factor, pair.y * factor);
  };
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t at = tile + 16 * (128 * block + 32 * i + lane);
    const uint4 x = ptx::load_words(at);
    ptx::store_words(at, {scaled(x.x), scaled(x.y), scaled(x.z), scaled(x.w)});
  }
}

/// Row sums of the product of sums with a tile of float16, of rows g and g + 8; all four lanes of a row have them.
__device__ __forceinline__ void add_row_products(float (&to)[2], const Sums& sums, uint32_t tile, float factor,
                                                 int block, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const float2 x = unpack<__half>(ptx::load_word(at_piece(sums_address(tile, block, lane), c) + 1024 * half));
      sum += sums[c][2 * half] * x.x + sums[c][2 * half + 1] * x.y;
    }
    to[half] += factor * quad_sum(sum);
  }
}

template <typename Element, int kTiles>
__global__ void __launch_bounds__(kComputing, kTiles == 1 ? 3 : 2)
    delta_gradients(const __grid_constant__ DeltaGradients p) {
#if __CUDA_ARCH__ < 900  // where the kernel of wgmma runs instead
  using Memory = DeltaGradientsMemory<kTiles>;
  extern __shared__ __align__(1024) char memory[];
  const uint32_t base = ptx::shared_address(memory);
  auto& shared = *reinterpret_cast<DeltaGradientsShared<kTiles>*>(memory + Memory::kOthers);
  const int block = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, i0 = 16 * block + g;
  const int chunks = static_cast<int>((p.length + kChunk - 1) / kChunk);
  const int64_t index = blockIdx.x, head = index / chunks, b = head / p.heads, h = head % p.heads,
                first = index % chunks * kChunk, all_chunks = static_cast<int64_t>(p.batch) * p.heads * chunks;
  const bool gated = p.gate.log_forget != nullptr;
  const int key_tiles = (p.rows + 63) / 64, padded_rows = 64 * (p.rows <= 64 ? 1 : 2);
  const uint32_t query = base + Memory::kQuery, key = base + Memory::kKey, reads = base + Memory::kReads,
                 corrections = base + Memory::kCorrections;
  const auto tile_of = [&](int offset, int tile) { return base + offset + tile * kPanel; };
  const auto tile_index = [&](int tile) { return tile * all_chunks + index; };

#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    copy_rows<1>(tile_of(Memory::kGradient, tile), p.grad_values, b, h, 64 * tile, p.columns, first, p.length, block,
                 lane);
    copy_image(tile_of(Memory::kResidual, tile), p.arrays.residual + tile_index(tile) * (kPanel / 16), block, lane);
    copy_image(tile_of(Memory::kWritten, tile), p.arrays.written + tile_index(tile) * (kPanel / 16), block, lane);
  }
  ptx::copies_commit();
  const auto copy_keys = [&](int key_tile) {
    copy_rows<1>(query, p.query, b, h, 64 * key_tile, p.rows, first, p.length, block, lane);
    copy_rows<1>(key, p.key, b, h, 64 * key_tile, p.rows, first, p.length, block, lane);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int64_t at = tile_index(tile) * (padded_rows * 8) + key_tile * (kPanel / 16);
      copy_image(tile_of(Memory::kBefore, tile), p.arrays.before + at, block, lane);
      copy_image(tile_of(Memory::kAfter, tile), p.arrays.after + at, block, lane);
    }
    ptx::copies_commit();
  };
  copy_keys(0);
  if (block == 0) {
    RawChunk raw;
    raw.load(p.gate, p.beta, p.length, b, h, first, lane);
    prepare_gates(shared.gates, raw.gates, 1.0f, 1.0f, false, lane);
    *reinterpret_cast<float2*>(&shared.beta[2 * lane]) = raw.beta;
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const float* from = threadIdx.x < kChunk ? p.arrays.residual_unit : p.arrays.written_unit;
    float* to = threadIdx.x < kChunk ? shared.residual_unit[tile] : shared.written_unit[tile];
    to[threadIdx.x % kChunk] = from[tile_index(tile) * kChunk + threadIdx.x % kChunk];
  }
  ptx::copies_wait<1>();
  __syncthreads();

  // M and Z.
  Sums of_reads = {}, of_corrections = {};
  float strength[2] = {0.0f, 0.0f};
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const uint32_t gradient = tile_of(Memory::kGradient, tile), residual = tile_of(Memory::kResidual, tile),
                   written = tile_of(Memory::kWritten, tile);
    normalize_rows<Element, 1>(gradient, shared.gradient_unit[tile], block, lane);
    __syncwarp();
    Sums of_gradient = {}, of_written = {};
    multiply_rows<4>(of_gradient, of_written, gradient, written, residual, block, lane);
    const auto add = [&](Sums& to, const Sums& sums, const float* row_units) {
      const float unit[2] = {row_units[i0], row_units[i0 + 8]};
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        const float2 factor = *reinterpret_cast<const float2*>(&shared.residual_unit[tile][8 * c + 2 * t]);
#pragma unroll
        for (int e = 0; e < 4; ++e) to[c][e] += sums[c][e] * (unit[e / 2] * (e % 2 ? factor.y : factor.x));
      }
    };
    add(of_reads, of_gradient, shared.gradient_unit[tile]);
    add(of_corrections, of_written, shared.written_unit[tile]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = 0.0f;
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        const float2 x = unpack<__half>(ptx::load_word(at_piece(sums_address(residual, block, lane), c) + 1024 * half)),
                     y = unpack<__half>(ptx::load_word(at_piece(sums_address(written, block, lane), c) + 1024 * half));
        sum += x.x * y.x + x.y * y.y;
      }
      const int row = i0 + 8 * half;
      strength[half] += quad_sum(sum) * shared.residual_unit[tile][row] * shared.written_unit[tile][row];
    }
  }
  {
    const float beta[2] = {shared.beta[i0], shared.beta[i0 + 8]},
                sum[2] = {shared.gates.sum[i0], shared.gates.sum[i0 + 8]};
    const int first_seen[2] = {shared.gates.first_seen[i0], shared.gates.first_seen[i0 + 8]};
    float largest[2] = {0.0f, 0.0f};
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const int j = 8 * c + 2 * t;
      const float2 sum_j = *reinterpret_cast<const float2*>(&shared.gates.sum[j]),
                   beta_j = *reinterpret_cast<const float2*>(&shared.beta[j]);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int half = e / 2, row = i0 + 8 * half, at = j + e % 2;
        const float decay = exp2_approximate(sum[half] - (e % 2 ? sum_j.y : sum_j.x)) * (e % 2 ? beta_j.y : beta_j.x);
        const bool seen = sees(row, at, first_seen[half]);
        of_reads[c][e] = seen ? of_reads[c][e] * (p.scale * decay) : 0.0f;
        of_corrections[c][e] = seen && at < row ? -of_corrections[c][e] * (beta[half] * decay) : 0.0f;
        largest[0] = fmaxf(largest[0], fabsf(of_reads[c][e]));
        largest[1] = fmaxf(largest[1], fabsf(of_corrections[c][e]));
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t most = __reduce_max_sync(kAllLanes, __float_as_uint(largest[i]));
      if (lane == 0) shared.largest[i][block] = __uint_as_float(most);
    }
    if (t == 0)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (first + i0 + 8 * half < p.length)
          p.grad_beta[(b * p.length + first + i0 + 8 * half) * p.heads + h] = strength[half];
  }
  const auto unit_of = [&](int i) {
    const float(&x)[kWarps] = shared.largest[i];
    return power_of_two_below(fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])));
  };
  __syncthreads();
  const float reads_unit = unit_of(0), corrections_unit = unit_of(1);
  {
    const float of[2] = {reciprocal_of_power(reads_unit), reciprocal_of_power(reads_unit)},
                other[2] = {reciprocal_of_power(corrections_unit), reciprocal_of_power(corrections_unit)};
    store_rows<__half>(of_reads, of, reads, block, lane);
    store_rows<__half>(of_corrections, other, corrections, block, lane);
  }

  const int64_t token_bytes = static_cast<int64_t>(p.heads) * p.rows * 2;
  float row_shares[2] = {0.0f, 0.0f}, column_shares[2] = {0.0f, 0.0f}, states_share = 0.0f;
  for (int key_tile = 0; key_tile < key_tiles; ++key_tile) {
    if (key_tile > 0) copy_keys(key_tile);
    ptx::copies_wait<0>();
    __syncthreads();
    {
      const float most[2] = {largest_of_rows<Element>(query, block, lane), largest_of_rows<Element>(key, block, lane)};
      if (lane == 0) shared.largest[0][block] = most[0], shared.largest[1][block] = most[1];
    }
    __syncthreads();
    const float query_unit = unit_of(0), key_unit = unit_of(1);
    convert_rows<Element>(query, reciprocal_of_power(query_unit), block, lane);
    convert_rows<Element>(key, reciprocal_of_power(key_unit), block, lane);
    __syncthreads();

    const auto add_scaled = [&](Sums& to, const Sums& sums, const float(&factor)[2]) {
#pragma unroll
      for (int c = 0; c < 8; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e) to[c][e] += sums[c][e] * factor[e / 2];
    };
    const auto factor_of = [&](const float(&row_unit)[kTiles][kChunk], const float* units, int tile, int half) {
      return row_unit[tile][i0 + 8 * half] * units[tile_index(tile)];
    };
    const float beta[2] = {shared.beta[i0], shared.beta[i0 + 8]};
    const float read[2] = {shared.gates.read[i0], shared.gates.read[i0 + 8]},
                write[2] = {shared.gates.write[i0], shared.gates.write[i0 + 8]};
    Sums grad_query = {}, grad_key = {};
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      Sums of_gradient = {}, of_written = {};
      multiply_rows<4>(of_gradient, of_written, tile_of(Memory::kGradient, tile), tile_of(Memory::kWritten, tile),
                       tile_of(Memory::kBefore, tile), block, lane);
      float query_factor[2], key_factor[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        query_factor[half] = p.scale * read[half] * factor_of(shared.gradient_unit, p.arrays.before_unit, tile, half);
        key_factor[half] = -read[half] * beta[half] * factor_of(shared.written_unit, p.arrays.before_unit, tile, half);
      }
      add_scaled(grad_query, of_gradient, query_factor);
      add_scaled(grad_key, of_written, key_factor);
    }
    if (gated) {
      add_row_products(row_shares, grad_query, query, query_unit, block, lane);
      add_row_products(row_shares, grad_key, key, key_unit, block, lane);
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      Sums sums = {};
      multiply_rows<4>(sums, tile_of(Memory::kResidual, tile), tile_of(Memory::kAfter, tile), block, lane);
      float factor[2];
#pragma unroll
      for (int half = 0; half < 2; ++half)
        factor[half] = write[half] * beta[half] * factor_of(shared.residual_unit, p.arrays.after_unit, tile, half);
      scale_rows(sums, factor);
      if (gated) add_row_products(column_shares, sums, key, key_unit, block, lane);
      const float one[2] = {1.0f, 1.0f};
      add_scaled(grad_key, sums, one);
    }
    {
      Sums of_reads_of_keys = {}, of_corrected_keys = {};
#pragma unroll
      for (int k = 0; k < kWarps; ++k) {
        uint32_t read_left[4], left[4], transposed[4];
        load_left(read_left, reads, block, k, lane);
        load_left(left, corrections, block, k, lane);
        load_transposed_left(transposed, corrections, k, block, lane);
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          uint32_t b[4];
          load_right_rows(b, key, k, c, lane);
          const auto add = [&](Sums& to, const uint32_t(&a)[4]) {
            ptx::multiply_add<__half>(to[2 * c], a, b[0], b[1]);
            ptx::multiply_add<__half>(to[2 * c + 1], a, b[2], b[3]);
          };
          add(of_reads_of_keys, read_left);
          add(of_corrected_keys, left);
          add(of_corrected_keys, transposed);
        }
      }
      const float of_reads_unit[2] = {reads_unit * key_unit, reads_unit * key_unit},
                  of_corrections_unit[2] = {corrections_unit * key_unit, corrections_unit * key_unit};
      add_scaled(grad_query, of_reads_of_keys, of_reads_unit);
      add_scaled(grad_key, of_corrected_keys, of_corrections_unit);
    }
    {
      const float unit[2] = {reads_unit * query_unit, reads_unit * query_unit};
      Sums sums = {};
#pragma unroll
      for (int k = 0; k < kWarps; ++k) {
        uint32_t left[4];
        load_transposed_left(left, reads, k, block, lane);
        add_rows(sums, left, query, k, lane);
      }
      add_scaled(grad_key, sums, unit);
    }
    if (gated) {
      Sums pairs = {};
      const auto weigh = [&](const Sums& sums, uint32_t weights, float unit) {
#pragma unroll
        for (int c = 0; c < 8; ++c) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float2 w =
                unpack<__half>(ptx::load_word(at_piece(sums_address(weights, block, lane), c) + 1024 * half));
            pairs[c][2 * half] += sums[c][2 * half] * w.x * unit;
            pairs[c][2 * half + 1] += sums[c][2 * half + 1] * w.y * unit;
          }
        }
      };
      Sums of_queries = {}, of_keys = {};
      multiply_rows<4>(of_queries, of_keys, query, key, key, block, lane);
      weigh(of_queries, reads, reads_unit * query_unit * key_unit);
      weigh(of_keys, corrections, corrections_unit * key_unit * key_unit);
      sum_crossing_pairs(pairs, block, lane, shared.pairs[key_tile][block]);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = 16 * (128 * block + 32 * i + lane);
          const uint4 x = ptx::load_words(tile_of(Memory::kBefore, tile) + at),
                      y = ptx::load_words(tile_of(Memory::kAfter, tile) + at);
          const auto product = [](uint32_t x, uint32_t y) {
            const float2 a = unpack<__half>(x), b = unpack<__half>(y);
            return a.x * b.x + a.y * b.y;
          };
          sum += (product(x.x, y.x) + product(x.y, y.y)) + (product(x.z, y.z) + product(x.w, y.w));
        }
        states_share += sum * p.arrays.before_unit[tile_index(tile)] * p.arrays.after_unit[tile_index(tile)];
      }
    }
    __syncthreads();
    // Out through rows of the states, which are read.
    const float one[2] = {1.0f, 1.0f};
    const auto put = [&](const Sums& sums, uint32_t tile, void* tensor) {
      store_rows<Element>(sums, one, tile, block, lane);
      __syncwarp();
      char* const to =
          static_cast<char*>(tensor) + ((b * p.length + first) * p.heads + h) * p.rows * 2 + key_tile * 128;
      write_rows(to, token_bytes, p.length - first, p.rows - 64 * key_tile, tile, block, lane);
      __syncwarp();
    };
    put(grad_query, tile_of(Memory::kBefore, 0), p.grad_query);
    put(grad_key, tile_of(Memory::kAfter, 0), p.grad_key);
  }
  if (!gated) return;
  if (t == 0) {
    shared.rows[i0] = row_shares[0], shared.rows[i0 + 8] = row_shares[1];
    shared.columns[i0] = column_shares[0], shared.columns[i0 + 8] = column_shares[1];
  }
#pragma unroll
  for (int step = 1; step < 32; step *= 2) states_share += __shfl_xor_sync(kAllLanes, states_share, step);
  if (lane == 0) shared.states[block] = states_share;
  __syncthreads();
  const int l = threadIdx.x;
  if (l >= kChunk || first + l >= p.length) return;
  float sum = shared.gates.total * ((shared.states[0] + shared.states[1]) + (shared.states[2] + shared.states[3]));
  for (int key_tile = 0; key_tile < key_tiles; ++key_tile)
    for (int rows = l / 16; rows < kWarps; ++rows) sum += shared.pairs[key_tile][rows][l];
#pragma unroll 8
  for (int i = 0; i < kChunk; ++i) sum += i >= l ? shared.rows[i] : shared.columns[i];
  p.grad_gate[(b * p.length + first + l) * p.heads + h] = sum;
#endif
}

}  // namespace lethe::matrix_state
