// Before and after the main backward kernel, all bound by memory.
//
//   prepare   Δ_i = dO_i·o_i unless given, the rows' bias, accumulators to zero: reads o in two parts, dO; writes 40 bytes a query, 4 of dq
//   finish    dq from float slices in fragment order to 16 bits in rows, unless another operator reads the slices: reads 4 bytes, writes 2 of each
//             of dq

#include <cmath>

#include "optimized/cuda/arithmetic.cuh"
#include "optimized/cuda/check.hpp"
#include "optimized/cuda/gate/gradient.hpp"
#include "optimized/cuda/gate/strong_gates.cuh"
#include "optimized/cuda/gate/switch.hpp"
#include "optimized/cuda/hopper/backward.hpp"
#include "optimized/cuda/hopper/bias_step.cuh"
#include "optimized/cuda/hopper/dimensions.hpp"
#include "optimized/cuda/launch.cuh"

namespace lethe {
namespace {

constexpr int kRows = 64;  // of one slice, and of one CTA of prepare
constexpr int kPrepareThreads = 256, kFinishThreads = 128;

struct PrepareParameters {
  Operand values, residual, grad_values;
  const float *delta, *log_normalizer;
  Plan plan;
  BackwardWorkspace workspace;
  double inverse_scale;
  int dim, query_length, query_offset, query_heads, key_blocks, padded_queries, row_blocks;  // dim: columns of dO
};

// The loads and stores that need nothing of the gate's plan come first and overlap the plan's own kernels. All earlier work has ended: the first of
// the plan's kernels is launched without overlap, and an earlier backward on the same plan ends with finish_query, after all its other kernels.
template <typename Element, int kDim>
__global__ void __launch_bounds__(kPrepareThreads) prepare(const __grid_constant__ PrepareParameters p) {
  let_next_kernel_start();
  if (threadIdx.x == 0) p.workspace.turns[blockIdx.x] = 0;  // one a CTA; fewer are used where tiles are larger
  if (blockIdx.x == 0 && threadIdx.x < kGateBlock) p.workspace.zeros[threadIdx.x] = {};
  constexpr int kLanesARow = kDim / 8;  // 16 bytes a lane
  constexpr int kRowsAtOnce = kPrepareThreads / kLanesARow, kRounds = kRows / kRowsAtOnce;
  const int index =
      gridDim.x - 1 - blockIdx.x;  // what the main kernel reads first is written last: it is in the L2 cache
  const int64_t row_of_heads = index / p.row_blocks;
  const int first = index % p.row_blocks * kRows + threadIdx.x / kLanesARow;
  const int batch = row_of_heads / p.query_heads, head = row_of_heads % p.query_heads;
  const int lane_of_row = threadIdx.x % kLanesARow;
  constexpr int kFloat4s = kSliceFloats * (kDim / 64) / 4;
  float4* slices = reinterpret_cast<float4*>(p.workspace.grad_query) + int64_t{index} * kFloat4s;
  for (int i = threadIdx.x; i < kFloat4s; i += kPrepareThreads) slices[i] = float4{0, 0, 0, 0};

  // A row's lanes have kRounds rows, of which each of the first lanes writes one. Its log-normaliser is loaded here, under the others' loads.
  const int query = first + lane_of_row * kRowsAtOnce;
  const bool has_row = lane_of_row < kRounds, has_query = has_row && query < p.query_length;
  float log_normalizer = 0, delta = 0;
  if (has_query) {
    const int64_t token = (int64_t{batch} * p.query_length + query) * p.query_heads + head;
    log_normalizer = p.log_normalizer[token];
    if (p.delta) delta = p.delta[token];
  }
  constexpr int kLoads = 2;  // rounds whose loads are issued together
  static_assert(kRounds % kLoads == 0 && kRounds <= kLanesARow);
  if (!p.delta) {
#pragma unroll
    for (int begin = 0; begin < kRounds; begin += kLoads) {
      uint4 loaded[kLoads][3] = {};
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int of_round = first + (begin + i) * kRowsAtOnce;
        if (of_round >= p.query_length || 8 * lane_of_row >= p.dim) continue;
        const auto load = [&](const Operand& operand) {
          const Element* data = static_cast<const Element*>(operand.data) + batch * operand.batch_stride +
                                of_round * operand.token_stride + head * operand.head_stride;
          return reinterpret_cast<const uint4*>(data) + lane_of_row;
        };
        // Of these the main kernel reads dO alone.
        loaded[i][0] = __ldcs(load(p.values)), loaded[i][2] = *load(p.grad_values);
        if (p.residual.data) loaded[i][1] = __ldcs(load(p.residual));
      }
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        float sum = 0;
        const auto add = [&](uint32_t value, uint32_t rest, uint32_t grad) {
          const float2 v = unpack<Element>(value), r = unpack<Element>(rest), g = unpack<Element>(grad);
          sum += (v.x + r.x) * g.x + (v.y + r.y) * g.y;
        };
        const auto& [value, rest, grad] = loaded[i];
        add(value.x, rest.x, grad.x), add(value.y, rest.y, grad.y), add(value.z, rest.z, grad.z),
            add(value.w, rest.w, grad.w);
#pragma unroll
        for (int offset = kLanesARow / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
        if (lane_of_row == begin + i) delta = sum;
      }
    }
  }

