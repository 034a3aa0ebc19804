#pragma once
// W = (I + G β)⁻¹ G of every chunk (delta_forward.cuh), by one warp from its keys to what it leaves, so that no warp waits for another one. It has the
// next chunk's keys loaded meanwhile. delta_solve_beside.cuh has chunks solved while others are swept.
//
// L = I − W β = (I − N)⁻¹, N = −G β, by halves of 32 rows and of 64: N = [A 0; C B] has Tᵀ = L_Aᵀ Cᵀ and L_C = L_B T. Of both products the right operand is
// what the lanes hold of C and of Tᵀ, so that few blocks are transposed. The code of a chunk should have room in the instruction cache.

#include "optimized/cuda/hopper/ptx/largest.cuh"
#include "optimized/cuda/launch.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_arguments.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_folded.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_solve_blocks.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_units.cuh"
#include "optimized/cuda/matrix_state/hopper/products.cuh"
#include "optimized/cuda/ptx/copy_async.cuh"

namespace lethe::matrix_state {

/// Of a CTA whose kSolvers warps solve chunks: their tiles, then what else each has. kBlocks: of 64 columns of the keys.
template <int kBlocks, int kSolvers>
struct SolveShared {
  struct alignas(128) Solver {
    char diagonal[kWarps * 1024];
    ChunkGates gates;
    float beta[kChunk], gate[kChunk];  ///< of the next chunk, as they are in memory
    uint64_t full;

    // These lie over numbers that nothing reads or writes here.
    __device__ float* key_unit() { return gates.read; }
    __device__ float* negative() { return gates.write; }  ///< −β; then over that its reciprocal, and the key's unit's
  };
  static constexpr int kTile = kBlocks * kPanel, kThreads = 32 * kSolvers;
  static constexpr int kBytes = kSolvers * (kTile + static_cast<int>(sizeof(Solver)));
};

/// A warp that solves chunks in turn, one of kSolvers of its CTA. kMarks: it publishes each one that is solved.
template <typename Element, int kBlocks, int kSolvers, bool kMarks>
struct ChunkSolver {
  using Shared = SolveShared<kBlocks, kSolvers>;
  using Solver = typename Shared::Solver;
  static constexpr bool kLeavesTokens = kBlocks == 2;
  /// The triangle's blocks, by lower_block().
  using Triangle = Block[kLowerBlocks];
  const DeltaSolveArguments& p;
  char* const tile;
  Solver& own;
  const int solver, lane;  ///< of the CTA's warps, its lane

  __device__ ChunkSolver(const DeltaSolveArguments& arguments, char* memory, int warp)
      : p(arguments), tile(memory + warp * Shared::kTile),
        own(*reinterpret_cast<Solver*>(memory + kSolvers * Shared::kTile + warp * static_cast<int>(sizeof(Solver)))),
        solver(warp), lane(static_cast<int>(threadIdx.x % 32)) {}

  /// The number of chunks, and of the k-th of this warp among them; that is no smaller when there are no more.
  __device__ int all() const { return p.all_heads * p.chunks; }
  __device__ int order(int k) const {
    const int place = static_cast<int>(blockIdx.x) * kSolvers + solver,
              solvers = static_cast<int>(gridDim.x) * kSolvers;
    if (!kMarks || k < p.rounds) return place + k * solvers;
    if (static_cast<int>(blockIdx.x) >= p.staying) return all();
    return p.rounds * solvers + place + (k - p.rounds) * p.staying * kSolvers;
  }
  /// Where a chunk is.
  struct At {
    unsigned head, chunk;

    __device__ At(const DeltaSolveArguments& p, int order)
        : head(order % static_cast<unsigned>(p.all_heads)), chunk(order / static_cast<unsigned>(p.all_heads)) {}
    /// Among those of all heads.
    __device__ int64_t index(const DeltaSolveArguments& p) const { return int64_t{head} * p.chunks + chunk; }
  };

