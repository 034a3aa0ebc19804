#pragma once
// Feature maps: applied to queries and keys, so that φ(q)·φ(k) replaces exp(q·k).

#include <functional>
#include <string>

#include "reference/head.hpp"

namespace lethe::reference {

/// φ applied to every row, and its vector-Jacobian product.
struct FeatureMap {
  std::string name;
  /// φ of each row of x [T,K]; [T,M] with M as the map has it.
  std::function<Matrix<double>(const Matrix<double>& x)> features;
  /// ∂loss/∂x [T,K] for ∂loss/∂φ(x) = features_gradient [T,M].
  std::function<Matrix<double>(const Matrix<double>& x, const Matrix<double>& features_gradient)> gradient;
};

/// `head` with φ(query) and φ(key) in the place of query and key. K of the result's states is M.
///
/// cost  that of map.features
Head with_features(Head head, const FeatureMap& map);

/// The gradients of `head` from those of with_features(head, map): query and key go through map.gradient, the others stay.
Gradients through_features(const Head& head, const FeatureMap& map, Gradients gradients);

}  // namespace lethe::reference

/// The maps of the papers. Every one throws std::invalid_argument naming the input, the expected and the found shape where
/// x has a number of columns that it does not accept. Cost: O(T K) elementwise, O(T K M) with a matrix.
/// Everything is rounded in double.
namespace lethe::reference::feature_map {

/// φ(x) = x. What T2FW calls φ-X, its linear map being part of the projections that make q and k.
FeatureMap identity();

/// φ(x)_i = x_i + 1 for x_i > 0, exp(x_i) otherwise: ELU + 1, positive everywhere.
///
/// source  Katharopoulos et al. 2020, Eq. 7
FeatureMap elu_plus_one();

/// φ(x) = ReLU(W x + b) with learned W [M,K], b [M]. All features of a row may be zero at once, for symmetric inputs with a
/// chance of 2^−M a row; a normalizer then divides zero by zero.
///
/// source  Kasai et al. 2021; T2FW, Section 2.3
FeatureMap relu(Matrix<double> weight, Vector<double> bias);

/// ∂loss/∂(W, b) of that map for ∂loss/∂φ(x) = features_gradient [T,M].
struct ReluGradients {
  Matrix<double> weight;  ///< [M,K]
  Vector<double> bias;    ///< [M]
};
ReluGradients relu_parameter_gradients(const Matrix<double>& weight, const Vector<double>& bias,
                                       const Matrix<double>& x, const Matrix<double>& features_gradient);

/// DPFP-ν: with r = ReLU([x, −x]) of 2K entries, φ(x) holds r_i r_{i+n} for all i (cyclic) and n = 1 … ν: M = 2νK
/// features, none negative and most of them zero, so that different keys overlap little.
///
/// source  Schlag et al. 2021, Section 5.3
/// throws  std::invalid_argument where ν < 1
FeatureMap dpfp(Eigen::Index nu);

/// φ(x)_m = exp(w_m·x − |x|²/2) / √M for the rows w_m of `directions` [M,K]: positive random features. For w_m ~ N(0, I)
/// the expectation of φ(q)·φ(k) is exp(q·k); scale q and k by √scale for exp(scale · q·k).
///
/// source  Choromanski et al. 2021 (FAVOR+), Lemma 1
FeatureMap positive_random(Matrix<double> directions);

/// φ(x) = [sin(w_m·x), cos(w_m·x)]_m / √M for the rows w_m of `directions` [M,K], 2M features. For w_m ~ N(0, I/σ²) the
/// expectation of φ(q)·φ(k) is exp(−|q − k|²/(2σ²)); on unit vectors that is exp(q·k/σ²) up to a constant.
///
/// source  Peng et al. 2021 (RFA), Theorem 1
FeatureMap random_fourier(Matrix<double> directions);

/// Sum norm: φ'(x) = φ(x) / Σ_m φ(x)_m. With nonnegative features |φ'|² ≤ 1, which the delta rule needs to stay bounded.
///
/// source  Schlag et al. 2021; T2FW, Section 4
/// throws  std::invalid_argument where a row's features sum to zero or below
FeatureMap sum_normalized(FeatureMap map);

}  // namespace lethe::reference::feature_map
