// The gate's gradient where the main kernel leaves the row sums of dS in the tails of dQ's slices.

#include "optimized/cuda/gate/gradient.cuh"
#include "optimized/cuda/gate/row_groups.cuh"
#include "optimized/cuda/hopper/backward.hpp"
#include "optimized/cuda/hopper/dimensions.hpp"

namespace lethe {
namespace {

constexpr int kSliceRows = 64;

// A row's sum lies in the first slice of its 64 queries, after dQ. A group's parts lie there by thread of the warpgroup that wrote them, in
// the tile's first two slices: of two groups a tile the first sixteen lanes have the first.
template <int kSlicesOfTile>
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

  __device__ float* of_tile(int64_t row, int query) const {
    return slices + (row * slices_a_head + int64_t{query / tile_rows} * kSlicesOfTile) * kSliceFloats + kSliceRows * 64;
  }
  // The first part of a row's group, which becomes the mean.
  __device__ float* group_of(int64_t row, int query) const {
    return of_tile(row, query) + query % tile_rows / kGroupRows * lanes_of_group();
  }
  // A row's own sum, or the mean of its group.
  __device__ float at(int64_t row, int query) const {
    const int in_tile = query % tile_rows;
    return is_separate(row, query) ? of_tile(row, query)[in_tile / kSliceRows * kSliceFloats + in_tile % kSliceRows]
                                   : *group_of(row, query);
  }

  // A warp has several groups at a time, whose loads it waits for together.
  __device__ void join_groups(int64_t row, int begin, int end, int queries) const {
    constexpr int kAtOnce = 4;
    const int lane = threadIdx.x % 32, apart = blockDim.x / 32 * kGroupRows;
    for (int first = begin + threadIdx.x / 32 * kGroupRows; first < end; first += kAtOnce * apart) {
      bool shared[kAtOnce];
      float sums[kAtOnce] = {};
#pragma unroll
      for (int g = 0; g < kAtOnce; ++g) shared[g] = first + g * apart < end && !is_separate(row, first + g * apart);
#pragma unroll
      for (int g = 0; g < kAtOnce; ++g) {
        if (!shared[g] || lane >= lanes_of_group()) continue;
        const float* parts = group_of(row, first + g * apart);
#pragma unroll
        for (int warp = 0; warp < 8; ++warp) sums[g] += parts[warp / 4 * kSliceFloats + warp % 4 * 32 + lane];
      }
#pragma unroll
      for (int g = 0; g < kAtOnce; ++g) {
        for (int lanes = 16; lanes > 0; lanes /= 2) sums[g] += __shfl_xor_sync(~0u, sums[g], lanes);
        if (shared[g] && lane == 0)
          *group_of(row, first + g * apart) = sums[g] / min(kGroupRows, queries - (first + g * apart));
      }
    }
  }
};

}  // namespace

void launch_backward_gate(const BackwardArguments& arguments, const BackwardWorkspace& workspace, const Plan& plan) {
  const Shape& shape = arguments.shape;
  const int64_t dim = hopper::instance_dim(shape);
  const auto launch = [&]<int kSlicesOfTile> {
    const RowSums<kSlicesOfTile> row_sums{
        .slices = workspace.grad_query,
        .separate_rows = plan.prefix.separate_rows,
        .float_sums = arguments.float_sums || !hopper::has_16_bit_sums(dim),
        .query_offset = int(shape.key_length - shape.query_length),
        .key_blocks = int(gate_blocks(shape.key_length)),
        .slices_a_head = int(whole_blocks(shape.query_length) / kSliceRows * (dim / 64)),
        .tile_rows = dim == 64 ? kTileQueries<64> : kTileQueries<128>};
    launch_gate_gradient({.shape = shape,
                          .prefix = plan.prefix,
                          .column_sums = workspace.column_sums,
                          .row_shares = workspace.row_shares,
                          .grad_log_forget = arguments.grad_log_forget,
                          .stream = arguments.stream},
                         row_sums);
  };
  dim == 256 ? launch.template operator()<4>() : launch.template operator()<2>();
}

}  // namespace lethe
