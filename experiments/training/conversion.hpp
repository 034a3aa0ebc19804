#pragma once
// Models that start from trained ones: T2FW's swap of a softmax model's mixer, and longer training of any model.

#include <optional>
#include <string>
#include <vector>

#include "experiments/training/training.hpp"

namespace lethe {

/// The source of W_q and W_k of a mixer with linear features; their shapes differ from attention's.
enum class Projections {
  kProduct,  ///< W_φ W_q and W_φ W_k with one random W_φ a head: T2FW's merged map
  kFresh     ///< drawn as for a model from scratch
};

/// The initialization of a run's weights from another run's final weights. Where both have one model, every weight is kept: the
/// training goes on with a fresh optimizer, on the same data or other. Otherwise it is a swap.
struct Conversion {
  Run source;  ///< of a swap: softmax attention; the run's own model differs from it in mixers and compute dtype alone
  std::string source_data = {};  ///< content hash of the source's data; empty: the run's own data
  Projections projections = Projections::kProduct;
  /// Standard deviation of W_φ, of the ReLU map and of kProduct. The default is that of any new matrix: features and the layer's
  /// output begin small. With 1/√head_dim, which keeps the size of queries, sums without a norm overwhelm the trained model.
  double feature_deviation = 0.02;
  /// Factor of W_v, in addition to the decay rule's 1 − σ(b_z); absent: the value of the mixer's row, 1/512 for the additive rule
  /// without attention norm and ReLU, 1 otherwise.
  std::optional<double> value_scale = {};
};

// JSON with the member names as keys; unknown keys and wrong types are one clear error. null is no conversion.
void to_json(nlohmann::json& json, const Conversion& conversion);
void from_json(const nlohmann::json& json, Conversion& conversion);
void to_json(nlohmann::json& json, const std::shared_ptr<const Conversion>& conversion);
void from_json(const nlohmann::json& json, std::shared_ptr<const Conversion>& conversion);

/// The content hash of the source's data, where that of the run is `data_hash`.
std::string source_data(const Conversion& conversion, const std::string& data_hash);

/// The trained source of run.conversion: read from `root`, where it is trained first unless it is there or has other data.
///
/// throws  std::invalid_argument where it is absent and has other data; as trained
LanguageModel trained_source(const Run& run, const Dataset& dataset, const std::filesystem::path& root,
                             const std::function<void(const Progress&)>& progress = {});

/// throws  std::invalid_argument where the models differ and the source is not softmax attention, a mixer can't replace it, the models have parts of
///         different sizes, or have different tokens; nothing where run.conversion is absent
void check_conversion(const Run& run);

/// The change of one parameter.
struct ConvertedParameter {
  std::string name;
  enum Fate { kKept, kScaled, kProduct, kNew, kDropped } fate;
};

/// Copies the source's weights into the initialized `target`: shared parameters are kept, value projections are scaled, query
/// and key projections with linear features are products or new. Parameters of the target alone stay as drawn (the ReLU map with
/// feature_deviation; random directions, which are no parameters, are drawn too); parameters of the source alone are dropped.
///
///   W_v ← diag(1 − σ(b_z)) W_v for the decay rule: with gates at their biases no entry of S then exceeds max |k v|
///
/// source   T2FW, Section 3, footnotes 3 and 4, Section 4
/// reads    run, whose conversion is present; source, the trained model; target, constructed from run.model
/// returns  one entry a parameter, the target's first
std::vector<ConvertedParameter> convert_weights(const Run& run, const LanguageModel& source, LanguageModel& target);

}  // namespace lethe
