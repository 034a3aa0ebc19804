#pragma once
// Parameters and buffers of a module by the dotted names of the checkpoints, each with its initializer.

#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "experiments/models/flat_parameters.hpp"

namespace lethe {

/// An initializer of a parameter: fills `value`; random numbers are drawn on the CPU.
using Initial = std::function<void(torch::Tensor& value, const torch::Generator& generator)>;

Initial constant(double value);

/// N(0, deviation²); the default deviation is that of every trained matrix.
Initial normal(double deviation = 0.02);

/// U(−bound, bound).
Initial uniform(double bound);

/// The register of a layer's parameters. Copies, and the registers that `below` returns, share the module and its entries.
class Weights {
 public:
  Weights(torch::nn::Module& root, torch::Device device);

  /// The same with `path` and a dot before every name.
  Weights below(const std::string& path) const;

  /// Registers a parameter under a dotted path, as checkpoints name it ("q_proj.weight"), with the modules along the path.
  ///
  /// returns  the parameter, uninitialized, float32
  torch::Tensor parameter(const std::string& path, torch::IntArrayRef sizes, Initial initial) const;

  /// The same for a buffer: saved with the model, drawn with its parameters, never trained.
  torch::Tensor buffer(const std::string& path, torch::IntArrayRef sizes, Initial initial) const;

  /// The product of x with several of these parameters, or with one. Undefined matrices have no piece.
  Product product(std::vector<torch::Tensor> matrices) const;

  /// Moves all parameters into flat buffers (FlatParameters::of).
  FlatParameters flatten(torch::Dtype compute_dtype, bool with_gradients, int64_t parts) const;

  /// Replaces the initializers of those parameters for which `other` returns one.
  void replace_initial(const std::function<Initial(const std::string& path, const torch::Tensor& value)>& other) const;

  /// Draws everything anew: each parameter and buffer from a generator of its own, of the seed and its name, as many at once as there are threads.
  /// The numbers are drawn on the CPU, so a seed gives the same weights on every device, and models share those of parameters that they share.
  void initialize(uint64_t seed) const;

 private:
  torch::nn::Module* root_;
  torch::Device device_;
  std::string prefix_;
  struct Register {
    std::map<std::string, Initial> initial;  // by the whole path
    std::vector<Product> products;           // in the order of their construction
  };
  std::shared_ptr<Register> register_;
};

}  // namespace lethe
