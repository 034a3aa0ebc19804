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

/// How tokens are mixed: by attention over all of the past or a window of it, or through a state of fixed size.
enum class Mixer {
  kAttention,    ///< Forgetting Attention, of which softmax attention is the case without a gate
  kLocal,        ///< softmax attention over the last `window` tokens, the query's own among them
  kAdditive,     ///< S += φ(k) vᵀ                                    (T2FW, Eq. 3)
  kGated,        ///< S = g S + (1 − g) φ(k) vᵀ, a scalar gate        (Eq. 5)
  kDelta,        ///< S += g φ(k) (v − Sᵀφ(k))ᵀ                       (Eq. 6)
  kDecay,        ///< S = diag(f) S diag(z) + φ(k) vᵀ, a gate of rank one (Eq. 7)
  kGatedLinear,  ///< S = f S + φ(k) vᵀ with FoX's forget gate        (FoX, Eq. 7–10)
  kGatedDelta    ///< S = f S + g φ(k) (v − (f S)ᵀφ(k))ᵀ              (Yang 2024, "Gated Delta Networks")
};

/// φ of the mixers with a state.
enum class FeatureMap {
  kLinear,  ///< none beside W_q and W_k, which make state_size features a head by themselves
  kRelu,    ///< ReLU(W_φ x + b_φ) of queries and keys of head_dim, one W_φ [state_size, head_dim] a head for both
  kEluPlusOne,      ///< ELU + 1 of queries and keys of head_dim, which are its features
  kDpfp,            ///< DPFP-ν of queries and keys of head_dim, 2·ν·head_dim features
  kPositiveRandom,  ///< FAVOR+: exp(w·x − |x|²/2) for state_size random directions w a layer, never trained
  kRandomFourier    ///< RFA: sin(w·x) and cos(w·x) of unit vectors for state_size / 2 random directions
};

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

  // Mixers other than attention have no pruning and, but for kGatedLinear and kGatedDelta, no forget_gate; those with a state
  // have no QK-norm and no KV-shift either.
  Mixer mixer = Mixer::kAttention;
  int64_t window = 32;      ///< of kLocal, in tokens
  int64_t state_size = 16;  ///< m: features a head, rows of its state, where the feature map leaves it open
  FeatureMap feature_map = FeatureMap::kLinear;  ///< φ
  int64_t dpfp_nu = 3;                           ///< ν of kDpfp
  /// o = Sᵀφ(q) / (z·φ(q) + ε), z the same sum as S over keys alone; not kDecay, kGatedDelta.
  bool attention_norm = false;
  bool sum_norm = false;       ///< delta rules: φ(x) / (Σ_i φ(x)_i + ε) for queries and keys
  double norm_epsilon = 1e-6;  ///< ε of both: without one, features that are all zero divide zero by zero
  /// n of Uniform Gate Initialisation, σ(b) ~ U[1/n, 1 − 1/n], of kDecay's gates; absent: a head's number of gates.
  std::optional<double> gate_range;
  double write_bias = -5;  ///< of the delta rules' g = σ(w·x + b), at the beginning: g ≈ 0.007

  int64_t head_dim() const { return width / heads; }
  bool has_state() const { return mixer != Mixer::kAttention && mixer != Mixer::kLocal; }
  /// Whether what is written is the correction of what the state holds.
  bool corrects() const { return mixer == Mixer::kDelta || mixer == Mixer::kGatedDelta; }
  /// Whether the state fades by forget_gate.
  bool forgets_state() const { return mixer == Mixer::kGatedLinear || mixer == Mixer::kGatedDelta; }
  /// Whether state_size says how many features there are; else head_dim does.
  bool reads_state_size() const {
    return has_state() && feature_map != FeatureMap::kEluPlusOne && feature_map != FeatureMap::kDpfp;
  }
  /// Whether φ has directions that are drawn and never trained.
  bool has_random_features() const {
    return has_state() && (feature_map == FeatureMap::kPositiveRandom || feature_map == FeatureMap::kRandomFourier);
  }
  /// Rows of a head's state: its features.
  int64_t state_rows() const;
  /// Columns of a head's queries and keys as W_q and W_k make them.
  int64_t query_dim() const { return has_state() && feature_map == FeatureMap::kLinear ? state_size : head_dim(); }
  int64_t mlp_width() const;

  /// throws std::invalid_argument "name: expected …, found …" for a configuration that makes no model
  void check() const;
};

/// The four named rows that the others are given relative to, at no size: "fox-pro", "fox-llama", "transformer-pro",
/// "transformer-llama". Further "local", "additive", "gated", "delta" (with φ and sum norm as T2FW has them) and "decay":
/// Transformer (LLaMA) with that mixer. "gated_linear" (with ELU + 1 and attention norm) and "gated_delta" (with φ and sum norm
/// as "delta", write_bias 0): FoX (LLaMA) with that mixer, and as that without RoPE, whose place the gate takes.
///
/// throws  std::invalid_argument for another name
ModelConfig named_architecture(const std::string& name);

/// The papers' sizes "760m", "360m", "125m" (head dim 64 unless `heads` says otherwise), GPT-2 vocabulary.
void set_size(ModelConfig& config, const std::string& size);

// JSON with the member names as keys; unknown keys and wrong types are one clear error, absent keys take the default.
void to_json(nlohmann::json& json, const ModelConfig& config);
void from_json(const nlohmann::json& json, ModelConfig& config);

/// Matrix-product and mixing FLOPs of one token, forward and backward (3 × forward): 6·(matrix parameters incl. the output
/// head) + 6·layers·width·n, with n = context for attention (half of the score matrix is causal), min(2·window, context) for
/// a window, and (2 + gates of S + (delta rules: 1))·state_rows for a state. Random directions have no gradient and count
/// 2 × forward. FoX Table 4's 8.18e9 at 760M and 16k.
double training_flops_per_token(const ModelConfig& config, int64_t context_length);

}  // namespace lethe
