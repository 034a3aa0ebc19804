#include "optimized/torch/gated_attention.hpp"

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_unsafe_view.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <tuple>
#include <vector>

#include "optimized/operators/attention.hpp"
#include "optimized/torch/forgetting_attention.hpp"
#include "optimized/torch/implementations.hpp"
#include "optimized/torch/layers/backward.hpp"

namespace lethe {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const AttentionImplementation& implementation_for(const GatedAttention& call) {
  const auto heads = [&](const Tensor& product) {
    return product.unflatten(-1, {call.products.heads, product.size(-1) / call.products.heads});
  };
  const AttentionInputProducts& products = call.products;
  return implementation_of(attention_implementations(),
                           call_of(heads(products.query), heads(products.key), heads(products.value)));
}

// Of what hands_over reads; the operators check the rest.
void check_products(const GatedAttention& call) {
  check_arguments(call.products);
  TORCH_CHECK(call.log_forget.has_value() != call.products.gate_logits.has_value(),
              "log_forget: expected one where gate_logits is absent and none elsewhere, found ",
              call.log_forget ? "both" : "neither");
}

Tensor in_turn(const GatedAttention& call) {
  const HeadInputs in = attention_inputs(call.products);
  const Tensor o =
      forgetting_attention(in.query, in.key, in.value, call.log_forget ? *call.log_forget : in.log_forget, std::nullopt,
                           call.log_pruning_tolerance, call.logit_bound, call.window, std::nullopt, call.prune_by_mass);
  return gated_output(o, call.output_gate, call.output_norm, call.output_epsilon);
}

#ifdef LETHE_CUDA_KERNELS

// The tensors with gradients, in the order of the node's inputs.
std::vector<OptionalTensor> inputs_of(const GatedAttention& call) {
  const AttentionInputProducts& in = call.products;
  return {in.query,    in.key,         in.value,     in.key_shift,    in.value_shift,   in.query_norm,
          in.key_norm, in.gate_logits, in.gate_bias, call.log_forget, call.output_gate, call.output_norm};
}

bool requires_gradient(const GatedAttention& call) {
  variable_list given;
  for (const OptionalTensor& input : inputs_of(call)) given.push_back(input.value_or(Tensor()));
  return torch::autograd::compute_requires_grad(given);
}

// With the residual, by the dispatcher: profiles name it.
AttentionOutputs attention_forward(const HeadInputs& in, const Tensor& log_forget, double scale,
                                   const GatedAttention& call) {
  check_layout("log_forget", log_forget);
  if (call.logit_bound) check_layout("logit_bound", *call.logit_bound);
  using Forward = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>(
      const Tensor&, const Tensor&, const Tensor&, const Tensor&, double, std::optional<double>, const OptionalTensor&,
      std::optional<int64_t>, bool, bool);
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("lethe::_forgetting_attention_forward", "").typed<Forward>();
  AttentionOutputs out;
  std::tie(out.values, out.log_normalizer, out.visited_pairs, out.boundary, out.residual) =
      op.call(in.query, in.key, in.value, log_forget, scale, call.log_pruning_tolerance, call.logit_bound, call.window,
              call.prune_by_mass, true);
  return out;
}

// What a backward reads besides tensors.
struct Constants : torch::CustomClassHolder {
  int64_t heads;
  double epsilon, output_epsilon, scale;
  std::optional<int64_t> window;
  Handover handover;
  const AttentionImplementation* implementation;
};

// The tensors that a backward reads, in the order in which they are saved.
struct Saved {
  AttentionInputProducts products;
  Tensor query, key, value, log_forget;  // attention's inputs
  AttentionOutputs attention;
  OptionalTensor output_gate, output_norm;

