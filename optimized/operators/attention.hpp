#pragma once
// The arguments and results of Forgetting Attention in every implementation, and the checks that hold on every device. Works on symbolic shapes too.

#include <ATen/core/Tensor.h>

#include <optional>

#include "optimized/gate.hpp"
#include "optimized/operators/checks.hpp"

namespace lethe {

/// The inputs of one call; optimized/torch/forgetting_attention.hpp has their meaning and domain.
struct AttentionInputs {
  const at::Tensor &query, &key, &value, &log_forget;  ///< [B,Tq,Hq,D], [B,Tk,H,D], [B,Tk,H,Dv], [B,Tk,Hq]
  double scale;
  std::optional<double> log_pruning_tolerance;   ///< a backward reads AttentionOutputs::boundary instead
  const std::optional<at::Tensor>& logit_bound;  ///< [Hq] or [B,Hq]; likewise
  bool keep_residual;                            ///< whether a backward follows
  std::optional<int64_t> window = {};  ///< keys that a query sees at most, its own included; absent: all of the past
  bool prune_by_mass = false;          ///< whether pruning bounds the sum of weights, not each by the largest
};

/// The results of a forward. Query blocks have kQueryRows rows; M = ⌈Tq / kQueryRows⌉.
struct AttentionOutputs {
  at::Tensor values;          ///< [B,Tq,Hq,Dv], dtype of query
  at::Tensor log_normalizer;  ///< [B,Tq,Hq], float32, or float64 for float64
  at::Tensor visited_pairs;   ///< [B,Hq] int64
  at::Tensor boundary;        ///< [B,Hq,M] int32, the first key block of each query block; of key_block_of keys
  at::Tensor residual;        ///< [B,Tq,Hq,Dv], dtype of query, the rounding error of values; [0] where it is not kept
};

struct AttentionGradients {
  at::Tensor query, key, value, log_forget;
  at::Tensor query_sums = {};  ///< in place of query, where a backward was asked for them: AttentionHandover
};

/// What attention's backward takes over from that of the operator after it, and leaves to that of the operator before it.
struct AttentionHandover {
  at::Tensor delta =
      {};  ///< [B,Tq,Hq] float32, Σ_d ∂o·(values + residual), whose arrays are then unread; undefined: computed
  bool query_sums =
      false;  ///< whether ∂query / scale is left in float32 in the kernels' slices, [B·Hq, slices, kSliceFloats] of query_sums.hpp
};

/// 1/√D, the scale of a query [B,Tq,Hq,D] where none is given.
///
/// throws  c10::Error where query has not four dimensions or D < 1
double default_scale(const at::Tensor& query);

/// Ranks, shapes, dtypes, devices, and the plain numbers, of a forward call. Values inside tensors are not read: that would wait for the
/// device.
///
/// throws  c10::Error "name: expected …, found …"
void check_arguments(const AttentionInputs& inputs);

/// The same for a backward call: the forward's results must fit its arguments.
void check_gradient_arguments(const at::Tensor& grad_values, const AttentionInputs& inputs,
                              const AttentionOutputs& outputs);

/// Queries that share one entry of `boundary`: as many on every device, so that shapes are computed without one.
inline constexpr int64_t kQueryRows = 128;

/// Keys of a block that `boundary` counts, in the implementations for a device.
inline constexpr int64_t kCpuKeyBlock = 64;
constexpr int64_t key_block_of(at::DeviceType device) { return device == at::kCPU ? kCpuKeyBlock : kGateBlock; }

/// Whether the forward's `residual` has elements where it is asked for. values + residual, both of the inputs' dtype, hold the sums with twice the
/// digits. The backward's delta = Σ_d ∂o·o needs them: where nearly all of a row's weight is on one key, dS = P (dP − delta) is a small difference,
/// and without the residual only the rounding of values would be left of it.
inline bool has_residual(at::ScalarType dtype) { return dtype == at::kBFloat16 || dtype == at::kHalf; }

}  // namespace lethe
