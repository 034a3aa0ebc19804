// The matrix state's forward pass: the recurrence itself, in float64, with the state in the first cache. A task is a head, or a tile of
// a head's columns where there are fewer heads than threads.
#include <ATen/ops/empty.h>

#include "optimized/cpu/matrix_state.hpp"
#include "optimized/cpu/operators.hpp"
#include "optimized/operators/normalized_read.hpp"

namespace lethe::cpu {
namespace {

constexpr int64_t kChunk = 32;  // tokens loaded at one time

template <typename Scalar, typename Read>
void run_forward(const MatrixStateProblem<Scalar>& problem, double scale, const at::Tensor& values,
                 const at::Tensor& last_state) {
  const bool split = split_into_tiles(problem);
  const int64_t tiles = static_cast<int64_t>(problem.tiles.size()), tasks = problem.all_heads * (split ? tiles : 1);
  const int64_t chunk_length = std::min(kChunk, problem.length), width = problem.greatest_width();
  const int64_t work = problem.all_heads * problem.length * problem.key_dim * problem.columns;
  state_tasks(tasks, work, [&](auto next) {
    ChunkBuffers buffers(chunk_length, problem.key_dim, width);
    Buffer<double> state(problem.state_size()), read(chunk_length * width);
    while (const auto task = next()) {
      const int64_t head = split ? *task / tiles : *task;
      const int64_t tile_begin = split ? *task % tiles : 0, tile_end = split ? tile_begin + 1 : tiles;
      for (int64_t i = tile_begin; i < tile_end; ++i) {
        problem.load_state(head, problem.tiles[i], state.data() + problem.tiles[i].offset(problem.key_dim));
      }
      for (int64_t begin = 0; begin < problem.length; begin += kChunk) {
        const int64_t tokens = std::min(kChunk, problem.length - begin);
        problem.load_rows(head, begin, tokens, buffers);
        for (int64_t i = tile_begin; i < tile_end; ++i) {
          const StateTile& tile = problem.tiles[i];
          problem.load_columns(head, begin, tokens, tile, buffers);
          StateChunk chunk = problem.chunk(tokens, buffers, state.data() + tile.offset(problem.key_dim));
          chunk.values = read.data();
          run_tokens(problem.kernels(tile).forward, chunk, buffers, tile.width);
          conversions<Read>().store(tokens, tile.columns, read.data(), tile.width, scale,
                                    row_of<Read>(values, head, begin) + tile.begin, values.stride(1));
        }
      }
      for (int64_t i = tile_begin; i < tile_end; ++i) {
        problem.store_state(head, problem.tiles[i], state.data() + problem.tiles[i].offset(problem.key_dim),
                            last_state);
      }
    }
  });
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> read_state(const MatrixStateInputs& in, bool in_double) {
  const at::ScalarType dtype = accumulation_dtype(in.query.scalar_type());
  const int64_t batch = in.query.size(0), length = in.query.size(1), heads = in.query.size(2),
                key_dim = in.query.size(3);
  const int64_t columns = in.value.size(3) + (in.normalize ? 1 : 0);
  const at::TensorOptions options = in.query.options().dtype(dtype);
  at::Tensor values = at::empty({batch, length, heads, columns}, in_double ? options.dtype(at::kDouble) : options);
  at::Tensor last_state = at::empty({batch, heads, key_dim, columns}, options);
  const double scale = in_double ? 1.0 : in.scale;
  if (dtype == at::kDouble) {
    run_forward<double, double>(MatrixStateProblem<double>(in), scale, values, last_state);
  } else if (in_double) {
    run_forward<float, double>(MatrixStateProblem<float>(in), scale, values, last_state);
  } else {
    run_forward<float, float>(MatrixStateProblem<float>(in), scale, values, last_state);
  }
  return {values, last_state};
}

MatrixStateOutputs matrix_state_forward(const MatrixStateInputs& in) {
  const auto [read, last_state] = read_state(in, in.normalize);
  return {(in.normalize ? divide_by_normalizer(read) : read).to(in.query.scalar_type()), last_state};
}

}  // namespace lethe::cpu
