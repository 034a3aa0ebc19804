#pragma once
// Differences between the forms of a mechanism, and the statements on them.

#include <map>
#include <string>
#include <vector>

#include "experiments/claims/verdict.hpp"
#include "reference/variant.hpp"

namespace lethe::duality {

/// The largest relative differences of each form from the recurrent one; a form's name is "parallel" or "chunks of n".
struct Differences {
  std::map<std::string, double> in_double, in_float;
  /// the smallest difference of a parallel form with its gates off by one token; infinite where no gate is read
  double off_by_one = 0;

  /// Keeps the worse of each pair.
  void merge(const Differences& other);
};

/// The differences of one row on one traced head: the largest over values, log normaliser, state and normaliser of
/// ‖form − recurrent‖ / ‖recurrent‖, infinite where a number isn't finite.
Differences differences(const reference::Variant& variant, const Head& traced,
                        const std::vector<int64_t>& chunk_lengths);

/// The difference of the decay rule with √f_t on both sides of its state from the scalar gate f_t, which is the same function.
double gauge_difference(const Head& traced);

/// The statements on all rows.
///
/// reads  by_row: each row's differences over all heads; gauge: the largest gauge_difference
std::vector<Comparison> statements(const std::map<std::string, Differences>& by_row, double gauge);

}  // namespace lethe::duality
