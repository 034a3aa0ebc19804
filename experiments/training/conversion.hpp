#pragma once
// From a trained softmax model to one with another mixer: T2FW's swap.

#include <optional>
#include <string>
#include <vector>

#include "experiments/training/training.hpp"

namespace lethe {

/// Where W_q and W_k of a mixer with linear features come from; they have other shapes than attention's.
enum class Projections {
  kProduct,  ///< W_φ W_q and W_φ W_k with one random W_φ a head: what T2FW means by a map that is part of them
  kFresh     ///< drawn as for a model from scratch
};

/// How a run's first weights come from another run's last ones.
struct Conversion {
  Run source;  ///< softmax attention; the run's own model differs from it in mixers and compute dtype alone
  Projections projections = Projections::kProduct;
  /// Standard deviation of W_φ, of the ReLU map and of kProduct. That of any new matrix: features begin small, and with them
  /// what the layer adds; with 1/√head_dim, which keeps the size of queries, sums without a norm overwhelm the trained model.
  double feature_deviation = 0.02;
  /// What W_v is multiplied by, the decay rule's 1 − σ(b_z) besides; absent: what the mixer's row says, 1/512 for the additive
  /// rule without attention norm and ReLU, 1 otherwise.
  std::optional<double> value_scale = {};
};

// JSON with the member names as keys; unknown keys and wrong types are one clear error. null is no conversion.
void to_json(nlohmann::json& json, const Conversion& conversion);
void from_json(const nlohmann::json& json, Conversion& conversion);
void to_json(nlohmann::json& json, const std::shared_ptr<const Conversion>& conversion);
void from_json(const nlohmann::json& json, std::shared_ptr<const Conversion>& conversion);

/// throws  std::invalid_argument where the source is no softmax attention or a mixer can't take its place, the models have parts
///         of other sizes, or are trained on other data; nothing where run.conversion is absent
void check_conversion(const Run& run);

/// What became of one parameter.
struct ConvertedParameter {
  std::string name;
  enum Fate { kKept, kScaled, kProduct, kNew, kDropped } fate;
};

/// Puts the source's weights into `target`, which has been initialized: what both have is kept, value projections are scaled,
/// query and key projections with linear features are products or new, what only the target has stays as it was drawn (the
/// ReLU map with feature_deviation; random directions are no parameters, and drawn too), what only the source has is dropped.
///
///   W_v ← diag(1 − σ(b_z)) W_v for the decay rule: with gates that stay at their biases no entry of S then exceeds max |k v|
///
/// source   T2FW, Section 3, footnotes 3 and 4, Section 4
/// reads    run, whose conversion is present; source, the trained model; target, made of run.model
/// returns  one entry a parameter, the target's first
std::vector<ConvertedParameter> convert_weights(const Run& run, const LanguageModel& source, LanguageModel& target);

}  // namespace lethe
