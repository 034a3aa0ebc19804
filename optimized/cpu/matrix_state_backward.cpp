// The matrix state's backward pass. States are not saved: a first pass over the tokens stores one at the beginning of each chunk, then the chunks go
// backwards, each running its tokens again from there. Gates of 0 rule out going back by division, and the reverse sums Σ (q ∂q − k ∂k), which would
// give the gates' gradients without states, lose every digit of a gate near 0; this way keeps them all.
#include <ATen/ops/empty.h>

#include "optimized/cpu/matrix_state.hpp"
#include "optimized/cpu/operators.hpp"
#include "optimized/cpu/row_gradients.hpp"
#include "optimized/operators/normalized_read.hpp"

namespace lethe::cpu {
namespace {

template <typename Scalar, typename Read>
struct Backward {
  const MatrixStateProblem<Scalar>& problem;
  const Rows<Read>& values_gradient;  // [B, T, H, columns] of Sᵀq times gradient_scale
  double gradient_scale;
  const at::Tensor& state_gradient;       // [B, H, K, columns] contiguous
  const MatrixStateGradients& gradients;  // contiguous, in Scalar; undefined where absent

  // Longer where states are wide, so that those kept between chunks are ≤ 32·T·K bytes a head, and one more.
  const int64_t chunk_length = std::min(std::max<int64_t>(32, (problem.columns + 3) / 4), problem.length);
  const int64_t chunks = problem.length == 0 ? 0 : (problem.length + chunk_length - 1) / chunk_length;
  const int64_t row_stride =
      (problem.key_dim + state_kernels().lanes - 1) / state_kernels().lanes * state_kernels().lanes;
  const int64_t row_gradients_size = RowGradients::size(chunk_length, row_stride);
  const int64_t tiles = static_cast<int64_t>(problem.tiles.size());

  // A thread's buffers for one tile of one chunk.
  struct Scratch {
    ChunkBuffers buffers;
    Buffer<double> d_value, d_value_gate, d_values, decayed, residual;

    explicit Scratch(const Backward& b)
        : buffers(b.chunk_length, b.problem.key_dim, b.problem.greatest_width()),
          d_value(b.chunk_length * b.problem.greatest_width()), d_value_gate(d_value.size()), d_values(d_value.size()),
          decayed(d_value.size() * b.problem.key_dim), residual(d_value.size()) {}
  };

  // A head's states before each chunk, and the gradient that goes back through them.
  struct HeadStates {
    Buffer<double> before_chunk, gradient;

    explicit HeadStates(const Backward& b)
        : before_chunk(b.chunks * b.problem.state_size()), gradient(b.problem.state_size()) {}
  };

  int64_t tokens_of(int64_t chunk) const { return std::min(chunk_length, problem.length - chunk * chunk_length); }

  double* state_at(HeadStates& states, int64_t chunk, const StateTile& tile) const {
    return states.before_chunk.data() + chunk * problem.state_size() + tile.offset(problem.key_dim);
  }
  double* state_gradient_at(HeadStates& states, const StateTile& tile) const {
    return states.gradient.data() + tile.offset(problem.key_dim);
  }

  // Fills the tiles' columns of `states`.
  void start(int64_t head, int64_t tile_begin, int64_t tile_end, HeadStates& states, Scratch& scratch) const {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const int64_t begin = chunk * chunk_length;
      if (chunk + 1 < chunks) problem.load_rows(head, begin, tokens_of(chunk), scratch.buffers);
      for (int64_t i = tile_begin; i < tile_end; ++i) {
        const StateTile& tile = problem.tiles[i];
        if (chunk == 0) problem.load_state(head, tile, state_at(states, 0, tile));
        if (chunk + 1 == chunks) continue;
        double* next = state_at(states, chunk + 1, tile);
        std::copy_n(state_at(states, chunk, tile), problem.key_dim * tile.width, next);
        problem.load_columns(head, begin, tokens_of(chunk), tile, scratch.buffers);
        run_tokens(problem.kernels(tile).advance, problem.chunk(tokens_of(chunk), scratch.buffers, next),
                   scratch.buffers, tile.width);
      }
    }
    for (int64_t i = tile_begin; i < tile_end; ++i) {
      const StateTile& tile = problem.tiles[i];
      double* d_state = state_gradient_at(states, tile);
      std::fill_n(d_state, problem.key_dim * tile.width, 0.0);
      const Scalar* from =
          state_gradient.const_data_ptr<Scalar>() + head * problem.key_dim * problem.columns + tile.begin;
      conversions<Scalar>().load(problem.key_dim, tile.columns, from, problem.columns, 1.0, d_state, tile.width);
    }
  }

  void load_gradient(int64_t head, int64_t begin, int64_t tokens, const StateTile& tile, double* to) const {
    if (tile.columns < tile.width) std::fill_n(to, tokens * tile.width, 0.0);
    conversions<Read>().load(tokens, tile.columns, values_gradient.at(head, begin) + tile.begin,
                             values_gradient.token_stride(), gradient_scale, to, tile.width);
  }