  /// Begins to load a chunk: its keys; of its strengths and gates a lane the two that it reads itself.
  __device__ __forceinline__ void load(const At& at) const {
    const unsigned b = at.head / static_cast<unsigned>(p.heads), h = at.head % static_cast<unsigned>(p.heads),
                   first = at.chunk * kChunk;
    if (lane == 0) {
      ptx::mbarrier_arrive_expect(&own.full, Shared::kTile);
      load_tile_of<kBlocks>(tile, p.map, p.key, &own.full, 0, first, b, h);
    }
    const auto copy = [&](float* to, const Gates& from) {
      const float* const start = from.log_forget + b * from.batch_stride + h * from.head_stride;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int64_t token = int64_t{first} + 2 * lane + i;
        ptx::copy_word(ptx::shared_address(to + 2 * lane + i), start + token * from.token_stride, token < p.length);
      }
    };
    copy(own.beta, p.beta);
    if (p.gate.log_forget) copy(own.gate, p.gate);
    ptx::copies_commit();
  }

  /// The products of keys, and of lane 4g + t the largest numbers of rows g and g + 8 of block t.
  __device__ __forceinline__ float2 multiply_keys(Triangle& products) const {
    const uint32_t keys = ptx::shared_address(tile), rows = rows_address(keys, 0, lane),
                   columns = columns_address(keys, 0, lane);
    uint32_t most[kWarps][2] = {};
#pragma unroll
    for (int i = 0; i < 8 * kLowerBlocks; ++i) products[i / 8][i / 4 % 2][i % 4] = 0.0f;
#pragma unroll 1
    for (int k = 0; k < 4 * kBlocks; ++k) {
      const uint32_t panel = kBlocks == 1 ? 0 : k / 4 * kPanel, of_rows = at_piece(rows, 2 * (k % 4)) + panel,
                     of_columns = at_piece(columns, 2 * (k % 4)) + panel;
      uint32_t right[kWarps][4];  // loaded once more as what it is to the right, in pairs of registers
#pragma unroll
      for (int i = 0; i < kWarps; ++i) {
        uint32_t left[4];
        ptx::load_matrices(right[i], of_columns + 2048 * i);
        ptx::load_matrices(left, of_rows + 2048 * i);
#pragma unroll
        for (int half = 0; half < 2; ++half)
          most[i][half] = ptx::larger_magnitudes<Element>(most[i][half],
                                                          ptx::larger_magnitudes<Element>(left[half], left[2 + half]));
#pragma unroll
        for (int j = 0; j <= i; ++j)
#pragma unroll
          for (int n = 0; n < 2; ++n)
            ptx::multiply_add<Element>(products[lower_block(i, j)][n], left, right[j][2 * n], right[j][2 * n + 1]);
      }
    }
    uint32_t both[kWarps];
#pragma unroll
    for (int i = 0; i < kWarps; ++i)
      both[i] = ptx::larger_magnitudes<Element>(__byte_perm(most[i][0], most[i][1], 0x5410),
                                                __byte_perm(most[i][0], most[i][1], 0x7632));
    const auto exchanged = [&](uint32_t first, uint32_t second, int step) {  // lanes with the bit keep the second one
      const bool later = lane & step;
      return ptx::larger_magnitudes<Element>(later ? second : first,
                                             __shfl_xor_sync(kAllLanes, later ? first : second, step));
    };
    return unpack<Element>(exchanged(exchanged(both[0], both[1], 1), exchanged(both[2], both[3], 1), 2) & 0x7fff7fff);
  }

