#pragma once
// What the warps of the gradients' kernel (gradients.cuh) share: its memory, the order of chunks, and each barrier's meaning.

#include <cstddef>

#include "optimized/cuda/matrix_state/fused_crossings.cuh"
#include "optimized/cuda/matrix_state/hopper/forward.cuh"

namespace lethe::matrix_state {

/// kBlocks: of 64 rows of the state. kKept: whether S of every chunk is read as the forward left it. kDivides: gradients_divided.cuh.
template <int kBlocks, bool kNormalized, bool kKept, bool kDivides = false>
struct GradientsShared {
  static constexpr int kThreads = (kKept ? 4 : 5) * kComputing, kStages = (kBlocks == 1 ? 3 : 2) + kKept,
                       kRebuildStages = kKept ? 0 : 1;
  static constexpr int kState = kBlocks * kPanel, kSlots = !kKept ? kChunksOfSegment<kBlocks> : kBlocks == 1 ? 4 : 2;
  static constexpr int kQuery = 0, kKey = kState, kValue = 2 * kState, kGradValues = kValue + kPanel,
                       kStage = kGradValues + kPanel, kRebuildStage = kState + kPanel;
  /// Of each thread at the launch, and of those of each warpgroup: as many times as many in all as there are.
  static constexpr int kRegisters = kKept ? 128 : 96, kLoadRegisters = !kDivides && (kKept || kBlocks == 1) ? 40 : 32,
                       kStateRegisters = kBlocks == 1 ? 88 : 104,
                       kGradStateRegisters = kDivides ? 144
                                             : kKept  ? 144
                                                      : 112,
                       kPairRegisters = kDivides ? 168
                                        : kKept  ? 168
                                                 : 128,
                       kOutRegisters = kDivides       ? 168
                                       : kKept        ? 160
                                       : kBlocks == 1 ? 112
                                                      : 104;
  using Gates = std::conditional_t<kDivides, DividedGates, GatesInReverse>;
  struct Small {
    uint64_t full[kStages], empty[kStages];            ///< a chunk's tiles and gates
    uint64_t rebuild_full[1], rebuild_empty[1];        ///< a chunk's key, value and gates, for S
    uint64_t state_full[kSlots], state_empty[kSlots];  ///< S of a chunk
    uint64_t grad_state_full, grad_state_empty;        ///< R; then dk, where that leaves from there
    uint64_t pairs_full, pairs_empty;  ///< P and dP; then dk, where that leaves from there; of two blocks dP, then dq
    float state_units[kSlots][kBlocks * kWarps], largest[kWarps], largest_pairs[2][kWarps];
    float grad_state_unit, score_unit, grad_unit;
  };
  /// Bytes from an outer product's vector on: a product's step reads 1024 of them, and memcheck counts 2048 bytes a step.
  static constexpr int kFromOuterVector = 2048;
  /// Where dO is divided here: z and its gradient for outer products; 1 / |q|² of a chunk's queries; of y the largest of each warp, a
  /// chunk's as outer_parts where those are in products, and whether it is there and among `columns`.
  struct Divided {
    OuterVector states[kSlots], grad_state;
    float inverse_squares[kStages][kChunk], largest[kWarps];
    uint32_t outer[kStages][kChunk];
    uint64_t full[kStages];
    char beyond[kFromOuterVector - sizeof(OuterVector)];
  };
  static_assert(sizeof(Divided) - offsetof(Divided, grad_state) >= kFromOuterVector);
  static constexpr int kRebuild = kStages * kStage, kStates = kRebuild + kRebuildStages * kRebuildStage;
  static constexpr int kGradState = kStates + kSlots * kState, kPairs = kGradState + kState, kOut = kPairs + kPanel;
  /// Of one block results leave from kOut and kKeyOut in turn; of a normalised call without left states, which has no room for both, dk from dP's
  /// place.
  static constexpr int kScores = kOut + kPanel, kKeyOut = kNormalized && !kKept ? kPairs : kScores + kPanel;
  static constexpr int kGates = kScores + (kBlocks == 1 ? (kNormalized && !kKept ? 1 : 2) * kPanel : 0),
                       kRebuildGates = kGates + kStages * sizeof(Gates);
  static constexpr int kCrossings = kRebuildGates + kRebuildStages * sizeof(GatesByTime);
  /// Of a normalised call: what the gradient of z·q is in a chunk; z before each chunk, and its gradient after one.
  struct Column {
    SplitVector values;
    float whole[kChunk], unit;
  };
  struct Columns {
    Column grad_normalizer[kStages];
    SplitVector ones;
    float states[kSlots][64 * kBlocks], grad_state[64 * kBlocks];
  };
  static constexpr int kColumns = (kCrossings + kStages * static_cast<int>(sizeof(FusedCrossings)) + 15) / 16 * 16,
                       kSmall = kColumns + (kNormalized ? static_cast<int>(sizeof(Columns)) : 0),
                       kDivided = (kSmall + static_cast<int>(sizeof(Small)) + 15) / 16 * 16,
                       kBytes = kDivides ? kDivided + static_cast<int>(sizeof(Divided)) : kSmall + sizeof(Small);
  static_assert(kBytes <= 227 * 1024 && kSmall % 8 == 0);
  /// Of two tiles of columns (gradients_tiles.cuh).
  struct Tiles {
    uint64_t stored[kStages];  ///< of the first: dq and dk of the chunks before a stage's
    uint64_t
        passed[kStages];  ///< of the first: that is published; of the second: dq and dk of a stage's chunk may be added
  };
  static constexpr int kTiles = kDivided, kBytesOfTwo = kTiles + static_cast<int>(sizeof(Tiles));
  static_assert(kDivides || kNormalized || kBytesOfTwo <= 227 * 1024);
};

/// The kernel's arguments and a warp's place among them. kTwoTiles: of 64 columns, a CTA each, in place of one.
template <typename Element_, bool kGated_, int kBlocks_, bool kNormalized_, bool kKept_, bool kTwoTiles_ = false>
struct Gradients {
  using Element = Element_;
  static constexpr bool kDivides = kGated_ && kBlocks_ == 1 && kNormalized_ && kKept_;
  using Shared = GradientsShared<kBlocks_, kNormalized_, kKept_, kDivides>;
  static constexpr bool kGated = kGated_, kHalf = std::is_same_v<Element, __half>, kNormalized = kNormalized_,
                        kKept = kKept_;
  /// Whether all warps weigh pairs by one way.
  static constexpr bool kOneWay = kGated_ && kBlocks_ == 1 && kKept_;
  /// Whether the first of two pieces may hand R on.
  static constexpr bool kHandsOn = kKept;
  static constexpr int kBlocks = kBlocks_;
  static constexpr bool kTwoTiles = kTwoTiles_;
  static_assert(!kTwoTiles || (kGated && !kNormalized));  // most_columns_of_gradients()
  static constexpr int kBytes = kTwoTiles ? Shared::kBytesOfTwo : Shared::kBytes;
  const StateGradientArguments& p;
  char* const memory;
  const int warp, lane;  ///< of the warpgroup
  const int b, h, head;
  const SegmentOrder order;  ///< in reverse
  const Piece piece;

