#pragma once
// The cost of a model before its construction: bytes and FLOPs, by formula.

#include <torch/types.h>

#include "experiments/models/config.hpp"

namespace lethe {

/// Bytes of one training step, by holder.
struct Footprint {
  int64_t parameters = 0;   ///< float32
  int64_t gradients = 0;    ///< float32
  int64_t optimizer = 0;    ///< AdamW's two float32 moments
  int64_t activations = 0;  ///< kept for the backward pass, an estimate: see the block of `footprint`
  int64_t total() const { return parameters + gradients + optimizer + activations; }
};

/// Memory of one training step with `tokens` tokens in a micro-batch.
///
/// The activations count the tensors that autograd keeps, without allocator overhead: a layer keeps its input and the
/// middle of its residual stream (float32), both normed inputs and the MLP's gate, up and product (compute dtype), and the
/// tensors of its mixer's row: queries, keys, values, features, gates and others.
///
/// throws  std::invalid_argument where the bytes exceed 64 bits
/// cost    constructs the model on the meta device
Footprint footprint(const ModelConfig& config, int64_t tokens);

/// Called before memory is taken.
///
/// reads   what: the holder of these bytes, for the message
/// throws  std::invalid_argument "memory: expected …, found …" where they exceed the device's memory
void expect_memory(const std::string& what, int64_t bytes, torch::Device device);

}  // namespace lethe
