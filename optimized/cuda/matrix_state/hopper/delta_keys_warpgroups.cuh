#pragma once
// What the sweeps of delta_keys_sweep.cuh by wgmma share. A warpgroup owns 64 columns of a head's state and a CTA two warpgroups: Sᵀ and what else is a left
// operand stays in registers, in the places that mma.sync has it, and a right operand is read from shared memory once for 64 columns instead of 16.
//
// Forward, sums have the last tokens first: then what a block of tokens gives to itself and to later ones are the first of the sums, as in the sweep back what
// it gives to itself and to earlier ones. Products of further sums, zeros, would pass a later token's infinity on to earlier ones; and sums that begin
// within others' registers stall the products. So γ q and γ k are read the last 8 rows first, as the record has them that a forward's values are
// swept from. In a stage of the sweep back a triangle is a square of 8 × 8 matrices by columns, the last rows first: there rows are as far apart in each.

#include <type_traits>

#include "optimized/cuda/hopper/ptx/barrier.cuh"
#include "optimized/cuda/hopper/ptx/copy.cuh"
#include "optimized/cuda/hopper/ptx/wgmma_few_columns.cuh"
#include "optimized/cuda/matrix_state/delta_keys_sweep.cuh"
#include "optimized/cuda/matrix_state/hopper/products.cuh"

namespace lethe::matrix_state {

/// Byte offsets of a stage: a DeltaKeyRecord, for the sweep back with squares for triangles, and the chunk's values.
template <int kRows, bool kBack>
struct DeltaKeyStage {
  using Record = DeltaKeyRecord<kRows>;
  static constexpr int kPart = kBack ? kPanel : kTriangle;  ///< of a triangle's two numbers
  static constexpr int kInverse = Record::kInverse, kPairs = kInverse + 2 * kPart, kTotals = kPairs + 2 * kPart,
                       kKeyUnits = kTotals + Record::kKeyUnits - Record::kTotals,
                       kQueryUnits = kTotals + Record::kQueryUnits - Record::kTotals,
                       kBeta = kTotals + Record::kBeta - Record::kTotals,
                       kEnd = kTotals + Record::kBytes - Record::kTotals, kValue = (kEnd + 1023) / 1024 * 1024,
                       kBytes = kValue + 2 * kPanel;
};
/// Bytes of a sweep's shared memory: two stages and their barriers.
template <int kRows, bool kBack>
inline constexpr int kDeltaKeyWarpgroupBytes = 2 * DeltaKeyStage<kRows, kBack>::kBytes + 32;

using FlatSums = float[32];
__device__ __forceinline__ FlatSums& flat(ColumnSums& sums) { return reinterpret_cast<FlatSums&>(sums); }

/// kBack: for the sweep back.
template <typename Element, int kRows, bool kKeeps, bool kBack>
struct DeltaKeyWarpgroups : DeltaKeySweep<Element, kRows, 128, kKeeps, kBack> {
  using Sweep = DeltaKeySweep<Element, kRows, 128, kKeeps, kBack>;
  using Stage = DeltaKeyStage<kRows, kBack>;
  using Sweep::p, Sweep::memory, Sweep::warp, Sweep::lane, Sweep::head, Sweep::b, Sweep::h, Sweep::column, Sweep::state;
  using typename Sweep::Record;
  const CUtensorMap& values;  ///< of p.value, in tiles of a chunk

  __device__ __forceinline__ char* stage(int n) const { return memory + n % 2 * Stage::kBytes; }

  /// Of each stage: whether the copy engine has brought what it brings, and forward whether all warps have read it.
  __device__ __forceinline__ uint64_t* full(int n) const {
    return reinterpret_cast<uint64_t*>(memory + 2 * Stage::kBytes) + n % 2;
  }
  __device__ __forceinline__ uint64_t* empty(int n) const { return full(n) + 2; }

