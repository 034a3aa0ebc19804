#pragma once
// AdamW on a model's flat buffers.

#include <torch/types.h>

#include <vector>

#include "experiments/models/flat_parameters.hpp"
#include "experiments/training/gradient_exchange.hpp"
#include "experiments/training/training.hpp"

namespace lethe {

/// AdamW with clipping by the global norm, decoupled weight decay for matrices alone, and no value read by the host.
///
/// source   Loshchilov and Hutter 2019, Algorithm 2; FoX Appendix B
/// memory   two float32 moments a parameter that this rank updates
class AdamW {
 public:
  /// reads  exchange: the ranks' sum of the gradient, which also determines the weights that this rank updates; absent: all
  AdamW(FlatParameters& parameters, const TrainingConfig& config, const GradientExchange* exchange = nullptr);

  /// One update from the flat gradient, which has no defined value afterwards; all ranks then have the same weights. Where loss or norm is not
  /// finite, parameters, moments and the count of steps stay as they are.
  ///
  /// reads    the batch's loss, a scalar on the device; gradient_scale: the flat gradient's factor, a power of two
  /// returns  the gradient's norm before clipping, without its factor: a float64 scalar on the device
  torch::Tensor step(double learning_rate, const torch::Tensor& loss, double gradient_scale = 1);

  /// The norm of the flat gradient, over all ranks' shares: a float64 scalar on the device.
  torch::Tensor gradient_norm() const;

  /// The state of a checkpoint: the moments, laid out as FlatParameters::master, and the count of steps.
  ///
  /// returns  the moments of all ranks; the optimizer's own tensors where it updates everything
  struct Moments {
    torch::Tensor first, second;
  };
  Moments moments() const;
  /// reads  moments of all ranks
  void set_moments(const Moments& moments);
  torch::Tensor& steps() { return steps_; }

 private:
  // The pieces of the buffers that this rank updates with one weight decay.
  struct Group {
    double decay;
    std::vector<torch::Tensor> weights, gradients, first, second, steps;
  };
  Group group_of(int64_t begin, int64_t end, double decay) const;
  torch::Tensor gathered(const torch::Tensor& own) const;

  FlatParameters& parameters_;
  TrainingConfig config_;
  const GradientExchange* exchange_;
  std::vector<FlatParameters::Range> own_;
  torch::Tensor first_, second_, steps_;  // moments of the own ranges, one after the other
  std::vector<Group> groups_;
};

}  // namespace lethe
