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
  const Tensor own = norm.to(accumulation_dtype(o.scalar_type()));
  if (groups == 1 && !gate.defined())
    return output_(std::get<0>(add_rms_norm(o.flatten(2), std::nullopt, own, kNormEpsilon, o.scalar_type())));
  const Tensor weight = own.repeat({groups});
  const Tensor rows = o.reshape({o.size(0), o.size(1), groups, size});
  if (!gate.defined()) return output_(gated_output(rows, std::nullopt, weight, kNormEpsilon));
  return output_(gated_output(rows, gate_logits, weight, kNormEpsilon) * gate_logits);  // silu(g) = g σ(g)
}

Initial small_xavier(int64_t rows, int64_t columns) {
  return uniform(std::pow(2, -2.5) * std::sqrt(6 / static_cast<double>(rows + columns)));
}

Initial usual(int64_t, int64_t) { return normal(); }

std::pair<Tensor, Tensor> unit_lengths(const Tensor& query, const Tensor& key, int64_t heads) {
  constexpr double kEpsilon = 1e-6;
  const auto dim = static_cast<double>(query.size(2) / heads);
  const Tensor weight = torch::full({query.size(2) / heads}, 1 / std::sqrt(dim),
                                    query.options().dtype(accumulation_dtype(query.scalar_type())));
  const HeadInputs of_heads = attention_inputs({.query = query,
                                                .key = key,
                                                .value = key,
                                                .query_norm = weight,
                                                .key_norm = weight,
                                                .heads = heads,
                                                .epsilon = kEpsilon / dim});
  return {of_heads.query, of_heads.key};
}

}  // namespace lethe
