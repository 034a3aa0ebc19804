#pragma once
// The claims that this project measures, a row each: one line of experiments/papers/CMakeLists.txt adds one.

#include <string>
#include <vector>

#include "experiments/claims/claim.hpp"

namespace lethe {

/// All claims, in the order of the CMake file.
const std::vector<Experiment>& experiments();

/// The claims selected by `names`, each "paper/claim", "paper" or "claim"; all claims where `names` is empty.
///
/// throws  std::invalid_argument naming the word that selects nothing
std::vector<Experiment> select_experiments(const std::vector<std::string>& names);

}  // namespace lethe
