#pragma once
// Launches of the gate's kernels: prefix sums (prefix.cuh), then the boundary and the order of heads (boundary.cuh). Two kernels; the second starts
// while the first ends.

#include <algorithm>
#include <cmath>

#include "optimized/cuda/gate/boundary.cuh"
#include "optimized/cuda/gate/switch.hpp"

namespace lethe {
namespace gate {

// Boundary and order without a gate: every block is visited.
template <typename Derived>
__global__ void __launch_bounds__(kScanThreads)
    visit_everything(const __grid_constant__ BoundArguments a, Derived derived) {
  const int row = blockIdx.x, group = a.query_heads / a.heads;
  for (int m = threadIdx.x; m < a.query_blocks; m += kScanThreads)
    a.boundary.first_key_block[int64_t{row} * a.query_blocks + m] = 0;
  for (int n = threadIdx.x; n < a.key_blocks; n += kScanThreads)
    a.boundary.last_query_block[int64_t{row} * a.key_blocks + n] = a.query_blocks - 1;
  if (row == 0) order_tiles(a, row);
  if (threadIdx.x > 0) return;
  a.order.head_order[row] = row;
  if (row % group == 0) a.order.key_head_order[row / group] = row / group;
  derived.clear(row);
}

}  // namespace gate

/// Prefix sums, cuts, the pruning boundary (a block of queries × keys is left out where every D_ij < −2U − log T + log ε, or by mass where the sum of
/// exp(D_ij) over the keys so far is below exp(−2U) ε, or across a cut), and the order of heads by the blocks that are left.
///
/// source   Adaptive Computation Pruning, Eq. 3 and Algorithm 1, by binary search: D falls along a row of blocks
/// reads    query, key: up to 256 elements a row, a multiple of 8
///          sections: of the kernels that follow, whose order of tiles it prepares
///          derived: a kernel family's own operands, computed with the prefix (prefix.cuh)
/// cost     one read of log_forget. Where the bound is computed from norms, also one of query and key, of those heads whose gates forget more
///          than ε from first to last (no others can be pruned, whatever their norms). O(M log N) a head
template <typename Derived>
void launch_gate(const GateInputs& a, GatePrefix prefix, const Boundary& boundary, const WorkOrder& order,
                 Sections sections, const Derived& derived) {
  using namespace gate;
  const Shape& s = a.shape;
  const int64_t blocks = gate_blocks(s.key_length), rows = s.batch * s.query_heads;
  if (!a.prune_by_mass || a.boundary_given || std::isinf(a.log_pruning_tolerance)) prefix.mass = nullptr;
  const BoundArguments bound{.rows = int(rows),
                             .heads = int(s.heads),
                             .query_heads = int(s.query_heads),
                             .query_blocks = int(gate_blocks(s.query_length)),
                             .key_blocks = int(blocks),
                             .offset = int(s.key_length - s.query_length),
                             .key_length = int(s.key_length),
                             .scale = a.scale,
                             .log_tolerance = a.log_pruning_tolerance,
                             .logit_bound = a.logit_bound,
                             .boundary_given = a.boundary_given,
                             .sections = sections,
                             .prefix = prefix,
                             .boundary = boundary,
                             .order = order};
  if constexpr (!kGate) {
    visit_everything<<<rows, kScanThreads, 0, a.stream>>>(bound, derived);
    cuda_check(cudaGetLastError(), "gate");
    return;
  }
  const int64_t head_groups = std::min<int64_t>((s.query_heads + kWarps - 1) / kWarps, 1024);
  sum_blocks<<<dim3(blocks, s.batch, head_groups), 32 * kWarps, 0, a.stream>>>(
      {a.gates.log_forget, a.gates.batch_stride, a.gates.token_stride, a.gates.head_stride, int(s.key_length),
       int(s.query_heads), int(blocks), prefix, order},
      derived);
  cuda_check(cudaGetLastError(), "gate");
  const bool norms_needed = std::isfinite(a.log_pruning_tolerance) && !a.logit_bound && !a.boundary_given;
  if (!norms_needed) {
    launch_overlapping(scan_and_bound<Derived>, rows, kScanThreads, 0, a.stream, bound, derived);
    return;
  }
  const auto launch_norms = [&]<typename Element, int kDim> {
    constexpr int64_t kChunk = kNormRows<kDim>;
    const int query_chunks = int((s.query_length + kChunk - 1) / kChunk),
              key_chunks = int((s.key_length + kChunk - 1) / kChunk);
    const int64_t pieces = std::max(query_chunks, key_chunks) * s.batch * (s.query_heads + s.heads);
    const NormArguments norms{in_halves<Element>(a.query),
                              in_halves<Element>(a.key),
                              int(s.key_dim * sizeof(Element) / 2),
                              int(s.query_length),
                              int(s.key_length),
                              query_chunks,
                              key_chunks,
                              bound};
    launch_overlapping(scan_norms_and_bound<Element, kDim, Derived>, rows + pieces, kScanThreads, 0, a.stream, norms,
                       derived);
  };
  if (a.dtype == Dtype::kFloat32) {
    if (s.key_dim <= 64) launch_norms.template operator()<float, 128>();
    else launch_norms.template operator()<float, 256>();
    return;
  }
  const auto launch_for = [&]<int kDim> {
    a.dtype == Dtype::kBFloat16 ? launch_norms.template operator()<__nv_bfloat16, kDim>()
                                : launch_norms.template operator()<__half, kDim>();
  };
  if (s.key_dim <= 64) launch_for.template operator()<64>();
  else if (s.key_dim <= 128) launch_for.template operator()<128>();
  else launch_for.template operator()<256>();
}

}  // namespace lethe
