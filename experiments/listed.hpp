#pragma once
// Lists of words in a line, for messages and help.

#include <functional>
#include <string>

namespace lethe {

/// "a, b, c": the words of a range, or those that `word_of` reads from its elements.
template <class Range, class Projection = std::identity>
std::string listed(const Range& range, Projection word_of = {}) {
  std::string line;
  for (const auto& element : range) {
    if (!line.empty()) line += ", ";
    line += std::invoke(word_of, element);
  }
  return line;
}

}  // namespace lethe
