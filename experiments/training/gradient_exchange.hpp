#pragma once
// The sum of the ranks' flat gradients, and the weights that each rank updates.

#include <cstdint>
#include <vector>

#include "experiments/models/flat_parameters.hpp"
#include "experiments/training/world.hpp"

namespace lethe {

/// The flat buffers cut into buckets of equal length. A bucket's sum starts in the backward pass, as soon as its last product has added its gradient;
/// gradients of other parameters follow at the end.
///
/// With shards (ZeRO-1) a rank has the sum of its own 1/size of every bucket alone, and the optimizer's moments of those; it updates their weights,
/// and all ranks gather the weights.
///
/// source  Rajbhandari et al. 2020, Section 5.1 (P_os, with the gradients reduced to their owners)
/// cost    2·(1 − 1/size) · 4 bytes a parameter and rank, in either form
class GradientExchange {
 public:
  /// reads  parameters flattened with gradients, and where sharded in a multiple of world.size() parts; entries: least length of a bucket, 0: 32 MiB,
  ///        or a sixteenth of the buffers where that is less
  GradientExchange(FlatParameters& parameters, World& world, bool is_sharded, int64_t entries = 0);
  ~GradientExchange();
  GradientExchange(const GradientExchange&) = delete;
  GradientExchange& operator=(const GradientExchange&) = delete;

  World& world() const { return world_; }
  bool is_sharded() const { return is_sharded_; }

  /// To be called before the last micro-batch: the gradients that its backward pass completes are exchanged during that pass.
  void begin();

  /// Starts the sums of all buckets that are left, and waits for all: the gradient's own() ranges are then the ranks' sum.
  void finish();

  /// The ranges of the flat buffers that this rank updates, in their order.
  const std::vector<FlatParameters::Range>& own() const { return own_; }

  /// Copies every rank's own() ranges of a buffer laid out as FlatParameters::master to all ranks.
  void gather(const torch::Tensor& buffer) const;

 private:
  struct Bucket {
    FlatParameters::Range all, own;
    int64_t products;  // that overlap it, and have not been completed
  };
  void complete(size_t product);
  void start_next();

  FlatParameters& parameters_;
  World& world_;
  bool is_sharded_;
  std::vector<Bucket>
      buckets_;  // in the order of their exchange, which is the backward pass's: from the last product to the first
  std::vector<FlatParameters::Range> own_;
  std::vector<int64_t> waits_for_;  // Bucket::products before a backward pass
  size_t next_ = 0;
  std::vector<Pending> pending_;
};

}  // namespace lethe
