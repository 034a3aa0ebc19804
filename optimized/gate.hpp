#pragma once
// What every implementation must agree on about a gate.

namespace lethe {

/// Gates with log f below this stay out of prefix sums: beside one of them, a difference of float64 sums would have no digits left
/// for the gates next to it.
inline constexpr double kStrongGate = -1e4;

}  // namespace lethe