  __device__ typename Shared::Small& small() const {
    return *reinterpret_cast<typename Shared::Small*>(memory + Shared::kSmall);
  }
  __device__ char* stage(int i) const { return memory + i * Shared::kStage; }
  __device__ typename Shared::Gates& gates(int i) const {
    return reinterpret_cast<typename Shared::Gates*>(memory + Shared::kGates)[i];
  }
  __device__ typename Shared::Divided& divided() const {
    return *reinterpret_cast<typename Shared::Divided*>(memory + Shared::kDivided);
  }
  __device__ typename Shared::Tiles& tiles() const {
    return *reinterpret_cast<typename Shared::Tiles*>(memory + Shared::kTiles);
  }
  __device__ FusedCrossings& crossings(int i) const {
    return reinterpret_cast<FusedCrossings*>(memory + Shared::kCrossings)[i];
  }
  __device__ typename Shared::Columns& columns() const {
    return *reinterpret_cast<typename Shared::Columns*>(memory + Shared::kColumns);
  }
  /// Of a stage, where the call is normalised.
  __device__ const float* grad_normalizer(int i) const {
    return kNormalized ? columns().grad_normalizer[i].whole : nullptr;
  }
  __device__ char* rebuild_stage(int i) const { return memory + Shared::kRebuild + i * Shared::kRebuildStage; }
  __device__ GatesByTime& rebuild_gates(int i) const {
    return reinterpret_cast<GatesByTime*>(memory + Shared::kRebuildGates)[i];
  }
  __device__ char* state(int slot) const { return memory + Shared::kStates + slot * Shared::kState; }
  __device__ char* grad_state() const { return memory + Shared::kGradState; }
  __device__ char* pairs() const { return memory + Shared::kPairs; }
  __device__ char* scores() const { return memory + Shared::kScores; }
  /// Whether the outer products with z and its gradient are steps of products: not of float16, whose S and R have units that these haven't.
  static constexpr bool kOuterInProducts = kDivides && !kHalf;
  /// Whether warps read units or z of a place of S by loads, and the place is used again before its segment ends: it is given back when a product has
  /// what they were multiplied into, which no arrival waits for otherwise.
  static constexpr bool kReadsBesideState = kKept && (kHalf || kNormalized);
  /// Where S comes without the scale and nothing else is scaled between products, P, dP and R go without it, too, and results get it: as a factor of
  /// the first two, of R, and of results.
  static constexpr bool kScalesResults = kKept && !kGated && !kHalf && !kNormalized && kBlocks == 1;
  __device__ float pair_scale() const { return kScalesResults ? 1.0f : p.scale; }
  __device__ float grad_state_factor() const { return kScalesResults ? 1.0f / p.scale : 1.0f; }
  __device__ float result_scale() const { return kScalesResults ? p.scale : 1.0f; }
  /// What else a product with S is multiplied by, without gates.
  __device__ float state_scale() const { return kKept && !kScalesResults ? p.scale : 1.0f; }
  /// Of the chunk that begins at a token.
  __device__ const PreparedGates& prepared_gates(int64_t first) const {
    return p.gates[int64_t{1} * head * order.chunks + static_cast<uint64_t>(first) / kChunk];
  }
  /// What of them a stage has.
  __device__ const typename Shared::Gates& gates_in_reverse(int64_t first) const {
    if constexpr (kDivides)
      return p.divided_gates[int64_t{1} * head * order.chunks + static_cast<uint64_t>(first) / kChunk];
    else return prepared_gates(first).in_reverse;
  }
  /// The tile of columns, and its first one.
  __device__ int column_tile() const { return kTwoTiles ? static_cast<int>(blockIdx.x % 2) : 0; }
  __device__ int column() const { return 64 * column_tile(); }
  /// Whether the CTA is that of the first of two tiles, or of the second, which adds to what that stores.
  __device__ bool is_first() const { return kTwoTiles && column_tile() == 0; }
  __device__ bool adds() const { return kTwoTiles && column_tile() > 0; }
  /// Of the states that pieces begin with: those of this head and tile.
  __device__ int handed_state() const {
    return column_tile() * (p.batch * p.heads - p.whole_heads) + head - p.whole_heads;
  }
  /// Of a warp of R.
  __device__ int32_t* mark() const { return p.marks + handed_state() * kWarps + warp; }
  /// Of the first tile's CTA, in either.
  __device__ int32_t* tile_marks() const { return p.tile_marks + (blockIdx.x - column_tile()) * kTileMarks; }
  /// What a mark is when the chunk that begins at a token is done.
  __device__ int done_with(int64_t first) const {
    return order.chunks - static_cast<int>(static_cast<uint64_t>(first) / kChunk);
  }
  /// That when the piece is.
  __device__ int done_at_end() const { return order.chunks - order.begin(piece.end - 1); }
  __device__ const float* gate() const {
    return kGated ? p.gate.log_forget + b * p.gate.batch_stride + h * p.gate.head_stride : nullptr;
  }

