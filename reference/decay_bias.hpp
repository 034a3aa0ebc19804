#pragma once
// D, the bias that a forget gate adds to the logits, from one prefix sum.

#include <cstdint>
#include <vector>

#include "reference/head.hpp"

namespace lethe::reference {

/// The decay bias of every pair of positions.
///
///   c_t = Σ_{1 ≤ l ≤ t} log f_l        D_ij = Σ_{j < l ≤ i} log f_l = c_i − c_j
///
/// A gate of zero has log f = −∞, and −∞ − (−∞) is NaN. So c sums the finite gates only, a counter counts the zero ones,
/// and D_ij = −∞ where the counters of i and j differ. c grows with the length while D between neighbours
/// stays small, so c is kept as two numbers, the sum and what its rounding dropped: in double, D is exact to a few
/// roundings of itself at any length, as long as |c_T| < 1e16.
///
/// source  Forgetting Transformer, Eq. 11–12; positions count from 0, and log f_0 is in no D_ij
/// cost    O(T) time and memory to build, O(1) a pair
template <typename Scalar>
class DecayBias {
 public:
  /// reads   log_forget [T], natural log, ≤ 0, −∞ allowed
  /// throws  std::invalid_argument where an entry is positive or NaN
  explicit DecayBias(const Vector<Scalar>& log_forget);

  /// D_ij for 0 ≤ j ≤ i < T; D_ii = 0.
  Scalar operator()(Eigen::Index i, Eigen::Index j) const;

 private:
  struct Prefix {
    Scalar sum, dropped;  // of the finite gates
    int64_t zeros;        // gates of zero so far
  };
  std::vector<Prefix> prefix_;
};

extern template class DecayBias<double>;
extern template class DecayBias<float>;

}  // namespace lethe::reference
