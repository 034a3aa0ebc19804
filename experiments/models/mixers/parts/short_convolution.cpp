#include "experiments/models/mixers/parts/short_convolution.hpp"

#include <cmath>

#include "experiments/models/layers.hpp"

namespace lethe {

using torch::Tensor;

ShortConvolution::ShortConvolution(const Weights& weights, const std::string& name, int64_t channels, bool has_bias,
                                   bool silu)
    : silu(silu) {
  const Initial initial = uniform(1 / std::sqrt(static_cast<double>(kWidth)));
  weight = weights.parameter(name + ".weight", {channels, kWidth}, initial);
  if (has_bias) bias = weights.parameter(name + ".bias", {channels}, initial);
}

Tensor ShortConvolution::operator()(const Tensor& u, const std::optional<Packed>& packed, Tensor* before) const {
  const torch::Dtype wide = accumulation_dtype(u.scalar_type());
  const auto offset = bias.defined() ? std::optional(bias.to(wide)) : std::nullopt;
  if (packed) {
    const Tensor spaced = packed->spaced(u, kWidth - 1);
    return packed->unspaced(short_convolution(spaced, weight.to(wide), offset, std::nullopt, silu), kWidth - 1);
  }
  const auto state = before && before->defined() ? std::optional(*before) : std::nullopt;
  if (before) {
    const Tensor none = u.new_zeros({u.size(0), kWidth - 1, u.size(2)});
    const Tensor all = torch::cat({state.value_or(none), u}, 1);
    *before = all.narrow(1, u.size(1), kWidth - 1);
  }
  return short_convolution(u, weight.to(wide), offset, state, silu);
}

}  // namespace lethe
