#include <algorithm>

#include "optimized/cuda/layers/layers.hpp"
#include "optimized/cuda/layers/row.cuh"

namespace lethe::layers {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kBlocksPerMultiprocessor = 2;  // of the backward, each with a partial sum of the weight's gradient

// 16 bytes of the wider of two arrays that are read side by side.
template <typename T, typename R>
constexpr int kVector = std::min(kPieceElements<T>, kPieceElements<R>);

// Sums over the row_threads of a row, a power of two from 32 on, in the order of warps. `slots` has kWarps numbers; two calls in a row need slots of
// their own. The whole block calls it.
template <typename Number>
__device__ Number row_sum(Number number, int row_threads, Number* slots) {
  number = lane_sum(number);
  if (row_threads == 32) return number;
  const int warps = row_threads / 32, first = threadIdx.x / row_threads * warps;
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = number;
  __syncthreads();
  Number total = 0;
  for (int warp = 0; warp < warps; ++warp) total += slots[first + warp];
  return total;
}

// ---- Rows in registers: row_threads threads hold a row, E elements each, as pieces of V elements row_threads pieces apart.

template <typename T, typename R, int E>
__global__ void __launch_bounds__(kThreads, 3) add_rms_norm_kernel(const AddRmsNorm call, int row_threads) {
  constexpr int V = kVector<T, R>, P = E / V;
  __shared__ float slots[kWarps];
  const int lane = threadIdx.x % row_threads, width = static_cast<int>(call.width);
  const int64_t row = int64_t{blockIdx.x} * (kThreads / row_threads) + threadIdx.x / row_threads;
  const int64_t first = row * width;
  Piece<R, V> x[P];
  Piece<T, V> branch[P];
#pragma unroll
  for (int i = 0; i < P; ++i) {
    const int column = (i * row_threads + lane) * V;
    const bool inside = row < call.rows && column < width;
    x[i] = load_if<V>(inside, static_cast<const R*>(call.residual) + first + column);
    branch[i] = load_if<V>(inside && call.branch, static_cast<const T*>(call.branch) + first + column);
  }
  float squares = 0;
#pragma unroll
  for (int i = 0; i < P; ++i) {
    const int column = (i * row_threads + lane) * V;
    float sum[V], added[V];
    widen(x[i], sum);
    if (call.branch) {
      widen(branch[i], added);
#pragma unroll
      for (int v = 0; v < V; ++v) sum[v] += added[v];
      x[i] = narrow<R>(sum);
      widen(x[i], sum);  // the stored numbers, as the gradient sees them
      if (row < call.rows && column < width) store(x[i], static_cast<R*>(call.sum) + first + column);
    }
#pragma unroll
    for (int v = 0; v < V; ++v) squares += sum[v] * sum[v];
  }
  Piece<float, V> weight[P];  // on its way during the sum
#pragma unroll
  for (int i = 0; i < P; ++i) {
    const int column = (i * row_threads + lane) * V;
    weight[i] = load_if<V>(column < width, static_cast<const float*>(call.weight) + column);
  }
  const float rstd = rsqrtf(row_sum(squares, row_threads, slots) / width + static_cast<float>(call.epsilon));
  if (row >= call.rows) return;
  if (lane == 0) static_cast<float*>(call.rstd)[row] = rstd;
#pragma unroll
  for (int i = 0; i < P; ++i) {
    const int column = (i * row_threads + lane) * V;
    float normed[V], factor[V];
    widen(x[i], normed);
    widen(weight[i], factor);
#pragma unroll
    for (int v = 0; v < V; ++v) normed[v] *= rstd * factor[v];
    if (column < width) store(narrow<T>(normed), static_cast<T*>(call.normed) + first + column);
  }
}

// Adds the gradients of a block's groups of row_threads threads in their order and writes them as partial sum number blockIdx.x.
template <int V, int P>
__device__ void write_partial(const float (&grad_weight)[P][V], int row_threads, int width, float* partials) {
  __shared__ float totals[kThreads / 2 * P * V];
  const int lane = threadIdx.x % row_threads, group = threadIdx.x / row_threads, groups = kThreads / row_threads;
  float* const partial = partials + int64_t{blockIdx.x} * width;
  for (int g = 0; g < groups; ++g) {
#pragma unroll
    for (int i = 0; i < P; ++i) {
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const int column = (i * row_threads + lane) * V + v;
        if (group != g || column >= width) continue;
        const float total = g == 0 ? grad_weight[i][v] : totals[column] + grad_weight[i][v];
        (g + 1 < groups ? totals : partial)[column] = total;
      }
    }
    __syncthreads();
  }
}