  /// N from the products of keys; on its diagonal these, after it zeros.
  __device__ __forceinline__ void weigh(Triangle& g) const {
    const int row = lane / 4, column = lane % 4 * 2;
    if (p.gate.log_forget) {
      const ChunkGates& gates = own.gates;
#pragma unroll
      for (int i = 0; i < kWarps; ++i) {
        const float sum[2] = {gates.sum[16 * i + row], gates.sum[16 * i + row + 8]};
#pragma unroll
        for (int c = 0; c <= 2 * i + 1; ++c) {
          const float2 before = *reinterpret_cast<const float2*>(&gates.sum[8 * c + column]);
          float(&x)[4] = g[lower_block(i, c / 2)][c % 2];
#pragma unroll
          for (int e = 0; e < 4; ++e) x[e] *= exp2_approximate(sum[e / 2] - (e % 2 ? before.y : before.x));
        }
      }
      if (gates.first_seen[kChunk - 1] > 0)
#pragma unroll
        for (int i = 0; i < kWarps; ++i) {
          const int first_seen[2] = {gates.first_seen[16 * i + row], gates.first_seen[16 * i + row + 8]};
#pragma unroll
          for (int c = 0; c <= 2 * i + 1; ++c)
#pragma unroll
            for (int e = 0; e < 4; ++e)
              if (8 * c + column + e % 2 < first_seen[e / 2]) g[lower_block(i, c / 2)][c % 2][e] = 0.0f;
        }
    }
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const float2 factors = *reinterpret_cast<const float2*>(&own.negative()[8 * c + column]);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float factor = e % 2 ? factors.y : factors.x;
        float& x = g[lower_block(c / 2, c / 2)][c % 2][e];
        const int behind = c % 2 == e / 2 ? row - column - e % 2 : e / 2 - c % 2;  // rows from its column on
        x = behind < 0 ? 0.0f : behind == 0 ? x : x * factor;
#pragma unroll
        for (int i = c / 2 + 1; i < kWarps; ++i) g[lower_block(i, c / 2)][c % 2][e] *= factor;
      }
    }
  }

  __device__ __forceinline__ DiagonalBlocks diagonal() const { return {own.diagonal, lane}; }
  /// Of a block on the diagonal.
  __device__ __forceinline__ Parts diagonal_parts(int block) const {
    Block x;
    diagonal().load(x, block);
    return Parts(x);
  }

  /// L's block (2i + 1, 2i), from the transpose of the diagonal one before it, the one after it, and N's.
  __device__ __forceinline__ void solve_pair(Block& x, const Parts& earlier, const Parts& later) const {
    Block sum;
    multiply_parts<false>(sum, earlier, Parts(x));
    multiply_parts<false>(x, later, Parts(sum));
  }

  /// W's rows 16·kRow … from L's, of which the diagonal block is in shared memory: `w` has the others.
  template <int kRow>
  __device__ __forceinline__ void keep_rows(SolvedChunk& to, uint4* transposed, const Triangle& w) const {
    const int g = lane / 4, t = lane % 4;
    Block row[kRow + 1];
#pragma unroll
    for (int j = 0; j < kRow; ++j)
#pragma unroll
      for (int i = 0; i < 8; ++i) row[j][i / 4][i % 4] = w[lower_block(kRow, j)][i / 4][i % 4];
    diagonal().load(row[kRow], kRow);
#pragma unroll
    for (int e = 0; e < 2; ++e)
      if (2 * t + e == g) row[kRow][0][e] = row[kRow][1][2 + e] = 0.0f;
    if (transposed) {
      const float *const units = own.key_unit(), *const factors = own.negative();
      const float of_row[2] = {reciprocal_of_power(units[16 * kRow + g]),
                               reciprocal_of_power(units[16 * kRow + g + 8])};
#pragma unroll
      for (int j = 0; j <= kRow; ++j) {
        uint32_t words[2][2];
        [[maybe_unused]] uint32_t low[2][2];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const float2 factor = *reinterpret_cast<const float2*>(&factors[16 * j + 8 * n + 2 * t]);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float x = row[j][n][2 * half] * of_row[half] * factor.x,
                        y = row[j][n][2 * half + 1] * of_row[half] * factor.y;
            if constexpr (kFolds<Element>) {
              words[half][n] = ptx::transposed(split_pair(low[half][n], x, y));
              low[half][n] = ptx::transposed(low[half][n]);
            } else {
              words[half][n] = ptx::transposed(pack<__half>(x, y));
            }
          }
        }
        transposed[32 * lower_block(kRow, j) + lane] = {words[0][0], words[0][1], words[1][0], words[1][1]};
        if constexpr (kFolds<Element>)
          transposed[32 * (kLowerBlocks + lower_block(kRow, j)) + lane] = {low[0][0], low[0][1], low[1][0], low[1][1]};
      }
    }
    float largest[2] = {0.0f, 0.0f}, unit[2], inverse[2];
