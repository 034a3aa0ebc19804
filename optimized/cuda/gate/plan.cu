// The gate's plan: prefix sums (prefix.cuh), what pruning leaves out (boundary.cuh), and their launches: two kernels, the second of
// which starts under the end of the first.

#include <algorithm>
#include <cmath>

#include "optimized/cuda/check.hpp"
#include "optimized/cuda/gate/boundary.cuh"
#include "optimized/cuda/gate/switch.hpp"
#include "optimized/cuda/launch.hpp"

namespace lethe {
namespace {

using namespace gate;

// The plan where there is no gate: everything is visited.
__global__ void __launch_bounds__(kScanThreads) open_plan(const __grid_constant__ BoundArguments a) {
  const int row = blockIdx.x, group = a.query_heads / a.heads;
  for (int m = threadIdx.x; m < a.query_blocks; m += kScanThreads)
    a.plan.first_key_block[int64_t{row} * a.query_blocks + m] = 0;
  for (int n = threadIdx.x; n < a.key_blocks; n += kScanThreads)
    a.plan.last_query_block[int64_t{row} * a.key_blocks + n] = a.query_blocks - 1;
  if (threadIdx.x > 0) return;
  a.plan.head_order[row] = row;
  if (row % group == 0) a.plan.key_head_order[row / group] = row / group;
  a.plan.pairs[row] = 0;
  if (row == 0) *a.plan.next_tile = a.plan.repeats[0] = 0;
}

int64_t blocks_of(int64_t length) { return (length + kGateBlock - 1) / kGateBlock; }

}  // namespace

GatePlan gate_plan_in(void* memory, const Shape& shape) {
  const int64_t rows = shape.batch * shape.query_heads, keys = blocks_of(shape.key_length),
                queries = blocks_of(shape.query_length);
  char* next = static_cast<char*>(memory);
  const auto take = [&]<typename T>(T*& array, int64_t count) {
    array = reinterpret_cast<T*>(next);
    next += (count * sizeof(T) + 255) / 256 * 256;
  };
  GatePlan plan;
  take(plan.block_sum, rows * keys);
  take(plan.base, rows * (keys + 1));
  take(plan.base_log2, rows * (keys + 1));
  take(plan.bias, rows * keys * kGateBlock);
  take(plan.bias_rest, rows * keys * kGateBlock);
  take(plan.start, rows * keys * kGateBlock / 8);
  take(plan.cut_before, rows * keys * kGateBlock);
  take(plan.cut_after, rows * keys * kGateBlock);
  take(plan.block_cut_before, rows * (keys + 1));
  take(plan.block_cut_after, rows * (keys + 1));
  take(plan.first_key_block, rows * queries);
  take(plan.last_query_block, rows * keys);
  take(plan.largest_square, 2 * rows);
  take(plan.head_blocks, rows);
  take(plan.head_order, rows);
  take(plan.key_head_order, shape.batch * shape.heads);
  take(plan.next_tile, 1);
  take(plan.parts_done, rows);
  take(plan.heads_done, 1);
  take(plan.pairs, rows);
  take(plan.repeats, 1 + rows * queries);
  take(plan.end, 0);
  return plan;
}

size_t gate_plan_bytes(const Shape& shape) { return reinterpret_cast<size_t>(gate_plan_in(nullptr, shape).end); }

void launch_gate_plan(const GatePlanArguments& a) {
  const Shape& s = a.shape;
  const int64_t blocks = blocks_of(s.key_length), rows = s.batch * s.query_heads;
  const BoundArguments bound{int(rows),
                             int(s.heads),
                             int(s.query_heads),
                             int(blocks_of(s.query_length)),
                             int(blocks),
                             int(s.key_length - s.query_length),
                             a.scale,
                             std::log(double(s.key_length)),
                             a.log_pruning_tolerance,
                             a.logit_bound,
                             a.boundary_given,
                             a.plan};
  if constexpr (!kGate) {
    open_plan<<<rows, kScanThreads, 0, a.stream>>>(bound);
    cuda_check(cudaGetLastError(), "gate plan");
    return;
  }
  const int64_t head_groups = std::min<int64_t>((s.query_heads + kWarps - 1) / kWarps, 1024);
  sum_blocks<<<dim3(blocks, s.batch, head_groups), 32 * kWarps, 0, a.stream>>>(
      {a.log_forget, a.gate_batch_stride, a.gate_token_stride, a.gate_head_stride, int(s.key_length),
       int(s.query_heads), int(blocks), 1 / divisor_scale(a.scale), !a.boundary_given, a.plan});
  cuda_check(cudaGetLastError(), "gate plan");
  const bool norms_needed = std::isfinite(a.log_pruning_tolerance) && !a.logit_bound && !a.boundary_given;
  if (!norms_needed) {
    launch_overlapping(scan_and_bound, rows, kScanThreads, 0, a.stream, bound);
    return;
  }
  const bool bfloat16 = a.dtype == Dtype::kBFloat16;
  const auto kernel = s.key_dim == 64
                          ? (bfloat16 ? scan_norms_and_bound<__nv_bfloat16, 64> : scan_norms_and_bound<__half, 64>)
                          : (bfloat16 ? scan_norms_and_bound<__nv_bfloat16, 128> : scan_norms_and_bound<__half, 128>);
  const int64_t chunk = s.key_dim == 64 ? kNormRows<64> : kNormRows<128>;
  const auto chunks_of = [&](int64_t length) { return (length + chunk - 1) / chunk; };
  const int64_t query_chunks = chunks_of(s.query_length), key_chunks = chunks_of(s.key_length),
                pieces = std::max(query_chunks, key_chunks) * s.batch * (s.query_heads + s.heads);
  launch_overlapping(
      kernel, rows + pieces, kScanThreads, 0, a.stream,
      {a.query, a.key, int(s.query_length), int(s.key_length), int(query_chunks), int(key_chunks), bound});
}

}  // namespace lethe