template <typename T, typename R, int E>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    add_rms_norm_backward_kernel(const AddRmsNormBackward call, int row_threads) {
  constexpr int V = kVector<T, R>, P = E / V;
  __shared__ float slots[2][kWarps];
  const int lane = threadIdx.x % row_threads, width = static_cast<int>(call.width), groups = kThreads / row_threads;
  float grad_weight[P][V] = {};
  int turn = 0;
  for (int64_t block_row = int64_t{blockIdx.x} * groups; block_row < call.rows;
       block_row += int64_t{gridDim.x} * groups) {
    const int64_t row = block_row + threadIdx.x / row_threads, first = row * width;
    Piece<R, V> x[P], grad_sum[P];
    Piece<T, V> grad_normed[P];
#pragma unroll
    for (int i = 0; i < P; ++i) {
      const int column = (i * row_threads + lane) * V;
      const bool inside = row < call.rows && column < width;
      x[i] = load_if<V>(inside, static_cast<const R*>(call.sum) + first + column);
      grad_normed[i] = load_if<V>(inside, static_cast<const T*>(call.grad_normed) + first + column);
      grad_sum[i] = load_if<V>(inside && call.grad_sum, static_cast<const R*>(call.grad_sum) + first + column);
    }
    const float rstd = row < call.rows ? static_cast<const float*>(call.rstd)[row] : 0;
    float product[P][V];  // w ∘ dy
    float dot = 0;
#pragma unroll
    for (int i = 0; i < P; ++i) {
      const int column = (i * row_threads + lane) * V;
      float n[V], dy[V], weight[V];
      widen(x[i], n);
      widen(grad_normed[i], dy);
      widen(load_if<V>(column < width, static_cast<const float*>(call.weight) + column), weight);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        n[v] *= rstd;
        grad_weight[i][v] += n[v] * dy[v];
        product[i][v] = dy[v] * weight[v];
        dot += n[v] * product[i][v];
      }
    }
    const float mean = row_sum(dot, row_threads, slots[turn]) / width;
    turn ^= 1;
    if (row >= call.rows) continue;
#pragma unroll
    for (int i = 0; i < P; ++i) {
      const int column = (i * row_threads + lane) * V;
      if (column >= width) break;
      float n[V], gradient[V];
      widen(x[i], n);
      widen(grad_sum[i], gradient);
#pragma unroll
      for (int v = 0; v < V; ++v) gradient[v] += rstd * (product[i][v] - n[v] * rstd * mean);
      store(narrow<R>(gradient), static_cast<R*>(call.grad_residual) + first + column);
      if (call.grad_branch) store(narrow<T>(gradient), static_cast<T*>(call.grad_branch) + first + column);
    }
  }
  write_partial(grad_weight, row_threads, width, static_cast<float*>(call.workspace));
}

// ---- Any width, in single elements: a block for a row.

