#include "optimized/operators/matrix_state.hpp"

#include <ATen/ops/zeros.h>

namespace lethe {

void check_arguments(const MatrixStateInputs& in) {
  const at::Tensor &query = in.query, &key = in.key, &value = in.value;
  const at::ScalarType dtype = query.scalar_type(), wide = accumulation_dtype(dtype);
  check_floating("query", query);
  check_rank("query", query, 4, "[B,T,H,K]");
  check_rank("key", key, 4, "[B,T,H,K]");
  check_rank("value", value, 4, "[B,T,H,V]");
  check_like("key", key, dtype, query);
  check_like("value", value, dtype, query);
  const c10::SymInt batch = query.sym_size(0), length = query.sym_size(1), heads = query.sym_size(2),
                    key_dim = query.sym_size(3);
  TORCH_CHECK(key_dim >= 1, "query: expected a head dimension of at least 1, found ", key_dim);
  check_shape("key", key, {batch, length, heads, key_dim});
  check_shape("value", value, {batch, length, heads, value.sym_size(3)});
  if (in.log_key_gate) {
    check_like("log_key_gate", *in.log_key_gate, wide, query);
    if (in.log_key_gate->dim() == 3) {
      check_shape("log_key_gate", *in.log_key_gate, {batch, length, heads});
    } else {
      check_rank("log_key_gate", *in.log_key_gate, 4, "[B,T,H,K], or 3 dimensions [B,T,H]");
      check_shape("log_key_gate", *in.log_key_gate, {batch, length, heads, key_dim});
    }
  }
  if (in.log_value_gate) {
    TORCH_CHECK(!in.normalize, "log_value_gate: expected none with normalize, found one");
    TORCH_CHECK(!in.beta, "log_value_gate: expected none with beta, found one");
    check_like("log_value_gate", *in.log_value_gate, wide, query);
    check_rank("log_value_gate", *in.log_value_gate, 4, "[B,T,H,V]");
    check_shape("log_value_gate", *in.log_value_gate, {batch, length, heads, value.sym_size(3)});
  }
  if (in.beta) {
    TORCH_CHECK(!in.normalize, "normalize: expected false with beta, found true");
    check_like("beta", *in.beta, wide, query);
    check_rank("beta", *in.beta, 3, "[B,T,H]");
    check_shape("beta", *in.beta, {batch, length, heads});
  }
  if (in.state) {
    check_like("state", *in.state, wide, query);
    check_rank("state", *in.state, 4, in.normalize ? "[B,H,K,V+1]" : "[B,H,K,V]");
    check_shape("state", *in.state, {batch, heads, key_dim, in.state_columns()});
  }
  check_scale(in.scale, at::kDouble);
}

void check_gradient_arguments(const at::Tensor& grad_values, const at::Tensor& grad_state,
                              const MatrixStateInputs& in) {
  check_arguments(in);
  const at::Tensor &query = in.query, &value = in.value;
  check_like("grad_values", grad_values, query.scalar_type(), query);
  check_shape("grad_values", grad_values, value.sym_sizes());
  if (!grad_state.defined()) return;
  check_like("grad_state", grad_state, accumulation_dtype(query.scalar_type()), query);
  check_shape("grad_state", grad_state, {query.sym_size(0), query.sym_size(2), query.sym_size(3), in.state_columns()});
}

at::Tensor gradient_or_zeros(const at::Tensor& grad_state, const MatrixStateInputs& in) {
  if (grad_state.defined()) return grad_state;
  return at::zeros({in.query.size(0), in.query.size(2), in.query.size(3), in.state_columns().expect_int()},
                   in.query.options().dtype(accumulation_dtype(in.query.scalar_type())));
}

}  // namespace lethe
