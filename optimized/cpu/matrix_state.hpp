#pragma once
// The code that forward and backward of the matrix state share: inputs a chunk of tokens at a time, and the distribution of tasks.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "optimized/cpu/problem.hpp"
#include "optimized/cpu/state_kernels.hpp"
#include "optimized/cpu/subnormals.hpp"
#include "optimized/operators/attention.hpp"
#include "optimized/operators/matrix_state.hpp"

namespace lethe::cpu {

/// Columns of the state that one kernel call works on; the last ones of a tile may be padding.
struct StateTile {
  int64_t begin, columns;  ///< of the state
  int64_t width;           ///< with padding
  int width_index;         ///< of StateKernels::tile

  /// The place in [K, columns] kept tile by tile: every tile before this one is full.
  int64_t offset(int64_t key_dim) const { return key_dim * begin; }
};

/// The columns in tiles of the greatest width, the last one as narrow as fits.
std::vector<StateTile> state_tiles(int64_t columns);

/// A tensor [B, T, H, D], or [B, T, H] as D = 1, whose rows are contiguous.
template <typename Scalar>
class Rows {
 public:
  explicit Rows(const at::Tensor& tensor) : tensor_(tensor.dim() == 3 ? tensor.unsqueeze(3) : tensor) {
    tensor_ = tensor_.to(at::CppTypeToScalarType<Scalar>::value);
    if (tensor_.stride(3) != 1) tensor_ = tensor_.contiguous();
  }

  int64_t columns() const { return tensor_.size(3); }
  int64_t token_stride() const { return tensor_.stride(1); }

  /// Row of token t; head counts batches and heads through.
  const Scalar* at(int64_t head, int64_t t) const {
    const int64_t heads = tensor_.size(2);
    return static_cast<const Scalar*>(tensor_.const_data_ptr()) + head / heads * tensor_.stride(0) +
           t * tensor_.stride(1) + head % heads * tensor_.stride(2);
  }

 private:
  at::Tensor tensor_;
};

/// Row of token t of a contiguous result [B, T, H, D].
template <typename Scalar>
Scalar* row_of(const at::Tensor& tensor, int64_t head, int64_t t) {
  const int64_t heads = tensor.size(2);
  return static_cast<Scalar*>(tensor.data_ptr()) +
         ((head / heads * tensor.size(1) + t) * heads + head % heads) * tensor.size(3);
}

template <typename Scalar>
const StateConversions<Scalar>& conversions() {
  if constexpr (sizeof(Scalar) == sizeof(float)) {
    return state_kernels().float_conversions;
  } else {
    return state_kernels().double_conversions;
  }
}

/// A thread's buffers for a chunk: all inputs over the state's rows, and one tile of the inputs over its columns.
struct ChunkBuffers {
  Buffer<double> query, key, key_gate;  ///< [tokens, K]
  Buffer<double> value, value_gate;     ///< [tokens, width]
  Buffer<double> write_strength;        ///< [tokens]
  /// [tokens], whether a gate of the token is 0
  std::unique_ptr<bool[]> zero_key_gate, zero_value_gate;

  ChunkBuffers(int64_t tokens, int64_t key_dim, int64_t width)
      : query(tokens * key_dim), key(tokens * key_dim), key_gate(tokens * key_dim), value(tokens * width),
        value_gate(tokens * width), write_strength(tokens), zero_key_gate(new bool[tokens]()),
        zero_value_gate(new bool[tokens]()) {}

  bool erases(int64_t token) const { return zero_key_gate[token] || zero_value_gate[token]; }
};

/// One call's inputs in Scalar, float or double.
template <typename Scalar>
class MatrixStateProblem {
 public:
  explicit MatrixStateProblem(const MatrixStateInputs& inputs);

  const int64_t all_heads, length, key_dim, value_dim, columns;
  const StateRule rule;
  const bool normalize;
  const double scale;
  const std::vector<StateTile> tiles;

  const StateTileKernels& kernels(const StateTile& tile) const {
    return state_kernels().tile[static_cast<int>(rule)][tile.width_index];
  }
  int64_t state_size() const { return key_dim * (tiles.empty() ? 0 : tiles.back().begin + tiles.back().width); }
  int64_t greatest_width() const { return tiles.empty() ? 0 : tiles.front().width; }
  bool one_gate_a_token() const { return key_gate_ && key_gate_->columns() != key_dim; }

  /// Fills query, key, gate and strength of tokens begin … begin + tokens − 1.
  ///
  /// throws  c10::Error where a gate's logarithm is positive or NaN, or a strength negative or NaN
  void load_rows(int64_t head, int64_t begin, int64_t tokens, ChunkBuffers& to) const;
  /// Fills value and value gate of a tile's columns; padding becomes 0, the normaliser's column 1.
  void load_columns(int64_t head, int64_t begin, int64_t tokens, const StateTile& tile, ChunkBuffers& to) const;
  /// The tile's columns of the initial state, zeros where none is given.
  void load_state(int64_t head, const StateTile& tile, double* to) const;
  /// The tile's columns of a state, into a contiguous tensor [B, H, K, columns].
  void store_state(int64_t head, const StateTile& tile, const double* from, const at::Tensor& to) const;
  /// The chunk as the kernels see it.
  StateChunk chunk(int64_t tokens, ChunkBuffers& buffers, double* state) const;

 private:
  Rows<Scalar> query_, key_, value_;
  std::optional<Rows<Scalar>> key_gate_, value_gate_, beta_;
  std::optional<at::Tensor> state_;
};

extern template class MatrixStateProblem<float>;
extern template class MatrixStateProblem<double>;

/// A kernel over a tile's chunk, where a gate of 0 erases the state, NaN and ∞ included: the kernel runs from one such token to the next, and zeros
/// are written between them instead of a product with 0.
///
/// reads  buffers: the chunk's loaded inputs; width: of the tile
void run_tokens(void (*kernel)(const StateChunk&), const StateChunk& chunk, const ChunkBuffers& buffers, int64_t width);

/// The same for `reverse`: the gradient that reaches a gate of 0 ends there, and that gate's gradient is 0.
void reverse_tokens(void (*kernel)(const StateChunkGradient&), const StateChunkGradient& chunk,
                    const ChunkBuffers& buffers, int64_t width);

/// Whether a task is one tile of a head rather than a head: where the heads alone don't keep all threads busy.
template <typename Scalar>
bool split_into_tiles(const MatrixStateProblem<Scalar>& problem) {
  return problem.all_heads < at::get_num_threads() && problem.tiles.size() > 1;
}

/// parallel_tasks, but on this thread alone where the work (updates of a state's element) is too small to wake others: one decoded token.
template <typename Run>
void state_tasks(int64_t count, int64_t work, const Run& run) {
  constexpr int64_t kWorthAThread = 1 << 15;
  if (work >= kWorthAThread) {
    parallel_tasks(count, run);
    return;
  }
  const FlushSubnormals flush;
  int64_t taken = 0;
  run([&]() { return taken < count ? std::optional<int64_t>(taken++) : std::nullopt; });
}

/// The results of reading a state, before scale and normaliser: (Sᵀq) [B,T,H,columns] in float64 where `in_double`, else scale·Sᵀq in the sums' own
/// dtype; and the last state [B,H,K,columns].
std::tuple<at::Tensor, at::Tensor> read_state(const MatrixStateInputs& inputs, bool in_double);

}  // namespace lethe::cpu
