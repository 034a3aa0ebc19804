#pragma once
// The statement that a test is about, among those of a claim.

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "experiments/claims/verdict.hpp"

namespace lethe {

/// The first whose words begin so.
///
/// throws  std::invalid_argument where none does
inline const Comparison& one_of(const std::vector<Comparison>& all, const std::string& begin) {
  const auto found = std::ranges::find_if(all, [&](const Comparison& one) { return one.statement.starts_with(begin); });
  if (found == all.end()) throw std::invalid_argument("statement: expected one that begins so, found none: " + begin);
  return *found;
}

}  // namespace lethe
