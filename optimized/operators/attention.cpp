#include "optimized/operators/attention.hpp"

#include <cmath>

namespace lethe {
namespace {

// query, key, value and log_forget agree with one another.
void check_inputs(const AttentionInputs& in) {
  const at::Tensor &query = in.query, &key = in.key, &value = in.value, &log_forget = in.log_forget;
  const at::ScalarType dtype = query.scalar_type();
  check_floating("query", query);
  check_rank("query", query, 4, "[B,Tq,Hq,D]");
  check_rank("key", key, 4, "[B,Tk,H,D]");
  check_rank("value", value, 4, "[B,Tk,H,Dv]");
  check_rank("log_forget", log_forget, 3, "[B,Tk,Hq]");
  check_like("query", query, dtype, query);
  check_like("key", key, dtype, query);
  check_like("value", value, dtype, query);
  check_like("log_forget", log_forget, accumulation_dtype(dtype), query);
  const c10::SymInt batch = query.sym_size(0), query_length = query.sym_size(1), query_heads = query.sym_size(2);
  const c10::SymInt key_length = key.sym_size(1), heads = key.sym_size(2), key_dim = query.sym_size(3);
  TORCH_CHECK(key_dim >= 1, "query: expected a head dimension of at least 1, found ", key_dim);
  check_shape("key", key, {batch, key_length, heads, key_dim});
  check_shape("value", value, {batch, key_length, heads, value.sym_size(3)});
  check_shape("log_forget", log_forget, {batch, key_length, query_heads});
  TORCH_CHECK(query_length <= key_length, "query: expected at most as many positions as key, ", key_length, ", found ",
              query_length);
  TORCH_CHECK(heads == 0 ? query_heads == 0 : query_heads % heads == 0, "query: expected a multiple of key's ", heads,
              " heads, found ", query_heads);
  check_scale(in.scale, accumulation_dtype(dtype));
  TORCH_CHECK(in.window.value_or(1) >= 1, "window: expected at least 1, the query's own token, found ", *in.window);
}

}  // namespace

double default_scale(const at::Tensor& query) {
  check_rank("query", query, 4, "[B,Tq,Hq,D]");
  const c10::SymInt key_dim = query.sym_size(3);
  TORCH_CHECK(key_dim >= 1, "query: expected a head dimension of at least 1, found ", key_dim);
  return 1.0 / std::sqrt(static_cast<double>(key_dim.guard_int(__FILE__, __LINE__)));
}

void check_arguments(const AttentionInputs& in) {
  check_inputs(in);
  TORCH_CHECK(!in.log_pruning_tolerance || *in.log_pruning_tolerance <= 0.0,
              "log_pruning_tolerance: expected a number <= 0, found ", in.log_pruning_tolerance.value_or(0.0));
  if (!in.logit_bound) return;
  const at::Tensor &bound = *in.logit_bound, &query = in.query;
  const at::ScalarType dtype = bound.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kDouble, "logit_bound: expected dtype float32 or float64, found ",
              dtype);
  check_like("logit_bound", bound, dtype, query);
  if (bound.dim() == 1) {
    check_shape("logit_bound", bound, {query.sym_size(2)});
  } else {
    check_rank("logit_bound", bound, 2, "[B,Hq], or 1 dimension [Hq]");
    check_shape("logit_bound", bound, {query.sym_size(0), query.sym_size(2)});
  }
}

void check_gradient_arguments(const at::Tensor& grad_values, const AttentionInputs& in, const AttentionOutputs& out) {
  check_inputs(in);
  const at::Tensor& query = in.query;
  const at::ScalarType dtype = query.scalar_type();
  const c10::SymInt batch = query.sym_size(0), length = query.sym_size(1), heads = query.sym_size(2),
                    value_dim = in.value.sym_size(3);
  check_like("grad_values", grad_values, dtype, query);
  check_shape("grad_values", grad_values, {batch, length, heads, value_dim});
  check_like("values", out.values, dtype, query);
  check_shape("values", out.values, {batch, length, heads, value_dim});
  check_like("residual", out.residual, dtype, query);
  if (has_residual(dtype)) {
    check_shape("residual", out.residual, {batch, length, heads, value_dim});
  } else {
    check_shape("residual", out.residual, {0});
  }
  check_like("log_normalizer", out.log_normalizer, accumulation_dtype(dtype), query);
  check_shape("log_normalizer", out.log_normalizer, {batch, length, heads});
  check_like("boundary", out.boundary, at::kInt, query);
  check_shape("boundary", out.boundary, {batch, heads, (length + (kQueryRows - 1)) / kQueryRows});
}

}  // namespace lethe
