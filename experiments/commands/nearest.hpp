#pragma once
// The known word that a mistyped one resembles.

#include <string>
#include <vector>

namespace lethe {

/// The known word at the smallest edit distance (insertions, deletions, replacements of a letter) from `word`.
///
/// returns  "" where every known word differs in more than half of the letters of the longer of the two, or there are none
std::string nearest(const std::string& word, const std::vector<std::string>& known);

/// " (did you mean …?)", the end of an error's message; "" where none is near.
std::string suggestion(const std::string& word, const std::vector<std::string>& known);

}  // namespace lethe
