#pragma once
// Every mechanism of the reference that has a state, as calls of the two operators, and heads as their input tensors.

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "tests/operator/problem_tensors.hpp"
#include "tests/support/heads.hpp"

namespace lethe {

/// The source of a test's gates: a kind of the problem's, or some logarithms in random order.
struct GateChoice {
  std::string name;
  Gate gate = Gate::kInitial;
  std::vector<double> log_gates{};  ///< instead of `gate` where not empty
};

/// The kinds of random_problem; gates of 10⁻¹², 10⁻⁴ and 1 − 10⁻⁷, each alone and mixed with exact zeros and ones.
std::vector<GateChoice> every_gate_choice();

struct StateShape {
  int64_t batch = 1, length = 1, heads = 1, key_dim = 1, value_dim = 1;
};

/// batch × heads random heads with every input, rounded to the operators' storage for `dtype`. Keys have norm 1: the delta rule is stable there.
std::vector<Head> state_heads(const StateShape& shape, Dtype dtype, const GateChoice& gate, uint64_t seed);

/// Every input of the heads, [B,T,H,·] or of a state [B,H,·], in the operators' dtypes.
using StateTensors = std::map<reference::Input, at::Tensor>;
StateTensors state_tensors(const std::vector<Head>& heads, int64_t batch, Dtype dtype);

/// One head of a tensor whose rows are positions, [B,T,H,·], or of a state's, [B,H,·]; flat.
std::vector<double> state_head_of(const at::Tensor& tensor, bool has_positions, int64_t batch, int64_t head);

struct StateResult {
  at::Tensor values;      ///< [B,T,H,V]
  at::Tensor state;       ///< [B,H,K,V]
  at::Tensor normalizer;  ///< [B,H,K] where the mechanism normalises, else undefined
};

/// The row `variant` of the reference's table as calls of the operators, differentiable.
struct StateCall {
  const char* variant;
  bool as_given;  ///< passes its inputs on unchanged; elsewhere a feature map or a closing gate rounds them first
  StateResult (*call)(const StateTensors& inputs, double scale);
};

const std::vector<StateCall>& state_calls();

/// The reference's row of that name.
const reference::Variant& variant_named(const char* name);

}  // namespace lethe
