#pragma once
// What a language model of the papers is made of: every switch of FoX Table 3 as data.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace lethe {

/// How a head's forget gate f comes about (FoX §4.5).
enum class ForgetGate {
  kNone,      ///< f = 1: a Transformer
  kFull,      ///< f_t = σ(w·x_t + b), bias starting at 0
  kBiasOnly,  ///< f = σ(b), b trained, long-init
  kFixed      ///< f = σ(b), b fixed, long-init: ALiBi
};

/// RMSNorm of queries and keys per head, with weights of size head_dim shared by the heads, or of size width.
enum class QkNorm { kNone, kShared, kPerHead };

/// One architecture. Defaults are FoX (Pro) as the papers' runs have it, at no size.
struct ModelConfig {
  int64_t vocabulary = 0;
  int64_t layers = 0;
  int64_t width = 0;
  int64_t heads = 0;  ///< head_dim = width / heads
  /// MLP width = 256·⌈⌊width·ratio·2/3⌋/256⌉ with mlp_multiple = 256; ratio 4, or 3.5 where there is an output gate,
  /// which pays for the gate's width² parameters (FoX footnote 2). nullopt: that rule.
  std::optional<double> mlp_ratio;
  int64_t mlp_multiple = 256;
  bool rope = false;
  double rope_base = 500000.0;
  ForgetGate forget_gate = ForgetGate::kFull;
  double decay_time_min = 2.0;  ///< long-init of kBiasOnly and kFixed: T(b) from min to max, log-spaced over the heads
  double decay_time_max = 256.0;
  QkNorm qk_norm = QkNorm::kShared;
  bool output_gate = true;
  bool output_norm = true;
  bool kv_shift = true;
  std::optional<double> log_pruning_tolerance;  ///< log ε of Adaptive Computation Pruning; absent: off
  std::string compute_dtype = "float32";  ///< of matrix products and attention: float32, bfloat16, float16, float64

  int64_t head_dim() const { return width / heads; }
  int64_t mlp_width() const;

  /// throws std::invalid_argument "name: expected …, found …" for a configuration that makes no model
  void check() const;
};

/// The four named rows that the others are given relative to, at no size: "fox-pro", "fox-llama", "transformer-pro",
/// "transformer-llama".
///
/// throws  std::invalid_argument for another name
ModelConfig named_architecture(const std::string& name);

/// The papers' sizes "760m", "360m", "125m" (head dim 64 unless `heads` says otherwise), GPT-2 vocabulary.
void set_size(ModelConfig& config, const std::string& size);

// JSON with the member names as keys; unknown keys and wrong types are one clear error, absent keys take the default.
void to_json(nlohmann::json& json, const ModelConfig& config);
void from_json(const nlohmann::json& json, ModelConfig& config);

/// Matrix-product and attention FLOPs of one token, forward and backward (3 × forward): 6·(matrix parameters incl. the
/// output head) + 6·layers·width·context (half of the score matrix is causal).  FoX Table 4's 8.18e9 at 760M and 16k.
double training_flops_per_token(const ModelConfig& config, int64_t context_length);

}  // namespace lethe
