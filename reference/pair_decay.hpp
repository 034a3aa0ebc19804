#pragma once
// The decay between two positions under a gate for every dimension, and sums over pairs weighted by it.

#include <vector>

#include "reference/decay_bias.hpp"
#include "reference/head.hpp"

namespace lethe::reference {

/// The product of the gates between any two positions, one a dimension.
///
///   between(i, j)_d = Π_{j < l ≤ i} g_ld,  −1 ≤ j ≤ i < T;   between(i, i) = 1;   j = −1 is the initial state's position
///
/// One DecayBias a dimension. The exponent is a sum of log gates and never positive, so nothing overflows, a gate of zero
/// gives exactly 0 and a gate of one exactly 1. Quotients of whole products would be 0/0 there, and overflow much earlier
/// (float: 13 gates of 1/768).
///
/// cost  O(TD) time and memory to build, O(D) exponentials a pair
template <typename Scalar>
class PairDecay {
 public:
  using Row = Eigen::Array<Scalar, 1, Eigen::Dynamic>;

  /// reads  log_gate [T,D], natural log, ≤ 0, −∞ allowed; 0×0 is a gate of 1 on every one of `dim` dimensions
  PairDecay(const Matrix<Scalar>& log_gate, Eigen::Index dim);

  Row between(Eigen::Index i, Eigen::Index j) const;  // [D]

 private:
  std::vector<DecayBias<Scalar>> dimensions_;  // empty without a gate; shifted by one, for the initial state's position
  Eigen::Index dim_;
};

/// Inside a chunk, the pairs within each block of this many positions are taken one at a time.
inline constexpr Eigen::Index kExactBlock = 16;

/// Products of rows under the decay between their positions.
///
///   P_rs = Σ_d left_rd · right_sd · between(first + r, s)_d  for s ≤ first + r,   0 above
///
/// Pairs in one block of `block` positions are taken one at a time. Earlier keys are taken a block at a time, both sides
/// brought to the last position before the query's block: between(t, s) = between(t, b − 1) · between(b − 1, s), two
/// factors ≤ 1, so that a matrix product does the work and still no exponent is positive.
///
/// reads    left [R,D]: row r is at position first + r; right [S,D], S ≥ first + R; block ≥ 1
/// returns  [R,S]
/// cost     O(RSD) time, of exponentials O(R·block·D + RSD/block); O(RS) memory
template <typename Scalar>
Matrix<Scalar> decayed_products(const Matrix<Scalar>& left, const Matrix<Scalar>& right, const PairDecay<Scalar>& decay,
                                Eigen::Index first, Eigen::Index block);

/// Sums of rows under the decay between their positions, in blocks as decayed_products.
///
///   O_rd = Σ_{s ≤ first + r} weights_rs · between(first + r, s)_d · value_sd
///
/// reads    weights [R,S]: row r is at position first + r, and nothing right of it is read; value [S,D]; block ≥ 1
/// returns  [R,D]
/// cost     as decayed_products
template <typename Scalar>
Matrix<Scalar> decayed_sums(const Matrix<Scalar>& weights, const Matrix<Scalar>& value, const PairDecay<Scalar>& decay,
                            Eigen::Index first, Eigen::Index block);

/// Each row of `rows` [T,D] times the decay from its position to the last one.
template <typename Scalar>
Matrix<Scalar> decayed_to_the_end(const Matrix<Scalar>& rows, const PairDecay<Scalar>& decay);

/// Row r of `rows` [R,D] times the decay from the initial state's position to its own, first + r.
template <typename Scalar>
Matrix<Scalar> decayed_from_the_start(const Matrix<Scalar>& rows, const PairDecay<Scalar>& decay, Eigen::Index first);

}  // namespace lethe::reference