  /// All threads, before anything else.
  __device__ __forceinline__ void begin() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < 2; ++i) {
        ptx::mbarrier_init(full(i), 1);
        ptx::mbarrier_init(empty(i), 8 * kArrivalsOfAWarp);
      }
      ptx::mbarrier_init_fence();
    }
    __syncthreads();
  }

  /// A warp: until the window's chunk `chunk` is prepared, where chunks are published one by one. `prepared`: so many are known to be. Lanes look at 32 of them
  /// at once, by now most often all there.
  __device__ __forceinline__ void await(int& prepared, int chunk) const {
    if (!p.prepared || chunk >= p.chunks || prepared > chunk) return;
    const int32_t* const from = p.prepared + head * p.stride;
    const int own = min(chunk + lane, p.chunks - 1);
    unsigned missing;
    do missing = ~__ballot_sync(kAllLanes, ptx::load_acquire(from + own) != 0);
    while (missing & 1);
    __syncwarp();
    prepared = missing ? chunk + __ffs(missing) - 1 : chunk + 32;
    ptx::fence_async_global();
  }

  /// The warps that bring, in the sweep back all: begin to bring the window's chunk `chunk` to the n-th stage. Of a record, what a sweep that keeps does not read stays away. A warp issues
  /// its lanes' runs one after the other, so that each has an eighth of them; one that ends before its bytes are expected ends no phase.
  __device__ __forceinline__ void copy(int n, int chunk) const {
    if (n >= p.chunks) return;
    char* const to = stage(n);
    const char* const from = p.records + (head * this->records() + chunk) * Record::kBytes;
    constexpr int kFirst = kKeeps ? Record::kReadKey : Record::kQuery, kTriangles = kKeeps ? 2 : 4;
    if (threadIdx.x == 0) {
      const auto run = [&](int begin, int end, int place) {
        ptx::load_run(to + place, from + begin, end - begin, full(n));
      };
      ptx::mbarrier_arrive_expect(
          full(n), Record::kInverse - kFirst + kTriangles * kTriangle + Record::kBytes - Record::kTotals + 2 * kPanel);
      if constexpr (kBack) {
        run(kFirst, Record::kInverse, kFirst);
        run(Record::kTotals, Record::kBytes, Stage::kTotals);
      } else if constexpr (kKeeps) {
        run(Record::kWriteKey, Record::kPairs, Record::kWriteKey);
        run(Record::kTotals, Record::kBytes, Stage::kTotals);
      } else {
        run(0, Record::kBytes, 0);
      }
      const int64_t first = (p.first_chunk + static_cast<int64_t>(chunk)) * kChunk;
      load_panels<2>(to + Stage::kValue, values, full(n), column, first, b, static_cast<int>(h));
    }
    if constexpr (kBack) {
      if (lane < kTriangles)
        ptx::load_run(to + Stage::kInverse + lane * kPanel + warp * 1024,
                      from + Record::kInverse + lane * kTriangle + triangle_matrix(7, warp), (8 - warp / 2 * 2) * 128,
                      full(n));
    } else if constexpr (kKeeps) {
      // Of the record as the sweep back reads it the last rows first, by 8 rows.
      if (lane < kRows / 64)
        ptx::load_run(to + kFirst + lane * kPanel + (7 - warp) * 1024, from + kFirst + lane * kPanel + warp * 1024,
                      1024, full(n));
    }
  }

  /// The n-th stage is there, and no warpgroup reads the one before.
  __device__ __forceinline__ void meet(int n) const {
    ptx::mbarrier_wait(full(n), n / 2 % 2);
    __syncthreads();
  }

  template <int kCount>
  __device__ __forceinline__ static void fence(uint32_t (&left)[kCount][4]) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) ptx::fence_registers(left[k]);
  }

  /// Before products are issued, and after they have been waited for.
  template <typename... Operands>
  __device__ __forceinline__ static void fence(ColumnSums& sums, Operands&... left) {
    ptx::fence_registers(flat(sums));
    (fence(left), ...);
  }

  // What follows is issued, and not waited for.

  /// sums = (rows of the tile · S)ᵀ in the units of both.
  __device__ __forceinline__ static void issue_read(ColumnSums& sums, const uint32_t (&left)[kRows / 16][4],
                                                    const char* tile) {
#pragma unroll
    for (int k = 0; k < kRows / 16; ++k)
      ptx::wgmma<ptx::Major::kK>(__half{}, flat(sums), left[k][0], left[k][1], left[k][2], left[k][3],
                                 ptx::advance<32>(ptx::operand_descriptor(tile + k / 4 * kPanel, kPanel), k % 4),
                                 k > 0);
  }

  /// The first 16·kBlocks of the sums += block k of left times what begins at `from` and, Stage::kPart further, what rounding has left of it: products of
  /// two numbers each that count, the smaller ones first. kSwap: the operand's first eight tokens come last.
  template <ptx::Major kMajor, bool kTwoParts, bool kSwap, int kBlocks>
  __device__ __forceinline__ static void issue_parts(ColumnSums& sums, const ColumnOperands& left, int k,
                                                     const char* from, uint32_t k_bytes, uint32_t row_bytes) {
    const auto issue = [&](const uint32_t(&of)[4], const char* right) {
      constexpr int kFirst = kSwap ? 2 : 0;
      ptx::wgmma<kMajor>(__nv_bfloat16{}, reinterpret_cast<float(&)[8 * kBlocks]>(sums), of[kFirst], of[kFirst + 1],
                         of[2 - kFirst], of[3 - kFirst], ptx::unswizzled_descriptor(right, k_bytes, row_bytes), true);
    };
    issue(left.high[k], from + Stage::kPart);
    if constexpr (kTwoParts) issue(left.low[k], from);
    issue(left.high[k], from);
  }
  /// sums += left · Lᵀ, L the lower triangle; the last tokens' sums first.
  __device__ __forceinline__ static void issue_lower(ColumnSums& sums, const ColumnOperands& left,
                                                     const char* triangle) {
    each_step([&]<int k>(std::integral_constant<int, k>) {
      issue_parts<ptx::Major::kK, true, false, kWarps - k>(sums, left, k, triangle + triangle_matrix(7, 2 * k),
                                                           (8 - 2 * k) * 128, 128);
    });
  }
  /// sums += left · L, L the lower triangle of a square; the numbers are bfloat16 where they have one part.
  template <bool kTwoParts>
  __device__ __forceinline__ static void issue_lower_transposed(ColumnSums& sums, const ColumnOperands& left,
                                                                const char* square) {
    each_step([&]<int k>(std::integral_constant<int, k>) {
      issue_parts<ptx::Major::kMN, kTwoParts, true, k + 1>(sums, left, k, square + (6 - 2 * k) * 128, 128, 1024);
    });
  }
  // Products of one shape add to the same sums in order; those of another shape do so after a fence.
  template <typename Step>
  __device__ __forceinline__ static void each_step(const Step& step) {
    step(std::integral_constant<int, 0>{});
    ptx::wgmma_fence();
    step(std::integral_constant<int, 1>{});
    ptx::wgmma_fence();
    step(std::integral_constant<int, 2>{});
    ptx::wgmma_fence();
    step(std::integral_constant<int, 3>{});
  }

  /// What 64 tokens' operands give to each 64 rows of the state with rows of tiles.
  using Added = ColumnSums[kRows / 64];
  template <int kTiles>
  __device__ __forceinline__ static void issue_added(Added& added, const uint32_t (&left)[kTiles][kWarps][4],
                                                     const char* const (&tiles)[kTiles]) {
#pragma unroll
    for (int panel = 0; panel < kRows / 64; ++panel)
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
#pragma unroll
        for (int k = 0; k < kWarps; ++k)
          ptx::wgmma<ptx::Major::kMN>(
              __half{}, flat(added[panel]), left[i][k][0], left[i][k][1], left[i][k][2], left[i][k][3],
              ptx::advance<2048>(ptx::operand_descriptor(tiles[i] + panel * kPanel, kPanel), k), i + k > 0);
  }
  /// The state times the chunk's gates, while products of what is added run.
  __device__ __forceinline__ void decay(const float* totals) {
#pragma unroll
    for (int i = 0; i < kRows / 8; ++i) {
      const float2 total = *reinterpret_cast<const float2*>(totals + 8 * i + threadIdx.x % 4 * 2);
#pragma unroll
      for (int e = 0; e < 4; ++e) state[i][e] *= e % 2 ? total.y : total.x;
    }
  }
  /// The state plus `unit` times what is added.
  __device__ __forceinline__ void add(const Added& added, float unit) {
#pragma unroll
    for (int i = 0; i < kRows / 8; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) state[i][e] = fmaf(added[i / 8][i % 8][e], unit, state[i][e]);
  }
};

}  // namespace lethe::matrix_state
