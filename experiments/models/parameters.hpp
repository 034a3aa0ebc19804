#pragma once
// Parameters and buffers of a module by the dotted names that checkpoints give them.

#include <torch/nn/module.h>

#include <string>

namespace lethe {

/// Registers a parameter under a dotted path below `root`, as checkpoints name it ("attn.q_proj.weight"), making the
/// modules on the way.
///
/// returns  the parameter, uninitialized, float32
torch::Tensor add_parameter(torch::nn::Module& root, const std::string& path, torch::IntArrayRef sizes,
                            torch::Device device);

/// The same for a buffer: saved with the model, drawn with its parameters, never trained.
torch::Tensor add_buffer(torch::nn::Module& root, const std::string& path, torch::IntArrayRef sizes,
                         torch::Device device);

}  // namespace lethe
