#include "experiments/models/mixers/parts/unbounded_state.hpp"

#include <torch/csrc/autograd/custom_function.h>

#include "experiments/models/layers.hpp"

namespace lethe {

using torch::Tensor;

namespace {

// Σ_{s ≤ t} (Π_{s < u ≤ t} f_u g_uᵀ) ⊙ X_s of X [B,T,H,m,D], f [B,T,H,m] and g [B,T,H,D].
Tensor sums_of(Tensor all, Tensor rows, Tensor columns) {
  const int64_t length = all.size(1);
  for (int64_t step = 1; step < length; step *= 2) {
    const auto early = [&](const Tensor& x) { return x.narrow(1, 0, length - step); };
    const auto late = [&](const Tensor& x) { return x.narrow(1, step, length - step); };
    const auto with_first = [&](const Tensor& x, const Tensor& rest) {
      return torch::cat({x.narrow(1, 0, step), rest}, 1);
    };
    all =
        with_first(all, torch::addcmul(late(all), early(all) * late(rows).unsqueeze(-1), late(columns).unsqueeze(-2)));
    rows = with_first(rows, late(rows) * early(rows));
    columns = with_first(columns, late(columns) * early(columns));
  }
  return all;
}

// x of the token before each, zeros or `first` before the first.
Tensor before(const Tensor& x, const Tensor& first = {}) {
  const Tensor at_begin = first.defined() ? first.unsqueeze(1) : torch::zeros_like(x.narrow(1, 0, 1));
  return torch::cat({at_begin, x.narrow(1, 0, x.size(1) - 1)}, 1);
}

Tensor after(const Tensor& x) { return before(x.flip(1)).flip(1); }

class UnboundedState : public torch::autograd::Function<UnboundedState> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const Tensor& query,
                                                const Tensor& key, const Tensor& value, const Tensor& rows,
                                                const Tensor& columns, const Tensor& initial) {
    Tensor writes = key.unsqueeze(-1) * value.unsqueeze(-2);
    const Tensor of_initial = rows.select(1, 0).unsqueeze(-1) * initial * columns.select(1, 0).unsqueeze(-2);
    writes.select(1, 0).add_(of_initial);
    const Tensor states = sums_of(writes, rows, columns);
    context->save_for_backward({query, key, value, rows, columns, initial, states});
    return {(states * query.unsqueeze(-1)).sum(-2), states.select(1, -1)};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &query = saved[0], &key = saved[1], &value = saved[2], &rows = saved[3], &columns = saved[4],
                 &initial = saved[5], &states = saved[6];
    Tensor of_states = torch::zeros_like(states);
    Tensor of_query = torch::zeros_like(query);
    if (gradients[0].defined()) {
      of_states = query.unsqueeze(-1) * gradients[0].unsqueeze(-2);
      of_query = (states * gradients[0].unsqueeze(-2)).sum(-1);
    }
    if (gradients[1].defined()) of_states.select(1, -1).add_(gradients[1]);
    // The same sums from the last token to the first, with the gates of the token after.
    of_states = sums_of(of_states.flip(1), after(rows).flip(1), after(columns).flip(1)).flip(1);
    const Tensor of_products = of_states * before(states, initial);
    const Tensor of_initial =
        rows.select(1, 0).unsqueeze(-1) * of_states.select(1, 0) * columns.select(1, 0).unsqueeze(-2);
    return {of_query,
            (of_states * value.unsqueeze(-2)).sum(-1),
            (of_states * key.unsqueeze(-1)).sum(-2),
            (of_products * columns.unsqueeze(-2)).sum(-1),
            (of_products * rows.unsqueeze(-1)).sum(-2),
            of_initial};
  }
};

}  // namespace

std::tuple<Tensor, Tensor> unbounded_state(const Tensor& query, const Tensor& key, const Tensor& value,
                                           const Tensor& key_gate, const Tensor& value_gate,
                                           const std::optional<Tensor>& state,
                                           const std::optional<Tensor>& cu_seqlens) {
  const torch::Dtype wide = accumulation_dtype(query.scalar_type());
  Tensor rows = key_gate.to(wide);
  if (cu_seqlens) {  // a gate of zero before the first token of each sequence
    const Tensor begins = cu_seqlens->narrow(0, 0, cu_seqlens->size(0) - 1);
    rows = rows.index_fill(1, begins.masked_select(begins < rows.size(1)), 0);
  }
  const Tensor initial =
      state ? state->to(wide)
            : torch::zeros({key.size(0), key.size(2), key.size(3), value.size(3)}, key.options().dtype(wide));
  const auto found =
      UnboundedState::apply(query.to(wide), key.to(wide), value.to(wide), rows, value_gate.to(wide), initial);
  return {found[0].to(query.scalar_type()), found[1]};
}

}  // namespace lethe
