#include "optimized/cuda/layers/heads.cuh"
#include "optimized/cuda/layers/layers.hpp"

namespace lethe::layers {
namespace {

template <typename T, int V>
__global__ void __launch_bounds__(kHeadThreads) gated_skip_kernel(const __grid_constant__ GatedSkip call) {
  const HeadPlace place = head_place(call.heads);
  if (place.head >= call.heads) return;
  const int64_t width = call.heads * call.head_dim, column_of_head = place.head * call.head_dim;
  const auto *o = static_cast<const T*>(call.o) + column_of_head,
             *x = static_cast<const T*>(call.x.data) + column_of_head,
             *gate = static_cast<const T*>(call.gate.data) + column_of_head;
  T* const values = static_cast<T*>(call.values) + column_of_head;
  const Wide<T> skip = static_cast<const Wide<T>*>(call.skip)[place.head];
  for (int64_t first = place.first; first < call.rows; first += place.step) {
    for (int64_t column = threadIdx.x % 32 * V; column < call.head_dim; column += 32 * V) {
      Piece<T, V> of_o[kHeadRows], of_x[kHeadRows], of_gate[kHeadRows];
#pragma unroll
      for (int r = 0; r < kHeadRows; ++r) {
        const int64_t row = min(first + r, call.rows - 1);
        of_o[r] = load<V>(o + row * width + column);
        of_x[r] = load<V>(x + row * call.x.pitch + column);
        of_gate[r] = load<V>(gate + row * call.gate.pitch + column);
      }
#pragma unroll
      for (int r = 0; r < kHeadRows; ++r) {
        if (first + r >= call.rows) break;
        Wide<T> read[V], given[V], z[V];
        widen(of_o[r], read);
        widen(of_x[r], given);
        widen(of_gate[r], z);
#pragma unroll
        for (int v = 0; v < V; ++v) read[v] = (read[v] + skip * given[v]) * (z[v] * sigmoid(z[v]));
        store(narrow<T>(read), values + (first + r) * width + column);
      }
    }
  }
}

template <typename T, int V>
__global__ void __launch_bounds__(kHeadThreads)
    gated_skip_backward_kernel(const __grid_constant__ GatedSkipBackward call) {
  const HeadPlace place = head_place(call.heads);
  if (place.head >= call.heads) return;
  const int64_t width = call.heads * call.head_dim, column_of_head = place.head * call.head_dim;
  const auto *o = static_cast<const T*>(call.o) + column_of_head,
             *x = static_cast<const T*>(call.x.data) + column_of_head,
             *gate = static_cast<const T*>(call.gate.data) + column_of_head,
             *arriving = static_cast<const T*>(call.grad_values.data) + column_of_head;
  T *const grad_o = static_cast<T*>(call.grad_o) + column_of_head,
           *const grad_x = static_cast<T*>(call.grad_x.data) + column_of_head,
           *const grad_gate = static_cast<T*>(call.grad_gate.data) + column_of_head;
  const Wide<T> skip = static_cast<const Wide<T>*>(call.skip)[place.head];
  Wide<T> grad_skip = 0;
  for (int64_t first = place.first; first < call.rows; first += place.step) {
    for (int64_t column = threadIdx.x % 32 * V; column < call.head_dim; column += 32 * V) {
      Piece<T, V> of_o[kHeadRows], of_x[kHeadRows], of_gate[kHeadRows], gradients[kHeadRows];
#pragma unroll
      for (int r = 0; r < kHeadRows; ++r) {
        const int64_t row = min(first + r, call.rows - 1);
        of_o[r] = load<V>(o + row * width + column);
        of_x[r] = load<V>(x + row * call.x.pitch + column);
        of_gate[r] = load<V>(gate + row * call.gate.pitch + column);
        gradients[r] = load<V>(arriving + row * call.grad_values.pitch + column);
      }
#pragma unroll
      for (int r = 0; r < kHeadRows; ++r) {
        const int64_t row = first + r;
        if (row >= call.rows) break;
        Wide<T> read[V], given[V], z[V], dy[V], dx[V];
        widen(of_o[r], read);
        widen(of_x[r], given);
        widen(of_gate[r], z);
        widen(gradients[r], dy);
#pragma unroll
        for (int v = 0; v < V; ++v) {
          const Wide<T> open = sigmoid(z[v]), silu = z[v] * open;
          z[v] = dy[v] * (read[v] + skip * given[v]) * (open + silu * (1 - open));
          dy[v] *= silu;
          dx[v] = skip * dy[v];
          grad_skip += dy[v] * given[v];
        }
        store(narrow<T>(dy), grad_o + row * width + column);
        store(narrow<T>(dx), grad_x + row * call.grad_x.pitch + column);
        store(narrow<T>(z), grad_gate + row * call.grad_gate.pitch + column);
      }
    }
  }
  const Wide<T> sum = lane_sum(grad_skip);
  if (threadIdx.x % 32 == 0)
    static_cast<Wide<T>*>(call.workspace)[place.first / kHeadRows * call.heads + place.head] = sum;
}

}  // namespace

void gated_skip(const GatedSkip& call) {
  if (call.rows == 0 || call.heads == 0 || call.head_dim == 0) return;
  with_element(call.dtype, [&]<typename T>(T*) {
    const auto fits = [&](auto v) {
      return holds_pieces<v()>(static_cast<const T*>(call.o), 0) &&
             holds_pieces<v()>(static_cast<const T*>(call.x.data), call.x.pitch) &&
             holds_pieces<v()>(static_cast<const T*>(call.gate.data), call.gate.pitch) &&
             holds_pieces<v()>(static_cast<const T*>(call.values), 0);
    };
    with_head_piece(call.head_dim, fits, [&]<int V>() {
      gated_skip_kernel<T, V><<<head_blocks(call.rows, call.heads).blocks, kHeadThreads, 0, call.stream>>>(call);
    });
  });
  check_launch("gated_skip");
}

size_t gated_skip_workspace_bytes(int64_t rows, int64_t heads, Dtype dtype) {
  return head_blocks(rows, heads).parts * heads * (dtype == Dtype::kFloat64 ? sizeof(double) : sizeof(float));
}

void gated_skip_backward(const GatedSkipBackward& call) {
  if (call.heads == 0) return;
  with_element(call.dtype, [&]<typename T>(T*) {
    const auto fits = [&](auto v) {
      return holds_pieces<v()>(static_cast<const T*>(call.o), 0) &&
             holds_pieces<v()>(static_cast<const T*>(call.x.data), call.x.pitch) &&
             holds_pieces<v()>(static_cast<const T*>(call.gate.data), call.gate.pitch) &&
             holds_pieces<v()>(static_cast<const T*>(call.grad_values.data), call.grad_values.pitch) &&
             holds_pieces<v()>(static_cast<const T*>(call.grad_o), 0) &&
             holds_pieces<v()>(static_cast<const T*>(call.grad_x.data), call.grad_x.pitch) &&
             holds_pieces<v()>(static_cast<const T*>(call.grad_gate.data), call.grad_gate.pitch);
    };
    const HeadBlocks blocks = head_blocks(call.rows, call.heads);
    with_head_piece(call.head_dim, fits, [&]<int V>() {
      gated_skip_backward_kernel<T, V><<<blocks.blocks, kHeadThreads, 0, call.stream>>>(call);
    });
    check_launch("gated_skip_backward");
    sum_partials(static_cast<const Wide<T>*>(call.workspace), static_cast<int>(blocks.parts), call.heads,
                 static_cast<Wide<T>*>(call.grad_skip), call.stream);
  });
}

}  // namespace lethe::layers
