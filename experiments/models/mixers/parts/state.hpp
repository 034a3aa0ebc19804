#pragma once
// Code that the mixers with a state of fixed size share: projections, features, norms, and the run of their recurrence.

#include <torch/types.h>

#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "experiments/models/config.hpp"
#include "experiments/models/mixers/parts/features.hpp"
#include "experiments/models/mixers/parts/output_end.hpp"
#include "experiments/models/mixers/parts/rotations.hpp"
#include "experiments/models/parameters.hpp"
#include "optimized/coverage.hpp"

namespace lethe {

/// Features of queries and keys. In this order:
///
///   q, k = φ(W_q x), φ(W_k x)   rotated before φ where the configuration has RoPE; v = W_v x
///   φ linear: W_q, W_k are [H·m, width];  φ ReLU: ReLU(W_φ u + b_φ) of u = W_q x, W_k x [D]
///   other φ: features.hpp of u = W_q x, W_k x [D]
struct StateConfig : RotationConfig {
  int64_t state_size = 16;  ///< m: features a head, rows of its state, where the feature map doesn't fix it
  FeatureMap feature_map = FeatureMap::kLinear;  ///< φ
  int64_t dpfp_nu = 3;                           ///< ν of kDpfp

  template <class Self, class Visitor>
  static void members(Self& self, Visitor&& visit) {
    RotationConfig::members(self, visit);
    visit("state_size", self.state_size);
    visit("feature_map", self.feature_map);
    visit("dpfp_nu", self.dpfp_nu);
  }

  /// throws  std::invalid_argument for features that are invalid for a head of this model, or fewer than `least`
  void check(const ModelConfig& model, int64_t least = 1) const;

  /// Whether state_size sets the number of features; else head_dim does.
  bool reads_state_size() const { return feature_map != FeatureMap::kEluPlusOne && feature_map != FeatureMap::kDpfp; }
  /// Whether φ has random directions, which are never trained.
  bool has_random_features() const {
    return feature_map == FeatureMap::kPositiveRandom || feature_map == FeatureMap::kRandomFourier;
  }
  /// Rows of a head's state: its features.
  int64_t state_rows(const ModelConfig& model) const;
  /// Columns of a head's queries and keys, the products with W_q and W_k.
  int64_t query_dim(const ModelConfig& model) const {
    return feature_map == FeatureMap::kLinear ? state_size : model.head_dim();
  }
};

/// Checks ε of the norms of a state: with ε = 0, features that are all zero divide zero by zero.
///
/// throws  std::invalid_argument where it is negative or not finite
void check_norm_epsilon(double epsilon);

/// The inputs of a recurrence; gates as natural logs, in float32 or wider.
struct StateInputs {
  torch::Tensor query, key, value;                                      // [B,T,H,m], [B,T,H,m], [B,T,H,D]
  std::optional<torch::Tensor> log_key_gate = {}, log_value_gate = {};  // [B,T,H] or [B,T,H,m], [B,T,H,D]
  std::optional<torch::Tensor> beta = {};                               // [B,T,H]: the delta rules
  // In place of both logs, gates of any sign and size [B,T,H,m], [B,T,H,D]: unbounded_state
  std::optional<torch::Tensor> key_gate = {}, value_gate = {};
  // k′, v′ whose products k′v′ᵀ are subtracted from the writes, [B,T,H,m], [B,T,H,D]
  std::optional<torch::Tensor> erased_key = {}, erased_value = {};
};

/// The largest numbers of a mixer with a state in a forward pass, and its gates.
struct StateTrace {
  torch::Tensor largest_state;  ///< max |S_t| over batch, heads and 256 tokens along the text
  torch::Tensor largest_value;  ///< max |o_t| over batch, heads and all tokens
  std::optional<torch::Tensor> log_key_gate = {}, log_value_gate = {};  ///< as StateInputs; absent: no gate
};

/// o_t = scale·S_tᵀ q_t [B,T,H,D] of the recurrence that starts from `state`, absent: zeros, and the state after the last token. cu_seqlens: packed
/// sequences, as gated_state.
std::tuple<torch::Tensor, torch::Tensor> recurrence(const StateInputs& in, const std::optional<torch::Tensor>& state,
                                                    double scale = 1,
                                                    const std::optional<torch::Tensor>& cu_seqlens = std::nullopt);

/// The trace of a recurrence and its values o [B,T,H,D]. columns: of the state, from the first on, that hold values.
StateTrace trace_of(const StateInputs& in, const torch::Tensor& o, int64_t columns);

/// W_q, W_k, W_v and φ.
struct StateProjections {
  /// Registers q_proj.weight, k_proj.weight and v_proj.weight; feature.weight and feature.bias of a ReLU map, or the buffer
  /// feature.directions of a random one.
  StateProjections(const Weights& weights, const ModelConfig& model, const StateConfig& own);

