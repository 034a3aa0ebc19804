#include "reference/decay_bias.hpp"

#include <limits>
#include <stdexcept>
#include <string>

#include "reference/compensated_sum.hpp"

namespace lethe::reference {
namespace {

template <typename Scalar>
constexpr Scalar kMinusInfinity = -std::numeric_limits<Scalar>::infinity();

}  // namespace

template <typename Scalar>
DecayBias<Scalar>::DecayBias(const Vector<Scalar>& log_forget) : prefix_(log_forget.size()) {
  CompensatedSum<Scalar> finite;
  int64_t zeros = 0;
  for (Eigen::Index t = 0; t < log_forget.size(); ++t) {
    const Scalar gate = log_forget[t];
    if (!(gate <= 0)) {
      throw std::invalid_argument("log_forget: expected values <= 0, found " + std::to_string(gate) + " at position " +
                                  std::to_string(t));
    }
    if (gate == kMinusInfinity<Scalar>) {
      ++zeros;
    } else if (t > 0) {
      finite.add(gate);
    }
    prefix_[t] = {finite.sum(), finite.dropped(), zeros};
  }
}

template <typename Scalar>
Scalar DecayBias<Scalar>::operator()(Eigen::Index i, Eigen::Index j) const {
  const Prefix &to = prefix_[i], &from = prefix_[j];
  if (to.zeros != from.zeros) return kMinusInfinity<Scalar>;
  return (to.sum - from.sum) + (to.dropped - from.dropped);
}

template class DecayBias<double>;
template class DecayBias<float>;

}  // namespace lethe::reference
