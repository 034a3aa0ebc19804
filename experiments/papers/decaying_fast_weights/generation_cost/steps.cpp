#include "experiments/papers/decaying_fast_weights/generation_cost/steps.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>

#include "optimized/torch/forgetting_attention.hpp"
#include "optimized/torch/matrix_state.hpp"

namespace lethe::generation_cost {
namespace {

using torch::Tensor;

/// centre of the gates' logits: half of a write is left after about 14 tokens
constexpr double kOpenGate = 3.0;

/// Rows [T,D] of batch entry 0, head 0 of a tensor [B,T,H,D], or [T,1] of one [B,T,H].
Matrix<double> first_rows(const Tensor& tensor) {
  const Tensor rows = tensor.detach().select(0, 0).select(1, 0).to(torch::kCPU, torch::kFloat64).contiguous();
  return Eigen::Map<const Matrix<double>>(rows.data_ptr<double>(), rows.size(0), rows.dim() == 2 ? rows.size(1) : 1);
}

/// The inputs of one token: [B,1,H,K], [B,1,H,V], [B,1,H].
struct Token {
  Tensor query, key, value, log_key_gate, log_value_gate, beta;

  Token(const Sizes& s, torch::Dtype gate_dtype) {
    const auto options = torch::TensorOptions().dtype(s.dtype).device(s.device);
    query = torch::randn({s.batch, 1, s.heads, s.key_dim}, options);
    // Keys have length 1: with longer ones the delta rule's state would grow from token to token.
    key = torch::nn::functional::normalize(torch::randn_like(query),
                                           torch::nn::functional::NormalizeFuncOptions().dim(-1));
    value = torch::randn({s.batch, 1, s.heads, s.value_dim}, options);
    const auto gate = [&](torch::IntArrayRef size) { return (torch::randn(size, options) + kOpenGate).to(gate_dtype); };
    log_key_gate = torch::log_sigmoid(gate(query.sizes()));
    log_value_gate = torch::log_sigmoid(gate(value.sizes()));
    beta = torch::sigmoid(gate({s.batch, 1, s.heads}));
  }
};

/// A state [B,H,K,V] and the rule that updates it.
class Recurrence {
 public:
  Recurrence(const Rival& rival, const Sizes& sizes)
      : is_delta_(rival.rule == "delta"), by_lethe_(rival.implementation == "lethe"), sizes_(sizes),
        // Our operators keep gates and state in at least single precision.
        wide_(by_lethe_ && sizes.dtype != torch::kFloat64 ? torch::kFloat32 : sizes.dtype), token_(sizes, wide_),
        state_(torch::zeros({sizes.batch, sizes.heads, sizes.key_dim, sizes.value_dim},
                            torch::TensorOptions().dtype(wide_).device(sizes.device))) {}

  /// The script's inputs require gradients, all of them.
  void require_gradients() {
    for (Tensor* tensor : {&token_.query, &token_.key, &token_.value, &token_.log_key_gate, &token_.log_value_gate,
                           &token_.beta, &state_})
      tensor->requires_grad_();
  }

  /// Values [B,1,H,V] of the token, and the new state.
  std::pair<Tensor, Tensor> step() const {
    const auto& [query, key, value, log_key_gate, log_value_gate, beta] = token_;
    if (by_lethe_) {
      const auto [values, state] = is_delta_
                                       ? delta_state(query, key, value, beta, std::nullopt, state_, 1.0)
                                       : gated_state(query, key, value, log_key_gate, log_value_gate, state_, 1.0);
      return {values, state};
    }
    const auto of_rows = [](const Tensor& tensor) { return tensor.transpose(1, 2).transpose(2, 3); };  // [B,H,K,1]
    const auto of_columns = [](const Tensor& tensor) { return tensor.transpose(1, 2); };               // [B,H,1,V]
    const Tensor k = of_rows(key), v = of_columns(value), q = of_columns(query);
    const Tensor state = is_delta_
                             ? state_ + k * ((v - of_columns(key).matmul(state_)) * beta.unsqueeze(-1).transpose(1, 2))
                             : state_ * of_rows(log_key_gate).exp() * of_columns(log_value_gate).exp() + k * v;
    return {q.matmul(state).transpose(1, 2), state};
  }

  Tensor generate() {
    const auto [values, state] = step();
    state_ = state;
    return values;
  }

  /// Draws another token for the next step, with only the tensors that the rule reads.
  void draw() {
    token_ = Token(sizes_, wide_);
    if (is_delta_) token_.log_key_gate = token_.log_value_gate = Tensor();
    else token_.beta = Tensor();
  }

  Step as_step(std::function<Tensor()> run, std::shared_ptr<Recurrence> self) const {
    return {std::move(run), is_delta_ ? "delta_fast_weights" : "decay_fast_weights", [self] { return self->head(); }};
  }

 private:
  Head head() const {
    Head head{.query = first_rows(token_.query),
              .key = first_rows(token_.key),
              .value = first_rows(token_.value),
              .log_forget = {}};
    if (is_delta_) {
      head.write_strength = first_rows(token_.beta).col(0);
    } else {
      head.log_key_gate = first_rows(token_.log_key_gate);
      head.log_value_gate = first_rows(token_.log_value_gate);
    }
    head.initial_state = first_rows(state_.transpose(1, 2));  // [B,K,H,V]
    return head;
  }

