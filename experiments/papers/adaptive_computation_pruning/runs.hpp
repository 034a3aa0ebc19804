#pragma once
// The models of the claims on pruning, their shares and those of the same models before training.

#include <optional>

#include "experiments/claims/runs.hpp"
#include "experiments/claims/seeds.hpp"

namespace lethe {

/// FoX (Pro) at a context length, trained with log ε = `log_tolerance`, or without pruning.
Run pruning_run(const nlohmann::json& settings, int64_t vocabulary, int64_t context_length,
                std::optional<double> log_tolerance, uint64_t seed = 0);

/// The runs of the claims on single heads: settings["context_length"] and settings["log_tolerance"], seeds_of(settings, "studied", 1) seeds.
std::vector<Run> studied_runs(const nlohmann::json& settings, int64_t vocabulary);

/// Whose weights are looked at: those after the training, or as the seed drew them. Untrained gates are σ(0) around 1/2: they prune nearly all of a
/// long context.
enum class Moment { kAfterTraining, kBeforeTraining };

/// The effect of pruning on a whole model, see Study::measured.
struct Pruned {
  std::vector<double> blocks,
      entries;                 ///< shares of the causal pairs, as of HeadShare, the mean over heads of each sequence
  std::vector<double> losses;  ///< of each sequence, nats

  double loss() const { return mean(losses); }
};

/// A model with another tolerance, or its own, on the first `sequences` pieces of the length that it was trained on. Without pruning the
/// shares are empty.
Pruned pruned(const Study& study, const Artefact& model, std::optional<double> log_tolerance, int64_t sequences,
              Moment moment = Moment::kAfterTraining);

/// The weights of an artefact's run before the first step.
LanguageModel untrained(const Artefact& model);

/// The share of blocks that each head of an artefact's run skips before the first step, layer by layer: the mean over the first `sequences` pieces
/// of the length that it was trained on.
std::vector<double> untrained_shares(const Study& study, const Artefact& model, int64_t sequences);

/// "Training opens gates": of models that were trained with pruning, the share of blocks that is pruned before training less that after it, at least
/// 0.05. What the gates prune says nothing about trained gates where this doesn't hold.
///
/// throws  std::invalid_argument where there is no model
Comparison gates_opened(const Study& study, const std::vector<Artefact>& models, int64_t sequences);

/// Marks statements on trained gates: out of reach with the reason settings["gates_out_of_reach"], where the scale gives one, else open where
/// `opened` is not reproduced.
void judge_by_gates(std::vector<Comparison>& statements, const Comparison& opened, const nlohmann::json& settings);

}  // namespace lethe
