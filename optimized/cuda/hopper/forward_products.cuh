#pragma once
// The state of a consumer warpgroup of the forward kernel, its products and their operands.

#include "optimized/cuda/hopper/forward_queries.cuh"
#include "optimized/cuda/tile/softmax.cuh"

namespace lethe::hopper::forward_pass {

/// `rows`: arrays in registers, an object apart: the compiler keeps a struct in memory until the last loop over its arrays is unrolled, and
/// until then it can hoist nothing that comes from the struct. All methods are for all threads of the warpgroup.
template <typename Element, int kDim, bool kRepeat>
struct ForwardProducts {
  using Size = Sizes<kDim>;
  static constexpr int kStages = Size::kStages, kRows = Size::kRows, kWarpgroups = Size::kWarpgroups;
  static constexpr int kKeys = Size::kKeys, kStepsOfBlock = Size::kStepsOfBlock;

  const ForwardParameters& a;
  Shared<kDim>& shared;
  Rows<kDim>& rows;
  const int warpgroup, warp, lane, offset;  // offset = Tk − Tq
  const int tile_row;                       // the thread's first row of a tile; its second is 8 further
  const uint64_t first_query, first_key, first_value, first_start;  // descriptors of the first slot and stage
  const uint32_t ones, first_end;
  const uint32_t my_turn, next_turn;
  ptx::RingPosition at, previous, slot;  // of a block's key; of the block before it, whose value comes now; of the tile
  // The residual of the tile before leaves from where its queries were: they are handed back one tile late.
  bool query_buffer_holds_residual = false;

  // Of the tile.
  [[no_unique_address]] HeldQueries<Size::kQuerySteps> held;
  TwoFloats frame{};                    // log₂e·F
  [[maybe_unused]] OfRows row_frame{};  // log₂e·(c_i − F), in the second launch
  int batch, head, query;               // query: the first
  int first, last, skipped_blocks;      // last: of the blocks that the warpgroup's rows see; those after it are skipped
  int cut_block;                        // blocks below it reach across a cut, or out of a query's window
  [[maybe_unused]] bool cut_within;     // kEdges: whether the warpgroup's rows are of two sequences
  [[maybe_unused]] int unseen_blocks;   // kEdges: those that only the other warpgroups' rows see, after the last step
  [[maybe_unused]] bool stored;         // kEdges, second launch: whether the rows are stored
  int unmasked, last_position;          // blocks up to it lie before the diagonal
  // Of the steps.
  int block;
  bool accumulate;
  bool fits;  // whether the lane's parts of the sums were within their bound wherever a maximum moved

  __device__ __forceinline__ ForwardProducts(const ForwardParameters& a, Shared<kDim>& shared, Rows<kDim>& rows)
      : a(a), shared(shared), rows(rows), warpgroup(ptx::broadcast(threadIdx.x / 128) - 1), warp(threadIdx.x / 32 % 4),
        lane(threadIdx.x % 32), offset(a.key_length - a.query_length), tile_row(warpgroup * 64 + warp * 16 + lane / 4),
        first_query(ptx::pin_uniform(ptx::advance<64 * 128>(ptx::operand_descriptor(shared.query[0], 0), warpgroup))),
        first_key(ptx::pin_uniform(ptx::operand_descriptor(shared.key[0], 0))),
        first_value(ptx::pin_uniform(ptx::operand_descriptor(shared.value[0], kKeys * 128))),
        first_start(bias_operand(shared.start.eights[0])), ones(ones_in_registers(lane)),
        first_end(ptx::shared_address(shared.block_end)), my_turn(kTurns + warpgroup),
        next_turn(kTurns + (warpgroup + 1) % kWarpgroups) {}

  // ---- operands ----

  __device__ __forceinline__ uint64_t query_operand(uint32_t slot) const {
    if constexpr (Size::kQueryBuffers == 1) return ptx::opaque_descriptor(first_query);  // not one kept for each k-step
    return ptx::advance<sizeof shared.query[0]>(first_query, slot);
  }
  __device__ __forceinline__ uint64_t key_operand(uint32_t stage) const {
    return ptx::advance<sizeof shared.key[0]>(first_key, stage);
  }
  __device__ __forceinline__ uint64_t value_operand(uint32_t stage) const {
    return ptx::advance<sizeof shared.value[0]>(first_value, stage);
  }
  /// Of a block whose logits get c_i − c_j later: zeros.
  __device__ __forceinline__ uint64_t start_unless(bool exact, uint32_t stage) const {
    if (kRepeat && kGate && exact) return no_bias_operand(shared.start);
    return ptx::advance<sizeof shared.start.eights[0]>(first_start, stage);
  }
  /// A block's number: log₂e·(F − c after the block), and then with c_i for F.
  __device__ __forceinline__ OfRows block_number(uint32_t stage) const {
    if constexpr (!kGate) return OfRows{0, 0};
    const float2 end = ptx::load_pair(first_end + stage * sizeof shared.block_end[0]);
    const float number = (frame.high - end.x) + (frame.low - end.y);
    return kRepeat ? OfRows{number + row_frame.row[0], number + row_frame.row[1]} : OfRows{number, number};
  }

  // ---- products ----

  // Turns: warpgroup w issues its products (but for a bias that comes first) when barrier kTurns + w has heard from the one before it; 0
  // begins.
  __device__ __forceinline__ void await_turn() const { ptx::named_barrier_sync(my_turn, 256); }
  __device__ __forceinline__ void pass_turn() const { ptx::named_barrier_arrive(next_turn, 256); }

  /// S = Q·Kᵀ + the keys' bias. What follows the bias is added to a float of its size. A clean block lies before all of the warpgroup's
  /// queries: its keys with a small bias have weight, so the bias may come first, and then needs no turn: it fills the tensor core while the
  /// turn is passed on. Elsewhere it comes last.
  template <bool kClean, bool kInTurn>
  __device__ __forceinline__ void issue_scores(uint64_t query, uint64_t key, uint64_t bias) {
    constexpr bool kBiasFirst = kGate && kClean && Size::kBiasFirst;
    if constexpr (kBiasFirst) issue_dense_bias(rows.x, ones, bias, false);
    if constexpr (kInTurn) await_turn();
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step)
      multiply_queries<Element>(rows, held, step, query, key, step > 0 || kBiasFirst);
    if constexpr (kGate && !kBiasFirst) issue_dense_bias(rows.x, ones, bias, true);
    ptx::wgmma_commit();
  }

  /// O += P·V
  template <bool kInTurn>
  __device__ __forceinline__ void issue_output(uint64_t value) {
    constexpr int kSteps = kKeys / 16;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (kInTurn && Size::kPassEarly && step == kSteps - 1) pass_turn();
      ptx::wgmma<ptx::Major::kMN>(Element{}, rows.output, rows.weights[4 * step], rows.weights[4 * step + 1],
                                  rows.weights[4 * step + 2], rows.weights[4 * step + 3], value + step * (2048 >> 4),
                                  accumulate || step > 0);
    }
    if constexpr (kInTurn && !Size::kPassEarly) pass_turn();
    ptx::wgmma_commit();
  }

  __device__ __forceinline__ void pin_rows() {
    ptx::fence_registers(rows.x);
    ptx::fence_registers(rows.output);
    ptx::fence_registers(rows.weights);
  }
};

}  // namespace lethe::hopper::forward_pass
