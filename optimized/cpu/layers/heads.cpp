// scaled_heads and gated_skip as Torch's operations in the dtype of the scale: their share of a layer is small.
#include <ATen/ops/sigmoid.h>

#include "optimized/cpu/layers/layers.hpp"

namespace lethe::cpu {
namespace {

using at::Tensor;

// [B,T,H·D] as [B,T,H,D].
Tensor of_heads(const Tensor& rows, int64_t heads) { return rows.unflatten(2, {heads, rows.size(2) / heads}); }

}  // namespace

Tensor scaled_heads_forward(const Tensor& x, const Tensor& scale) {
  return of_heads(x, scale.size(2)).to(scale.scalar_type()).mul(scale.unsqueeze(3)).to(x.scalar_type()).contiguous();
}

std::tuple<Tensor, Tensor> scaled_heads_backward(const Tensor& grad_values, const Tensor& x, const Tensor& scale) {
  const Tensor arriving = grad_values.to(scale.scalar_type()).contiguous();
  const Tensor sums = of_heads(x, scale.size(2)).to(scale.scalar_type()).mul(arriving).sum(3);
  return {arriving.mul(scale.unsqueeze(3)).to(x.scalar_type()).flatten(2).contiguous(), sums};
}

Tensor gated_skip_forward(const Tensor& o, const Tensor& x, const Tensor& skip, const Tensor& gate) {
  const at::ScalarType wide = skip.scalar_type();
  const Tensor read = o.to(wide).add(of_heads(x, o.size(2)).to(wide).mul(skip.unsqueeze(1))).flatten(2);
  const Tensor logits = gate.to(wide);
  return read.mul(logits).mul(logits.sigmoid()).to(o.scalar_type()).contiguous();
}

std::tuple<Tensor, Tensor, Tensor, Tensor> gated_skip_backward(const Tensor& grad_values, const Tensor& o,
                                                               const Tensor& x, const Tensor& skip,
                                                               const Tensor& gate) {
  const at::ScalarType wide = skip.scalar_type(), dtype = o.scalar_type();
  const int64_t heads = o.size(2);
  const Tensor given = of_heads(x, heads).to(wide), factors = skip.unsqueeze(1),
               arriving = grad_values.to(wide).contiguous(), logits = gate.to(wide);
  const Tensor open = logits.sigmoid(), silu = logits.mul(open);
  const Tensor read = o.to(wide).add(given.mul(factors)).flatten(2);
  const Tensor grad_gate = arriving.mul(read).mul(open.add(silu.mul(open.neg().add(1))));
  const Tensor grad_read = of_heads(arriving.mul(silu), heads);
  return {grad_read.to(dtype).contiguous(), grad_read.mul(factors).flatten(2).to(dtype).contiguous(),
          grad_read.mul(given).sum({0, 1, 3}), grad_gate.to(dtype).contiguous()};
}

}  // namespace lethe::cpu
