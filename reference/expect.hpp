#pragma once
// The error for an input of a wrong size.

#include <Eigen/Core>
#include <stdexcept>
#include <string>

namespace lethe::reference {

/// throws  std::invalid_argument "name: expected 4 columns, found 3" where the two numbers differ
inline void expect_size(const std::string& name, const char* what, Eigen::Index expected, Eigen::Index found) {
  if (expected == found) return;
  throw std::invalid_argument(name + ": expected " + std::to_string(expected) + " " + what + ", found " +
                              std::to_string(found));
}

}  // namespace lethe::reference
