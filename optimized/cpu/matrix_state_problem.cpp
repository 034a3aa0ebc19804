// The inputs of a matrix state operator, loaded a chunk of tokens at a time.
#include <c10/util/Exception.h>

#include "optimized/cpu/matrix_state.hpp"

namespace lethe::cpu {
namespace {

template <typename Scalar>
std::optional<Rows<Scalar>> rows_of(const std::optional<at::Tensor>& tensor) {
  return tensor ? std::optional<Rows<Scalar>>(*tensor) : std::nullopt;
}

StateRule rule_of(const MatrixStateInputs& inputs) {
  return inputs.beta ? StateRule::kDelta : inputs.log_value_gate ? StateRule::kBothGates : StateRule::kKeyGate;
}

template <typename Scalar>
void load_gates(const char* name, const Rows<Scalar>& gate, int64_t head, int64_t begin, int64_t tokens, int64_t column,
                int64_t columns, double* to, int64_t to_stride, bool* has_zero) {
  const Scalar* from = gate.at(head, begin) + column;
  if (conversions<Scalar>().load_exponential(tokens, columns, from, gate.token_stride(), to, to_stride, has_zero))
    return;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < columns; ++i) {
      const Scalar log_gate = from[t * gate.token_stride() + i];
      TORCH_CHECK(log_gate <= Scalar(0), name, ": expected a natural logarithm <= 0, found ", log_gate, " at position ",
                  begin + t);
    }
  }
}

}  // namespace

std::vector<StateTile> state_tiles(int64_t columns) {
  std::vector<StateTile> tiles;
  const int64_t lanes = state_kernels().lanes;
  for (int64_t begin = 0; begin < columns;) {
    const int64_t left = columns - begin;
    const int index = left <= lanes ? 0 : left <= 2 * lanes ? 1 : 2;
    const int64_t width = lanes << index;
    tiles.push_back({begin, std::min(left, width), width, index});
    begin += width;
  }
  return tiles;
}

template <typename Scalar>
MatrixStateProblem<Scalar>::MatrixStateProblem(const MatrixStateInputs& in)
    : all_heads(in.query.size(0) * in.query.size(2)), length(in.query.size(1)), key_dim(in.query.size(3)),
      value_dim(in.value.size(3)), columns(value_dim + (in.normalize ? 1 : 0)), rule(rule_of(in)),
      normalize(in.normalize), scale(in.scale), tiles(state_tiles(columns)), query_(in.query), key_(in.key),
      value_(in.value), key_gate_(rows_of<Scalar>(in.log_key_gate)), value_gate_(rows_of<Scalar>(in.log_value_gate)),
      beta_(rows_of<Scalar>(in.beta)) {
  if (in.state) state_ = in.state->contiguous();
}

template <typename Scalar>
void MatrixStateProblem<Scalar>::load_rows(int64_t head, int64_t begin, int64_t tokens, ChunkBuffers& to) const {
  const auto load = conversions<Scalar>().load;
  load(tokens, key_dim, query_.at(head, begin), query_.token_stride(), 1.0, to.query.data(), key_dim);
  load(tokens, key_dim, key_.at(head, begin), key_.token_stride(), 1.0, to.key.data(), key_dim);
  double* gate = to.key_gate.data();
  if (!key_gate_) {
    std::fill_n(gate, tokens * key_dim, 1.0);
  } else if (one_gate_a_token()) {
    // Into the first entry of each row, and from there over the row.
    load_gates("log_key_gate", *key_gate_, head, begin, tokens, 0, 1, gate, key_dim, to.zero_key_gate.get());
    for (int64_t t = 0; t < tokens; ++t) std::fill_n(gate + t * key_dim, key_dim, gate[t * key_dim]);
  } else {
    load_gates("log_key_gate", *key_gate_, head, begin, tokens, 0, key_dim, gate, key_dim, to.zero_key_gate.get());
  }
  if (!beta_) return;
  double* strength = to.write_strength.data();
  load(tokens, 1, beta_->at(head, begin), beta_->token_stride(), 1.0, strength, 1);
  for (int64_t t = 0; t < tokens; ++t) {
    TORCH_CHECK(strength[t] >= 0.0, "beta: expected a number >= 0, found ", strength[t], " at position ", begin + t);
  }
}

template <typename Scalar>
void MatrixStateProblem<Scalar>::load_columns(int64_t head, int64_t begin, int64_t tokens, const StateTile& tile,
                                              ChunkBuffers& to) const {
  const int64_t given = std::max<int64_t>(std::min(tile.columns, value_dim - tile.begin), 0);
  double* value = to.value.data();
  if (given < tile.width) std::fill_n(value, tokens * tile.width, 0.0);
  if (given > 0) {
    conversions<Scalar>().load(tokens, given, value_.at(head, begin) + tile.begin, value_.token_stride(), 1.0, value,
                               tile.width);
  }
  if (given < tile.columns) {  // the normaliser's column
    for (int64_t t = 0; t < tokens; ++t) value[t * tile.width + given] = 1.0;
  }
  if (!value_gate_) return;
  if (given < tile.width) std::fill_n(to.value_gate.data(), tokens * tile.width, 1.0);
  load_gates("log_value_gate", *value_gate_, head, begin, tokens, tile.begin, given, to.value_gate.data(), tile.width,
             to.zero_value_gate.get());
}

