#include <algorithm>

#include "optimized/cuda/layers/layers.hpp"
#include "optimized/cuda/layers/row.cuh"

namespace lethe::layers {
namespace {

constexpr int kMostBlocksPerMultiprocessor = 4;  // of the backward, each with a partial sum of the norm's gradient

// ---- Rows in pieces: a thread owns V columns and goes down the rows, kUnroll at a time; head_lanes neighbouring lanes own a head, a power of two.

constexpr int kUnroll = 2, kThreads = 256, kMostThreads = 512;

struct Layout {
  int head_lanes, row_threads;  // the pieces of a head and of a row
  int block_rows;               // rows beside each other in a block
  int threads() const { return (block_rows * row_threads + 31) / 32 * 32; }
};

// A thread's place; spare threads at the block's end have no rows, but take part in its shuffles.
struct Place {
  int row, piece;
  bool has_rows;
};
__device__ Place place_of(Layout layout) {
  const int row = threadIdx.x / layout.row_threads;
  return {row, static_cast<int>(threadIdx.x) - row * layout.row_threads, row < layout.block_rows};
}

template <int V>
__device__ void load_norm(const void* norm, bool wanted, int column, float (&weight)[V]) {
#pragma unroll
  for (int v = 0; v < V; ++v) weight[v] = 1;
  if (norm && wanted) widen(load<V>(static_cast<const float*>(norm) + column), weight);
}

template <int V>
__device__ float dot(const float (&a)[V], const float (&b)[V]) {
  float sum = 0;
#pragma unroll
  for (int v = 0; v < V; ++v) sum += a[v] * b[v];
  return sum;
}

template <typename T>
__global__ void __launch_bounds__(kMostThreads, 1) gated_output_kernel(const GatedOutput call, Layout layout) {
  constexpr int V = kPieceElements<T>;
  const Place place = place_of(layout);
  const int column = place.piece * V;
  const int64_t width = int64_t{layout.row_threads} * V;
  const int64_t first = int64_t{blockIdx.x} * kUnroll * layout.block_rows + place.row;
  Piece<T, V> o[kUnroll], gate[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t row = first + u * layout.block_rows;
    const bool inside = place.has_rows && row < call.rows;
    o[u] = load_if<V>(inside, static_cast<const T*>(call.o) + row * width + column);
    gate[u] =
        load_if<V>(inside && call.gate.data, static_cast<const T*>(call.gate.data) + row * call.gate.pitch + column);
  }
  float weight[V];
  load_norm(call.norm, place.has_rows, column, weight);
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t row = first + u * layout.block_rows;
    float value[V], logit[V];
    widen(o[u], value);
    float rstd = 1;
    if (call.norm)
      rstd = rsqrtf(lane_sum(dot(value, value), layout.head_lanes) / call.head_dim + static_cast<float>(call.epsilon));
    widen(gate[u], logit);
#pragma unroll
    for (int v = 0; v < V; ++v) value[v] *= rstd * weight[v] * (call.gate.data ? sigmoid(logit[v]) : 1.0f);
    if (place.has_rows && row < call.rows) store(narrow<T>(value), static_cast<T*>(call.values) + row * width + column);
  }
}

// Adds the gradients of a block's rows of threads in their order and writes them as partial sum number blockIdx.x.
template <int V>
__device__ void write_partial(const float (&grad_norm)[V], Layout layout, Place place, float* partials) {
  __shared__ float totals[kMostThreads * V];
#pragma unroll
  for (int v = 0; v < V; ++v) totals[threadIdx.x * V + v] = grad_norm[v];
  __syncthreads();
  const int width = layout.row_threads * V;
  for (int column = threadIdx.x; column < width; column += blockDim.x) {
    float total = 0;
    for (int row = 0; row < layout.block_rows; ++row) total += totals[row * width + column];
    partials[int64_t{blockIdx.x} * width + column] = total;
  }
}

// In the order of attention's own pass (passes/backward_ends.cu), so that its bits are the same.
template <int V>
__device__ float head_delta(const float (&values)[V], const float (&rest)[V], const float (&gradient)[V], int lanes) {
  float sum = 0;
#pragma unroll
  for (int v = 0; v < V; v += 2)
    sum += (values[v] + rest[v]) * gradient[v] + (values[v + 1] + rest[v + 1]) * gradient[v + 1];
  for (int distance = lanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
  return sum;
}

template <typename T, bool kDelta>
__global__ void __launch_bounds__(kMostThreads, 1)
    gated_output_backward_kernel(const GatedOutputBackward call, Layout layout) {
  constexpr int V = kPieceElements<T>;
  const Place place = place_of(layout);
  const int head = place.piece / layout.head_lanes;
  const bool first_of_head = place.piece % layout.head_lanes == 0;
  const int column = place.piece * V;
  const int64_t width = int64_t{layout.row_threads} * V, block_rows = int64_t{kUnroll} * layout.block_rows;
  float weight[V], grad_norm[V] = {};
  load_norm(call.norm, place.has_rows, column, weight);
  for (int64_t block_row = blockIdx.x * block_rows; block_row < call.rows; block_row += gridDim.x * block_rows) {
    Piece<T, V> o[kUnroll], rest[kUnroll], gate[kUnroll], grad_values[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t row = block_row + u * layout.block_rows + place.row;
      const bool inside = place.has_rows && row < call.rows;
      o[u] = load_if<V>(inside, static_cast<const T*>(call.o) + row * width + column);
      if constexpr (kDelta)
        rest[u] = load_if<V>(inside && call.residual, static_cast<const T*>(call.residual) + row * width + column);
      gate[u] =
          load_if<V>(inside && call.gate.data, static_cast<const T*>(call.gate.data) + row * call.gate.pitch + column);
      grad_values[u] =
          load_if<V>(inside, static_cast<const T*>(call.grad_values.data) + row * call.grad_values.pitch + column);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t row = block_row + u * layout.block_rows + place.row;
      const bool inside = place.has_rows && row < call.rows;
      float n[V], gate_or_gradient[V], product[V];
      widen(o[u], n);
      widen(gate[u], gate_or_gradient);
      widen(grad_values[u], product);
      float rstd = 1;
      if (call.norm)
        rstd = rsqrtf(lane_sum(dot(n, n), layout.head_lanes) / call.head_dim + static_cast<float>(call.epsilon));
#pragma unroll
      for (int v = 0; v < V; ++v) {
        n[v] *= rstd;
        const float open = call.gate.data ? sigmoid(gate_or_gradient[v]) : 1.0f;
        product[v] *= open;
        grad_norm[v] += n[v] * product[v];
        product[v] *= weight[v];
        gate_or_gradient[v] = product[v] * n[v] * (1 - open);
      }
      if (inside && call.gate.data)
        store(narrow<T>(gate_or_gradient), static_cast<T*>(call.grad_gate.data) + row * call.grad_gate.pitch + column);
      const float mean = call.norm ? lane_sum(dot(n, product), layout.head_lanes) / call.head_dim : 0.0f;
#pragma unroll
      for (int v = 0; v < V; ++v) product[v] = rstd * (product[v] - n[v] * mean);
      const Piece<T, V> grad_o = narrow<T>(product);
      if (inside) store(grad_o, static_cast<T*>(call.grad_o) + row * width + column);
      if constexpr (kDelta) {
        float values[V], residual[V], rounded[V];
        widen(o[u], values);
        widen(rest[u], residual);
        widen(grad_o, rounded);
        const float delta = head_delta(values, residual, rounded, layout.head_lanes);
        if (inside && first_of_head) static_cast<float*>(call.delta)[row * call.heads + head] = delta;
      }
    }
  }
  if (call.norm) write_partial(grad_norm, layout, place, static_cast<float*>(call.workspace));
}

// ---- Any head dimension, in single elements: a warp for a row's head.

constexpr int kWarps = 8;

template <typename T>
struct HeadOfRow {
  const T *o, *gate;
  const Wide<T>* norm;
  Wide<T> rstd;  // 1 without a norm
};
template <typename T, typename Call>
__device__ HeadOfRow<T> head_of(const Call& call, int64_t row, int64_t head) {
  const int64_t column = head * call.head_dim;
  HeadOfRow<T> part{static_cast<const T*>(call.o) + row * call.heads * call.head_dim + column,
                    static_cast<const T*>(call.gate.data) + row * call.gate.pitch + column,
                    static_cast<const Wide<T>*>(call.norm) + column, 1};
  if (!call.norm) return part;
  Wide<T> squares = 0;
  for (int64_t i = threadIdx.x; i < call.head_dim; i += 32) squares += widened(part.o[i]) * widened(part.o[i]);
  part.rstd = 1 / sqrt(lane_sum(squares) / call.head_dim + static_cast<Wide<T>>(call.epsilon));
  return part;
}

template <typename T>
__global__ void __launch_bounds__(32 * kWarps) gated_output_any_width(const GatedOutput call) {
  const int64_t index = int64_t{blockIdx.x} * kWarps + threadIdx.y, row = index / call.heads, head = index % call.heads;
  if (row >= call.rows) return;
  const HeadOfRow<T> part = head_of<T>(call, row, head);
  T* const values = static_cast<T*>(call.values) + index * call.head_dim;
  for (int64_t i = threadIdx.x; i < call.head_dim; i += 32) {
    Wide<T> value = widened(part.o[i]) * part.rstd;
    if (call.norm) value *= part.norm[i];
    if (call.gate.data) value *= sigmoid(widened(part.gate[i]));
    values[i] = stored<T>(value);
  }
}

template <typename T>
__global__ void __launch_bounds__(32 * kWarps) gated_output_backward_any_width(const GatedOutputBackward call) {
  using Number = Wide<T>;
  const int64_t head = int64_t{blockIdx.y} * kWarps + threadIdx.y, column = head * call.head_dim;
  const int64_t width = call.heads * call.head_dim;
  if (head >= call.heads) return;
  Number* const partial = static_cast<Number*>(call.workspace) + blockIdx.x * width + column;
  for (int64_t row = blockIdx.x; row < call.rows; row += gridDim.x) {
    const HeadOfRow<T> part = head_of<T>(call, row, head);
    const T* const grad_values = static_cast<const T*>(call.grad_values.data) + row * call.grad_values.pitch + column;
    const auto share = [&](int64_t i) { return call.gate.data ? sigmoid(widened(part.gate[i])) : Number(1); };
    Number sum = 0;
    if (call.norm) {
      for (int64_t i = threadIdx.x; i < call.head_dim; i += 32)
        sum += widened(part.o[i]) * widened(grad_values[i]) * share(i) * part.norm[i];
    }
    const Number mean = lane_sum(sum) * part.rstd / call.head_dim;
    Number delta = 0;
    for (int64_t i = threadIdx.x; i < call.head_dim; i += 32) {
      const Number n = widened(part.o[i]) * part.rstd, open = share(i), product = widened(grad_values[i]) * open;
      const Number weighted = call.norm ? product * part.norm[i] : product;
      const T grad_o = stored<T>(part.rstd * (weighted - n * mean));
      static_cast<T*>(call.grad_o)[row * width + column + i] = grad_o;
      if (call.delta) {
        const T* const residual = static_cast<const T*>(call.residual);
        const Number rest = residual ? widened(residual[row * width + column + i]) : Number(0);
        delta += (widened(part.o[i]) + rest) * widened(grad_o);
      }
      if (call.gate.data)
        static_cast<T*>(call.grad_gate.data)[row * call.grad_gate.pitch + column + i] =
            stored<T>(weighted * n * (1 - open));
      if (call.norm) partial[i] = row == blockIdx.x ? n * product : partial[i] + n * product;
    }
    if (!call.delta) continue;
    delta = lane_sum(delta);
    if (threadIdx.x == 0) static_cast<Number*>(call.delta)[row * call.heads + head] = delta;
  }
}

// ---- Launches

// The layout of rows in pieces; no threads where a head is no power of two of them or a row too many.
template <typename T>
Layout layout_of(int64_t heads, int64_t head_dim) {
  constexpr int V = kPieceElements<T>;
  const int64_t head_lanes = head_dim / V, row_threads = heads * head_lanes;
  const bool fits = sizeof(T) < 8 && head_dim % V == 0 && head_lanes <= 32 && (head_lanes & (head_lanes - 1)) == 0 &&
                    row_threads <= kMostThreads;
  if (!fits) return {0, 0, 0};
  return {static_cast<int>(head_lanes), static_cast<int>(row_threads),
          static_cast<int>(std::max<int64_t>(1, kThreads / row_threads))};
}

template <typename T>
bool all_hold_pieces(const void* data, int64_t pitch) {
  return holds_pieces<kPieceElements<T>>(static_cast<const T*>(data), pitch);
}

// Blocks of `block_rows` rows for `per_multiprocessor` of them on each multiprocessor.
unsigned backward_blocks(int64_t rows, int block_rows, int per_multiprocessor = kMostBlocksPerMultiprocessor) {
  const int64_t most = int64_t{std::min(per_multiprocessor, kMostBlocksPerMultiprocessor)} * multiprocessors();
  return static_cast<unsigned>(std::min(most, (rows + block_rows - 1) / block_rows));
}

// As many blocks as run at a time. Returns their number.
template <typename T>
unsigned launch(const GatedOutputBackward& call, Layout layout) {
  const auto kernel = call.delta ? gated_output_backward_kernel<T, true> : gated_output_backward_kernel<T, false>;
  int per_multiprocessor;
  cuda_check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, kernel, layout.threads(), 0),
             "gated_output_backward");
  const unsigned blocks = backward_blocks(call.rows, kUnroll * layout.block_rows, per_multiprocessor);
  kernel<<<blocks, layout.threads(), 0, call.stream>>>(call, layout);
  return blocks;
}

}  // namespace

