#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "optimized/torch/rules.hpp"

namespace lethe {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using torch::autograd::VariableInfo;

// The source of an argument of the backward operator.
struct Source {
  enum Kind { kGradient, kOptionalGradient, kTensorArgument, kConstantArgument, kOutput } kind;
  size_t index;  // of a gradient: in differentiable_outputs; else of the forward's argument or output
};

// A pair of operators, read once from their schemas.
struct Pair {
  std::string name;
  c10::OperatorHandle backward;
  std::vector<Source> sources;                 // of the backward's arguments
  std::vector<size_t> differentiable_inputs;   // the forward's arguments, in the order of the backward's results
  std::vector<size_t> differentiable_outputs;  // in the order of the backward's gradients
  std::optional<size_t> keep_residual;         // the forward's argument of this name

  explicit Pair(const c10::OperatorHandle& forward);
};

std::optional<size_t> index_of(const std::vector<c10::Argument>& arguments, const std::string& name) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == name) return i;
  }
  return std::nullopt;
}

bool is_tensor(const c10::Argument& argument) {
  return argument.type()->isSubtypeOf(*c10::OptionalType::create(c10::TensorType::get()));
}

c10::OperatorHandle backward_of(std::string name) {
  const std::string ending = "_forward";
  name.replace(name.size() - ending.size(), ending.size(), "_backward");
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "");
}

Pair::Pair(const c10::OperatorHandle& forward)
    : name(forward.schema().name()), backward(backward_of(name)),
      keep_residual(index_of(forward.schema().arguments(), "keep_residual")) {
  const auto &arguments = forward.schema().arguments(), &outputs = forward.schema().returns();
  const std::string prefix = "grad_";
  for (const c10::Argument& argument : backward.schema().arguments()) {
    if (argument.name().starts_with(prefix)) {
      const bool is_optional = argument.type()->kind() == c10::TypeKind::OptionalType;
      sources.push_back({is_optional ? Source::kOptionalGradient : Source::kGradient, differentiable_outputs.size()});
      differentiable_outputs.push_back(index_of(outputs, argument.name().substr(prefix.size())).value());
    } else if (const auto index = index_of(arguments, argument.name())) {
      sources.push_back({is_tensor(argument) ? Source::kTensorArgument : Source::kConstantArgument, *index});
    } else {
      sources.push_back({Source::kOutput, index_of(outputs, argument.name()).value()});
    }
  }
  for (const c10::Argument& result : backward.schema().returns())
    differentiable_inputs.push_back(index_of(arguments, result.name().substr(prefix.size())).value());
}

at::Tensor tensor_or_undefined(const c10::IValue& value) { return value.isTensor() ? value.toTensor() : at::Tensor(); }

// Calls the backward operator on gradients (undefined: none where optional, else zero) and saved values: tensors and constants in the order of its
// arguments.
variable_list call_backward(const Pair& pair, const variable_list& gradients, const std::vector<VariableInfo>& outputs,
                            const variable_list& tensors, c10::ArrayRef<c10::IValue> constants) {
  if (std::none_of(gradients.begin(), gradients.end(), [](const at::Tensor& g) { return g.defined(); }))
    return variable_list(pair.differentiable_inputs.size());
  at::OptionalDeviceGuard device;
  torch::jit::Stack stack;
  auto tensor = tensors.begin();
  auto constant = constants.begin();
  for (const Source& source : pair.sources) {
    if (source.kind == Source::kGradient) {
      const at::Tensor& gradient = gradients[source.index];
      stack.emplace_back(gradient.defined() ? gradient : outputs[source.index].zeros(device));
    } else if (source.kind == Source::kOptionalGradient) {
      const at::Tensor& gradient = gradients[source.index];
      stack.push_back(gradient.defined() ? c10::IValue(gradient) : c10::IValue());
    } else if (source.kind == Source::kConstantArgument) {
      stack.push_back(*constant++);
    } else {
      stack.push_back(tensor->defined() ? c10::IValue(*tensor) : c10::IValue());
      ++tensor;
    }
  }
  pair.backward.callBoxed(stack);
  variable_list results;
  for (const c10::IValue& result : stack) results.push_back(result.toTensor());
  return results;
}

// A hand-written node rather than a torch::autograd::Function, which torch.func refuses.
struct DerivativeNode : torch::autograd::Node {
  const Pair& pair;
  std::vector<SavedVariable> tensors;
  std::vector<c10::IValue> constants;
  std::vector<VariableInfo> outputs;

  explicit DerivativeNode(const Pair& operators) : pair(operators) {}

