#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/PlumbingHelper.h>
#include <ATen/functorch/VmapInterpreter.h>

#include <vector>

#include "optimized/torch/rules.hpp"

namespace lethe {
namespace {

// [N, B, …] → [N·B, …]
at::Tensor folded(const at::Tensor& tensor) { return tensor.flatten(0, 1); }

void fold_into_batch(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::FuncTorchBatched);
  const auto layer = at::functorch::maybeCurrentDynamicLayer();
  TORCH_INTERNAL_ASSERT(layer);
  const int64_t level = layer->layerId();
  const c10::SymInt mapped = layer->batchSize();
  const size_t count = op.schema().arguments().size(), begin = stack->size() - count;
  c10::SymInt batch = 0;
  for (size_t i = begin; i < stack->size(); ++i) {
    c10::IValue& argument = (*stack)[i];
    if (!argument.isTensor() || !argument.toTensor().defined()) continue;
    const int64_t rank = argument.toTensor().dim();
    if (i == begin) batch = argument.toTensor().sym_size(0);
    const auto [tensor, dim] = at::functorch::unwrapTensorAtLevel(argument.toTensor(), level);
    if (dim) {
      const at::Tensor front = tensor.movedim(*dim, 0);
      argument = folded(rank > 1 ? front : front.unsqueeze(1).expand_symint({mapped, batch, front.sym_size(1)}));
    } else if (rank > 1) {
      std::vector<c10::SymInt> sizes = tensor.sym_sizes().vec();
      sizes.insert(sizes.begin(), mapped);
      argument = folded(tensor.unsqueeze(0).expand_symint(sizes));
    } else {
      argument = tensor;
    }
  }
  try {
    op.callBoxed(stack);
  } catch (c10::Error& error) {  // whose shapes are the folded ones
    error.add_context(c10::str("under vmap, where B counts the elements of all ", mapped, " calls"));
    throw;
  }
  for (size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i) {
    c10::IValue& result = (*stack)[i];
    if (result.toTensor().dim() > 1)
      result = at::functorch::makeBatched(result.toTensor().unflatten_symint(0, {mapped, batch}), 0, level);
  }
}

}  // namespace

torch::CppFunction batching_rule() { return torch::CppFunction::makeFromBoxedFunction<fold_into_batch>(); }

}  // namespace lethe