  /// A chunk of the sweep, in reverse time.
  struct Chunk {
    int64_t first;    ///< token
    int slot;         ///< of its S, and
    uint32_t parity;  ///< of the barriers of that
    bool begins;      ///< a segment after the first
  };

  /// S of a segment's m-th chunk by time. Slots are free again from the latest chunk on, so that the next segment, whose S come in order of time,
  /// takes them the other way round.
  __device__ int slot_of(int segment, int m) const { return (segment - piece.begin) % 2 ? Shared::kSlots - 1 - m : m; }
  /// Of the slot's use in a segment. Of those that the piece's first segment has no chunk for, that is not the first one.
  __device__ uint32_t parity_of(int segment, int slot) const {
    return (segment - piece.begin - (slot >= order.count(piece.begin))) & 1;
  }

  /// Every chunk.
  template <typename Visit>
  __device__ __forceinline__ void each_chunk(Visit&& visit) const {
    const int count_of_first = order.count(piece.begin);
    [[maybe_unused]] ptx::RingPosition kept;
    for (int s = piece.begin, use = 0; s < piece.end; ++s, ++use) {
      const int count = order.count(s), step = use % 2 ? 1 : -1;
      Chunk chunk{static_cast<int64_t>(order.chunk(s, 0)) * kChunk, slot_of(s, count - 1), 0, use > 0};
      for (int left = count; left > 0; --left) {
        if constexpr (kKept) {
          chunk.slot = static_cast<int>(kept.index);
          chunk.parity = kept.parity;
          kept.advance(Shared::kSlots);
        } else {
          chunk.parity = (use - (chunk.slot >= count_of_first)) & 1;
        }
        visit(chunk);
        chunk.first -= kChunk;
        if constexpr (!kKept) chunk.slot += step;
        chunk.begins = false;
      }
    }
  }
};

/// A warp: `begin(chunk)` of the first chunk; `finish(crossings, wait)` for every chunk, before its stage is filled again: its crossings are there after
/// wait().
template <typename Call, typename Begin, typename Finish>
__device__ __forceinline__ void finish_chunks(const Call& call, Begin begin, Finish finish) {
  constexpr int kStages = Call::Shared::kStages;
  auto& small = call.small();
  ptx::RingPosition at;
  int used = 0;
  const auto finish_one = [&] {
    finish(call.crossings(at.index), [&] { ptx::mbarrier_wait(&small.empty[at.index], at.parity ^ 1); });
  };
  call.each_chunk([&](const auto& chunk) {
    if (used == 0) begin(chunk);
    if (used >= kStages) finish_one();
    arrive_warp(&small.full[at.index], call.lane);
    ++used;
    at.advance(kStages);
  });
  const int left = min(used, kStages);
  for (; used < kStages; ++used) at.advance(kStages);  // past stages that no chunk used
  for (int i = 0; i < left; ++i, at.advance(kStages)) finish_one();
}

/// The dot products of a lane's rows g and g + 8 of sums with those of a tile are added to `dot`: a lane's share.
template <typename Element>
__device__ __forceinline__ void add_dots(float (&dot)[2], const float (&sum)[32], const char* tile, Place at) {
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    uint32_t a[4];
    load_left(a, ptx::shared_address(tile), c, at);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = unpack<Element>(a[i]);
      dot[i % 2] = fmaf(sum[8 * c + 2 * i], x.x, fmaf(sum[8 * c + 2 * i + 1], x.y, dot[i % 2]));
    }
  }
}

/// sum += (near, far)ᵀ · vector of 64 numbers, of rows g and g + 8.
__device__ __forceinline__ void add_outer_product(float (&sum)[32], float near, float far, const float* vector,
                                                  int lane) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const float2 x = *reinterpret_cast<const float2*>(vector + 8 * n + lane % 4 * 2);
    sum[4 * n] = fmaf(near, x.x, sum[4 * n]);
    sum[4 * n + 1] = fmaf(near, x.y, sum[4 * n + 1]);
    sum[4 * n + 2] = fmaf(far, x.x, sum[4 * n + 2]);
    sum[4 * n + 3] = fmaf(far, x.y, sum[4 * n + 3]);
  }
}

/// The sums over the four lanes that share a row.
__device__ __forceinline__ void store_dots(float* to, const float (&dot)[2], Place at) {
  const float near = quad_sum(dot[0]), far = quad_sum(dot[1]);
  if (at.lane % 4 == 0) {
    to[16 * at.block + at.lane / 4] = near;
    to[16 * at.block + at.lane / 4 + 8] = far;
  }
}

}  // namespace lethe::matrix_state
