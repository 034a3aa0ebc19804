#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "optimized/cpu/instruction_set.hpp"
#include "optimized/cpu/layers/layers.hpp"
#include "optimized/cpu/layers/rows.hpp"
#include "optimized/cpu/layers/short_convolution_kernels.hpp"
#include "optimized/operators/rows.hpp"

namespace lethe::cpu {

LETHE_CHOICE(ShortConvolutionKernels, short_convolution_kernels)

namespace {

// The arguments as a kernel reads them, valid as long as this is.
struct ConvolutionArguments {
  TensorRows x;
  at::Tensor weight, bias, state;

  ConvolutionArguments(const at::Tensor& x_rows, const at::Tensor& weights, const std::optional<at::Tensor>& biases,
                       const std::optional<at::Tensor>& before)
      : x(rows_of(x_rows)), weight(weights.t().contiguous()), bias(biases ? biases->contiguous() : at::Tensor()),
        state(before ? before->contiguous() : at::Tensor()) {}

  ShortConvolutionRows rows(bool silu) const {
    return {.length = x.tensor.size(1),
            .channels = x.tensor.size(2),
            .width = weight.size(0),
            .silu = silu,
            .x = x.data(),
            .pitch = x.pitch,
            .weight = weight.const_data_ptr(),
            .bias = bias.defined() ? bias.const_data_ptr() : nullptr,
            .state = state.defined() ? state.const_data_ptr() : nullptr,
            .values = nullptr,
            .grad_values = nullptr,
            .grad_pitch = 0,
            .grad_x = nullptr,
            .grad_state = nullptr};
  }
};

}  // namespace

at::Tensor short_convolution_forward(const at::Tensor& x, const at::Tensor& weight,
                                     const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& state,
                                     bool silu) {
  const ConvolutionArguments arguments(x, weight, bias, state);
  const at::Tensor values = at::empty(x.sizes(), x.options());
  ShortConvolutionRows rows = arguments.rows(silu);
  rows.values = values.mutable_data_ptr();
  const auto kernel = short_convolution_kernels().forward[storage_index(x.scalar_type())];
  for_rows(row_count(values), x.size(2), [&](int64_t begin, int64_t end) { kernel(rows, begin, end); });
  return values;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> short_convolution_backward(
    const at::Tensor& grad_values, const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& state, bool silu) {
  const ConvolutionArguments arguments(x, weight, bias, state);
  const TensorRows grad = rows_of(grad_values);
  const at::Tensor grad_x = at::empty(x.sizes(), x.options());
  const at::Tensor grad_state = state ? at::zeros(state->sizes(), x.options()) : at::empty({0}, x.options());
  ShortConvolutionRows rows = arguments.rows(silu);
  rows.grad_values = grad.data(), rows.grad_pitch = grad.pitch;
  rows.grad_x = grad_x.mutable_data_ptr();
  rows.grad_state = state ? grad_state.mutable_data_ptr() : nullptr;
  const int64_t width = weight.size(1), channels = x.size(2);
  const auto kernel = short_convolution_kernels().backward[storage_index(x.scalar_type())];
  const at::Tensor sums =
      sum_over_rows(row_count(grad_x), (width + 1) * channels, weight.options(),
                    [&](int64_t begin, int64_t end, void* partial) { kernel(rows, begin, end, partial); })
          .view({width + 1, channels});
  return {grad_x, sums.narrow(0, 0, width).t().contiguous(), bias ? sums[width].clone() : at::empty({0}, x.options()),
          grad_state};
}

}  // namespace lethe::cpu
