#pragma once
// The factor of the loss that keeps small gradients within float16.

#include <cstdint>

namespace lethe {

/// A power of two by which a step's loss is multiplied and its gradient divided, so that float16 holds the gradients of activations. A step whose
/// gradient is not finite is taken again at half the scale; after kKept steps without one the scale doubles.
///
/// source  Micikevicius 2018, "Mixed Precision Training", Section 3.2, but that no batch is left out
class LossScale {
 public:
  static constexpr int64_t kKept = 2000;

  /// reads  first: TrainingConfig::loss_scale, checked; 0: the scale is 1 and stays it
  explicit LossScale(double first);

  double value() const;
  bool is_on() const { return is_on_; }

  /// After a step whose gradient was finite.
  void step_kept();
  /// After one whose gradient was not.
  ///
  /// returns  whether the step may be taken again; false, with nothing changed, where the scale is 1
  bool halve();

  /// The state of a checkpoint.
  struct State {
    int64_t exponent = 0, kept = 0;  ///< log₂ of the scale; steps since it changed
  };
  State state() const { return state_; }
  void set(const State& state) { state_ = state; }

 private:
  bool is_on_;
  State state_;
};

}  // namespace lethe
