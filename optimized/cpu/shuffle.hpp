#pragma once
// Lanes of vectors of the compiler in another order.

namespace lethe {

/// Lane i is lane from[i] of a; with b of a and b, one after the other.
///
/// domain  0 ≤ from[i] < the lanes of a, or of both
template <typename Vector, typename Indices>
inline __attribute__((always_inline)) Vector shuffled(Vector a, Vector b, Indices from) {
#ifdef __clang__
  constexpr int kLanes = sizeof(Vector) / sizeof(a[0]);
  Vector result{};
  for (int i = 0; i < kLanes; ++i) result[i] = from[i] < kLanes ? a[from[i]] : b[from[i] - kLanes];
  return result;
#else
  return __builtin_shuffle(a, b, from);
#endif
}
template <typename Vector, typename Indices>
inline __attribute__((always_inline)) Vector shuffled(Vector a, Indices from) {
#ifdef __clang__
  return shuffled(a, a, from);
#else
  return __builtin_shuffle(a, from);
#endif
}

}  // namespace lethe
