#pragma once
// Damage of files: flipped bits, cuts, splices, lengths and numbers at their extremes, deep nesting, bytes that are no text.

#include <random>
#include <string>

namespace lethe {

/// `bytes` with one to four changes.
std::string damaged(std::string bytes, std::mt19937& random);

}  // namespace lethe
