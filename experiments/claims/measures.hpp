#pragma once
// Measurements of a trained model that several claims share, all of them by the rows of evaluations().

#include <string>
#include <vector>

#include "experiments/claims/claim.hpp"
#include "experiments/evaluation/evaluation.hpp"

namespace lethe {

/// L(i) and perplexity on the first settings["evaluation"]["tokens"] tokens of the validation split, cut into pieces of `length`. The
/// text is the same at every length, so two lengths differ by the context alone.
///
/// returns  the measurements of the evaluation per_token_loss
Evaluated evaluate(const Study& study, LanguageModel& model, int64_t length);

/// The same on the first `sequences` pieces of `length` tokens.
Evaluated evaluate(const Study& study, LanguageModel& model, int64_t length, int64_t sequences);

/// L(i) of such an evaluation as points of a run over i, from 1.
std::vector<Point> loss_curve(const Run& run, const Evaluated& found);

/// The records of an evaluation with the columns of the claim and the run filled.
std::vector<Record> records_of(const Study& study, const Run& run, const Evaluated& found);

}  // namespace lethe
