#include "optimized/torch/state_pieces.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/split_with_sizes.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "optimized/torch/implementations.hpp"

namespace lethe {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr int64_t kSmall = 64;  // rows and columns that the kernels of every GPU have

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

Tensor joined(const std::vector<Tensor>& pieces, int64_t dim) {
  return pieces.size() == 1 ? pieces.front() : at::cat(pieces, dim);
}

}  // namespace

StatePieces pieces_of(const MatrixStateInputs& in) {
  if (!in.query.is_cuda() || in.query.dim() != 4 || in.value.dim() != 4) return {};
  const int64_t rows = in.query.sym_size(3).guard_int(__FILE__, __LINE__),
                columns = in.value.sym_size(3).guard_int(__FILE__, __LINE__);
  if (std::max(rows, columns) <= kSmall) return {};
  constexpr int64_t kChunk = 64;
  const int64_t length = in.query.sym_size(1).sym_ge(16).guard_bool(__FILE__, __LINE__) ? kChunk : 1;
  const Call call = call_of(in, {1, length, length, 1, 1, rows, columns});
  return state_pieces(call.shape, call.form, call.dtype, call.compute_capability);
}

std::tuple<Tensor, Tensor> in_pieces(const StatePieces& pieces, const MatrixStateInputs& in,
                                     const std::function<std::tuple<Tensor, Tensor>(const MatrixStateInputs&)>& run) {
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
