#pragma once
// Feature maps of the mixers with a state; the maps without trained weights in their Torch form, computed and returned in
// float32 (float64 for float64 inputs) whatever the compute dtype.

#include <torch/types.h>

#include "experiments/models/json_members.hpp"

namespace lethe {

/// φ of the mixers with a state.
enum class FeatureMap {
  kLinear,  ///< no further map: W_q and W_k themselves return state_size features a head
  kRelu,    ///< ReLU(W_φ x + b_φ) of queries and keys of head_dim, one W_φ [state_size, head_dim] a head for both
  kEluPlusOne,      ///< ELU + 1 of queries and keys, head_dim features
  kDpfp,            ///< DPFP-ν of queries and keys of head_dim, 2·ν·head_dim features
  kPositiveRandom,  ///< FAVOR+: exp(w·x − |x|²/2) for state_size random directions w a layer, never trained
  kRandomFourier    ///< RFA: sin(w·x) and cos(w·x) of unit vectors for state_size / 2 random directions
};

template <>
struct EnumNames<FeatureMap> {
  static inline const std::vector<std::pair<FeatureMap, std::string>> names{
      {FeatureMap::kLinear, "linear"},
      {FeatureMap::kRelu, "relu"},
      {FeatureMap::kEluPlusOne, "elu_plus_one"},
      {FeatureMap::kDpfp, "dpfp"},
      {FeatureMap::kPositiveRandom, "positive_random"},
      {FeatureMap::kRandomFourier, "random_fourier"}};
};

/// φ(u)_i = u_i + 1 for u_i > 0, exp(u_i) otherwise: ELU + 1, positive everywhere.
///
/// source   Katharopoulos et al. 2020, Eq. 7
/// reads    u [..., D]
/// returns  [..., D], float32 or wider
torch::Tensor elu_plus_one(const torch::Tensor& u);

/// φ / (Σ_i φ_i + ε): the sum norm of features that are positive.
///
/// source   Schlag et al. 2021; T2FW, Section 4
/// reads    features [..., D]; epsilon ≥ 0
/// returns  [..., D], float32 or wider
torch::Tensor sum_normalized(const torch::Tensor& features, double epsilon);

/// DPFP-ν: with r = ReLU([u, −u]) of 2D entries, φ(u) holds r_i r_{i+n} for all i (cyclic) and n = 1 … ν.
///
/// source   Schlag et al. 2021, Section 5.3
/// reads    u [..., D]; nu ≥ 1
/// returns  [..., 2νD], float32 or wider
torch::Tensor dpfp(const torch::Tensor& u, int64_t nu);

/// φ(u)_m = exp(w_m·s − |s|²/2) / √M of s = u / D^¼: for w_m ~ N(0, I) the expectation of φ(q)·φ(k) is exp(q·k / √D), softmax's.
///
/// source   Choromanski et al. 2021 (FAVOR+), Lemma 1
/// reads    u [..., D]; directions [M,D], whose rows are w_m
/// returns  [..., M], float32 or wider
torch::Tensor positive_random(const torch::Tensor& u, const torch::Tensor& directions);

/// φ(u) = [sin(w_m·s), cos(w_m·s)]_m / √M of s = u / |u|: for w_m ~ N(0, I) the expectation of φ(q)·φ(k) is exp(q·k / |q||k|)
/// up to a factor. Features have both signs, so z·φ(q) may be near zero.
///
/// source   Peng et al. 2021 (RFA), Theorem 1 and Section 3.1
/// reads    u [..., D]; directions [M,D], whose rows are w_m
/// returns  [..., 2M], float32 or wider; [0, 1] / √M for u = 0
torch::Tensor random_fourier(const torch::Tensor& u, const torch::Tensor& directions);

}  // namespace lethe
