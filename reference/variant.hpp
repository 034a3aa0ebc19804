#pragma once
// The table of mechanisms: one row each, over which the generic test suites run.

#include <functional>
#include <string>
#include <vector>

#include "reference/head.hpp"

namespace lethe::reference {

/// A tensor of a head that a variant may read, and therefore has a gradient for.
enum class Input {
  kQuery,
  kKey,
  kValue,
  kLogForget,
  kLogKeyGate,
  kLogValueGate,
  kWriteStrength,
  kInitialState,
  kInitialNormalizer
};

/// One mechanism in all its forms, which compute the same function.
struct Variant {
  using Form = std::function<Output(const Head&)>;

  std::string name;           ///< its files are reference/<name>.hpp and .cpp, less an ending for a parameter
  std::vector<Input> inputs;  ///< what it reads; changing any other tensor changes nothing
  Form recurrent;
  Form parallel;
  /// Blocks of chunk_length ≥ 1 positions, the last one as long as remains. Every row has this form too.
  std::function<Output(const Head&, Eigen::Index chunk_length)> chunked;
  /// Of the sum of three linear losses: on the values [Tq,V], on the state [K,V] and on the normalizer [K] that a form
  /// returns. The last two may be empty, which is zeros; the softmax family, which has no state, ignores them.
  std::function<Gradients(const Head&, const Matrix<double>& values_gradient, const Matrix<double>& state_gradient,
                          const Vector<double>& normalizer_gradient)>
      gradients;
};

/// Every variant of the reference, from the most special to the most general of each family. A variant with a parameter has
/// one value of it: ALiBi a slope of 1/4, local attention a window of 7. Linear attention has two rows: normalized, on the
/// features ELU + 1, and unnormalized, on queries and keys as they are.
const std::vector<Variant>& variants();

}  // namespace lethe::reference