#pragma unroll
    for (int j = 0; j <= kRow; ++j)
#pragma unroll
      for (int i = 0; i < 8; ++i) largest[i / 2 % 2] = fmaxf(largest[i / 2 % 2], fabsf(row[j][i / 4][i % 4]));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      unit[half] = power_of_two_below(quad_max(largest[half]));
      inverse[half] = -reciprocal_of_power(unit[half]);
    }
#pragma unroll
    for (int j = 0; j <= kRow; ++j) {
      uint32_t left[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&x)[4] = row[j][i / 2];
        left[i] = pack<__half>(x[i % 2 * 2] * inverse[i % 2], x[i % 2 * 2 + 1] * inverse[i % 2]);
      }
      to.inverse[32 * lower_block(kRow, j) + lane] = {left[0], left[1], left[2], left[3]};
    }
    if (t > 0) return;
    to.unit[16 * kRow + g] = unit[0];
    to.unit[16 * kRow + g + 8] = unit[1];
  }

  /// A chunk, which has been asked for; meanwhile begins to load the next one, if there is one.
  __device__ __forceinline__ void solve(const At& at, const At& next, bool more, uint32_t parity) const {
    SolvedChunk& to = p.solved[at.index(p)];
    uint4* const transposed =
        p.transposed ? p.transposed + at.index(p) * (kInverseParts<Element> * kLowerBlocks * 32) : nullptr;
    ptx::copies_wait<0>();
    __syncwarp();  // the chunk before has been read
    if (p.gate.log_forget) {
      const RawGates raw{own.gate[2 * lane], own.gate[2 * lane + 1], -HUGE_VALF};  // `entry` is of the reverse
      prepare_gates<kLeavesTokens>(own.gates, raw, 1.0f, 1.0f, false, lane);
    } else if constexpr (kLeavesTokens) {
      open_gates(own.gates, lane);
    }
    float2& negative = reinterpret_cast<float2*>(own.negative())[lane];
    const float2 beta = reinterpret_cast<const float2*>(own.beta)[lane];
    if constexpr (kLeavesTokens) copy_tokens(p.tokens[at.index(p)], own.gates, beta, lane);
    negative = {-beta.x, -beta.y};
    __syncwarp();
    ptx::mbarrier_wait(&own.full, parity);
    Triangle w;
    const float2 largest = multiply_keys(w);
    {
      const int token = 16 * (lane % 4) + lane / 4;
      const float unit[2] = {power_of_two_below(largest.x), power_of_two_below(largest.y)};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        to.key_unit[token + 8 * half] = unit[half];
        if (transposed) own.key_unit()[token + 8 * half] = unit[half];
      }
    }
    if (transposed) {  // W is what L has over β, which therefore has a least size: times the squares of keys it shows nowhere
      __syncwarp();
      const auto limited = [](float factor, float unit) {
        const float over = reciprocal_of_power(fmaxf(unit, 1.0f)), least = fmaxf(0x1p-60f * over * over, 0x1p-126f);
        return fabsf(factor) < least ? -least : factor;
      };
      const float2 unit = reinterpret_cast<const float2*>(own.key_unit())[lane];
      negative = {limited(negative.x, unit.x), limited(negative.y, unit.y)};
      __syncwarp();
    }
    weigh(w);