  std::string name() const override { return pair.name; }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (SavedVariable& tensor : tensors) tensor.reset_data();
  }

  variable_list saved_tensors() {
    variable_list unpacked;
    for (const SavedVariable& tensor : tensors) unpacked.push_back(tensor.unpack(shared_from_this()));
    return unpacked;
  }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return call_backward(pair, gradients, outputs, saved_tensors(), constants);
  }

  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& arguments) const override {
    arguments.collect(pair.name);
    arguments.collect(tensors, true);
    for (const c10::IValue& constant : constants) arguments.collect(constant);
    arguments.collect(outputs);
  }

  variable_list apply_with_saved(const variable_list& gradients,
                                 torch::dynamo::autograd::SwapSavedVariables& saved) override {
    using namespace torch::dynamo::autograd;
    saved.before(tensors);
    for (c10::IValue& constant : constants) saved.before(constant);
    saved.before(outputs);

    PackedArgs packed;
    packed.pack(outputs);
    packed.pack(saved_tensors());
    std::vector<c10::IValue> arguments = packed.vec();
    arguments.insert(arguments.end(), constants.begin(), constants.end());
    std::vector<at::TypePtr> types;
    for (const c10::IValue& argument : arguments) types.push_back(argument.type());
    const auto run = [&operators = pair](const variable_list& arriving, const std::vector<c10::IValue>& given) {
      PackedArgs unpacked(given);
      const auto infos = unpacked.unpack<std::vector<VariableInfo>>();
      const auto variables = unpacked.unpack<variable_list>();
      return call_backward(operators, arriving, infos, variables, c10::ArrayRef<c10::IValue>(given).slice(2));
    };
    const auto& compiler = getPyCompilerInterface();
    const std::string function = compiler->bind_function(saved.get_py_compiler(), pair.name, run, types, true, true);
    const auto metadata =
        IValuePacker<std::vector<std::optional<InputMetadata>>>::pack(get_input_metadata(next_edges()));
    const variable_list results =
        compiler->call_function(saved.get_py_compiler(), "apply_functional", function, gradients, arguments, metadata);

    saved.after(tensors);
    for (c10::IValue& constant : constants) saved.after(constant);
    saved.after(outputs);
    return results;
  }
};

class DerivativeRule : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    std::call_once(once_, [&] { pair_.emplace(op); });
    auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
    variable_list inputs;
    for (const size_t i : pair_->differentiable_inputs) inputs.push_back(tensor_or_undefined(arguments[i]));
    refuse_tangents(inputs);
    std::shared_ptr<DerivativeNode> node;
    if (torch::autograd::compute_requires_grad(inputs)) {
      node = std::shared_ptr<DerivativeNode>(new DerivativeNode(*pair_), torch::autograd::deleteNode);
      node->set_next_edges(torch::autograd::collect_next_edges(inputs));
      save_arguments(*node, arguments);
      if (pair_->keep_residual) {
        c10::IValue& keep = (*stack)[stack->size() - arguments.size() + *pair_->keep_residual];
        if (!keep.isNone()) keep = true;
      }
    }
    {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
    }
    if (node) record_outputs(node, torch::jit::last(*stack, op.schema().returns().size()));
  }

 private:
  void refuse_tangents(const variable_list& inputs) const {
    for (const at::Tensor& input : inputs) {
      TORCH_CHECK_NOT_IMPLEMENTED(!input.defined() || !input._fw_grad(0).defined(), pair_->name,
                                  ": expected no tangent, for it has no forward-mode derivative, found one");
    }
  }

  void save_arguments(DerivativeNode& node, at::ArrayRef<c10::IValue> arguments) const {
    for (const Source& source : pair_->sources) {
      if (source.kind == Source::kConstantArgument) node.constants.push_back(arguments[source.index]);
      if (source.kind == Source::kTensorArgument)
        node.tensors.emplace_back(tensor_or_undefined(arguments[source.index]), false);
      if (source.kind == Source::kOutput) node.tensors.emplace_back();
    }
  }

  void record_outputs(const std::shared_ptr<DerivativeNode>& node, at::ArrayRef<c10::IValue> outputs) const {
    for (const size_t i : pair_->differentiable_outputs) {
      const at::Tensor& output = outputs[i].toTensor();
      torch::autograd::set_history(output, node);
      node->outputs.emplace_back(output);
    }
    size_t next = 0;
    for (const Source& source : pair_->sources) {
      if (source.kind == Source::kOutput) node->tensors[next] = SavedVariable(outputs[source.index].toTensor(), true);
      if (source.kind == Source::kOutput || source.kind == Source::kTensorArgument) ++next;
    }
  }

  std::once_flag once_;
  std::optional<Pair> pair_;
};

}  // namespace

torch::CppFunction derivative_rule() {
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<DerivativeRule>());
}

}  // namespace lethe