  void store_columns(const at::Tensor& to, int64_t head, int64_t begin, int64_t tokens, const StateTile& tile,
                     const double* from) const {
    // the normaliser's ones have no gradient
    const int64_t given = std::min(tile.columns, problem.value_dim - tile.begin);
    if (given > 0) {
      conversions<Scalar>().store(tokens, given, from, tile.width, 1.0, row_of<Scalar>(to, head, begin) + tile.begin,
                                  to.stride(1));
    }
  }

  // Takes the tile back over a chunk whose rows are loaded: writes its gradients over columns, and adds to those over rows.
  void reverse_tile(int64_t head, int64_t chunk, const StateTile& tile, const RowGradients& rows, HeadStates& states,
                    Scratch& scratch) const {
    const int64_t begin = chunk * chunk_length, tokens = tokens_of(chunk);
    problem.load_columns(head, begin, tokens, tile, scratch.buffers);
    load_gradient(head, begin, tokens, tile, scratch.d_values.data());
    StateChunk forward = problem.chunk(tokens, scratch.buffers, state_at(states, chunk, tile));
    forward.decayed = scratch.decayed.data();
    forward.residual = scratch.residual.data();
    run_tokens(problem.kernels(tile).record, forward, scratch.buffers, tile.width);
    reverse_tokens(problem.kernels(tile).reverse,
                   {.forward = forward,
                    .values_gradient = scratch.d_values.data(),
                    .state_gradient = state_gradient_at(states, tile),
                    .row_stride = row_stride,
                    .query_gradient = rows.query(),
                    .key_gradient = rows.key(),
                    .key_gate_gradient = rows.key_gate(),
                    .value_gradient = scratch.d_value.data(),
                    .value_gate_gradient = scratch.d_value_gate.data(),
                    .strength_gradient = rows.strength()},
                   scratch.buffers, tile.width);
    store_columns(gradients.value, head, begin, tokens, tile, scratch.d_value.data());
    if (gradients.log_value_gate.defined()) {
      store_columns(gradients.log_value_gate, head, begin, tokens, tile, scratch.d_value_gate.data());
    }
  }

  void store_rows(int64_t head, int64_t chunk, const RowGradients& rows) const {
    const int64_t begin = chunk * chunk_length, tokens = tokens_of(chunk), key_dim = problem.key_dim;
    const auto store = [&](const at::Tensor& to, int64_t columns, const double* from, int64_t stride) {
      conversions<Scalar>().store(tokens, columns, from, stride, 1.0, row_of<Scalar>(to, head, begin), to.stride(1));
    };
    store(gradients.query, key_dim, rows.query(), row_stride);
    store(gradients.key, key_dim, rows.key(), row_stride);
    if (gradients.beta.defined()) store(gradients.beta, 1, rows.strength(), 1);
    if (!gradients.log_key_gate.defined()) return;
    if (problem.one_gate_a_token()) {
      for (int64_t t = 0; t < tokens; ++t) {
        double* row = rows.key_gate() + t * row_stride;
        double sum = 0.0;
        for (int64_t i = 0; i < key_dim; ++i) sum += row[i];
        row[0] = sum;
      }
    }
    store(gradients.log_key_gate, gradients.log_key_gate.size(3), rows.key_gate(), row_stride);
  }

  void finish(int64_t head, const StateTile& tile, HeadStates& states) const {
    if (gradients.state.defined()) problem.store_state(head, tile, state_gradient_at(states, tile), gradients.state);
  }

  // A task is a head: its tiles add to one buffer of gradients over rows.
  void run_heads(int64_t work) const {
    state_tasks(problem.all_heads, work, [&](auto next) {
      Scratch scratch(*this);
      HeadStates states(*this);
      Buffer<double> memory(row_gradients_size);
      const RowGradients rows(chunk_length, row_stride, memory.data());
      while (const auto head = next()) {
        start(*head, 0, tiles, states, scratch);
        for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
          rows.clear();
          problem.load_rows(*head, chunk * chunk_length, tokens_of(chunk), scratch.buffers);
          for (const StateTile& tile : problem.tiles) reverse_tile(*head, chunk, tile, rows, states, scratch);
          store_rows(*head, chunk, rows);
        }
        for (const StateTile& tile : problem.tiles) finish(*head, tile, states);
      }
    });
  }

