#pragma once
// Measurements of a trained model that several claims share, all of them by the rows of evaluations().

#include <string>
#include <vector>

#include "experiments/claims/claim.hpp"
#include "experiments/evaluation/evaluation.hpp"

namespace lethe {

/// The evaluation `name` of a model on the study's text: see Study::measured.
///
/// reads    settings: of the evaluation
/// returns  its records, and its points of the quantities `kept`; neither where the model's activations are not finite and that is a
///          result of its training
Evaluated evaluated(const Study& study, const Artefact& model, const std::string& name, const nlohmann::json& settings,
                    const std::vector<std::string>& kept = {});

/// L(i) and perplexity on the first settings["evaluation"]["tokens"] tokens of the validation split, cut into pieces of `length`. The
/// text is the same at every length, so two lengths differ by the context alone.
///
/// returns  the records of the evaluation per_token_loss, and the points of loss_at_position and loss_of_sequence
Evaluated evaluate(const Study& study, const Artefact& model, int64_t length);

/// The same on the first `sequences` pieces of `length` tokens.
Evaluated evaluate(const Study& study, const Artefact& model, int64_t length, int64_t sequences);

/// The mean loss of the positions first + 1 … last of each sequence of such an evaluation; both are ends of octaves, or `first` is 0.
///
/// throws  std::invalid_argument where they are not
std::vector<double> losses_of_sequences(const Evaluated& found, int64_t first, int64_t last);

/// Findings as JSON, for Study::measured. A value that is not finite is null there and NaN after it.
nlohmann::json json_of(const Evaluated& found);
nlohmann::json json_of(const std::vector<Point>& points);
Evaluated evaluated_of(const nlohmann::json& json);
std::vector<Point> points_of(const nlohmann::json& json);

/// L(i) of such an evaluation as points of a run: over i the mean since the point before, at every i up to 1024, then 512 times an octave.
std::vector<Point> loss_curve(const Run& run, const Evaluated& found);

/// The records of an evaluation with the columns of the claim and the run filled.
std::vector<Record> records_of(const Study& study, const Run& run, const Evaluated& found);

}  // namespace lethe
