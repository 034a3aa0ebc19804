#pragma once
// One problem through the CUDA kernels: upload, plan, forward, download.

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "reference/problem.hpp"
#include "tests/cuda/device.hpp"
#include "tests/cuda/kernels_under_test.hpp"
#include "tests/cuda/poison.hpp"

namespace lethe::testing {

struct PlanOptions {
  double log_pruning_tolerance = -std::numeric_limits<double>::infinity();
  std::optional<std::vector<float>> logit_bound = std::nullopt;  ///< [B, Hq]
  bool prune_by_mass = false;
  int64_t poisoned_keys = 0;  ///< this many of the first keys and values become NaN once the boundary is found
};

struct ForwardResult {
  std::vector<double> values;          ///< [B, Tq, Hq, D]
  std::vector<double> log_normalizer;  ///< [B, Tq, Hq]
  std::vector<int64_t> visited_pairs;  ///< [B, Hq]
  std::vector<int32_t> first_key_block, last_query_block;
  std::optional<int32_t>
      repeated_tiles;  ///< that a second launch computed: an exponential overflowed, or a strong gate is near
};

/// Rows of `dim` numbers as elements, with columns_between_heads after each.
template <typename Element>
std::vector<Element> elements_of_heads(const std::vector<double>& numbers, int64_t dim) {
  const std::vector<Element> dense = to_element<Element>(numbers);
  if (columns_between_heads == 0) return dense;
  std::vector<Element> apart;
  for (auto row = dense.begin(); row != dense.end(); row += dim) {
    apart.insert(apart.end(), row, row + dim);
    apart.insert(apart.end(), columns_between_heads, Element(std::numeric_limits<float>::quiet_NaN()));
  }
  return apart;
}

/// [B, T, heads, D] of elements_of_heads.
inline Operand operand_of_heads(const void* data, int64_t length, int64_t heads, int64_t dim) {
  const int64_t head = dim + columns_between_heads;
  return {data, length * heads * head, heads * head, head};
}

/// The problem on the device, with the plan and everything the launchers read.
template <typename Element, typename Kernels = HopperKernels>
class DeviceProblem {
 public:
  using Plan = typename Kernels::Plan;

  DeviceProblem(const Problem& problem, const PlanOptions& options)
      : shape_(problem.shape), dtype_(problem.dtype), scale_(problem.scale),
        query_(elements_of_heads<Element>(problem.query, problem.shape.key_dim)),
        key_(elements_of_heads<Element>(problem.key, problem.shape.key_dim)),
        value_(elements_of_heads<Element>(problem.value, problem.shape.value_dim)),
        log_forget_(std::vector<float>(problem.log_forget.begin(), problem.log_forget.end())),
        bound_(options.logit_bound.value_or(std::vector<float>{})), plan_memory_(Kernels::plan_bytes(problem.shape)),
        backward_plan_memory_(Kernels::plan_bytes(problem.shape)),
        boundary_(problem.shape.batch * problem.shape.query_heads * gate_blocks(problem.shape.query_length)),
        plan_(plan_in(plan_memory_)) {
    GateInputs inputs = gate_inputs(options.log_pruning_tolerance, false);
    inputs.prune_by_mass = options.prune_by_mass;
    Kernels::launch_plan(inputs, plan_);
    if (options.poisoned_keys > 0) poison(options.poisoned_keys);
  }

  /// A second plan for the backward, as the family computes it: it takes only the boundary from the first one.
  Plan backward_plan() const {
    const Plan plan = plan_in(backward_plan_memory_);
    Kernels::launch_plan(gate_inputs(-std::numeric_limits<double>::infinity(), true), plan);
    return plan;
  }

  Gates gates() const {
    const Shape& s = shape_;
    return {log_forget_.data(), s.key_length * s.query_heads, s.query_heads, 1};
  }
  int32_t* first_key_block() const { return boundary_.data(); }
  Operand query() const { return operand(query_, shape_.query_length, shape_.query_heads); }
  Operand key() const { return operand(key_, shape_.key_length, shape_.heads); }
  Operand value() const { return operand(value_, shape_.key_length, shape_.heads); }
  const Plan& plan() const { return plan_; }

  ForwardResult forward() const {
    const Shape& s = shape_;
    const int64_t rows = s.batch * s.query_heads;
    const DeviceArray<Element> values(rows * s.query_length * s.value_dim);
    const DeviceArray<float> log_normalizer(rows * s.query_length);
    const DeviceArray<int64_t> visited_pairs(rows);
    poison_shared_memory();
    Kernels::launch_forward(forward_arguments(values.data(), nullptr, log_normalizer.data(), visited_pairs.data()),
                            plan_);
    ForwardResult result;
    result.values = to_doubles(values.host());
    const std::vector<float> normalizers = log_normalizer.host();
    result.log_normalizer.assign(normalizers.begin(), normalizers.end());
    result.visited_pairs = visited_pairs.host();
    result.first_key_block = boundary_.host();
    result.last_query_block = download(plan_.boundary.last_query_block, rows * gate_blocks(s.key_length));
    result.repeated_tiles = Kernels::repeated_tiles(plan_);
    return result;
  }

