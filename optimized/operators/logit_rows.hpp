#pragma once
// A chunk of rows of logits, between their products and the gradients' products (optimized/torch/linear_cross_entropy.hpp).

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace lethe {

struct LogitRows {
  at::Tensor logits;  ///< [rows, Vp] contiguous; ← their gradient where there is a scale
  at::Tensor labels;  ///< [rows] int64
  int64_t vocabulary;
  std::optional<double> scale;
  at::Tensor losses;   ///< ← [rows]
  at::Tensor correct;  ///< ← [rows] bool
};

}  // namespace lethe