void gated_output(const GatedOutput& call) {
  if (call.rows == 0) return;
  with_element(call.dtype, [&]<typename T>(T*) {
    if constexpr (sizeof(T) < 8) {
      const Layout layout = layout_of<T>(call.heads, call.head_dim);
      if (layout.row_threads && all_hold_pieces<T>(call.o, 0) && all_hold_pieces<T>(call.gate.data, call.gate.pitch) &&
          all_hold_pieces<T>(call.values, 0) && all_hold_pieces<float>(call.norm, 0)) {
        const int64_t block_rows = int64_t{kUnroll} * layout.block_rows;
        const auto blocks = static_cast<unsigned>((call.rows + block_rows - 1) / block_rows);
        gated_output_kernel<T><<<blocks, layout.threads(), 0, call.stream>>>(call, layout);
        return;
      }
    }
    const auto blocks = static_cast<unsigned>((call.rows * call.heads + kWarps - 1) / kWarps);
    gated_output_any_width<T><<<blocks, dim3(32, kWarps), 0, call.stream>>>(call);
  });
  check_launch("gated_output");
}

size_t gated_output_workspace_bytes(int64_t rows, int64_t heads, int64_t head_dim, Dtype dtype) {
  return backward_blocks(rows, 1) * heads * head_dim * (dtype == Dtype::kFloat64 ? sizeof(double) : sizeof(float));
}