  template <typename Visit>
  void visit(Visit&& each) {
    for (Tensor* tensor : {&products.query, &products.key, &products.value, &query, &key, &value, &log_forget,
                           &attention.values, &attention.log_normalizer, &attention.boundary, &attention.residual})
      each(*tensor);
    for (OptionalTensor* optional :
         {&products.key_shift, &products.value_shift, &products.query_norm, &products.key_norm, &products.cosine,
          &products.sine, &products.gate_logits, &products.gate_bias, &output_gate, &output_norm}) {
      Tensor tensor = optional->value_or(Tensor());
      each(tensor);
      *optional = tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
    }
  }
};

struct GatedAttentionNode : torch::autograd::Function<GatedAttentionNode> {
  // The tensors are those of inputs_of(call), named so that they get gradients.
  static Tensor forward(AutogradContext* context, const GatedAttention& call, const Handover& handover,
                        const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                        const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                        const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&) {
    const HeadInputs in = attention_inputs(call.products);
    const Tensor log_forget = call.log_forget ? *call.log_forget : in.log_forget;
    const auto constants = c10::make_intrusive<Constants>();
    constants->heads = call.products.heads;
    constants->epsilon = call.products.epsilon;
    constants->output_epsilon = call.output_epsilon;
    constants->scale = default_scale(in.query);
    constants->window = call.window;
    constants->handover = handover;
    constants->implementation = &implementation_for(call);
    AttentionOutputs out = attention_forward(in, log_forget, constants->scale, call);
    Tensor y = gated_output(out.values, call.output_gate, call.output_norm, call.output_epsilon);
    // Without gate and norm y is attention's values: a view that autograd does not follow, and the saved tensor itself, so that its version is
    // checked.
    if (!handover.delta) y = out.values = at::_unsafe_view(out.values, y.sizes());

    Saved saved{call.products, in.query, in.key, in.value, log_forget, out, call.output_gate, call.output_norm};
    variable_list tensors;
    saved.visit([&](const Tensor& tensor) { tensors.push_back(tensor); });
    context->save_for_backward(tensors);
    context->saved_data["constants"] = c10::IValue::make_capsule(constants);
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    TORCH_CHECK_NOT_IMPLEMENTED(!c10::GradMode::is_enabled(),
                                "gated_attention: expected one derivative, for it has no second, found another");
    const auto capsule = context->saved_data["constants"].toCapsule();
    const Constants& constants = static_cast<const Constants&>(*capsule);
    const variable_list tensors = context->get_saved_variables();
    Saved saved{};
    saved.visit([next = tensors.begin()](Tensor& tensor) mutable { tensor = *next++; });
    saved.products.heads = constants.heads;
    saved.products.epsilon = constants.epsilon;

    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    cuda::GatedOutputGradients end;
    if (constants.handover.delta) {
      end = cuda::gated_output_backward(gradients[0], saved.attention.values, saved.attention.residual,
                                        saved.output_gate, saved.output_norm, constants.output_epsilon, true);
    } else {
      saved.attention.values = saved.attention.values.unflatten(-1, {constants.heads, -1});
      end.o = gradients[0].reshape(saved.attention.values.sizes());
    }
    const OptionalTensor no_bound;
    const AttentionGradients middle = constants.implementation->backward_between(
        end.o,
        {saved.query, saved.key, saved.value, saved.log_forget, constants.scale, std::nullopt, no_bound, false,
         constants.window},
        saved.attention, {.delta = end.delta, .query_sums = constants.handover.query_sums});
    const bool own_gate = saved.products.gate_logits.has_value();
    const AttentionInputGradients first =
        attention_inputs_backward({middle.query, middle.key, middle.value, middle.log_forget}, middle.query_sums,
                                  constants.scale, saved.products);
    const auto if_given = [](const OptionalTensor& given, const Tensor& gradient) {
      return given ? gradient : Tensor();
    };
    return {Tensor(),
            Tensor(),
            first.query,
            first.key,
            first.value,
            first.key_shift,
            first.value_shift,
            first.query_norm,
            first.key_norm,
            first.gate_logits,
            first.gate_bias,
            own_gate ? Tensor() : middle.log_forget,
            if_given(saved.output_gate, end.gate),
            if_given(saved.output_norm, end.norm)};
  }
};

#endif

}  // namespace

Handover hands_over(const GatedAttention& call) {
#ifdef LETHE_CUDA_KERNELS
  const AttentionInputProducts& in = call.products;
  if (!in.query.is_cuda() || at::autocast::is_autocast_enabled(at::kCUDA)) return {};
  const AttentionImplementation& row = implementation_for(call);
  if (!row.backward_between) return {};
  const int64_t dim = in.query.size(-1) / in.heads;
  const bool fills_slices = (dim == 64 || dim == 128) && in.query.size(-1) == in.value.size(-1);
  return {.delta = call.output_gate || call.output_norm,
          .query_sums = row.leaves_query_sums && fills_slices && changes_query(in)};
#else
  return {};
#endif
}

Tensor gated_attention(const GatedAttention& call) {
  check_products(call);
#ifdef LETHE_CUDA_KERNELS
  const Handover handover = hands_over(call);
  if (handover.any() && c10::GradMode::is_enabled() && requires_gradient(call)) {
    const std::vector<OptionalTensor> in = inputs_of(call);
    return GatedAttentionNode::apply(call, handover, in[0], in[1], in[2], in[3], in[4], in[5], in[6], in[7], in[8],
                                     in[9], in[10], in[11]);
  }
#endif
  return in_turn(call);
}

}  // namespace lethe