template <typename T, typename R>
__global__ void __launch_bounds__(kThreads) add_rms_norm_any_width(const AddRmsNorm call) {
  using Number = Wide<T>;
  __shared__ Number slots[kWarps];
  const int64_t first = int64_t{blockIdx.x} * call.width;
  const R* const residual = static_cast<const R*>(call.residual) + first;
  R* const sum = call.branch ? static_cast<R*>(call.sum) + first : nullptr;
  Number squares = 0;
  for (int64_t column = threadIdx.x; column < call.width; column += kThreads) {
    Number x = widened(residual[column]);
    if (sum) {
      const R rounded = stored<R>(x + widened(static_cast<const T*>(call.branch)[first + column]));
      sum[column] = rounded;
      x = widened(rounded);
    }
    squares += x * x;
  }
  const Number mean = row_sum(squares, kThreads, slots) / call.width;
  const Number rstd = 1 / sqrt(mean + static_cast<Number>(call.epsilon));
  if (threadIdx.x == 0) static_cast<Number*>(call.rstd)[blockIdx.x] = rstd;
  const R* const x = sum ? sum : residual;  // this thread's own elements
  for (int64_t column = threadIdx.x; column < call.width; column += kThreads)
    static_cast<T*>(call.normed)[first + column] =
        stored<T>(widened(x[column]) * rstd * static_cast<const Number*>(call.weight)[column]);
}

template <typename T, typename R>
__global__ void __launch_bounds__(kThreads) add_rms_norm_backward_any_width(const AddRmsNormBackward call) {
  using Number = Wide<T>;
  __shared__ Number slots[2][kWarps];
  Number* const partial = static_cast<Number*>(call.workspace) + blockIdx.x * call.width;
  const Number* const weight = static_cast<const Number*>(call.weight);
  int turn = 0;
  for (int64_t row = blockIdx.x; row < call.rows; row += gridDim.x) {
    const int64_t first = row * call.width;
    const R* const x = static_cast<const R*>(call.sum) + first;
    const T* const dy = static_cast<const T*>(call.grad_normed) + first;
    const Number rstd = static_cast<const Number*>(call.rstd)[row];
    Number dot = 0;
    for (int64_t column = threadIdx.x; column < call.width; column += kThreads) {
      const Number product = widened(x[column]) * rstd * widened(dy[column]);
      partial[column] = row == blockIdx.x ? product : partial[column] + product;
      dot += product * weight[column];
    }
    const Number mean = row_sum(dot, kThreads, slots[turn]) / call.width;
    turn ^= 1;
    for (int64_t column = threadIdx.x; column < call.width; column += kThreads) {
      Number gradient = rstd * (widened(dy[column]) * weight[column] - widened(x[column]) * rstd * mean);
      if (call.grad_sum) gradient += widened(static_cast<const R*>(call.grad_sum)[first + column]);
      static_cast<R*>(call.grad_residual)[first + column] = stored<R>(gradient);
      if (call.grad_branch) static_cast<T*>(call.grad_branch)[first + column] = stored<T>(gradient);
    }
  }
}

// ---- Launches

// How rows lie in registers: elements a thread, threads a row; no threads where they don't.
struct Layout {
  int elements, row_threads;
};
Layout layout_of(int64_t width) {
  for (int row_threads = 32; row_threads <= kThreads; row_threads *= 2) {
    for (int elements : {16, 24}) {
      if (width <= int64_t{elements} * row_threads) return {elements, row_threads};
    }
  }
  return {0, 0};
}

template <int V, typename... T>
bool all_hold_pieces(int64_t width, const T*... arrays) {
  return (holds_pieces<V>(arrays, width) && ...);
}

// work(T*, R*) with the types of branch and residual.
template <typename Work>
void with_elements(Dtype dtype, Dtype residual_dtype, const Work& work) {
  with_element(dtype, [&]<typename T>(T* branch) {
    if (residual_dtype == dtype) work(branch, branch);
    else work(branch, static_cast<Wide<T>*>(nullptr));
  });
}

unsigned backward_blocks(int64_t rows, int groups) {
  const int64_t most = int64_t{kBlocksPerMultiprocessor} * multiprocessors();
  return static_cast<unsigned>(std::min(most, (rows + groups - 1) / groups));
}

