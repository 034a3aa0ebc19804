#pragma once
// How a layer divides its width among heads.

#include <Eigen/Core>
#include <stdexcept>
#include <string>

namespace lethe::reference::layers {

/// `width` cut into `heads` equal parts.
///
/// throws  std::invalid_argument where that is impossible
inline Eigen::Index head_dim_of(Eigen::Index width, Eigen::Index heads) {
  if (heads >= 1 && width % heads == 0) return width / heads;
  throw std::invalid_argument("heads: expected a divisor of the width " + std::to_string(width) + ", found " +
                              std::to_string(heads));
}

}  // namespace lethe::reference::layers
