#pragma once
// One generated token's attention, ready to be run and timed: each rule, each implementation, in both editions.

#include <torch/types.h>

#include <functional>
#include <string>
#include <vector>

#include "reference/head.hpp"

namespace lethe::generation_cost {

/// Who generates: "attention", "decay", "delta" or "forgetting attention", by our operators ("lethe") or by Torch's ("torch").
struct Rival {
  std::string rule, implementation;

  std::string name() const { return rule + " (" + implementation + ")"; }
  bool operator==(const Rival&) const = default;
};

enum class Edition {
  kScripted,  ///< what the paper's own script runs
  kClean      ///< what generation needs
};

/// Sizes of the benchmark; heads is 1 in the scripted edition.
struct Sizes {
  int64_t batch, heads, key_dim, value_dim;
  torch::Device device;
  torch::Dtype dtype;

  /// Of the keys and values of one token of the context.
  int64_t cache_bytes() const;
};

/// A token's step with all the tensors that it keeps alive.
struct Step {
  std::function<torch::Tensor()> run;  ///< values [B,1,H,V]; may be called any number of times
  std::string variant;                 ///< the row of the reference's registry that it computes
  std::function<Head()> head;          ///< what the next call of run reads, of batch entry 0, head 0
};

/// The step of `rival` after `context` tokens.
///
/// kScripted, as the script goes: inputs that require gradients, with gradients on, and everything that it makes stays alive,
/// read or not. Attention is softmax(q Kᵀ) V by three operations, without scale, mask and cache; the recurrent rules make
/// one step from a zero state whatever the context. Where the script's gates and write strengths are no gates (it draws them from
/// N(0, 1)), ours are.
///
/// kClean: no gradients, nothing alive that isn't read. Attention writes the token's key and value into a cache of context + 1 tokens
/// and calls Torch's fused attention, or lethe::forgetting_attention with the log gates cached too. The recurrent rules go on from
/// the state that `context` random tokens have left.
///
/// throws  std::invalid_argument for a rival that doesn't exist in this edition
Step make_step(Edition edition, const Rival& rival, const Sizes& sizes, int64_t context);

/// The rivals of an edition that `implementations` names; attention is always among them.
std::vector<Rival> rivals(Edition edition, const std::vector<std::string>& implementations);

}  // namespace lethe::generation_cost