template <typename T, typename R>
bool in_registers(const AddRmsNorm& call, Layout layout) {
  if constexpr (sizeof(T) == 8) return false;
  constexpr int V = kVector<T, R>;
  return layout.row_threads != 0 &&
         all_hold_pieces<V>(call.width, static_cast<const T*>(call.branch), static_cast<const T*>(call.normed),
                            static_cast<const R*>(call.residual), static_cast<const R*>(call.sum),
                            static_cast<const float*>(call.weight));
}

template <typename T, typename R>
bool in_registers(const AddRmsNormBackward& call, Layout layout) {
  if constexpr (sizeof(T) == 8) return false;
  constexpr int V = kVector<T, R>;
  return layout.row_threads != 0 &&
         all_hold_pieces<V>(call.width, static_cast<const T*>(call.grad_normed),
                            static_cast<const T*>(call.grad_branch), static_cast<const R*>(call.grad_sum),
                            static_cast<const R*>(call.sum), static_cast<const R*>(call.grad_residual),
                            static_cast<const float*>(call.weight));
}

template <typename T, typename R, int E>
void launch(const AddRmsNorm& call, int row_threads) {
  const int groups = kThreads / row_threads;
  const auto blocks = static_cast<unsigned>((call.rows + groups - 1) / groups);
  add_rms_norm_kernel<T, R, E><<<blocks, kThreads, 0, call.stream>>>(call, row_threads);
}

template <typename T, typename R, int E>
unsigned launch(const AddRmsNormBackward& call, int row_threads) {
  const unsigned blocks = backward_blocks(call.rows, kThreads / row_threads);
  add_rms_norm_backward_kernel<T, R, E><<<blocks, kThreads, 0, call.stream>>>(call, row_threads);
  return blocks;
}

}  // namespace

void add_rms_norm(const AddRmsNorm& call) {
  if (call.rows == 0) return;
  const Layout layout = layout_of(call.width);
  with_elements(call.dtype, call.residual_dtype, [&]<typename T, typename R>(T*, R*) {
    if constexpr (sizeof(T) < 8) {
      if (in_registers<T, R>(call, layout)) {
        layout.elements == 16 ? launch<T, R, 16>(call, layout.row_threads) : launch<T, R, 24>(call, layout.row_threads);
        return;
      }
    }
    add_rms_norm_any_width<T, R><<<static_cast<unsigned>(call.rows), kThreads, 0, call.stream>>>(call);
  });
  check_launch("add_rms_norm");
}

size_t add_rms_norm_workspace_bytes(int64_t rows, int64_t width, Dtype dtype) {
  return backward_blocks(rows, 1) * width * (dtype == Dtype::kFloat64 ? sizeof(double) : sizeof(float));
}

void add_rms_norm_backward(const AddRmsNormBackward& call) {
  const Layout layout = layout_of(call.width);
  with_elements(call.dtype, call.residual_dtype, [&]<typename T, typename R>(T*, R*) {
    unsigned blocks = 0;
    bool launched = call.rows == 0;
    if constexpr (sizeof(T) < 8) {
      if (!launched && in_registers<T, R>(call, layout)) {
        blocks = layout.elements == 16 ? launch<T, R, 16>(call, layout.row_threads)
                                       : launch<T, R, 24>(call, layout.row_threads);
        launched = true;
      }
    }
    if (!launched) {
      blocks = backward_blocks(call.rows, 1);
      add_rms_norm_backward_any_width<T, R><<<blocks, kThreads, 0, call.stream>>>(call);
    }
    check_launch("add_rms_norm_backward");
    sum_partials(static_cast<const Wide<T>*>(call.workspace), static_cast<int>(blocks), call.width,
                 static_cast<Wide<T>*>(call.grad_weight), call.stream);
  });
}

}  // namespace lethe::layers
