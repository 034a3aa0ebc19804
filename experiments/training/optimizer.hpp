#pragma once
// AdamW on a model's flat buffers.

#include <torch/types.h>

#include <vector>

#include "experiments/models/flat_parameters.hpp"
#include "experiments/training/training.hpp"

namespace lethe {

/// AdamW with clipping by the global norm, decoupled weight decay for matrices alone, and no value read by the host.
///
/// source   Loshchilov and Hutter 2019, Algorithm 2; FoX Appendix B
/// memory   two float32 moments a parameter
class AdamW {
 public:
  AdamW(FlatParameters& parameters, const TrainingConfig& config);

  /// One update from the flat gradient, which has no defined value afterwards. Where loss or norm is not finite, parameters, moments and the count of steps
  /// stay as they are.
  ///
  /// reads    the batch's loss, a scalar on the device
  /// returns  the gradient's norm before clipping, a scalar on the device
  torch::Tensor step(double learning_rate, const torch::Tensor& loss);

  /// The moments' parts of each parameter, and the count of steps: the state of a checkpoint, whatever the flat layout.
  ///
  /// reads  views of the parameters in the flat buffer
  struct Moments {
    torch::Tensor first, second;
  };
  Moments moments_of(const torch::Tensor& parameter) const;
  torch::Tensor& steps() { return steps_; }

 private:
  FlatParameters& parameters_;
  TrainingConfig config_;
  torch::Tensor first_, second_, steps_;
};

}  // namespace lethe