  wait_for_previous_kernel();
  if (blockIdx.x == 0 && threadIdx.x == 0) *p.plan.scratch.next_tile = 0;
  if (!has_row) return;
  const int64_t out = row_of_heads * p.padded_queries + query;
  constexpr int kTile = kTileQueries<kDim>;
  double bias = -INFINITY, frame = 0;  // past the end: weight 0
  if (has_query) {
    bias = -log_normalizer;
    if constexpr (kGate) {
      frame =
          p.plan.prefix.base[row_of_heads * (p.key_blocks + 1) + (p.query_offset + query / kTile * kTile) / kGateBlock];
      bias += prefix_at(p.plan.prefix, row_of_heads, p.key_blocks, query + p.query_offset);
    }
  }
  if constexpr (kGate) p.workspace.row_number[out] = bias * p.inverse_scale;
  bias -= frame;
  p.workspace.row_bias[out] = bias_column(static_cast<float>(bias * p.inverse_scale));
  p.workspace.negative_delta[out] = bias_column(isinf(delta) ? NAN : -delta);  // an overflow must not look finite
}

struct FinishParameters {
  const float* slices;
  MutableOperand grad_query;
  float scale;
  int dim, query_length, query_heads, slices_a_head;
};

// One CTA a slice: 64 queries × 64 of D. It runs beside the gate's gradient, which leaves most of the device idle. Both read only data written
// before either began; only the last CTA waits, so whatever comes after this kernel comes after both.
template <typename Element, int kDim>
__global__ void __launch_bounds__(kFinishThreads) finish_query(const __grid_constant__ FinishParameters p) {
  constexpr int kPanels = kDim / 64;
  constexpr int kRowWords = 32 + 4;  // of shared memory, padded so that rows start in different banks
  __shared__ alignas(16) uint32_t tile[kRows * kRowWords];
  const int index = gridDim.x - 1 - blockIdx.x;  // the main kernel's last sums first
  const float4* slice = reinterpret_cast<const float4*>(p.slices + int64_t{index} * kSliceFloats);
  const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float4 part = slice[128 * k + threadIdx.x];
    const int word = 4 * k + threadIdx.x % 4;
    tile[row * kRowWords + word] = pack<Element>(part.x * p.scale, part.y * p.scale);
    tile[(row + 8) * kRowWords + word] = pack<Element>(part.z * p.scale, part.w * p.scale);
  }
  __syncthreads();
  const int row_of_heads = index / p.slices_a_head, slice_of_head = index % p.slices_a_head;
  const int batch = row_of_heads / p.query_heads, head = row_of_heads % p.query_heads;
  const int first = slice_of_head / kPanels * kRows, panel = slice_of_head % kPanels;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = threadIdx.x / 8 + 16 * i, chunk = threadIdx.x % 8;
    if (first + r >= p.query_length || 64 * panel + 8 * chunk >= p.dim) continue;
    Element* out = static_cast<Element*>(p.grad_query.data) + batch * p.grad_query.batch_stride +
                   (first + r) * p.grad_query.token_stride + head * p.grad_query.head_stride + 64 * panel;
    reinterpret_cast<uint4*>(out)[chunk] = *reinterpret_cast<const uint4*>(&tile[r * kRowWords + 4 * chunk]);
  }
  if (kGate && blockIdx.x + 1 == gridDim.x) wait_for_previous_kernel();
}

}  // namespace

