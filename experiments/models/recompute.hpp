#pragma once
// Activations that the backward pass computes again instead of keeping them.

#include <torch/types.h>

#include <functional>
#include <string>
#include <vector>

namespace lethe {

/// What a training step keeps of a layer for its backward pass.
enum class Recompute {
  kNone,         ///< everything
  kActivations,  ///< not the MLP's product of gate and up: one more swiglu a layer
  kBlock         ///< the residual stream and the branch before the layer alone: one more forward pass of it
};

/// "none", "activations" or "block".
///
/// throws  std::invalid_argument for another name
Recompute recompute_named(const std::string& name);

using TensorFunction = std::function<std::vector<torch::Tensor>(const std::vector<torch::Tensor>&)>;

/// function(inputs), whose backward calls the function again. Parameters that it reads get their gradients as in an ordinary backward pass.
///
/// reads    a function without randomness, which leaves the same values at every call; inputs, some of which may be undefined
/// returns  its results; differentiable once
/// memory   the inputs, and the function's own activations during its backward
std::vector<torch::Tensor> recomputed(const TensorFunction& function, const std::vector<torch::Tensor>& inputs);

}  // namespace lethe
