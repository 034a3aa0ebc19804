#include "experiments/models/mixers/parts/output_end.hpp"

#include "experiments/models/layers.hpp"

namespace lethe {

using torch::Tensor;

std::vector<Tensor> products(const Tensor& x, const std::vector<std::vector<Tensor>>& groups) {
  std::vector<Tensor> weights;
  std::vector<int64_t> sizes;
  for (const auto& group : groups) {
    sizes.push_back(0);
    for (const Tensor& weight : group) {
      if (!weight.defined()) continue;
      weights.push_back(weight);
      sizes.back() += weight.size(0);
    }
  }
  const Tensor all = torch::linear(x, torch::cat(weights).to(x.scalar_type()));
  std::vector<Tensor> pieces = all.split_with_sizes(sizes, -1);
  for (size_t i = 0; i < pieces.size(); ++i)
    if (sizes[i] == 0) pieces[i] = Tensor();
  return pieces;
}

OutputEnd::OutputEnd(const Weights& weights, const ModelConfig& model) : heads(model.heads) {
  const int64_t width = model.width;
  if (model.output_gate) gate = weights.parameter("ogate_proj.weight", {width, width}, normal());
  if (model.output_norm) norm = weights.parameter("output_norm.weight", {width}, constant(1));
  output = weights.parameter("o_proj.weight", {width, width}, normal());
}

Tensor OutputEnd::operator()(Tensor o, const Tensor& gate_logits) const {
  const torch::Dtype dtype = o.scalar_type(), wide = accumulation_dtype(dtype);
  if (norm.defined()) o = rms_norm(o, norm.view({heads, -1}), kNormEpsilon, gate.defined() ? wide : dtype);
  o = o.flatten(-2);
  if (gate.defined()) o = (o * gate_logits.to(wide).sigmoid()).to(dtype);
  return torch::linear(o, output.to(dtype));
}

double OutputEnd::multiply_adds(const ModelConfig& model) {
  return static_cast<double>(model.width * model.width * (1 + model.output_gate));
}

int64_t OutputEnd::columns(const ModelConfig& model) {
  return model.width * (1 + model.output_norm + 2 * model.output_gate);
}

}  // namespace lethe
