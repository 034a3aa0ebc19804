// The gate's gradient where the main kernel leaves the row sums of dS in the tails of dQ's slices.

#include "optimized/cuda/gate/gradient.cuh"
#include "optimized/cuda/gate/row_groups.cuh"
#include "optimized/cuda/hopper/backward.hpp"

namespace lethe {
namespace {

constexpr int kSliceRows = 64;

// A row's sum lies in the first slice of its 64 queries, after dQ. A group's parts lie there by thread of the warpgroup that wrote them, in
// both slices of the tile: of two groups a tile the first sixteen lanes have the first.
struct RowSums {
  float* slices;
  const uint8_t* separate_rows;
  bool float_sums;
  int query_offset, key_blocks, slices_a_head, tile_rows;

  __device__ bool is_separate(int64_t row, int query) const {
    return !float_sums || rows_are_separate(separate_rows + row * (key_blocks + 1),
                                            query_offset + query / tile_rows * tile_rows, tile_rows, query_offset);
  }
  __device__ int lanes_of_group() const { return tile_rows == kGroupRows ? 32 : 16; }

  // A row's own sum, or the first part of its group, which becomes the mean.
  __device__ float& at(int64_t row, int query) const {
    float* of_tile = slices + (row * slices_a_head + int64_t{query / tile_rows} * 2) * kSliceFloats + kSliceRows * 64;
    const int in_tile = query % tile_rows;
    return is_separate(row, query) ? of_tile[in_tile / kSliceRows * kSliceFloats + in_tile % kSliceRows]
                                   : of_tile[in_tile / kGroupRows * lanes_of_group()];
  }

  // One warp a group.
  __device__ void join_groups(int64_t row, int queries) const {
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    for (int query = threadIdx.x / 32 * kGroupRows; query < queries; query += warps * kGroupRows) {
      if (is_separate(row, query)) continue;
      float* parts = &at(row, query);
      float sum = 0;
      if (lane < lanes_of_group())
        for (int warp = 0; warp < 8; ++warp) sum += parts[warp / 4 * kSliceFloats + warp % 4 * 32 + lane];
      for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
      if (lane == 0) *parts = sum / min(kGroupRows, queries - query);
    }
  }
};

}  // namespace

void launch_backward_gate(const BackwardArguments& arguments, const BackwardWorkspace& workspace, const Plan& plan) {
  const Shape& shape = arguments.shape;
  const RowSums row_sums{.slices = workspace.grad_query,
                         .separate_rows = plan.prefix.separate_rows,
                         .float_sums = arguments.float_sums,
                         .query_offset = int(shape.key_length - shape.query_length),
                         .key_blocks = int(gate_blocks(shape.key_length)),
                         .slices_a_head = int(whole_blocks(shape.query_length) / kSliceRows * (shape.key_dim / 64)),
                         .tile_rows = shape.key_dim == 64 ? kTileQueries<64> : kTileQueries<128>};
  launch_gate_gradient({.shape = shape,
                        .prefix = plan.prefix,
                        .column_sums = workspace.column_sums,
                        .row_shares = workspace.row_shares,
                        .grad_log_forget = arguments.grad_log_forget,
                        .stream = arguments.stream},
                       row_sums);
}

}  // namespace lethe
