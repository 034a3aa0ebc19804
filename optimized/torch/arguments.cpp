#include "optimized/torch/arguments.hpp"

#include <cmath>

#include "optimized/torch/checks.hpp"

namespace lethe {
namespace {

// query, key, value and log_forget agree with one another.
void check_inputs(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  const at::Tensor& log_forget) {
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
}

}  // namespace

double default_scale(const at::Tensor& query) {
  check_rank("query", query, 4, "[B,Tq,Hq,D]");
  const c10::SymInt key_dim = query.sym_size(3);
  TORCH_CHECK(key_dim >= 1, "query: expected a head dimension of at least 1, found ", key_dim);
  return 1.0 / std::sqrt(static_cast<double>(key_dim.guard_int(__FILE__, __LINE__)));
}

void check_layouts(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                   const at::Tensor& log_forget, const std::optional<at::Tensor>& logit_bound) {
  check_layout("query", query);
  check_layout("key", key);
  check_layout("value", value);
  check_layout("log_forget", log_forget);
  if (logit_bound) check_layout("logit_bound", *logit_bound);
}

void check_forward_arguments(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                             const at::Tensor& log_forget, double scale, std::optional<double> log_pruning_tolerance,
                             const std::optional<at::Tensor>& logit_bound) {
  check_inputs(query, key, value, log_forget);
  check_scale(scale);
  TORCH_CHECK(!log_pruning_tolerance || *log_pruning_tolerance <= 0.0,
              "log_pruning_tolerance: expected a number <= 0, found ", log_pruning_tolerance.value_or(0.0));
  if (!logit_bound) return;
  const at::ScalarType dtype = logit_bound->scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kDouble, "logit_bound: expected dtype float32 or float64, found ",
              dtype);
  check_like("logit_bound", *logit_bound, dtype, query);
  if (logit_bound->dim() == 1) {
    check_shape("logit_bound", *logit_bound, {query.sym_size(2)});
  } else {
    check_rank("logit_bound", *logit_bound, 2, "[B,Hq], or 1 dimension [Hq]");
    check_shape("logit_bound", *logit_bound, {query.sym_size(0), query.sym_size(2)});
  }
}

void check_backward_arguments(const at::Tensor& grad_values, const at::Tensor& query, const at::Tensor& key,
                              const at::Tensor& value, const at::Tensor& log_forget, const at::Tensor& values,
                              const at::Tensor& residual, const at::Tensor& log_normalizer, const at::Tensor& boundary,
                              double scale) {
  check_inputs(query, key, value, log_forget);
  check_scale(scale);
  const at::ScalarType dtype = query.scalar_type();
  const c10::SymInt batch = query.sym_size(0), length = query.sym_size(1), heads = query.sym_size(2);
  check_like("grad_values", grad_values, dtype, query);
  check_shape("grad_values", grad_values, {batch, length, heads, value.sym_size(3)});
  check_like("values", values, dtype, query);
  check_shape("values", values, {batch, length, heads, value.sym_size(3)});
  check_like("residual", residual, dtype, query);
  if (has_residual(dtype)) {
    check_shape("residual", residual, {batch, length, heads, value.sym_size(3)});
  } else {
    check_shape("residual", residual, {0});
  }
  check_like("log_normalizer", log_normalizer, accumulation_dtype(dtype), query);
  check_shape("log_normalizer", log_normalizer, {batch, length, heads});
  check_like("boundary", boundary, at::kInt, query);
  check_shape("boundary", boundary, {batch, heads, (length + (kQueryRows - 1)) / kQueryRows});
}

}  // namespace lethe
