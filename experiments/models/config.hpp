#pragma once
// The configuration of the papers' language models: a trunk, and a mixer in every layer.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "experiments/models/mixers/mixer.hpp"

namespace lethe {

/// The first weights of a model.
enum class Initialization {
  kNormal,  ///< N(0, 0.02²) for every matrix but the mixers' own exceptions
  /// U(−b, b) with b = 2^−2.5·√(6 / (rows + columns)) for the matrices of mixers, N(0, 0.02²) / √(2·layers) for the MLPs' output projections, and
  /// kNormal for the others: Flash Linear Attention at 0ce8ce3, FoX Appendix E.11
  kScaled
};

template <>
struct EnumNames<Initialization> {
  static inline const std::vector<std::pair<Initialization, std::string>> names{{Initialization::kNormal, "normal"},
                                                                                {Initialization::kScaled, "scaled"}};
};

/// One architecture. Defaults are FoX (Pro) of the papers' runs, without a size.
struct ModelConfig {
  int64_t vocabulary = 0;
  int64_t layers = 0;
  int64_t width = 0;
  int64_t heads = 0;  ///< head_dim = width / heads
  /// MLP width = 256·⌈⌊width·ratio·2/3⌋/256⌉ with mlp_multiple = 256. nullopt: ratio 4, or 3.5 with an output gate, to offset
  /// the gate's width² parameters (FoX footnote 2). 0: blocks without an MLP.
  std::optional<double> mlp_ratio;
  int64_t mlp_multiple = 256;
  bool output_gate = true;
  bool output_norm = true;
  std::string compute_dtype = "float32";  ///< of matrix products and mixers: float32, bfloat16, float16, float64
  /// Whether the residual stream is kept in compute_dtype; else in float32 (float64)
  bool residual_in_compute_dtype = false;
  Initialization initialization = Initialization::kNormal;  ///< in JSON where it is another
  MixerStack mixer;  ///< one for all layers, or several that repeat from the first layer on

  int64_t head_dim() const { return width / heads; }
  int64_t mlp_width() const;
  int64_t compute_bytes() const;  ///< of an entry in compute_dtype

  /// Whether a layer's past is a state of fixed size.
  bool has_state() const;

  /// Whether what the layers keep of a text has the same size after any number of tokens.
  bool past_is_bounded() const;

  /// throws std::invalid_argument "name: expected …, found …" for a configuration without a valid model
  void check() const;
};

/// A model by its name, without a size.
struct Architecture {
  std::string name;
  ModelConfig model;
};

/// The named architectures of all mixers, in the order of their table.
std::vector<Architecture> named_architectures();

/// The architecture of that name: "fox-pro", "fox-llama", "transformer-pro", "transformer-llama", or a mixer's name:
/// Transformer (LLaMA) with that mixer, or FoX (LLaMA) where the gate replaces RoPE.
///
/// throws  std::invalid_argument for another name
ModelConfig named_architecture(const std::string& name);

/// The trunk of the (LLaMA) architectures, without output gate, norm and size.
ModelConfig llama(MixerStack mixer);

/// Layers of the same cost as so many with a mixer and an MLP each: twice as many where this model's blocks have no MLP.
int64_t layers_for(const ModelConfig& config, int64_t with_mlp);

/// The papers' sizes "760m", "360m", "125m" (head dim 64 unless `heads` is given), GPT-2 vocabulary.
void set_size(ModelConfig& config, const std::string& size);

// JSON with the member names as keys; unknown keys and wrong types are one clear error, absent members have their defaults.
void to_json(nlohmann::json& json, const ModelConfig& config);
void from_json(const nlohmann::json& json, ModelConfig& config);

/// Matrix-product and mixing FLOPs of one token, forward and backward (3 × forward): 6 a multiply-add of the MLPs and the
/// output head, plus the FLOPs of the mixers' rows. FoX Table 4's 8.18e9 at 760M and 16k.
double training_flops_per_token(const ModelConfig& config, int64_t context_length);

}  // namespace lethe
