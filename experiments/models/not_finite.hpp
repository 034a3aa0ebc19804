#pragma once
// The error of a model or a training whose numbers are no longer finite.

#include <stdexcept>

namespace lethe {

/// A loss, a gradient or an activation is infinite or NaN: the training has diverged.
struct NotFinite : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace lethe