#pragma unroll
    for (int i = 0; i < kWarps; ++i) diagonal().store(w[lower_block(i, i)], i);
    __syncwarp();
    if (more) load(next);  // all lanes have multiplied what they read of the keys
    if (transposed) {
      constexpr float kMost = 0x1.fffffep127f;  // of a token without a key or a strength: its W is 0 times that
      const float2 unit = reinterpret_cast<const float2*>(own.key_unit())[lane];
      const auto over = [](float x, float y) { return fminf(fmaxf(reciprocal_of_power(x) / y, -kMost), kMost); };
      negative = {over(unit.x, negative.x), over(unit.y, negative.y)};
    }
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) to.key_norm[32 * pass + lane] = __fsqrt_rn(diagonal().solve(pass));
    __syncwarp();
    const auto block = [&](int i, int j) -> Block& { return w[lower_block(i, j)]; };
    Block sums[2][2];
    {
      Block x;
      diagonal().load_transposed(x, 0);
      const Parts first(x), later = diagonal_parts(1);
      solve_pair(block(1, 0), first, later);
      const Parts second = later.transposed(), across = Parts(block(1, 0)).transposed();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const Parts near(block(2 + i, 0)), far(block(2 + i, 1));
        multiply_parts<false>(sums[i][0], first, near);
        multiply_parts<true>(sums[i][0], across, far);
        multiply_parts<false>(sums[i][1], second, far);
      }
    }
    keep_rows<0>(to, transposed, w);
    keep_rows<1>(to, transposed, w);
    {
      const Parts first = diagonal_parts(2), later = diagonal_parts(3);
      solve_pair(block(3, 2), first.transposed(), later);
      const Parts across(block(3, 2));
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const Parts near(sums[0][j]), far(sums[1][j]);
        multiply_parts<false>(block(2, j), first, near);
        multiply_parts<false>(block(3, j), later, far);
        multiply_parts<true>(block(3, j), across, near);
      }
    }
    keep_rows<2>(to, transposed, w);
    keep_rows<3>(to, transposed, w);
  }

  /// Begins to load its first chunk, if there is one; its barrier is there.
  __device__ __forceinline__ void begin() const {
    const int number = order(0);
    if (number < all()) load(At(p, number));
  }
  /// All chunks of this warp; whether it has begun to load the first.
  template <bool kBegun = false>
  __device__ __forceinline__ void run() const {
    int number = order(0);
    if (number >= all()) return;
    if (kLeavesTokens && !p.gate.log_forget) {  // what open_gates() leaves as it is
      reinterpret_cast<float2*>(own.gates.sum)[lane] = {};
      reinterpret_cast<int2*>(own.gates.first_seen)[lane] = {};
    }
    At at(p, number);
    if constexpr (!kBegun) load(at);
    for (int k = 0; number < all(); ++k) {
      number = order(k + 1);
      const At next(p, number);
      solve(at, next, number < all(), k % 2);
      if constexpr (kMarks) {
        __syncwarp();  // all is written
        if (lane == 0) ptx::store_release(&p.ready[at.index(p)], 1);
      }
      at = next;
    }
  }
};

/// A launch of solve_chunks: so many CTAs a multiprocessor.
template <int kBlocks>
struct SolveAlone : SolveShared<kBlocks, 4> {
  static constexpr int kSolvers = 4, kCtas = 4 / kBlocks;
  static_assert(kCtas * (SolveAlone::kBytes + 1024) <= 228 * 1024);
};

template <typename Element, int kBlocks>
__global__ void __launch_bounds__(SolveAlone<kBlocks>::kThreads, SolveAlone<kBlocks>::kCtas)
    solve_chunks(const __grid_constant__ DeltaSolveArguments p) {
  extern __shared__ __align__(1024) char memory[];
  let_next_kernel_start();
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < p.marks; i += gridDim.x * blockDim.x) p.cleared[i] = 0;
  const ChunkSolver<Element, kBlocks, SolveAlone<kBlocks>::kSolvers, false> solver(
      p, memory, ptx::in_uniform_register(threadIdx.x / 32));
  if (solver.lane == 0) {
    ptx::mbarrier_init(&solver.own.full, 1);
    ptx::mbarrier_init_fence();
  }
  __syncwarp();
  solver.run();
}

}  // namespace lethe::matrix_state
