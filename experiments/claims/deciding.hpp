#pragma once
// How much more of a sample would give a statement its verdict.

#include <cmath>
#include <string>

#include "experiments/claims/verdict.hpp"

namespace lethe {

/// "5 times the text": by how much the sample whose band falls with its size has to grow until √(falling²/k + staying²) gives a verdict with this
/// mean.
///
/// reads    falling, staying: half widths; sample: what grows, "the text"
/// returns  a text for Comparison::would_decide: "more than 1000 times …" where a thousandfold isn't enough; "more than the text alone …" where the
///          staying band has no verdict by itself; empty where the band has a verdict already, or none of any width has one
inline std::string deciding_sample(const Comparison& comparison, double falling, double staying,
                                   const std::string& sample) {
  constexpr int kMost = 1000;
  const auto decides = [&](double band) {
    return judge(comparison.expectation, comparison.measured, band) != Verdict::kInconclusive;
  };
  if (!std::isfinite(comparison.measured) || decides(comparison.band) || !decides(0)) return "";
  if (!decides(staying)) return "more than " + sample + " alone: another noise is too wide";
  for (int times = 2; times <= kMost; ++times)
    if (decides(std::hypot(falling / std::sqrt(times), staying))) return std::to_string(times) + " times " + sample;
  return "more than " + std::to_string(kMost) + " times " + sample;
}

}  // namespace lethe