BackwardWorkspace backward_workspace_in(Workspace& workspace, const Shape& shape) {
  const int64_t rows = shape.batch * shape.query_heads, queries = whole_blocks(shape.query_length),
                keys = whole_blocks(shape.key_length);
  return {
      .grad_query = workspace.take<float>(rows * (queries / kRows) * (hopper::instance_dim(shape) / 64) * kSliceFloats),
      .row_bias = workspace.take<BiasColumn>(rows * queries),
      .zeros = workspace.take<BiasColumn>(kGateBlock),
      .row_number = workspace.take<double>(rows * queries),
      .negative_delta = workspace.take<BiasColumn>(rows * queries),
      .column_sums = workspace.take<float>(rows * keys),
      .row_shares = workspace.take<float>(gate_gradient_floats(shape)),
      .turns = workspace.take<int32_t>(rows * (queries / kRows))};
}

void launch_backward_prepare(const BackwardArguments& arguments, const BackwardWorkspace& workspace, const Plan& plan) {
  const Shape& shape = arguments.shape;
  const int64_t rows = shape.batch * shape.query_heads;
  const PrepareParameters parameters{arguments.values,
                                     arguments.residual,
                                     arguments.grad_values,
                                     arguments.delta,
                                     arguments.log_normalizer,
                                     plan,
                                     workspace,
                                     1 / divisor_scale(arguments.scale),
                                     int(shape.value_dim),
                                     int(shape.query_length),
                                     int(shape.key_length - shape.query_length),
                                     int(shape.query_heads),
                                     int(gate_blocks(shape.key_length)),
                                     int(whole_blocks(shape.query_length)),
                                     int(whole_blocks(shape.query_length) / kRows)};
  hopper::for_instance(arguments.dtype, shape, [&]<typename Element, int kDim> {
    launch_overlapping(prepare<Element, kDim>, parameters.row_blocks * rows, kPrepareThreads, 0, arguments.stream,
                       parameters);
  });
}

void launch_backward_finish(const BackwardArguments& arguments, const BackwardWorkspace& workspace) {
  const Shape& shape = arguments.shape;
  const int64_t rows = shape.batch * shape.query_heads;
  const int panels = int(hopper::instance_dim(shape) / 64),
            slices = int(whole_blocks(shape.query_length) / kRows) * panels;
  const FinishParameters finish{workspace.grad_query,
                                arguments.grad_query,
                                float(arguments.scale),
                                int(shape.key_dim),
                                int(shape.query_length),
                                int(shape.query_heads),
                                slices};
  hopper::for_instance(arguments.dtype, shape, [&]<typename Element, int kDim> {
    if constexpr (kGate) {
      launch_overlapping(finish_query<Element, kDim>, slices * rows, kFinishThreads, 0, arguments.stream, finish);
    } else {
      finish_query<Element, kDim><<<slices * rows, kFinishThreads, 0, arguments.stream>>>(finish);
      cuda_check(cudaGetLastError(), "backward: finish");
    }
  });
}

}  // namespace lethe
