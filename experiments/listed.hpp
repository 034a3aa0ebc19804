#pragma once
// Lists of words, and of notes, in a line.

#include <functional>
#include <initializer_list>
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

/// "one note; another": those that are not empty.
inline std::string all_notes(std::initializer_list<std::string> notes) {
  std::string line;
  for (const std::string& note : notes) {
    if (!line.empty() && !note.empty()) line += "; ";
    line += note;
  }
  return line;
}

}  // namespace lethe
