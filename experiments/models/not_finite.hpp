#pragma once
// The error of a model or a training that has left the finite numbers.

#include <stdexcept>

namespace lethe {

/// A loss, a gradient or an activation that is infinite or no number: the training has diverged.
struct NotFinite : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace lethe
