#pragma once
// A running sum that keeps what rounding drops.

namespace lethe::reference {

/// Σ x to about one rounding of the result, however many terms: each addition's rounding error is found exactly
/// (Knuth's two-sum) and summed beside the total.
///
/// reads  finite numbers; std only, and no option that lets the compiler reorder sums (-ffast-math)
template <typename Scalar>
class CompensatedSum {
 public:
  void add(Scalar x) {
    const Scalar sum = sum_ + x;
    const Scalar added = sum - sum_;
    dropped_ += (sum_ - (sum - added)) + (x - added);
    sum_ = sum;
  }
  void scale(Scalar factor) {
    sum_ *= factor;
    dropped_ *= factor;
  }
  Scalar value() const { return sum_ + dropped_; }
  Scalar sum() const { return sum_; }          ///< the plain sum,
  Scalar dropped() const { return dropped_; }  ///< and what it misses

 private:
  Scalar sum_ = 0;
  Scalar dropped_ = 0;
};

}  // namespace lethe::reference
