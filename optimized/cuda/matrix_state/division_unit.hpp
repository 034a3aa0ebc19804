#pragma once
// Where a normalised backward rounds dO over z·q.

#include <cstdint>

#include "optimized/coverage.hpp"

namespace lethe::matrix_state {

/// What dO / z·q is multiplied by where it is rounded to `dtype`; the scale of all that is computed of it is divided by the same, so R, dq, dk, dv
/// and the gates' gradients are their own. A power of two: of float16 2^k, k = clamp(⌊log₂ T⌋ − 11, 0, 6).
///
/// source   none: where gates are near 1, z·q grows as T. Of 65536 tokens the last ones' dO / z·q is some 3·10⁻⁶, which float16 holds to 1 % alone;
///          dq, dk and dv of such a head then are 1.24 to 1.35·10⁻³ off, with the unit 0.32 to 0.46·10⁻³
/// domain   dO / z·q in float16 is infinite from 65504 / 2^k on, and a query's weights times 2^−k lose bits below 2^−14
inline double division_unit(Dtype dtype, int64_t length) {
  int k = 0;
  while (dtype == Dtype::kFloat16 && k < 6 && length >= int64_t{4096} << k) ++k;
  return 1 << k;
}

}  // namespace lethe::matrix_state
