#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "optimized/torch/rules.hpp"

namespace lethe {
namespace {

template <c10::DeviceType device>
void cast_arguments(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue& argument = (*stack)[stack->size() - arguments.size() + i];
    if (!argument.isTensor()) continue;
    const std::string& name = arguments[i].name();
    const bool is_product_operand = name == "query" || name == "key" || name == "value";
    const at::ScalarType dtype = is_product_operand ? at::autocast::get_autocast_dtype(device) : at::kFloat;
    argument = at::autocast::cached_cast(dtype, argument.toTensor(), device);
  }
  op.callBoxed(stack);
}

template <c10::DeviceType device>
void keep_arguments(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  op.callBoxed(stack);
}

}  // namespace

template <c10::DeviceType device>
torch::CppFunction autocast_rule() {
  return torch::CppFunction::makeFromBoxedFunction<cast_arguments<device>>();
}
template torch::CppFunction autocast_rule<c10::DeviceType::CPU>();
template torch::CppFunction autocast_rule<c10::DeviceType::CUDA>();

template <c10::DeviceType device>
torch::CppFunction no_autocast_rule() {
  return torch::CppFunction::makeFromBoxedFunction<keep_arguments<device>>();
}
template torch::CppFunction no_autocast_rule<c10::DeviceType::CPU>();
template torch::CppFunction no_autocast_rule<c10::DeviceType::CUDA>();

}  // namespace lethe
