#pragma once
// Heads of recurrent mixers with other numbers of rows and columns than width / heads.

#include <cmath>
#include <cstdint>
#include <string>

#include "experiments/models/config.hpp"
#include "experiments/models/json_members.hpp"

namespace lethe {

/// Columns of all queries (and keys), and of all values.
struct ExpandedColumns {
  int64_t keys, values;
};

/// expansion · width, a multiple of heads after check_expansion.
inline int64_t expanded(const ModelConfig& model, double expansion) {
  return std::llround(expansion * static_cast<double>(model.width));
}

/// throws  std::invalid_argument where expansion · width isn't a positive multiple of the heads
inline void check_expansion(const char* name, double expansion, const ModelConfig& model) {
  constexpr double kLargest = 64;
  const double columns = expansion * static_cast<double>(model.width);
  const bool bounded = expansion > 0 && expansion <= kLargest;
  expect(bounded && columns == std::floor(columns) && expanded(model, expansion) % model.heads == 0, name,
         "a share of width " + std::to_string(model.width) + " that " + std::to_string(model.heads) +
             " heads divide, at most 64",
         std::to_string(expansion));
}

}  // namespace lethe
