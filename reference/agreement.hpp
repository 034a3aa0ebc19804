#pragma once
// The only place where closeness is defined.

#include <span>
#include <string>

#include "reference/problem.hpp"

namespace lethe {

/// The error of `actual` against `expected`, and its budget.
struct Agreement {
  /// ‖actual − expected‖ / ‖expected‖; +inf where either holds a NaN or an infinity, or sizes differ
  double error = 0.0;
  double budget = 0.0;  ///< what is allowed
  bool passed() const { return error <= budget; }
  double share() const { return error / budget; }  ///< of the budget used
  std::string describe() const;                    ///< "error 3.1e-13 of budget 1e-12 (31 %)"
};

/// The relative Euclidean error of one head's tensor. Where ‖expected‖ < floor, `floor` takes its place: a tensor that is
/// zero in exact arithmetic has no relative error.
///
/// reads    flat tensors of equal size; an empty pair agrees
/// returns  Agreement; never NaN
Agreement compare(std::span<const double> actual, std::span<const double> expected, double budget,
                  double floor = 1e-300);

/// The relative error that an implementation storing in `dtype` is allowed, per head.
///
///   float64   1e-12   two orders of double summation over 4096 terms
///   float32   1e-5    float accumulation over 4096 terms and one float exp a term
///   bfloat16  5e-3    8 significant bits: half an ulp is 2^-9 = 2e-3, once on P and once on the output
///   float16   1e-3    11 significant bits: half an ulp is 2^-12 = 2.4e-4, once on P and once on the output
double budget(Dtype dtype);

}  // namespace lethe
