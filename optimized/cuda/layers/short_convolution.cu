#include <algorithm>

#include "optimized/cuda/layers/layers.hpp"
#include "optimized/cuda/layers/row.cuh"

namespace lethe::layers {
namespace {

// A block: 32 pieces of V channels, and 8 runs of consecutive tokens, one a warp. A thread walks along its run with the last tokens in registers.
constexpr int kLanes = 32, kRuns = 8, kThreads = kLanes * kRuns;
constexpr int kForwardRun = 16, kBackwardRun = 32;
constexpr int kForwardAhead = 8, kBackwardAhead = 4;  // tokens whose loads are in flight

// Elements of a piece: the forward holds 2·W of them a thread in registers, the backward 4·W.
template <typename T>
constexpr int kChannels = sizeof(T) == 8 ? 2 : 4;

// What a thread computes: sequence, first token, first channel.
struct Place {
  int64_t batch, begin, channel;
  int64_t part;  // of the tokens of all sequences
};
template <int V>
__device__ Place place_of(int run, unsigned piece_blocks, unsigned token_blocks) {
  const unsigned part = blockIdx.x / piece_blocks, batch = part / token_blocks;
  return {batch, (int64_t{part - batch * token_blocks} * kRuns + threadIdx.y) * run,
          (int64_t{blockIdx.x - part * piece_blocks} * kLanes + threadIdx.x) * V, part};
}

// Token t of a place; tokens before the first are the state's, all others zeros.
template <int V, int W, typename T>
__device__ Piece<T, V> load_token(const ShortConvolution& call, const Place& at, int64_t t) {
  if (t >= 0)
    return load_if<V>(t < call.length,
                      static_cast<const T*>(call.x.data) + (at.batch * call.length + t) * call.x.pitch + at.channel);
  const int64_t row = at.batch * (W - 1) + t + W - 1;
  return load_if<V>(call.state, static_cast<const T*>(call.state) + row * call.channels + at.channel);
}

template <int V, int W, typename Number>
__device__ void load_weights(const ShortConvolution& call, int64_t channel, Number (&weight)[W][V], Number (&bias)[V]) {
#pragma unroll
  for (int v = 0; v < V; ++v) {
#pragma unroll
    for (int i = 0; i < W; ++i) weight[i][v] = static_cast<const Number*>(call.weight)[(channel + v) * W + i];
    bias[v] = call.bias ? static_cast<const Number*>(call.bias)[channel + v] : Number(0);
  }
}

template <int V, int W, typename T>
__global__ void __launch_bounds__(kThreads) short_convolution_kernel(const __grid_constant__ ShortConvolution call,
                                                                     unsigned piece_blocks, unsigned token_blocks) {
  using Number = Wide<T>;
  const Place at = place_of<V>(kForwardRun, piece_blocks, token_blocks);
  if (at.channel >= call.channels || at.begin >= call.length) return;
  Number weight[W][V], bias[V], x[W][V];
  load_weights<V, W>(call, at.channel, weight, bias);
#pragma unroll
  for (int i = 1; i < W; ++i) widen(load_token<V, W, T>(call, at, at.begin - W + i), x[i]);
  for (int64_t first = at.begin; first < at.begin + kForwardRun && first < call.length; first += kForwardAhead) {
    Piece<T, V> ahead[kForwardAhead];
#pragma unroll
    for (int a = 0; a < kForwardAhead; ++a) ahead[a] = load_token<V, W, T>(call, at, first + a);
#pragma unroll
    for (int a = 0; a < kForwardAhead; ++a) {
      const int64_t t = first + a;
      Number u[V];
#pragma unroll
      for (int v = 0; v < V; ++v) {
#pragma unroll
        for (int i = 1; i < W; ++i) x[i - 1][v] = x[i][v];
      }
      widen(ahead[a], x[W - 1]);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        u[v] = bias[v];
#pragma unroll
        for (int i = 0; i < W; ++i) u[v] += weight[i][v] * x[i][v];
        if (call.silu) u[v] *= sigmoid(u[v]);
      }
      if (t < call.length)
        store(narrow<T>(u), static_cast<T*>(call.values) + (at.batch * call.length + t) * call.channels + at.channel);
    }
  }
}

// Adds the sums of a block's runs in their order and writes them as partial sum number `part`: of weights [parts, C·W], then of biases [parts, C].
template <int V, int W, typename Number>
__device__ void write_partials(const ShortConvolution& call, const Place& at, const Number (&grad_weight)[W][V],
                               const Number (&grad_bias)[V], int64_t parts, Number* partials) {
  constexpr int kColumns = kLanes * V;
  __shared__ Number sums[kRuns][kColumns * (W + 1)];
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const int column = threadIdx.x * V + v;
#pragma unroll
    for (int i = 0; i < W; ++i) sums[threadIdx.y][column * W + i] = grad_weight[i][v];
    sums[threadIdx.y][kColumns * W + column] = grad_bias[v];
  }
  __syncthreads();
  const int64_t first = at.channel - int64_t{threadIdx.x} * V;
  const int64_t columns = min(int64_t{kColumns}, call.channels - first);
  for (int n = threadIdx.y * kLanes + threadIdx.x; n < kColumns * (W + 1); n += kThreads) {
    Number sum = sums[0][n];
#pragma unroll
    for (int run = 1; run < kRuns; ++run) sum += sums[run][n];
    const int of_bias = n - kColumns * W;
    if (of_bias < 0) {
      if (n < columns * W) partials[(at.part * call.channels + first) * W + n] = sum;
    } else if (of_bias < columns) {
      partials[parts * call.channels * W + at.part * call.channels + first + of_bias] = sum;
    }
  }
}

