#include "optimized/cuda/layers/heads.cuh"
#include "optimized/cuda/layers/layers.hpp"

namespace lethe::layers {
namespace {

template <typename T, int V>
__global__ void __launch_bounds__(kHeadThreads) scaled_heads_kernel(const __grid_constant__ ScaledHeads call) {
  const HeadPlace place = head_place(call.heads);
  if (place.head >= call.heads) return;
  const auto* x = static_cast<const T*>(call.x.data) + place.head * call.head_dim;
  T* const values = static_cast<T*>(call.values) + place.head * call.head_dim;
  const auto* scale = static_cast<const Wide<T>*>(call.scale) + place.head;
  for (int64_t first = place.first; first < call.rows; first += place.step) {
    for (int64_t column = threadIdx.x % 32 * V; column < call.head_dim; column += 32 * V) {
      Piece<T, V> pieces[kHeadRows];
      Wide<T> factors[kHeadRows];
#pragma unroll
      for (int r = 0; r < kHeadRows; ++r) {
        const int64_t row = min(first + r, call.rows - 1);
        pieces[r] = load<V>(x + row * call.x.pitch + column);
        factors[r] = scale[row * call.heads];
      }
#pragma unroll
      for (int r = 0; r < kHeadRows; ++r) {
        if (first + r >= call.rows) break;
        Wide<T> numbers[V];
        widen(pieces[r], numbers);
#pragma unroll
        for (int v = 0; v < V; ++v) numbers[v] *= factors[r];
        store(narrow<T>(numbers), values + (first + r) * call.heads * call.head_dim + column);
      }
    }
  }
}

template <typename T, int V>
__global__ void __launch_bounds__(kHeadThreads)
    scaled_heads_backward_kernel(const __grid_constant__ ScaledHeadsBackward call) {
  const HeadPlace place = head_place(call.heads);
  if (place.head >= call.heads) return;
  const int64_t column_of_head = place.head * call.head_dim;
  const auto *x = static_cast<const T*>(call.x.data) + column_of_head,
             *arriving = static_cast<const T*>(call.grad_values.data) + column_of_head;
  T* const grad_x = static_cast<T*>(call.grad_x.data) + column_of_head;
  const auto* scale = static_cast<const Wide<T>*>(call.scale) + place.head;
  for (int64_t first = place.first; first < call.rows; first += place.step) {
    Wide<T> sums[kHeadRows] = {};
    for (int64_t column = threadIdx.x % 32 * V; column < call.head_dim; column += 32 * V) {
      Piece<T, V> pieces[kHeadRows], gradients[kHeadRows];
      Wide<T> factors[kHeadRows];
#pragma unroll
      for (int r = 0; r < kHeadRows; ++r) {
        const int64_t row = min(first + r, call.rows - 1);
        pieces[r] = load<V>(x + row * call.x.pitch + column);
        gradients[r] = load<V>(arriving + row * call.grad_values.pitch + column);
        factors[r] = scale[row * call.heads];
      }
#pragma unroll
      for (int r = 0; r < kHeadRows; ++r) {
        Wide<T> numbers[V], dy[V];
        widen(pieces[r], numbers);
        widen(gradients[r], dy);
#pragma unroll
        for (int v = 0; v < V; ++v) {
          sums[r] += numbers[v] * dy[v];
          dy[v] *= factors[r];
        }
        if (first + r < call.rows) store(narrow<T>(dy), grad_x + (first + r) * call.grad_x.pitch + column);
      }
    }
#pragma unroll
    for (int r = 0; r < kHeadRows; ++r) {
      const Wide<T> sum = lane_sum(sums[r]);
      if (threadIdx.x % 32 == 0 && first + r < call.rows)
        static_cast<Wide<T>*>(call.grad_scale)[(first + r) * call.heads + place.head] = sum;
    }
  }
}

}  // namespace

void scaled_heads(const ScaledHeads& call) {
  if (call.rows == 0 || call.heads == 0 || call.head_dim == 0) return;
  with_element(call.dtype, [&]<typename T>(T*) {
    const auto fits = [&](auto v) {
      return holds_pieces<v()>(static_cast<const T*>(call.x.data), call.x.pitch) &&
             holds_pieces<v()>(static_cast<const T*>(call.values), 0);
    };
    with_head_piece(call.head_dim, fits, [&]<int V>() {
      scaled_heads_kernel<T, V><<<head_blocks(call.rows, call.heads).blocks, kHeadThreads, 0, call.stream>>>(call);
    });
  });
  check_launch("scaled_heads");
}

void scaled_heads_backward(const ScaledHeadsBackward& call) {
  if (call.rows == 0 || call.heads == 0) return;
  with_element(call.dtype, [&]<typename T>(T*) {
    const auto fits = [&](auto v) {
      return holds_pieces<v()>(static_cast<const T*>(call.x.data), call.x.pitch) &&
             holds_pieces<v()>(static_cast<const T*>(call.grad_values.data), call.grad_values.pitch) &&
             holds_pieces<v()>(static_cast<const T*>(call.grad_x.data), call.grad_x.pitch);
    };
    with_head_piece(call.head_dim, fits, [&]<int V>() {
      scaled_heads_backward_kernel<T, V>
          <<<head_blocks(call.rows, call.heads).blocks, kHeadThreads, 0, call.stream>>>(call);
    });
  });
  check_launch("scaled_heads_backward");
}

}  // namespace lethe::layers
