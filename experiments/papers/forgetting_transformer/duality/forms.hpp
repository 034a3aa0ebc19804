#pragma once
// How far the forms of a mechanism are apart, and what that says.

#include <map>
#include <string>
#include <vector>

#include "experiments/claims/verdict.hpp"
#include "reference/variant.hpp"

namespace lethe::duality {

/// The largest relative differences of each form from the recurrent one; a form's name is "parallel" or "chunks of n".
struct Differences {
  std::map<std::string, double> in_double, in_float;
  /// the smallest that a parallel form with its gates off by one token has; infinite where none is read
  double off_by_one = 0;

  /// Keeps the worse of both.
  void merge(const Differences& other);
};

/// The differences of one row on one traced head: the largest over values, log normaliser, state and normaliser of
/// ‖form − recurrent‖ / ‖recurrent‖, infinite where a number isn't finite.
Differences differences(const reference::Variant& variant, const Head& traced,
                        const std::vector<int64_t>& chunk_lengths);

/// How far the decay rule with √f_t on both sides of its state is from the scalar gate f_t: the same function, split otherwise.
double gauge_difference(const Head& traced);

/// The statements on all rows.
///
/// reads  by_row: of each row the differences over all heads; gauge: the largest gauge_difference
std::vector<Comparison> statements(const std::map<std::string, Differences>& by_row, double gauge);

}  // namespace lethe::duality