template <int V, int W, typename T>
__global__ void __launch_bounds__(kThreads)
    short_convolution_backward_kernel(const __grid_constant__ ShortConvolutionBackward call, unsigned piece_blocks,
                                      unsigned token_blocks, int64_t parts) {
  using Number = Wide<T>;
  const ShortConvolution& of = call.forward;
  const Place at = place_of<V>(kBackwardRun, piece_blocks, token_blocks);
  Number grad_weight[W][V] = {}, grad_bias[V] = {};
  if (at.channel < of.channels && at.begin < of.length) {
    Number weight[W][V], bias[V], x[W][V], du[W][V] = {};
    load_weights<V, W>(of, at.channel, weight, bias);
#pragma unroll
    for (int i = 1; i < W; ++i) widen(load_token<V, W, T>(of, at, at.begin - W + i), x[i]);
    const int64_t end = at.begin + kBackwardRun;  // tokens up to end + W − 1 read those of this run
    for (int64_t first = at.begin; first < end + W - 1 && first < of.length + W - 1; first += kBackwardAhead) {
      Piece<T, V> ahead[kBackwardAhead], arriving[kBackwardAhead];
#pragma unroll
      for (int a = 0; a < kBackwardAhead; ++a) {
        const int64_t t = first + a;
        ahead[a] = load_token<V, W, T>(of, at, t);
        arriving[a] = load_if<V>(t < of.length, static_cast<const T*>(call.grad_values.data) +
                                                    (at.batch * of.length + t) * call.grad_values.pitch + at.channel);
      }
#pragma unroll
      for (int a = 0; a < kBackwardAhead; ++a) {
        const int64_t t = first + a;
        const bool owned = t < end;
        Number gradient[V];
#pragma unroll
        for (int v = 0; v < V; ++v) {
#pragma unroll
          for (int i = 1; i < W; ++i) {
            x[i - 1][v] = x[i][v];
            du[i - 1][v] = du[i][v];
          }
        }
        widen(ahead[a], x[W - 1]);
        widen(arriving[a], du[W - 1]);  // zero beyond the last token
#pragma unroll
        for (int v = 0; v < V; ++v) {
          Number u = bias[v];
#pragma unroll
          for (int i = 0; i < W; ++i) u += weight[i][v] * x[i][v];
          if (of.silu) {
            const Number share = sigmoid(u);
            du[W - 1][v] *= share * (1 + u * (1 - share));
          }
          if (owned) {
#pragma unroll
            for (int i = 0; i < W; ++i) grad_weight[i][v] += du[W - 1][v] * x[i][v];
            grad_bias[v] += du[W - 1][v];
          }
          gradient[v] = 0;  // of token t − W + 1
#pragma unroll
          for (int i = 0; i < W; ++i) gradient[v] += weight[i][v] * du[W - 1 - i][v];
        }
        const int64_t to = t - (W - 1);
        if (to >= at.begin && to < end && to < of.length)
          store(narrow<T>(gradient),
                static_cast<T*>(call.grad_x.data) + (at.batch * of.length + to) * call.grad_x.pitch + at.channel);
        if (to < 0 && call.grad_state)  // in the first run only
          store(narrow<T>(gradient),
                static_cast<T*>(call.grad_state) + (at.batch * (W - 1) + t) * of.channels + at.channel);
      }
    }
  }
  write_partials<V, W>(of, at, grad_weight, grad_bias, parts, static_cast<Number*>(call.workspace));
}

