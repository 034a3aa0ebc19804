// A kernel family's calls with rows and columns in multiples of eight, and the normaliser as columns of the state where the kernels don't compute it
// apart.
//
// There a normalised call reads [Sᵀq, z·q] in float, z being the state of a value of ones, and divides. Its backward has the gradients of both, in
// 16 bits; that of z·q, a small difference of large numbers where values have a large mean, in two parts by two columns of ones.
#include "optimized/torch/cuda_matrix_state.hpp"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/cuda/CUDAGuard.h>

#include <array>

#include "optimized/coverage.hpp"
#include "optimized/cuda/matrix_state.hpp"
#include "optimized/cuda/matrix_state/division_unit.hpp"
#include "optimized/kept_states.hpp"
#include "optimized/torch/dtype.hpp"

namespace lethe::cuda {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr int64_t kOnes = 2;  // columns

int64_t padded(int64_t size) { return (size + 7) / 8 * 8; }

// `tensor` with zeros after its last dimension's numbers, up to `size`.
Tensor widened(const Tensor& tensor, int64_t size) {
  return tensor.size(-1) == size ? tensor : at::constant_pad_nd(tensor, {0, size - tensor.size(-1)});
}

// The tensor itself where a kernel can read it in 16-byte pieces, else a contiguous copy. shared_heads: whether it reads one head for all.
Tensor readable(const Tensor& tensor, bool shared_heads = false) {
  constexpr int64_t kPiece = 8;  // elements
  bool fits = tensor.stride(3) == 1 && reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0;
  for (const int dim : {0, 1, 2}) {
    const bool one = dim == 2 && shared_heads && tensor.stride(dim) == 0;
    fits = fits && (one || tensor.stride(dim) > 0) && tensor.stride(dim) % kPiece == 0;
  }
  return fits ? tensor : tensor.clone(at::MemoryFormat::Contiguous);
}

Operand operand(const Tensor& tensor) {
  return {tensor.const_data_ptr(), tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

// Whether the call's kernels read queries and keys that all heads have in common, those of one gate a token or none.
bool reads_shared_heads(const MatrixStateInputs& in) {
  return !in.beta && !in.log_value_gate && (!in.log_key_gate || in.log_key_gate->dim() == 3);
}

MatrixStateForm::Gate key_gate_of(const MatrixStateInputs& in) {
  using Gate = MatrixStateForm::Gate;
  return !in.log_key_gate ? Gate::kNone : in.log_key_gate->dim() == 4 ? Gate::kKey : Gate::kToken;
}

Shape sizes_of(const MatrixStateInputs& in) {
  const int64_t length = in.query.size(1), heads = in.query.size(2);
  return {in.query.size(0), length, length, heads, heads, padded(in.query.size(3)), padded(in.value.size(3))};
}

// Whether the kernels normalise, over states whose last column is z.
bool normalizes_apart(const MatrixStateFamily& family, const MatrixStateInputs& in, bool backward) {
  MatrixStateForm form;
  form.key_gate = key_gate_of(in);
  return in.normalize && family.normalizes(sizes_of(in), form, backward);
}

// A call as the kernels read it.
struct Prepared {
  const int64_t key_dim, value_dim;
  const bool normalize;
  const bool apart;  // normalizes_apart()
  Tensor query, key, value;
  OptionalTensor key_gate, value_gate, state;
  MatrixStateInput input{};

  Prepared(const MatrixStateFamily& family, const MatrixStateInputs& in, bool backward)
      : key_dim(in.query.size(3)), value_dim(in.value.size(3)), normalize(in.normalize),
        apart(normalizes_apart(family, in, backward)),
        query(readable(widened(in.query, padded(key_dim)), reads_shared_heads(in))),
        key(readable(widened(in.key, padded(key_dim)), reads_shared_heads(in))) {
    input.form.key_gate = key_gate_of(in);
    input.shape = sizes_of(in);
    input.form.normalize = apart;
    input.form.ones = normalize && !apart;
    Tensor columns = in.value;
    if (normalize && !apart)
      columns = at::cat(
          {columns, at::ones({columns.size(0), columns.size(1), columns.size(2), kOnes}, columns.options())}, 3);
    value = readable(widened(columns, padded(columns.size(3))));
    input.shape.value_dim = value.size(3);
    input.dtype = dtype_of(in.query.scalar_type());
    input.scale = normalize ? 1.0 : in.scale;
    input.query = operand(query);
    input.key = operand(key);
    input.value = operand(value);
    if (in.log_key_gate) {
      const bool per_row = in.log_key_gate->dim() == 4;
      key_gate = per_row ? readable(widened(*in.log_key_gate, query.size(3))) : *in.log_key_gate;
      input.key_gate = operand(*key_gate);
    }
    if (in.log_value_gate) {
      value_gate = readable(widened(*in.log_value_gate, value.size(3)));
      input.value_gate = operand(*value_gate);
      input.form.value_gate = true;
    }
    if (in.beta) {
      input.beta = {in.beta->const_data_ptr<float>(), in.beta->stride(0), in.beta->stride(1), in.beta->stride(2)};
      input.form.delta = true;
    }
    if (in.state) {
      state = state_of(*in.state, true);
      input.initial_state = state->const_data_ptr<float>();
    }
  }

  // A state, or its gradient, [B,H,K,columns] as [B,H,rows,columns] of the kernels. Each column of ones has z; z's gradient arrives at one of them.
  Tensor state_of(const Tensor& given, bool is_state) const {
    Tensor wide = given;
    const int64_t rows = query.size(3), columns = value.size(3) + apart;
    if (apart && columns > value_dim + 1)
      wide = at::cat({widened(given.narrow(3, 0, value_dim), columns - 1), given.narrow(3, value_dim, 1)}, 3);
    else if (normalize && !apart && is_state) wide = at::cat({wide, wide.narrow(3, value_dim, 1)}, 3);
    if (wide.size(2) < rows || wide.size(3) < columns)
      wide = at::constant_pad_nd(wide, {0, columns - wide.size(3), 0, rows - wide.size(2)});
    return wide.contiguous();
  }

  Tensor new_state() const {
    return at::empty({query.size(0), query.size(2), query.size(3), value.size(3) + apart},
                     query.options().dtype(at::kFloat));
  }

  Tensor bytes(size_t count) const {
    return at::empty({static_cast<int64_t>(count)}, query.options().dtype(at::kByte));
  }

  // The part of a kernel's state or gradient that the caller sees: that of z's gradient is the sum over its columns.
  Tensor state_to_caller(const Tensor& wide, bool is_state) const {
    const Tensor rows = wide.narrow(2, 0, key_dim);
    if (!normalize) return rows.narrow(3, 0, value_dim).contiguous();
    if (apart && value.size(3) > value_dim)
      return at::cat({rows.narrow(3, 0, value_dim), rows.narrow(3, value.size(3), 1)}, 3);
    if (apart) return rows.contiguous();
    if (is_state) return rows.narrow(3, 0, value_dim + 1).contiguous();
    return at::cat({rows.narrow(3, 0, value_dim), rows.narrow(3, value_dim, kOnes).sum(3, true)}, 3);
  }

  // Of the states that a forward leaves for its backward, [B,H,bytes].
  std::array<int64_t, 3> kept_sizes() const {
    return {query.size(0), query.size(2),
            kept_state_bytes<int64_t>(input.shape.key_length, input.shape.key_dim, input.shape.value_dim, input.form,
                                      input.dtype)};
  }

  // values [B,T,H,value.size(3)], in float where they are to be divided. kept_states: undefined where not wanted.
  std::tuple<Tensor, Tensor> read(const MatrixStateFamily& family, const Tensor& kept_states) const {
    const bool in_float = normalize && !apart;
    const Tensor values = at::empty(value.sizes(), in_float ? value.options().dtype(at::kFloat) : value.options()),
                 last = new_state(), workspace = bytes(family.forward_workspace_bytes(input.shape, input.form));
    family.forward({input, values.mutable_data_ptr(), in_float, last.mutable_data_ptr<float>(),
                    workspace.mutable_data_ptr(), kept_states.defined() ? kept_states.mutable_data_ptr() : nullptr,
                    at::cuda::getCurrentCUDAStream()});
    return {values, last};
  }
};

// ∂loss/∂[Sᵀq, z·q, z·q] times `unit` in the values' dtype: the second column of z·q has what the first lost. That of z·q is of the rounded ones,
// since pairs add up their difference.
Tensor gradient_before_division(const Tensor& read, const Tensor& grad_values, int64_t value_dim, double unit) {
  const at::ScalarType dtype = grad_values.scalar_type();
  const Tensor denominator = read.narrow(3, value_dim, 1), numerator = read.narrow(3, 0, value_dim);
  const Tensor d_numerator =
      grad_values.to(at::kFloat).div(unit == 1.0 ? denominator : denominator.div(unit)).to(dtype);
  const Tensor d_weight = d_numerator.to(at::kFloat).mul(numerator).sum(3, true).div(denominator).neg();
  const Tensor near = d_weight.to(dtype), rest = d_weight.sub(near.to(at::kFloat)).to(dtype);
  return widened(at::cat({d_numerator, near, rest}, 3), read.size(3));
}

// A normalised call whose values are less by a constant c of each column: its outputs are less by c, S_t by z_t cᵀ, and all gradients but that of z
// are the same.
// Without their mean, dO·S_t and its part along z_t, whose difference is dq, are not large beside it.
class Centered {
 public:
  explicit Centered(const MatrixStateInputs& in)
      : value_dim_(in.value.size(3)), constant_(constant_of(in.value)), value_(in.value.sub(constant_)),
        shift_(constant_.to(at::kFloat).squeeze(1).unsqueeze(2)),
        state_(without_shift(in.state)), inputs_{in.query, in.key, value_,   in.log_key_gate, in.log_value_gate,
                                                 in.beta,  state_, in.scale, in.normalize} {}
  Centered(const Centered&) = delete;
  Centered& operator=(const Centered&) = delete;

  const MatrixStateInputs& inputs() const { return inputs_; }

  // The last state's gradient, of the one less by z_t cᵀ: of z also what reaches it through S_t.
  Tensor of_last(const Tensor& gradient) const {
    return at::cat({states(gradient), sums(gradient).add(through(gradient))}, 3);
  }
  // From the initial state's gradient, of the one less by z_0 cᵀ.
  Tensor of_initial(const Tensor& gradient) const {
    return at::cat({states(gradient), sums(gradient).sub(through(gradient))}, 3);
  }

 private:
  // The values' mean, [B,1,H,V] in their dtype; 0 where it is small beside them, where it is not finite, or where a difference might not be. A
  // difference is exact where a value is between half and twice c, of nine in ten at a mean of three deviations; a small c would round them all, which
  // d log f sums up over the tokens. Sums in float64: their order, which other heads change, shows in no bit.
  static Tensor constant_of(const Tensor& value) {
    constexpr double kSmall = 0.75, kLargestHalf = 65504;
    const Tensor size = value.abs(), mean = value.mean({1}, true, at::kDouble).nan_to_num(0.0, 0.0, 0.0);
    Tensor counts = mean.abs().gt(size.mean({1}, true, at::kDouble).mul(kSmall));
    if (value.scalar_type() == at::kHalf)
      counts = counts.logical_and(size.amax({1}, true).to(at::kDouble).add(mean.abs()).le(kLargestHalf));
    return mean.mul(counts).to(value.scalar_type());
  }
  OptionalTensor without_shift(const OptionalTensor& state) const {
    if (!state) return std::nullopt;
    return at::cat({states(*state).sub(sums(*state).mul(shift_)), sums(*state)}, 3);
  }
  Tensor states(const Tensor& state) const { return state.narrow(3, 0, value_dim_); }
  Tensor sums(const Tensor& state) const { return state.narrow(3, value_dim_, 1); }
  Tensor through(const Tensor& gradient) const { return states(gradient).mul(shift_).sum(3, true); }

  const int64_t value_dim_;
  const Tensor constant_, value_, shift_;  // shift_: [B,H,1,V] in float
  const OptionalTensor state_;
  const MatrixStateInputs inputs_;
};

}  // namespace

MatrixStateOutputs matrix_state_forward(const MatrixStateFamily& family, const MatrixStateInputs& in) {
  const c10::cuda::CUDAGuard device(in.query.device());
  const Prepared call(family, in, false);
  const Tensor kept_states =
      in.keep_states ? at::empty(call.kept_sizes(), call.query.options().dtype(at::kByte)) : Tensor();
  auto [values, last] = call.read(family, kept_states);
  if (call.normalize && !call.apart)
    values = values.narrow(3, 0, call.value_dim).div(values.narrow(3, call.value_dim, 1)).to(in.query.scalar_type());
  return {values.narrow(3, 0, call.value_dim).contiguous(), call.state_to_caller(last, true), kept_states};
}

MatrixStateGradients matrix_state_backward(const MatrixStateFamily& family, const Tensor& grad_values,
                                           const Tensor& grad_state, const MatrixStateInputs& in) {
  const c10::cuda::CUDAGuard device(in.query.device());
  std::optional<Centered> centered;
  const bool has_kept_states = in.kept_states.defined() && in.kept_states.numel() > 0;
  const bool reads_z_in_16_bits = in.normalize && !normalizes_apart(family, in, true) && !has_kept_states &&
                                  in.value.element_size() == 2 && in.query.size(1) >= kShortestInChunks;
  if (reads_z_in_16_bits && in.value.numel() > 0) centered.emplace(in);
  Prepared call(family, centered ? centered->inputs() : in, true);
  Tensor kept_states;
  if (has_kept_states) {
    kept_states = in.kept_states.contiguous();
    TORCH_CHECK(kept_states.sizes() == call.kept_sizes() && kept_states.scalar_type() == at::kByte &&
                    kept_states.device() == in.query.device(),
                "kept_states: expected those of this call's forward, found shape ", kept_states.sizes());
    call.input.form.kept_states = true;
  }
  const bool divided_here = call.normalize && !call.apart;
  const double unit = divided_here ? matrix_state::division_unit(call.input.dtype, call.input.shape.key_length) : 1.0;
  const Tensor d_values = readable(
      divided_here ? gradient_before_division(std::get<0>(call.read(family, {})), grad_values, call.value_dim, unit)
                   : widened(grad_values, call.value.size(3)));
  call.input.scale /= unit;
  const Tensor d_last =
      grad_state.defined() ? call.state_of(centered ? centered->of_last(grad_state) : grad_state, false) : Tensor();
  const auto like = [](const Tensor& tensor) { return at::empty(tensor.sizes(), tensor.options()); };
  const auto like_given = [&](const OptionalTensor& tensor) { return tensor ? like(*tensor) : Tensor(); };
  const auto floats = [](const Tensor& tensor) {
    return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr;
  };
  const Tensor d_query = like(call.query), d_key = like(call.key), d_value = like(call.value);
  const Tensor d_key_gate = like_given(call.key_gate), d_value_gate = like_given(call.value_gate),
               d_beta = like_given(in.beta), d_initial = in.state ? call.new_state() : Tensor();
  const Tensor workspace = call.bytes(family.backward_workspace_bytes(call.input.shape, call.input.form));
  MatrixStateBackward arguments{call.input};
  arguments.grad_values = operand(d_values);
  arguments.grad_last_state = d_last.defined() ? d_last.const_data_ptr<float>() : nullptr;
  arguments.grad_query = d_query.mutable_data_ptr();
  arguments.grad_key = d_key.mutable_data_ptr();
  arguments.grad_value = d_value.mutable_data_ptr();
  arguments.grad_key_gate = floats(d_key_gate);
  arguments.grad_value_gate = floats(d_value_gate);
  arguments.grad_beta = floats(d_beta);
  arguments.grad_initial_state = floats(d_initial);
  arguments.kept_states = kept_states.defined() ? kept_states.const_data_ptr() : nullptr;
  arguments.workspace = workspace.mutable_data_ptr();
  arguments.stream = at::cuda::getCurrentCUDAStream();
  family.backward(arguments);
  const auto nothing = [&] { return at::empty({0}, in.query.options().dtype(at::kFloat)); };
  const auto cut = [&](const Tensor& tensor, const OptionalTensor& to) {
    if (!to) return nothing();
    return to->dim() == 4 ? tensor.narrow(3, 0, to->size(3)).contiguous() : tensor;
  };
  return {cut(d_query, in.query),
          cut(d_key, in.key),
          cut(d_value, in.value),
          cut(d_key_gate, in.log_key_gate),
          cut(d_value_gate, in.log_value_gate),
          cut(d_beta, in.beta),
          !in.state  ? nothing()
          : centered ? centered->of_initial(call.state_to_caller(d_initial, false))
                     : call.state_to_caller(d_initial, false)};
}

}  // namespace lethe::cuda
