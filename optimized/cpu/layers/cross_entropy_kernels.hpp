#pragma once

#include <cstdint>

namespace lethe::cpu {

/// The sums of one row of logits l.
template <typename Scalar>
struct CrossEntropyRow {
  Scalar maximum;  ///< m = max_v l_v, NaN apart
  Scalar sum;      ///< Σ_v e^{l_v − m}; NaN where a logit is NaN, or none is finite
};

/// Loops over one row; a row is read from memory once and then from cache.
template <typename Scalar>
struct CrossEntropyKernels {
  /// Overwrites the logits with e^{l_v − m}.
  CrossEntropyRow<Scalar> (*exponentials)(Scalar* row, int64_t vocabulary);
  /// Multiplies all numbers.
  void (*multiply)(Scalar* row, int64_t vocabulary, Scalar factor);
  /// Whether one of the numbers equals `number`.
  bool (*contains)(const Scalar* row, int64_t count, Scalar number);
};

const CrossEntropyKernels<float>& float_cross_entropy();
const CrossEntropyKernels<double>& double_cross_entropy();

}  // namespace lethe::cpu
