#pragma once
// Torch's autograd, vmap and autocast rules of an operator `lethe::_NAME_forward` and its `lethe::_NAME_backward`: read from the names in their
// schemas, so a new argument needs no rule of its own.

#include <c10/core/DeviceType.h>
#include <torch/library.h>

namespace lethe {

/// Autograd of a forward operator. An argument `X` or `grad_Y` of the backward operator is the forward's argument X, else its output X, or
/// the gradient of its output Y, absent where that is optional and nothing arrives; a result `grad_X` is the gradient of argument X. Outputs
/// without such a gradient have no derivative.
/// A bool argument `keep_residual` is set where a derivative is recorded; an optional one only where it is given.
///
/// covers   backward(), torch.func.grad, vjp, jacrev and compiled autograd
/// throws   c10::NotImplementedError "NAME: expected no tangent …, found one" for forward-mode differentiation
/// cost     O(1) and no copy where nothing requires a gradient
torch::CppFunction derivative_rule();

/// vmap of either operator: the mapped dimension becomes part of B, the first dimension of every argument. An argument that is not
/// mapped is copied for each element, unless it has no B: then it has one dimension.
///
/// throws   the operator's errors, whose shapes have that B, with a note of it
torch::CppFunction batching_rule();

/// autocast of a forward operator: query, key and value to the autocast type, every other tensor to float32; float64 stays.
template <c10::DeviceType device>
torch::CppFunction autocast_rule();

/// autocast of a backward operator: off, also for the Torch operators that it calls, where backward() runs inside an autocast region.
template <c10::DeviceType device>
torch::CppFunction no_autocast_rule();

}  // namespace lethe
