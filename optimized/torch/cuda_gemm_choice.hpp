#pragma once
// Which of cuBLASLt's algorithms computes a matrix product, by measurement. The products themselves are the library's.

#include <vector>

#include "optimized/torch/products.hpp"

namespace lethe {

using ProductByDefault = void (*)(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool adds);

/// out = a b, or out += a b, on the current stream by the algorithm chosen for this product; measured first where this is its first call
/// (measure_products says which).
///
/// reads    CUDA tensors; by_default: ATen's, which is timed beside the candidates
/// returns  whether it did; else out is unchanged or, where it does not add, undefined
bool multiplied_by_choice(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool adds,
                          ProductByDefault by_default, double margin);

std::vector<MeasuredProduct> gemm_choices();

}  // namespace lethe
