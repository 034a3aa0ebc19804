#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "optimized/torch/layers/cuda_calls.hpp"
#include "optimized/torch/split_columns.hpp"

namespace lethe::cuda {
namespace {

// A call's arguments, valid as long as this is.
struct ConvolutionCall {
  TensorRows x;
  at::Tensor weight, bias, state;

  ConvolutionCall(const at::Tensor& x_rows, const at::Tensor& weights, const std::optional<at::Tensor>& biases,
                  const std::optional<at::Tensor>& before)
      : x(rows_of(x_rows)), weight(weights.contiguous()), bias(biases ? biases->contiguous() : at::Tensor()),
        state(before ? before->contiguous() : at::Tensor()) {}

  layers::ShortConvolution of(bool silu, void* values) const {
    return {.batch = x.tensor.size(0),
            .length = x.tensor.size(1),
            .channels = x.tensor.size(2),
            .width = static_cast<int>(weight.size(1)),
            .dtype = dtype_of(x.tensor.scalar_type()),
            .silu = silu,
            .x = device_rows(x),
            .weight = weight.const_data_ptr(),
            .bias = bias.defined() ? bias.const_data_ptr() : nullptr,
            .state = state.defined() ? state.const_data_ptr() : nullptr,
            .values = values,
            .stream = at::cuda::getCurrentCUDAStream()};
  }
};

at::Tensor short_convolution_forward(const at::Tensor& x, const at::Tensor& weight,
                                     const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& state,
                                     bool silu) {
  const c10::cuda::CUDAGuard device(x.device());
  const at::Tensor values = at::empty(x.sizes(), x.options());
  layers::short_convolution(ConvolutionCall(x, weight, bias, state).of(silu, values.mutable_data_ptr()));
  return values;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> short_convolution_backward(
    const at::Tensor& grad_values, const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& state, bool silu) {
  const c10::cuda::CUDAGuard device(x.device());
  const ConvolutionCall given(x, weight, bias, state);
  const TensorRows grad = rows_of(grad_values);
  const auto none = [&] { return at::empty({0}, x.options()); };
  const at::Tensor grad_x = gradient_like(x);
  const at::Tensor grad_weight = at::empty(weight.sizes(), weight.options());
  const at::Tensor grad_bias = bias ? at::empty(bias->sizes(), bias->options()) : none();
  const at::Tensor grad_state = !state           ? none()
                                : x.numel() == 0 ? at::zeros(state->sizes(), state->options())
                                                 : at::empty(state->sizes(), state->options());
  const layers::ShortConvolution call = given.of(silu, nullptr);
  const at::Tensor workspace = workspace_of(layers::short_convolution_workspace_bytes(call), x);
  layers::short_convolution_backward({.forward = call,
                                      .grad_values = device_rows(grad),
                                      .grad_x = {grad_x.mutable_data_ptr(), grad_x.stride(1)},
                                      .grad_weight = grad_weight.mutable_data_ptr(),
                                      .grad_bias = bias ? grad_bias.mutable_data_ptr() : nullptr,
                                      .grad_state = state ? grad_state.mutable_data_ptr() : nullptr,
                                      .workspace = workspace.mutable_data_ptr()});
  return {grad_x, grad_weight, grad_bias, grad_state};
}

TORCH_LIBRARY_IMPL(lethe, CUDA, library) {
  library.impl("_short_convolution_forward", short_convolution_forward);
  library.impl("_short_convolution_backward", short_convolution_backward);
}

}  // namespace
}  // namespace lethe::cuda