  /// φ(u) [B,T,H,m] of a product [B,T,H·query_dim] of x, before the sum norm, in the dtype of x or wider. first: the first token's position.
  torch::Tensor features(const torch::Tensor& product, Rotations& rotations, int64_t first) const;

  StateConfig own;
  int64_t heads, query_dim;
  torch::Tensor query, key;             // [H·query_dim,width]
  torch::Tensor value;                  // [width,width]
  torch::Tensor feature, feature_bias;  // [H·m,D], [H·m]
  torch::Tensor directions;             // [m or m/2,D]: a buffer, of all heads
};

/// The parts of one rule beside queries, keys and values.
struct StateRule {
  std::vector<torch::Tensor> weights = {};  ///< of the rule's gates, [n,width]; some may be undefined
  /// Sets gates and β, and may change keys. products: x Wᵀ of `weights`, undefined where the weights are.
  std::function<void(StateInputs& in, const std::vector<torch::Tensor>& products)> gates =
      [](StateInputs&, const std::vector<torch::Tensor>&) {};
  bool attention_norm = false;
  /// z of the attention norm is Σ k without gates, where a column of ones in the values wouldn't sum the keys.
  bool sums_keys = false;
  bool sum_norm = false;
  double norm_epsilon = 0;
};

/// A layer with a state S [m,D] a head as its past, its products registered with `weights`. In this order, after the projections:
///
///   sum norm: q, k ← q / (Σ q + ε), k / (Σ k + ε);  the rule's gates, then its recurrence
///   o_t = S_tᵀ q_t;  attention norm: o_t / (z_t·q_t + ε), z_t the sum of keys with the gates of S, or without
///   y = W_o (norm(o) ⊙ σ(W_g x))   norm and gate where the model has them
///
/// reads    as MixerLayer; trace receives a StateTrace
/// throws   NotFinite where x isn't finite (on the CPU only: elsewhere the loss is checked)
/// cost     B·T·width·(2·width + 2·H·query_dim) multiply-adds, plus W_φ and gates, and B·T·width·m times 2 to 4 for the
///          state; independent of the past
MixerLayer state_layer(const Weights& weights, const StateProjections& projections, const StateRule& rule,
                       const OutputEnd& end);

/// Training FLOPs of a token: `gates` multiply-adds of the rule's own weights, and `passes` over the state: 2 for its write
/// and its read, 1 more for each gate of a row or column, and for the correction. Random directions have no gradient and
/// count 2 × forward.
double state_flops(const ModelConfig& model, const StateConfig& own, double gates, int passes);

/// Bytes that autograd keeps of one token; gates: columns before and after the sigmoid, in float32.
int64_t state_activation_bytes(const ModelConfig& model, const StateConfig& own, int64_t gates = 0);

/// What runs a recurrence of states [rows,columns] on a Hopper GPU. form: what the operator's calls have besides queries, keys and values;
/// wide: in float32 at least.
std::string recurrence_on_hopper(const ModelConfig& model, const MatrixStateForm& form, int64_t heads, int64_t rows,
                                 int64_t columns, int64_t context_length, bool wide = false);

/// The conversion of T2FW's swap: linear features are products with the source's projections, a ReLU map is new.
Swap state_swap(const ModelConfig& model, const StateConfig& own);

/// A row with the members that all rules share; `Own` is a StateConfig.
template <class Own>
Mixer state_row() {
  Mixer row = row_of<Own>();
  row.on_hopper = typed<Own>([](const ModelConfig& model, const Own& own, int64_t context_length) {
    bool wide = false;
    if constexpr (requires { own.attention_norm; }) wide = own.attention_norm;
    return recurrence_on_hopper(model, Own::kForm, model.heads, own.state_rows(model),
                                model.head_dim() + (wide ? 1 : 0), context_length, wide);
  });
  row.past_is_bounded = true;
  row.state_rows =
      typed<Own>([](const ModelConfig& model, const StateConfig& state) { return state.state_rows(model); });
  row.swap = typed<Own>(state_swap);
  return row;
}

}  // namespace lethe
