#include <algorithm>

#include "optimized/cuda/layers/layers.hpp"
#include "optimized/cuda/layers/row.cuh"

namespace lethe::layers {
namespace {

constexpr int kThreads = 256, kUnroll = 2;  // pieces a thread
constexpr uint32_t kBlockItems = kThreads * kUnroll;

// Item n of a launch is piece n mod `pieces` of row n / `pieces`.
struct Item {
  uint32_t row, piece;
};
__device__ Item item(uint32_t index, uint32_t pieces) {
  const uint32_t row = index / pieces;
  return {row, index - row * pieces};
}

template <int V, typename T>
__global__ void __launch_bounds__(kThreads) swiglu_kernel(const T* __restrict__ gate_and_up, int64_t pitch,
                                                          uint32_t pieces, uint32_t items, T* __restrict__ values) {
  const uint32_t first = blockIdx.x * kBlockItems + threadIdx.x;
  Piece<T, V> gate[kUnroll], up[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const uint32_t index = first + u * kThreads;
    if (index >= items) break;
    const auto [row, piece] = item(index, pieces);
    const T* from = gate_and_up + row * pitch + int64_t{piece} * V;
    gate[u] = load<V>(from);
    up[u] = load<V>(from + int64_t{pieces} * V);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const uint32_t index = first + u * kThreads;
    if (index >= items) break;
    Wide<T> a[V], b[V];
    widen(gate[u], a);
    widen(up[u], b);
#pragma unroll
    for (int i = 0; i < V; ++i) a[i] = a[i] * sigmoid(a[i]) * b[i];
    store(narrow<T>(a), values + int64_t{index} * V);
  }
}

template <int V, typename T>
__global__ void __launch_bounds__(kThreads)
    swiglu_backward_kernel(const T* __restrict__ grad_values, int64_t grad_pitch, const T* __restrict__ gate_and_up,
                           int64_t pitch, uint32_t pieces, uint32_t items, T* __restrict__ grad_gate_and_up) {
  const uint32_t first = blockIdx.x * kBlockItems + threadIdx.x;
  const int64_t width = int64_t{pieces} * V;
  Piece<T, V> gate[kUnroll], up[kUnroll], grad[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const uint32_t index = first + u * kThreads;
    if (index >= items) break;
    const auto [row, piece] = item(index, pieces);
    const T* from = gate_and_up + row * pitch + int64_t{piece} * V;
    gate[u] = load<V>(from);
    up[u] = load<V>(from + width);
    grad[u] = load<V>(grad_values + row * grad_pitch + int64_t{piece} * V);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const uint32_t index = first + u * kThreads;
    if (index >= items) break;
    const auto [row, piece] = item(index, pieces);
    Wide<T> a[V], b[V], dh[V];
    widen(gate[u], a);
    widen(up[u], b);
    widen(grad[u], dh);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const Wide<T> share = sigmoid(a[i]), silu = a[i] * share;
      a[i] = dh[i] * b[i] * (share + silu * (1 - share));
      b[i] = dh[i] * silu;
    }
    T* to = grad_gate_and_up + row * (2 * width) + int64_t{piece} * V;
    store(narrow<T>(a), to);
    store(narrow<T>(b), to + width);
  }
}

// work(first row, rows, blocks, items) over parts of the rows whose items 32 bits count.
template <typename Work>
void in_parts(int64_t rows, int64_t pieces, const Work& work) {
  if (pieces == 0) return;
  const int64_t most = std::max<int64_t>(1, ((int64_t{1} << 31) - kBlockItems) / pieces);
  for (int64_t first = 0; first < rows; first += most) {
    const int64_t count = std::min(most, rows - first);
    const auto items = static_cast<uint32_t>(count * pieces);
    work(first, (items + kBlockItems - 1) / kBlockItems, items);
  }
}

template <int V, typename T>
void forward(const Swiglu& call, const T* gate_and_up) {
  const auto pieces = static_cast<uint32_t>(call.width / V);
  in_parts(call.rows, pieces, [&](int64_t first, uint32_t blocks, uint32_t items) {
    swiglu_kernel<V><<<blocks, kThreads, 0, call.stream>>>(gate_and_up + first * call.gate_and_up.pitch,
                                                           call.gate_and_up.pitch, pieces, items,
                                                           static_cast<T*>(call.values) + first * call.width);
    check_launch("swiglu");
  });
}

template <int V, typename T>
void backward(const SwigluBackward& call, const T* gate_and_up, const T* grad_values) {
  const auto pieces = static_cast<uint32_t>(call.width / V);
  in_parts(call.rows, pieces, [&](int64_t first, uint32_t blocks, uint32_t items) {
    swiglu_backward_kernel<V><<<blocks, kThreads, 0, call.stream>>>(
        grad_values + first * call.grad_values.pitch, call.grad_values.pitch,
        gate_and_up + first * call.gate_and_up.pitch, call.gate_and_up.pitch, pieces, items,
        static_cast<T*>(call.grad_gate_and_up) + first * 2 * call.width);
    check_launch("swiglu_backward");
  });
}

}  // namespace

void swiglu(const Swiglu& call) {
  with_element(call.dtype, [&]<typename T>(T*) {
    constexpr int V = kPieceElements<T>;
    const T* given = static_cast<const T*>(call.gate_and_up.data);
    const bool piecewise = call.width % V == 0 && holds_pieces<V>(given, call.gate_and_up.pitch) &&
                           holds_pieces<V>(static_cast<const T*>(call.values), 0);
    piecewise ? forward<V>(call, given) : forward<1>(call, given);
  });
}

void swiglu_backward(const SwigluBackward& call) {
  with_element(call.dtype, [&]<typename T>(T*) {
    constexpr int V = kPieceElements<T>;
    const T *given = static_cast<const T*>(call.gate_and_up.data), *grad = static_cast<const T*>(call.grad_values.data);
    const bool piecewise = call.width % V == 0 && holds_pieces<V>(given, call.gate_and_up.pitch) &&
                           holds_pieces<V>(grad, call.grad_values.pitch) &&
                           holds_pieces<V>(static_cast<const T*>(call.grad_gate_and_up), 0);
    piecewise ? backward<V>(call, given, grad) : backward<1>(call, given, grad);
  });
}

}  // namespace lethe::layers
