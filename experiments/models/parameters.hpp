#pragma once
// Parameters and buffers of a module by the dotted names that checkpoints give them, each with how it begins.

#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

namespace lethe {

/// How a parameter begins: fills `value`, with numbers drawn on the CPU where it is random.
using Initial = std::function<void(torch::Tensor& value, const torch::Generator& generator)>;

Initial constant(double value);

/// N(0, deviation²); the default is that of every trained matrix.
Initial normal(double deviation = 0.02);

/// Where a layer registers its parameters. Copies and those `below` a path share the module and what is registered.
class Weights {
 public:
  Weights(torch::nn::Module& root, torch::Device device);

  /// The same with `path` and a dot before every name.
  Weights below(const std::string& path) const;

  /// Registers a parameter under a dotted path, as checkpoints name it ("q_proj.weight"), making the modules on the way.
  ///
  /// returns  the parameter, uninitialized, float32
  torch::Tensor parameter(const std::string& path, torch::IntArrayRef sizes, Initial initial) const;

  /// The same for a buffer: saved with the model, drawn with its parameters, never trained.
  torch::Tensor buffer(const std::string& path, torch::IntArrayRef sizes, Initial initial) const;

  /// Draws everything anew from `seed`: all parameters in the order of the module tree, then all buffers. The numbers are
  /// drawn on the CPU, so that a seed means the same weights on every device.
  void initialize(uint64_t seed) const;

 private:
  torch::nn::Module* root_;
  torch::Device device_;
  std::string prefix_;
  std::shared_ptr<std::map<std::string, Initial>> initial_;  // by the whole path
};

}  // namespace lethe