  bool is_delta_, by_lethe_;
  Sizes sizes_;
  torch::Dtype wide_;
  Token token_;
  Tensor state_;
};

Step recurrent_step(Edition edition, const Rival& rival, const Sizes& sizes, int64_t context) {
  auto recurrence = std::make_shared<Recurrence>(rival, sizes);
  if (edition == Edition::kScripted) {
    recurrence->require_gradients();
    return recurrence->as_step([recurrence] { return recurrence->step().first; }, recurrence);
  }
  const torch::NoGradGuard no_gradient;
  recurrence->draw();
  for (int64_t t = 0; t < context; ++t) {
    recurrence->generate();
    recurrence->draw();
  }
  const auto run = [recurrence] {
    const torch::NoGradGuard no_gradient;
    return recurrence->generate();
  };
  return recurrence->as_step(run, recurrence);
}

Step scripted_attention(const Sizes& s, int64_t context) {
  const auto options = torch::TensorOptions().dtype(s.dtype).device(s.device);
  const auto made = [&](torch::IntArrayRef size) { return torch::randn(size, options).requires_grad_(); };
  const Tensor query = made({s.batch, 1, s.key_dim});
  const Tensor key = made({s.batch, context, s.key_dim}), value = made({s.batch, context, s.value_dim});
  // The script's tensors for the other rules, which attention never reads: two gates, a gradient and a state.
  const std::vector<Tensor> unread = {made(value.sizes()), made(key.sizes()), torch::randn_like(value).detach(),
                                      made({s.batch, s.value_dim, s.key_dim})};
  const auto run = [=, alive = unread] {
    const Tensor scores = query.matmul(key.transpose(-1, -2));  // [B,1,T]
    return torch::softmax(scores, -1).matmul(value).unsqueeze(2);
  };
  const auto head = [=] {
    return Head{.query = first_rows(query.unsqueeze(2)),
                .key = first_rows(key.unsqueeze(2)),
                .value = first_rows(value.unsqueeze(2)),
                .log_forget = {}};
  };
  return {run, "softmax_attention", head};
}

Step clean_attention(const Rival& rival, const Sizes& s, int64_t context) {
  const bool forgets = rival.rule == "forgetting attention";
  const auto options = torch::TensorOptions().dtype(s.dtype).device(s.device);
  const torch::Dtype wide = s.dtype == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
  const Token token(s, wide);
  const Tensor key = torch::randn({s.batch, context + 1, s.heads, s.key_dim}, options);
  const Tensor value = torch::randn({s.batch, context + 1, s.heads, s.value_dim}, options);
  const Tensor new_key = token.key, new_value = token.value, query = token.query;
  const double scale = 1 / std::sqrt(static_cast<double>(s.key_dim));
  const auto append = [=] {
    key.narrow(1, context, 1).copy_(new_key);
    value.narrow(1, context, 1).copy_(new_value);
  };
  append();
  Head fixed{
      .query = first_rows(query), .key = first_rows(key), .value = first_rows(value), .log_forget = {}, .scale = scale};
  if (!forgets) {
    const auto run = [=] {
      const torch::NoGradGuard no_gradient;
      append();
      return at::scaled_dot_product_attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
          .transpose(1, 2);
    };
    return {run, "softmax_attention", [fixed] { return fixed; }};
  }
  const Tensor log_forget =
      torch::log_sigmoid(torch::randn({s.batch, context + 1, s.heads}, options.dtype(wide)) + kOpenGate);
  const Tensor new_gate = log_forget.narrow(1, context, 1).clone();
  fixed.log_forget = first_rows(log_forget).col(0);
  const auto run = [=] {
    const torch::NoGradGuard no_gradient;
    append();
    log_forget.narrow(1, context, 1).copy_(new_gate);
    return forgetting_attention(query, key, value, log_forget);
  };
  return {run, "forgetting_attention", [fixed] { return fixed; }};
}

}  // namespace

int64_t Sizes::cache_bytes() const {
  return batch * heads * (key_dim + value_dim) * static_cast<int64_t>(torch::elementSize(dtype));
}

std::vector<Rival> rivals(Edition edition, const std::vector<std::string>& implementations) {
  const auto named = [&](const std::string& name) { return std::ranges::count(implementations, name) > 0; };
  for (const std::string& name : implementations)
    if (name != "lethe" && name != "torch")
      throw std::invalid_argument("implementations: expected lethe or torch, found " + name);
  std::vector<Rival> all{{"attention", "torch"}};
  for (const char* implementation : {"lethe", "torch"})
    if (named(implementation))
      for (const char* rule : {"decay", "delta"}) all.push_back({rule, implementation});
  if (edition == Edition::kClean && named("lethe")) all.push_back({"forgetting attention", "lethe"});
  return all;
}

Step make_step(Edition edition, const Rival& rival, const Sizes& sizes, int64_t context) {
  const auto known = rivals(edition, {"lethe", "torch"});
  if (std::ranges::count(known, rival) == 0)
    throw std::invalid_argument("rival: expected one of this edition, found " + rival.name());
  if (rival.rule == "decay" || rival.rule == "delta") return recurrent_step(edition, rival, sizes, context);
  return edition == Edition::kScripted ? scripted_attention(sizes, context) : clean_attention(rival, sizes, context);
}

}  // namespace lethe::generation_cost
