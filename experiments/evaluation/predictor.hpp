#pragma once
// What an evaluation by teacher forcing asks of a model.

#include <functional>

#include "experiments/models/language_model.hpp"

namespace lethe {

/// LanguageModelImpl::predictions of a model, or of an oracle in a test.
using Predictor =
    std::function<LanguageModelImpl::Predictions(const torch::Tensor& tokens, const torch::Tensor& labels)>;

/// The model's, on its device, without gradients; results are on the CPU, losses in float64.
inline Predictor predictor_of(LanguageModel& model) {
  return [model](const torch::Tensor& tokens, const torch::Tensor& labels) mutable {
    const torch::NoGradGuard no_gradient;
    const auto found = model->predictions(tokens.to(model->device()), labels.to(model->device()));
    return LanguageModelImpl::Predictions{found.losses.to(torch::kCPU, torch::kFloat64), found.correct.to(torch::kCPU)};
  };
}

/// Of a model, for the targets of the last n tokens: labels [B,n]. The results have their shape.
inline LanguageModelImpl::Predictions predictions_of_last(LanguageModel& model, const torch::Tensor& tokens,
                                                          const torch::Tensor& labels) {
  const int64_t last = labels.size(1), before = tokens.size(1) - last;
  const auto found = predictor_of(model)(tokens, torch::constant_pad_nd(labels, {before, 0}, -1));
  return {found.losses.narrow(1, before, last), found.correct.narrow(1, before, last)};
}

/// A model in evaluation mode until the end of the scope, which restores its mode.
class InEvaluation {
 public:
  explicit InEvaluation(LanguageModel& model) : model_(model), was_training_(model->is_training()) { model->eval(); }
  ~InEvaluation() { model_->train(was_training_); }
  InEvaluation(const InEvaluation&) = delete;
  InEvaluation& operator=(const InEvaluation&) = delete;

 private:
  LanguageModel& model_;
  bool was_training_;
};

}  // namespace lethe