  /// All inputs of a forward but its workspace.
  ForwardArguments forward_arguments(void* values, void* residual, float* log_normalizer,
                                     int64_t* visited_pairs) const {
    return {.shape = shape_,
            .dtype = dtype_,
            .scale = scale_,
            .query = query(),
            .key = key(),
            .value = value(),
            .gates = gates(),
            .log_pruning_tolerance = -std::numeric_limits<double>::infinity(),
            .logit_bound = nullptr,
            .values = values,
            .residual = residual,
            .log_normalizer = log_normalizer,
            .visited_pairs = visited_pairs,
            .first_key_block = first_key_block(),
            .workspace = nullptr,
            .stream = nullptr};
  }

 private:
  void poison(int64_t tokens) const {
    const Shape& s = shape_;
    require(cudaDeviceSynchronize());
    for (const auto* array : {&key_, &value_})
      for (int64_t batch = 0; batch < s.batch; ++batch) {
        const int64_t token = s.heads * (s.key_dim + columns_between_heads);
        require(cudaMemset(array->data() + batch * s.key_length * token, 0xff, tokens * token * sizeof(Element)));
      }
  }
  Plan plan_in(const DeviceArray<char>& memory) const {
    Workspace workspace(memory.data());
    return Kernels::plan_in(workspace, shape_, boundary_.data());
  }
  GateInputs gate_inputs(double log_pruning_tolerance, bool boundary_given) const {
    return {.shape = shape_,
            .dtype = dtype_,
            .scale = scale_,
            .query = query(),
            .key = key(),
            .gates = gates(),
            .log_pruning_tolerance = log_pruning_tolerance,
            .logit_bound = bound_.size() > 0 ? bound_.data() : nullptr,
            .boundary_given = boundary_given,
            .stream = nullptr};
  }
  Operand operand(const DeviceArray<Element>& array, int64_t length, int64_t heads) const {
    return operand_of_heads(array.data(), length, heads, shape_.key_dim);
  }

  Shape shape_;
  Dtype dtype_;
  double scale_;
  DeviceArray<Element> query_, key_, value_;
  DeviceArray<float> log_forget_, bound_;
  DeviceArray<char> plan_memory_, backward_plan_memory_;
  DeviceArray<int32_t> boundary_;
  Plan plan_;
};

/// Whether a query's position is in a strong block.
inline bool has_strong_block(const Problem& problem) {
  const Shape& s = problem.shape;
  for (int64_t batch = 0; batch < s.batch; ++batch)
    for (int64_t head = 0; head < s.query_heads; ++head)
      for (int64_t block = (s.key_length - s.query_length) / kGateBlock; block * kGateBlock < s.key_length; ++block) {
        double sum = 0;
        for (int64_t t = block * kGateBlock; t < std::min((block + 1) * kGateBlock, s.key_length); ++t) {
          const double gate = problem.log_forget[(batch * s.key_length + t) * s.query_heads + head];
          if (gate >= -1e4) sum += gate;
        }
        if (sum < kStrongSum) return true;
      }
  return false;
}

inline ForwardResult run_forward(const Problem& problem, const PlanOptions& options = {}) {
  return with_kernels(problem.dtype, [&]<typename Kernels, typename Element> {
    return DeviceProblem<Element, Kernels>(problem, options).forward();
  });
}

/// Causal pairs of the blocks that the boundary leaves to the forward kernel's tiles, per (batch, query head).
inline std::vector<int64_t> boundary_pairs(const Shape& shape, const std::vector<int32_t>& first_key_block) {
  const int64_t blocks = (shape.query_length + kGateBlock - 1) / kGateBlock;
  std::vector<int64_t> pairs(shape.batch * shape.query_heads, 0);
  const int64_t tile =
      family_under_test == Family::kHopper ? forward_tile_rows(hopper::instance_dim(shape)) : kGateBlock;
  for (size_t row = 0; row < pairs.size(); ++row)
    for (int64_t i = 0; i < shape.query_length; ++i)
      pairs[row] += i + shape.key_length - shape.query_length + 1 -
                    first_key_block[row * blocks + i / tile * tile / kGateBlock] * kGateBlock;
  return pairs;
}

}  // namespace lethe::testing
