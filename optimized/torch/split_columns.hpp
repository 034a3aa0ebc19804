#pragma once
// Pieces of a matrix product whose gradients are written where the product's gradient is read.

#include <ATen/core/Tensor.h>

#include <vector>

namespace lethe {

/// Views of the columns of `all`. Their gradients are gathered in one array: an operator that wrote its gradient into gradient_like(piece) is not
/// copied, every other gradient is. Columns without a gradient get zeros.
///
/// reads    all [..., n] contiguous; sizes, whose sum is n
/// returns  views [..., size]; differentiable once
std::vector<at::Tensor> split_columns(const at::Tensor& all, at::IntArrayRef sizes);

/// An uninitialized tensor for the gradient of `tensor`: the piece's place in the gathered gradient for a piece of split_columns, [..., size] or
/// [..., heads, size / heads], at its first call in a backward pass, with the tensor's strides; else a contiguous tensor.
at::Tensor gradient_like(const at::Tensor& tensor);

}  // namespace lethe
