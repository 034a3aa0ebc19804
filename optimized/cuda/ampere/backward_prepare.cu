// The pass before the backward's products: Δ_i = dO_i·o_i and the rows' numbers. Bound by memory.

#include <numbers>

#include "optimized/cuda/ampere/backward.hpp"
#include "optimized/cuda/ampere/dimensions.hpp"
#include "optimized/cuda/arithmetic.cuh"
#include "optimized/cuda/gate/gradient.hpp"
#include "optimized/cuda/launch.cuh"

namespace lethe::ampere {
namespace {

constexpr int kThreads = 256;

struct PrepareParameters {
  Operand values, residual, grad_values;
  const float *delta, *log_normalizer;
  GatePrefix prefix;
  BackwardWorkspace workspace;
  double inverse_scale;
  int value_dim, query_length, query_offset, query_heads, key_blocks, padded_queries, row_blocks;
  int cleared;  // float4s of dQ's sums a CTA
};

// Eight elements a lane, kLanes lanes a row. What needs nothing of the gate's plan comes first and overlaps the plan's own kernels. All earlier work
// has ended: the first of these is launched without overlap, and of an earlier backward on the same plan dQ's sums have been read before its last
// kernels.
template <typename Element, int kLanes>
__global__ void __launch_bounds__(kThreads) prepare(const __grid_constant__ PrepareParameters p) {
  constexpr int kRows = kThreads / kLanes;
  const int64_t row = blockIdx.x / p.row_blocks;
  const int query = blockIdx.x % p.row_blocks * kRows + threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int batch = row / p.query_heads, head = row % p.query_heads;
  float delta = 0, log_normalizer = 0;
  float4* sums = reinterpret_cast<float4*>(p.workspace.grad_query) + int64_t{blockIdx.x} * p.cleared;
  for (int i = threadIdx.x; i < p.cleared; i += kThreads) sums[i] = float4{0, 0, 0, 0};
  if (lane == 0 && query < p.query_length)  // under the loads below
    log_normalizer = p.log_normalizer[(int64_t{batch} * p.query_length + query) * p.query_heads + head];
  if (query < p.query_length && lane * 8 < p.value_dim && !p.delta) {
    const auto row_of = [&](const Operand& operand) {
      return static_cast<const Element*>(operand.data) + batch * operand.batch_stride + query * operand.token_stride +
             head * operand.head_stride;
    };
    if constexpr (std::is_same_v<Element, float>) {
      const float4 *value = reinterpret_cast<const float4*>(row_of(p.values)) + 2 * lane,
                   *grad = reinterpret_cast<const float4*>(row_of(p.grad_values)) + 2 * lane;
      for (int i = 0; i < 2 && lane * 8 + i * 4 < p.value_dim; ++i) {
        const float4 v = value[i], g = grad[i];
        delta += (v.x * g.x + v.y * g.y) + (v.z * g.z + v.w * g.w);
      }
    } else {
      const auto load = [&](const Operand& operand) { return reinterpret_cast<const uint4*>(row_of(operand))[lane]; };
      const uint4 value = load(p.values), grad = load(p.grad_values);
      const uint4 rest = p.residual.data ? load(p.residual) : uint4{0, 0, 0, 0};
      const uint32_t values[4] = {value.x, value.y, value.z, value.w}, rests[4] = {rest.x, rest.y, rest.z, rest.w},
                     grads[4] = {grad.x, grad.y, grad.z, grad.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 v = unpack<Element>(values[i]), r = unpack<Element>(rests[i]), g = unpack<Element>(grads[i]);
        delta += (v.x + r.x) * g.x + (v.y + r.y) * g.y;
      }
    }
  }
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) delta += __shfl_xor_sync(~0u, delta, offset);
  wait_for_previous_kernel();
  if (lane > 0 || query >= p.padded_queries) return;
  double number = -INFINITY, base = 0;  // past the end: weight 0
  if (query < p.query_length) {
    const int64_t token = (int64_t{batch} * p.query_length + query) * p.query_heads + head;
    if (p.delta) delta = p.delta[token];
    base = p.prefix.base[row * (p.key_blocks + 1) +
                         (p.query_offset + query / int(kGateBlock) * int(kGateBlock)) / int(kGateBlock)];
    number = prefix_at(p.prefix, row, p.key_blocks, query + p.query_offset) - log_normalizer;
  }
  const int64_t at = row * p.padded_queries + query;
  const auto store = [&](float4* quads, float x) {
    float* quad = reinterpret_cast<float*>(quads + at / 2) + query % 2;
    quad[0] = quad[2] = x;
  };
  p.workspace.row_number[at] = number;
  p.workspace.row_sums[at] = 0;
  store(p.workspace.row_bias, static_cast<float>((number - base) * p.inverse_scale));
  store(p.workspace.negative_delta, isinf(delta) ? NAN : -delta);  // an overflow must not look finite
}

}  // namespace

BackwardWorkspace backward_workspace_in(Workspace& workspace, const Shape& shape) {
  const int64_t rows = shape.batch * shape.query_heads, queries = whole_blocks(shape.query_length),
                keys = whole_blocks(shape.key_length), dim = dim_of_instance(shape),
                sums = is_fused(dim) ? rows * queries * dim : 0;
  return {.row_bias = workspace.take<float4>(rows * queries / 2),
          .negative_delta = workspace.take<float4>(rows * queries / 2),
          .row_number = workspace.take<double>(rows * queries),
          .row_sums = workspace.take<float>(rows * queries),
          .column_sums = workspace.take<float>(rows * keys),
          .row_shares = workspace.take<float>(gate_gradient_floats(shape)),
          .grad_query = workspace.take<float>(sums),
          .grad_query_floats = sums};
}

void launch_backward_prepare(const BackwardArguments& arguments, const BackwardWorkspace& workspace, const Plan& plan) {
  const Shape& s = arguments.shape;
  const auto launch = [&]<int kLanes> {
    const int padded = int(whole_blocks(s.query_length)), row_blocks = padded / (kThreads / kLanes);
    const PrepareParameters parameters{arguments.values,
                                       arguments.residual,
                                       arguments.grad_values,
                                       arguments.delta,
                                       arguments.log_normalizer,
                                       plan.prefix,
                                       workspace,
                                       1 / divisor_scale(arguments.scale),
                                       int(s.value_dim),
                                       int(s.query_length),
                                       int(s.key_length - s.query_length),
                                       int(s.query_heads),
                                       int(gate_blocks(s.key_length)),
                                       padded,
                                       row_blocks,
                                       int(workspace.grad_query_floats / 4 / (row_blocks * s.batch * s.query_heads))};
    launch_overlapping(arguments.dtype == Dtype::kFloat32    ? prepare<float, kLanes>
                       : arguments.dtype == Dtype::kBFloat16 ? prepare<__nv_bfloat16, kLanes>
                                                             : prepare<__half, kLanes>,
                       row_blocks * s.batch * s.query_heads, kThreads, 0, arguments.stream, parameters);
  };
  if (s.value_dim <= 32) launch.template operator()<4>();
  else if (s.value_dim <= 64) launch.template operator()<8>();
  else if (s.value_dim <= 128) launch.template operator()<16>();
  else launch.template operator()<32>();
}

}  // namespace lethe::ampere
