#include "experiments/commands/nearest.hpp"

#include <algorithm>
#include <numeric>

namespace lethe {
namespace {

/// Wagner and Fischer 1974, one row of the table at a time.
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0]++;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest(const std::string& word, const std::vector<std::string>& known) {
  std::string best;
  size_t least = std::string::npos;
  for (const std::string& candidate : known) {
    const size_t distance = edit_distance(word, candidate);
    if (distance >= least || 2 * distance > std::max(word.size(), candidate.size())) continue;
    best = candidate;
    least = distance;
  }
  return best;
}

std::string suggestion(const std::string& word, const std::vector<std::string>& known) {
  const std::string close = nearest(word, known);
  return close.empty() ? "" : " (did you mean " + close + "?)";
}

}  // namespace lethe
