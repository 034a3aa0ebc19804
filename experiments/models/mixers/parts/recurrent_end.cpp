#include "experiments/models/mixers/parts/recurrent_end.hpp"

#include <cmath>
#include <optional>

#include "experiments/models/layers.hpp"

namespace lethe {

using torch::Tensor;

RecurrentEnd::RecurrentEnd(const Weights& weights, int64_t width, int64_t groups, int64_t size, bool gated,
                           InitialOf initial)
    : groups(groups), size(size),
      gate(gated ? weights.parameter("g_proj.weight", {groups * size, width}, initial(groups * size, width))
                 : Tensor()),
      norm(weights.parameter("o_norm.weight", {size}, constant(1))),
      output_(weights.product(
          {weights.parameter("o_proj.weight", {width, groups * size}, initial(width, groups * size))})) {}

Tensor RecurrentEnd::operator()(const Tensor& o, const Tensor& gate_logits) const {
  const Tensor weight = norm.to(accumulation_dtype(o.scalar_type())).repeat({groups});
  const Tensor rows = o.reshape({o.size(0), o.size(1), groups, size});
  if (!gate.defined()) return output_(gated_output(rows, std::nullopt, weight, kNormEpsilon));
  return output_(gated_output(rows, gate_logits, weight, kNormEpsilon) * gate_logits);  // silu(g) = g σ(g)
}

Initial small_xavier(int64_t rows, int64_t columns) {
  return uniform(std::pow(2, -2.5) * std::sqrt(6 / static_cast<double>(rows + columns)));
}

Initial usual(int64_t, int64_t) { return normal(); }

Tensor unit_length(const Tensor& x) {
  constexpr double kEpsilon = 1e-6;
  const Tensor wide = x.to(accumulation_dtype(x.scalar_type()));
  return (wide * (wide.square().sum(-1, true) + kEpsilon).rsqrt()).to(x.scalar_type());
}

}  // namespace lethe