void gated_output_backward(const GatedOutputBackward& call) {
  with_element(call.dtype, [&]<typename T>(T*) {
    unsigned blocks = 0;
    bool launched = call.rows == 0;
    if constexpr (sizeof(T) < 8) {
      const Layout layout = layout_of<T>(call.heads, call.head_dim);
      if (!launched && layout.row_threads && all_hold_pieces<T>(call.o, 0) &&
          all_hold_pieces<T>(call.gate.data, call.gate.pitch) &&
          all_hold_pieces<T>(call.grad_values.data, call.grad_values.pitch) && all_hold_pieces<T>(call.grad_o, 0) &&
          all_hold_pieces<T>(call.residual, 0) && all_hold_pieces<T>(call.grad_gate.data, call.grad_gate.pitch) &&
          all_hold_pieces<float>(call.norm, 0)) {
        blocks = launch<T>(call, layout);
        launched = true;
      }
    }
    if (!launched) {
      blocks = backward_blocks(call.rows, 1);
      const dim3 grid(blocks, static_cast<unsigned>((call.heads + kWarps - 1) / kWarps));
      gated_output_backward_any_width<T><<<grid, dim3(32, kWarps), 0, call.stream>>>(call);
    }
    check_launch("gated_output_backward");
    if (call.norm)
      sum_partials(static_cast<const Wide<T>*>(call.workspace), static_cast<int>(blocks), call.heads * call.head_dim,
                   static_cast<Wide<T>*>(call.grad_norm), call.stream);
  });
}

}  // namespace lethe::layers