  // A task is a tile of a head, and each needs its own buffer for its shares of the gradients over rows. For all tokens of all tiles that would be
  // T·K·V numbers; so the tiles go back together over as many chunks as fit into two such buffers of T tokens. Their shares are added before the next
  // chunks, in the order of the tiles, so the bits are those of run_heads. Where not even one chunk of all tiles fits, some tiles go after others,
  // and the first buffer keeps the sum.
  void run_tiles(int64_t work) const {
    const int64_t heads = problem.all_heads, threads_a_head = at::get_num_threads() / std::max<int64_t>(heads, 1) + 1;
    const int64_t buffers = std::max(2 * chunks, threads_a_head + 1), tiles_at_once = std::min(tiles, buffers);
    const int64_t chunks_at_once = std::min(chunks, buffers / tiles_at_once);
    Buffer<double> memory(heads * tiles_at_once * chunks_at_once * row_gradients_size);
    const auto share = [&](int64_t head, int64_t index, int64_t chunk) {
      const int64_t position = (head * tiles_at_once + index) * chunks_at_once + chunk;
      return RowGradients(chunk_length, row_stride, memory.data() + position * row_gradients_size);
    };
    std::vector<HeadStates> states;
    for (int64_t head = 0; head < heads; ++head) states.emplace_back(*this);
    state_tasks(heads * tiles, work, [&](auto next) {
      Scratch scratch(*this);
      while (const auto task = next()) {
        const int64_t head = *task / tiles, tile = *task % tiles;
        start(head, tile, tile + 1, states[head], scratch);
      }
    });
    for (int64_t end = chunks; end > 0; end -= chunks_at_once) {
      const int64_t begin = std::max<int64_t>(end - chunks_at_once, 0);
      for (int64_t first = 0; first < tiles;) {
        const int64_t kept = first == 0 ? 0 : 1, count = std::min(tiles - first, tiles_at_once - kept);
        state_tasks(heads * count, work, [&](auto next) {
          Scratch scratch(*this);
          while (const auto task = next()) {
            const int64_t head = *task / count, index = *task % count;
            for (int64_t chunk = end - 1; chunk >= begin; --chunk) {
              const RowGradients rows = share(head, kept + index, chunk - begin);
              rows.clear();
              problem.load_rows(head, chunk * chunk_length, tokens_of(chunk), scratch.buffers);
              reverse_tile(head, chunk, problem.tiles[first + index], rows, states[head], scratch);
            }
          }
        });
        first += count;
        state_tasks(heads * (end - begin), work, [&](auto next) {
          while (const auto task = next()) {
            const int64_t head = *task / (end - begin), chunk = *task % (end - begin);
            const RowGradients sum = share(head, 0, chunk);
            for (int64_t i = 1; i < kept + count; ++i) sum.add(share(head, i, chunk));
            if (first == tiles) store_rows(head, begin + chunk, sum);
          }
        });
      }
    }
    for (int64_t head = 0; head < heads; ++head) {
      for (const StateTile& tile : problem.tiles) finish(head, tile, states[head]);
    }
  }

  void run() const {
    const int64_t work = problem.all_heads * problem.length * problem.key_dim * problem.columns;
    split_into_tiles(problem) ? run_tiles(work) : run_heads(work);
  }
};

template <typename Scalar>
void run_backward(const at::Tensor& grad_values, const at::Tensor& grad_state, const MatrixStateInputs& in,
                  const MatrixStateGradients& gradients) {
  const MatrixStateProblem<Scalar> problem(in);
  const at::Tensor d_state = gradient_or_zeros(grad_state, in).contiguous();
  if (in.normalize) {
    const Rows<double> d_read(gradient_before_division(std::get<0>(read_state(in, true)), grad_values));
    Backward<Scalar, double>{problem, d_read, 1.0, d_state, gradients}.run();
  } else {
    Backward<Scalar, Scalar>{problem, Rows<Scalar>(grad_values), in.scale, d_state, gradients}.run();
  }
}

}  // namespace

MatrixStateGradients matrix_state_backward(const at::Tensor& grad_values, const at::Tensor& grad_state,
                                           const MatrixStateInputs& in) {
  const at::ScalarType stored = in.query.scalar_type();
  const at::TensorOptions options = in.query.options().dtype(accumulation_dtype(stored));
  const auto like = [&](const at::Tensor& tensor) {
    return at::empty(tensor.dim() == 3 ? tensor.unsqueeze(3).sizes() : tensor.sizes(), options);
  };
  const auto like_given = [&](const std::optional<at::Tensor>& tensor) {
    return tensor ? like(*tensor) : at::Tensor();
  };
  const MatrixStateGradients gradients{like(in.query),
                                       like(in.key),
                                       like(in.value),
                                       like_given(in.log_key_gate),
                                       like_given(in.log_value_gate),
                                       like_given(in.beta),
                                       like_given(in.state)};
  // Without columns no row is read: their gradients are zero.
  if (in.value.size(3) == 0 && !in.normalize) {
    for (const at::Tensor& tensor : {gradients.query, gradients.key, gradients.log_key_gate, gradients.beta}) {
      if (tensor.defined()) tensor.zero_();
    }
  }
  (stored == at::kDouble ? run_backward<double> : run_backward<float>)(grad_values, grad_state, in, gradients);
  const auto shaped = [&](const at::Tensor& gradient, const std::optional<at::Tensor>& tensor) {
    return tensor ? gradient.view(tensor->sizes()) : at::empty({0}, options);
  };
  return {gradients.query.to(stored),
          gradients.key.to(stored),
          gradients.value.to(stored),
          shaped(gradients.log_key_gate, in.log_key_gate),
          shaped(gradients.log_value_gate, in.log_value_gate),
          shaped(gradients.beta, in.beta),
          shaped(gradients.state, in.state)};
}

}  // namespace lethe::cpu