// Blocks of a launch.
struct Grid {
  unsigned piece_blocks, token_blocks;
  int64_t parts, blocks;
};
Grid grid_of(const ShortConvolution& call, int piece, int run) {
  const int64_t columns = int64_t{kLanes} * piece, tokens = int64_t{kRuns} * run;
  const int64_t of_channels = (call.channels + columns - 1) / columns, of_tokens = (call.length + tokens - 1) / tokens;
  return {static_cast<unsigned>(of_channels), static_cast<unsigned>(of_tokens), call.batch * of_tokens,
          call.batch * of_tokens * of_channels};
}

// work(integral constant W) for the width of a call.
template <int W>
struct OfWidth {};
template <typename Work>
void with_width(int width, const Work& work) {
  if (width == 2) work(OfWidth<2>());
  if (width == 3) work(OfWidth<3>());
  if (width == 4) work(OfWidth<4>());
}

template <int V, typename T>
bool holds_pieces_of(const ShortConvolution& call) {
  return call.channels % V == 0 && holds_pieces<V>(static_cast<const T*>(call.x.data), call.x.pitch) &&
         holds_pieces<V>(static_cast<const T*>(call.state), 0);
}

template <int V, typename T>
void forward(const ShortConvolution& call) {
  const Grid grid = grid_of(call, V, kForwardRun);
  with_width(call.width, [&]<int W>(OfWidth<W>) {
    short_convolution_kernel<V, W, T><<<static_cast<unsigned>(grid.blocks), dim3(kLanes, kRuns), 0, call.stream>>>(
        call, grid.piece_blocks, grid.token_blocks);
  });
  check_launch("short_convolution");
}

template <int V, typename T>
void backward(const ShortConvolutionBackward& call) {
  const ShortConvolution& of = call.forward;
  const Grid grid = grid_of(of, V, kBackwardRun);
  if (grid.blocks > 0) {
    with_width(of.width, [&]<int W>(OfWidth<W>) {
      short_convolution_backward_kernel<V, W, T>
          <<<static_cast<unsigned>(grid.blocks), dim3(kLanes, kRuns), 0, of.stream>>>(call, grid.piece_blocks,
                                                                                      grid.token_blocks, grid.parts);
    });
    check_launch("short_convolution_backward");
  }
  using Number = Wide<T>;
  const auto* partials = static_cast<const Number*>(call.workspace);
  const int64_t weights = of.channels * of.width;
  const int parts = static_cast<int>(grid.parts);
  sum_partials<Number>({{partials, parts, weights, static_cast<Number*>(call.grad_weight)},
                        {partials + grid.parts * weights, parts, call.grad_bias ? of.channels : 0,
                         static_cast<Number*>(call.grad_bias)}},
                       of.stream);
}

}  // namespace

void short_convolution(const ShortConvolution& call) {
  if (call.batch == 0 || call.length == 0 || call.channels == 0) return;
  with_element(call.dtype, [&]<typename T>(T*) {
    constexpr int V = kChannels<T>;
    const bool piecewise = holds_pieces_of<V, T>(call) && holds_pieces<V>(static_cast<const T*>(call.values), 0);
    piecewise ? forward<V, T>(call) : forward<1, T>(call);
  });
}

size_t short_convolution_workspace_bytes(const ShortConvolution& call) {
  const size_t number = call.dtype == Dtype::kFloat64 ? sizeof(double) : sizeof(float);
  return static_cast<size_t>(grid_of(call, 1, kBackwardRun).parts * call.channels * (call.width + 1)) * number;
}

void short_convolution_backward(const ShortConvolutionBackward& call) {
  if (call.forward.channels == 0) return;
  with_element(call.forward.dtype, [&]<typename T>(T*) {
    constexpr int V = kChannels<T>;
    const bool piecewise = holds_pieces_of<V, T>(call.forward) &&
                           holds_pieces<V>(static_cast<const T*>(call.grad_values.data), call.grad_values.pitch) &&
                           holds_pieces<V>(static_cast<const T*>(call.grad_x.data), call.grad_x.pitch) &&
                           holds_pieces<V>(static_cast<const T*>(call.grad_state), 0);
    piecewise ? backward<V, T>(call) : backward<1, T>(call);
  });
}

}  // namespace lethe::layers
