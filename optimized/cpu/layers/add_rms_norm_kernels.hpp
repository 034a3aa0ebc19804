#pragma once

#include <cstdint>

namespace lethe::cpu {

/// Contiguous rows of the residual addition and its RMSNorm; normed = sum · rstd · weight.
struct AddRmsNormRows {
  int64_t width;
  double epsilon;
  const void *residual, *branch;  ///< branch null: sum is residual
  const void* weight;
  void *normed, *sum, *rstd;
};

/// Their gradients.
struct AddRmsNormGradientRows {
  int64_t width;
  const void *grad_normed, *grad_sum;  ///< grad_sum null: 0
  const void *sum, *weight, *rstd;
  void *grad_residual, *grad_branch;  ///< grad_branch null: unwanted
};

/// The rows from `begin` to `end`. [0]: the residual is float32 (float64), [1]: of the branch's storage type; then by that type (storage_index).
/// `backward` adds the gradient of the weight to `grad_weight`, float32 (float64).
struct AddRmsNormKernels {
  void (*forward[2][4])(const AddRmsNormRows&, int64_t begin, int64_t end);
  void (*backward[2][4])(const AddRmsNormGradientRows&, int64_t begin, int64_t end, void* grad_weight);
};
const AddRmsNormKernels& add_rms_norm_kernels();

}  // namespace lethe::cpu
