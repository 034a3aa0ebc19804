#include "reference/agreement.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <stdexcept>

namespace lethe {

std::string Agreement::describe() const {
  char text[96];
  std::snprintf(text, sizeof text, "error %.3g of budget %.3g (%.0f %%)", error, budget, 100.0 * share());
  return text;
}

Agreement compare(std::span<const double> actual, std::span<const double> expected, double budget, double floor) {
  Agreement agreement{std::numeric_limits<double>::infinity(), budget};
  if (actual.size() != expected.size()) return agreement;
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (!std::isfinite(actual[i]) || !std::isfinite(expected[i])) return agreement;
    difference += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  agreement.error = std::sqrt(difference) / std::max(std::sqrt(norm), floor);
  return agreement;
}

double budget(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat64: return 1e-12;
    case Dtype::kFloat32: return 1e-5;
    case Dtype::kBFloat16: return 5e-3;
    case Dtype::kFloat16: return 1e-3;
  }
  throw std::invalid_argument("dtype: expected one of the enumeration, found " +
                              std::to_string(static_cast<int>(dtype)));
}

}  // namespace lethe
