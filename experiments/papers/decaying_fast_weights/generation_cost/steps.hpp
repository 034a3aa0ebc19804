#pragma once
// The attention step of one generated token, ready to be run and timed: each rule, each implementation, in both editions.

#include <torch/types.h>

#include <functional>
#include <string>
#include <vector>

#include "reference/head.hpp"

namespace lethe::generation_cost {

/// A rule, "attention", "decay", "delta" or "forgetting attention", by our operators ("lethe") or by Torch's ("torch").
struct Rival {
  std::string rule, implementation;

  std::string name() const { return rule + " (" + implementation + ")"; }
  bool operator==(const Rival&) const = default;
};

enum class Edition {
  kScripted,  ///< the step of the paper's own script
  kClean      ///< the step that generation needs
};

/// Sizes of the benchmark; heads is 1 in the scripted edition.
struct Sizes {
  int64_t batch, heads, key_dim, value_dim;
  torch::Device device;
  torch::Dtype dtype;

  /// Bytes of the keys and values of one token of the context.
  int64_t cache_bytes() const;
};

/// A token's step with all tensors that it keeps alive.
struct Step {
  std::function<torch::Tensor()> run;  ///< values [B,1,H,V]; may be called any number of times
  std::string variant;                 ///< the row of the reference's registry that it computes
  std::function<Head()> head;          ///< the inputs of the next call of run, for batch entry 0, head 0
};

/// The step of `rival` after `context` tokens.
///
/// kScripted, like the script: inputs require gradients, gradients are on, and all of its tensors stay alive, read or not.
/// Attention is softmax(q Kᵀ) V by three operations, without scale, mask and cache; the recurrent rules take one step from a
/// zero state whatever the context. The script draws gates and write strengths from N(0, 1), which exceeds the range of gates;
/// ours are in that range.
///
/// kClean: no gradients, only tensors that are read stay alive. Attention writes the token's key and value into a cache of
/// context + 1 tokens and calls Torch's fused attention, or lethe::forgetting_attention with the log gates cached too. The recurrent
/// rules continue from the state after `context` random tokens.
///
/// throws  std::invalid_argument for a rival that doesn't exist in this edition
Step make_step(Edition edition, const Rival& rival, const Sizes& sizes, int64_t context);

/// The rivals of an edition with one of `implementations`; attention is always among them.
std::vector<Rival> rivals(Edition edition, const std::vector<std::string>& implementations);

}  // namespace lethe::generation_cost