template <typename Scalar>
void MatrixStateProblem<Scalar>::load_state(int64_t head, const StateTile& tile, double* to) const {
  if (!state_ || tile.columns < tile.width) std::fill_n(to, key_dim * tile.width, 0.0);
  if (!state_) return;
  const Scalar* from = static_cast<const Scalar*>(state_->const_data_ptr()) + head * key_dim * columns + tile.begin;
  conversions<Scalar>().load(key_dim, tile.columns, from, columns, 1.0, to, tile.width);
}

template <typename Scalar>
void MatrixStateProblem<Scalar>::store_state(int64_t head, const StateTile& tile, const double* from,
                                             const at::Tensor& to) const {
  Scalar* target = static_cast<Scalar*>(to.data_ptr()) + head * key_dim * columns + tile.begin;
  conversions<Scalar>().store(key_dim, tile.columns, from, tile.width, 1.0, target, columns);
}

template <typename Scalar>
StateChunk MatrixStateProblem<Scalar>::chunk(int64_t tokens, ChunkBuffers& buffers, double* state) const {
  return {.tokens = tokens,
          .key_dim = key_dim,
          .query = buffers.query.data(),
          .key = buffers.key.data(),
          .key_gate = buffers.key_gate.data(),
          .value = buffers.value.data(),
          .value_gate = buffers.value_gate.data(),
          .write_strength = buffers.write_strength.data(),
          .state = state,
          .values = nullptr,
          .decayed = nullptr,
          .residual = nullptr};
}

namespace {

// The tokens begin … begin + tokens − 1 of a chunk.
StateChunk part_of(StateChunk chunk, int64_t begin, int64_t tokens, int64_t width) {
  const auto advance = [](auto& rows, int64_t by) { rows = rows ? rows + by : rows; };
  for (const double** rows : {&chunk.query, &chunk.key, &chunk.key_gate}) advance(*rows, begin * chunk.key_dim);
  for (const double** rows : {&chunk.value, &chunk.value_gate}) advance(*rows, begin * width);
  advance(chunk.write_strength, begin);
  for (double** rows : {&chunk.values, &chunk.residual}) advance(*rows, begin * width);
  advance(chunk.decayed, begin * chunk.key_dim * width);
  chunk.tokens = tokens;
  return chunk;
}

// Writes zeros to matrix [K, width] where a gate is 0 at the chunk's token t, whatever the old values.
void erase(const StateChunk& chunk, const ChunkBuffers& buffers, int64_t t, int64_t width, double* matrix) {
  const double *f = chunk.key_gate + t * chunk.key_dim, *g = chunk.value_gate + t * width;
  for (int64_t i = 0; i < chunk.key_dim; ++i) {
    for (int64_t j = 0; j < width; ++j) {
      if (f[i] == 0.0 || (buffers.zero_value_gate[t] && g[j] == 0.0)) matrix[i * width + j] = 0.0;
    }
  }
}

}  // namespace

void run_tokens(void (*kernel)(const StateChunk&), const StateChunk& chunk, const ChunkBuffers& buffers,
                int64_t width) {
  for (int64_t begin = 0, end; begin < chunk.tokens; begin = end) {
    if (buffers.erases(begin)) erase(chunk, buffers, begin, width, chunk.state);
    end = begin + 1;
    while (end < chunk.tokens && !buffers.erases(end)) ++end;
    kernel(part_of(chunk, begin, end - begin, width));
  }
}

void reverse_tokens(void (*kernel)(const StateChunkGradient&), const StateChunkGradient& chunk,
                    const ChunkBuffers& buffers, int64_t width) {
  const StateChunk& forward = chunk.forward;
  for (int64_t end = forward.tokens, begin; end > 0; end = begin) {
    begin = end - 1;
    while (begin > 0 && !buffers.erases(begin)) --begin;
    StateChunkGradient part = chunk;
    part.forward = part_of(forward, begin, end - begin, width);
    part.values_gradient += begin * width;
    for (double** rows : {&part.query_gradient, &part.key_gradient, &part.key_gate_gradient})
      *rows += begin * chunk.row_stride;
    part.value_gradient += begin * width;
    part.value_gate_gradient += begin * width;
    part.strength_gradient += begin;
    kernel(part);
    if (!buffers.erases(begin)) continue;
    erase(forward, buffers, begin, width, chunk.state_gradient);
    for (int64_t i = 0; i < forward.key_dim; ++i)
      if (part.forward.key_gate[i] == 0.0) part.key_gate_gradient[i] = 0.0;
    for (int64_t j = 0; buffers.zero_value_gate[begin] && j < width; ++j)
      if (part.forward.value_gate[j] == 0.0) part.value_gate_gradient[j] = 0.0;
  }
}

template class MatrixStateProblem<float>;
template class MatrixStateProblem<double>;

}  // namespace lethe::cpu
