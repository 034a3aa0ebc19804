#pragma once
// RoPE as an option of a mixer.

#include <torch/types.h>

#include <map>
#include <optional>
#include <utility>

#include "experiments/models/json_members.hpp"
#include "experiments/models/layers.hpp"
#include "experiments/models/mixers/parts/packed.hpp"

namespace lethe {

/// The rotation of queries and keys, and its base.
struct RotationConfig {
  bool rope = false;
  double rope_base = 500000.0;

  template <class Self, class Visitor>
  static void members(Self& self, Visitor&& visit) {
    visit("rope", self.rope);
    visit("rope_base", self.rope_base);
  }

  /// throws  std::invalid_argument for an invalid base
  void check() const;
};

/// The rotations of a model: layers with the same dimension and base share one, and forward passes the longest so far.
class Rotations {
 public:
  /// The sequences of this forward pass, each with positions of its own; absent where each row is one.
  std::optional<Packed> packed;

  /// Those sequences as the operators read them.
  std::optional<torch::Tensor> cu_seqlens() const { return packed ? std::optional(packed->cu_seqlens) : std::nullopt; }

  /// The rotation of x's tokens in x's accumulation dtype.
  ///
  /// reads  x [B,T,...]; dim, of queries and keys, even; first: the position of x's first token
  Rotation of(const torch::Tensor& x, int64_t dim, double base, int64_t first = 0);

 private:
  std::map<std::pair<int64_t, double>, Rotation> made_;
};

}  // namespace lethe
