#include "optimized/torch/state_pieces.hpp"

#include <ATen/autocast_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/split_with_sizes.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "optimized/torch/dtype.hpp"
#include "optimized/torch/implementations.hpp"

namespace lethe {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

std::vector<int64_t> sizes_of(int64_t size, int64_t pieces) {
  if (pieces == 1) return {size};
  std::vector<int64_t> sizes;
  for (const int64_t each = piece_size(size, pieces); size > 0; size -= sizes.back())
    sizes.push_back(std::min(each, size));
  return sizes;
}

// Pieces of a dimension; their gradients are gathered in one pass.
std::vector<Tensor> split(const Tensor& tensor, const std::vector<int64_t>& sizes, int64_t dim) {
  return sizes.size() == 1 ? std::vector{tensor} : at::split_with_sizes(tensor, sizes, dim);
}
std::vector<OptionalTensor> split(const OptionalTensor& tensor, const std::vector<int64_t>& sizes, int64_t dim) {
  if (!tensor) return std::vector<OptionalTensor>(sizes.size());
  const std::vector<Tensor> pieces = split(*tensor, sizes, dim);
  return {pieces.begin(), pieces.end()};
}

bool is_autocast(const Tensor& tensor) {
  return (tensor.is_cpu() || tensor.is_cuda()) && at::autocast::is_autocast_enabled(tensor.device().type());
}

// The pieces of calls of as many tokens as chunks have, and of fewer. They are looked for once: a token's step takes less time than the search.
const std::pair<StatePieces, StatePieces>& known_pieces(Call call) {
  const auto pieces_at = [&](int64_t length) {
    call.shape.query_length = call.shape.key_length = length;
    return state_pieces(call.shape, call.form, call.dtype, call.compute_capability);
  };
  const MatrixStateForm& form = call.form;
  using Key = std::tuple<int64_t, int64_t, Dtype, int, MatrixStateForm::Gate, bool, bool, bool>;
  thread_local std::map<Key, std::pair<StatePieces, StatePieces>> known;
  const Key key{call.shape.key_dim, call.shape.value_dim, call.dtype, call.compute_capability,
                form.key_gate,      form.value_gate,      form.delta, form.normalize};
  const auto [entry, is_new] = known.try_emplace(key);
  if (is_new) entry->second = {pieces_at(kShortestInChunks), pieces_at(kShortestInChunks - 1)};
  return entry->second;
}

Tensor joined(const std::vector<Tensor>& pieces, int64_t dim) {
  return pieces.size() == 1 ? pieces.front() : at::cat(pieces, dim);
}

}  // namespace

StatePieces pieces_of(const MatrixStateInputs& in) {
  if (!in.query.is_cuda() || in.query.dim() != 4 || in.value.dim() != 4) return {};
  const int64_t rows = in.query.sym_size(3).guard_int(__FILE__, __LINE__),
                columns = in.value.sym_size(3).guard_int(__FILE__, __LINE__);
  Call call = call_of(in, {1, 1, 1, 1, 1, rows, columns});
  if (is_autocast(in.query) && call.dtype != Dtype::kFloat64)
    call.dtype = dtype_of(at::autocast::get_autocast_dtype(in.query.device().type()));
  const auto& [of_chunks, of_tokens] = known_pieces(call);
  if (of_chunks == of_tokens) return of_chunks;
  return in.query.sym_size(1).sym_ge(kShortestInChunks).guard_bool(__FILE__, __LINE__) ? of_chunks : of_tokens;
}

std::tuple<Tensor, Tensor> in_pieces(const StatePieces& pieces, const MatrixStateInputs& in,
                                     const std::function<std::tuple<Tensor, Tensor>(const MatrixStateInputs&)>& run) {
  if (is_autocast(in.query)) {  // as the internal operator's rule casts them, before the shapes and dtypes are checked
    const c10::DeviceType device = in.query.device().type();
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(
        at::autocast::get_autocast_dispatch_key_from_device_type(device));
    const auto narrow = [&](const Tensor& x) {
      return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), x, device);
    };
    const auto wide = [&](const OptionalTensor& x) {
      return x ? OptionalTensor(at::autocast::cached_cast(at::kFloat, *x, device)) : x;
    };
    const Tensor query = narrow(in.query), key = narrow(in.key), value = narrow(in.value);
    const OptionalTensor key_gate = wide(in.log_key_gate), value_gate = wide(in.log_value_gate), beta = wide(in.beta),
                         state = wide(in.state);
    return in_pieces(pieces, {query, key, value, key_gate, value_gate, beta, state, in.scale, in.normalize}, run);
  }
  check_arguments(in);
  TORCH_CHECK(pieces.rows == 1 || (!in.beta && !in.normalize), "pieces: expected one of rows, found ", pieces.rows);
  const int64_t rows = in.query.sym_size(3).guard_int(__FILE__, __LINE__),
                columns = in.value.sym_size(3).guard_int(__FILE__, __LINE__);
  const std::vector<int64_t> of_rows = sizes_of(rows, pieces.rows), of_columns = sizes_of(columns, pieces.columns);
  const bool gates_rows = in.log_key_gate && in.log_key_gate->dim() == 4;
  const auto query = split(in.query, of_rows, 3), key = split(in.key, of_rows, 3),
             value = split(in.value, of_columns, 3);
  const auto key_gate = gates_rows ? split(in.log_key_gate, of_rows, 3) : std::vector(of_rows.size(), in.log_key_gate);
  const auto value_gate = split(in.log_value_gate, of_columns, 3);
  // z, the state's last column of a normalised call, belongs to every piece of columns.
  std::vector<int64_t> of_state = of_columns;
  if (in.normalize) of_state.push_back(1);

  std::vector<Tensor> values(of_columns.size()), states;
  const std::vector<OptionalTensor> state_rows = split(in.state, of_rows, 2);
  for (size_t i = 0; i < of_rows.size(); ++i) {
    const std::vector<OptionalTensor> before = split(state_rows[i], of_state, 3);
    std::vector<Tensor> after;
    for (size_t j = 0; j < of_columns.size(); ++j) {
      OptionalTensor state = before[j];
      if (state && in.normalize) state = at::cat({*state, *before.back()}, 3);
      const auto [of_piece, last] =
          run({query[i], key[i], value[j], key_gate[i], value_gate[j], in.beta, state, in.scale, in.normalize});
      values[j] = i == 0 ? of_piece : values[j].add(of_piece);
      after.push_back(in.normalize && j + 1 < of_columns.size() ? last.narrow(3, 0, of_columns[j]) : last);
    }
    states.push_back(joined(after, 3));
  }
  return {joined(values, 3), joined(states, 2)};
}

}  // namespace lethe
