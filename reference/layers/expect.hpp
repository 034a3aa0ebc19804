#pragma once
// How the layers refuse a wrong input.

#include <Eigen/Core>
#include <stdexcept>
#include <string>

namespace lethe::reference::layers {

/// throws  std::invalid_argument "name: expected 4 columns, found 3" where the two numbers differ
inline void expect_size(const std::string& name, const char* what, Eigen::Index expected, Eigen::Index found) {
  if (expected == found) return;
  throw std::invalid_argument(name + ": expected " + std::to_string(expected) + " " + what + ", found " +
                              std::to_string(found));
}

/// `width` cut into `heads` equal parts.
///
/// throws  std::invalid_argument where that is impossible
inline Eigen::Index head_dim_of(Eigen::Index width, Eigen::Index heads) {
  if (heads >= 1 && width % heads == 0) return width / heads;
  throw std::invalid_argument("heads: expected a divisor of the width " + std::to_string(width) + ", found " +
                              std::to_string(heads));
}

}  // namespace lethe::reference::layers
