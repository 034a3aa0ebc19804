// The path of 16-byte pieces: a thread has eight columns of a head and marches along a chunk of tokens, so that each product is read once.
#include "optimized/cuda/layers/attention_inputs.cuh"

namespace lethe::layers {
namespace {

using namespace attention_inputs_kernels;

constexpr int kColumns = 8;                              // of a thread
constexpr int kSliceColumns = 32 * kColumns;             // of a warp
constexpr int kForwardTokens = 16, kForwardAhead = 4;    // of a chunk; loaded together
constexpr int kBackwardTokens = 31, kBackwardAhead = 4;  // 31: eight times four with the next chunk's first token

// A thread's place in its row; lanes beyond the last head compute on the first columns and write nothing.
struct Columns {
  int64_t column, head;
  int lane;  // of the head
  bool active;
};

template <int kLanes>
__device__ Columns columns_of(const AttentionInputs& call, unsigned slice) {
  const int lane = threadIdx.x % 32;
  const int64_t column = int64_t{slice} * kSliceColumns + lane * kColumns;
  const bool active = column < call.heads * call.head_dim;
  return {active ? column : lane % kLanes * kColumns, active ? column / (kLanes * kColumns) : 0, lane % kLanes, active};
}

// Rotates by the angle of token t, or back. Entry i is paired with the same register of the lane half a head further.
template <int kLanes>
__device__ void rotate(const AttentionInputs& call, int lane, int64_t t, bool back, float (&x)[kColumns]) {
  const int64_t place = t * (kLanes * kColumns / 2) + lane % (kLanes / 2) * kColumns;
  float cosine[kColumns], sine[kColumns];
  widen(load<kColumns>(static_cast<const float*>(call.cosine) + place), cosine);
  widen(load<kColumns>(static_cast<const float*>(call.sine) + place), sine);
  const float sign = (lane < kLanes / 2) == back ? 1.0f : -1.0f;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const float partner = __shfl_xor_sync(~0u, x[i], kLanes / 2);
    x[i] = x[i] * cosine[i] + sign * (partner * sine[i]);
  }
}

// By single elements: among a model's parameters a weight may begin anywhere.
__device__ void load_weights(const HeadRows& part, const Columns& at, float (&weights)[kColumns]) {
  if (!part.norm) return;
  const float* from = static_cast<const float*>(part.norm) + (part.norm_per_head ? at.column : at.lane * kColumns);
#pragma unroll
  for (int i = 0; i < kColumns; ++i) weights[i] = from[i];
}

// ---- Forward

template <typename T, int kLanes>
__device__ void part_values(const AttentionInputs& call, const HeadRows& part, const Chunk& chunk, const Columns& at) {
  const int64_t row = chunk.first + chunk.begin, pitch = part.product.pitch;
  const T* product = pointer<T>(part.product, row, at.column);
  const T* shift = part.shift.data ? pointer<T>(part.shift, row, at.head) : nullptr;
  T* values = static_cast<T*>(part.values) + row * call.heads * call.head_dim + at.column;
  float weights[kColumns];
  load_weights(part, at, weights);
  Piece<T, kColumns> previous{};
  if (shift && chunk.begin > 0) previous = load<kColumns>(product - pitch);
  for (int first = chunk.begin; first < chunk.end; first += kForwardAhead) {
    Piece<T, kColumns> pieces[kForwardAhead];
    T logits[kForwardAhead];
#pragma unroll
    for (int a = 0; a < kForwardAhead; ++a) {
      if (first + a >= chunk.end) break;
      pieces[a] = load<kColumns>(product + a * pitch);
      if (shift) logits[a] = shift[a * part.shift.pitch];
    }
#pragma unroll
    for (int a = 0; a < kForwardAhead; ++a) {
      if (first + a >= chunk.end) break;
      float x[kColumns];
      widen(pieces[a], x);
      if (shift) {
        const float alpha = sigmoid(widened(logits[a]));
        float before[kColumns];
        widen(previous, before);
#pragma unroll
        for (int i = 0; i < kColumns; ++i) x[i] += alpha * (before[i] - x[i]);
        previous = pieces[a];
      }
      if (part.norm) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < kColumns; ++i) sum += x[i] * x[i];
        const float rstd = rsqrtf(lane_sum(sum, kLanes) / (kLanes * kColumns) + static_cast<float>(call.epsilon));
#pragma unroll
        for (int i = 0; i < kColumns; ++i) x[i] *= rstd * weights[i];
      }
      if (part.rotated) rotate<kLanes>(call, at.lane, first + a, false, x);
      if (at.active) store(narrow<T>(x), values + a * call.heads * call.head_dim);
    }
    product += kForwardAhead * pitch;
    if (shift) shift += kForwardAhead * part.shift.pitch;
    values += kForwardAhead * call.heads * call.head_dim;
  }
}

template <typename T, int kLanes>
__global__ void __launch_bounds__(kThreads, 3) forward_kernel(const __grid_constant__ Plan plan) {
  const Place place = place_of_block(plan);
  const Chunk chunk = chunk_of_warp(plan, place.group);
  if (place.part == 3) return gate_values<T>(plan.call, chunk, place.slice);
  part_values<T, kLanes>(plan.call, plan.call.parts[place.part], chunk, columns_of<kLanes>(plan.call, place.slice));
}

// ---- Backward

// Marches down from the last token, or from the first one of the next chunk for what it sends back. grad_norm: the chunk's sum.
template <typename T, int kLanes>
__device__ void part_gradients(const AttentionInputs& call, const HeadRows& part, const Chunk& chunk, const Columns& at,
                               float (&grad_norm)[kColumns]) {
  constexpr float kShare = 1.0f / (kLanes * kColumns);
  const bool shifted = part.shift.data, reads_product = shifted || part.norm;
  const int last = shifted && chunk.end < call.length ? chunk.end : chunk.end - 1;
  const int least = shifted ? 0 : chunk.begin;  // of the tokens whose products are read
  const int64_t row = chunk.first + last;
  const T* product = reads_product ? pointer<T>(part.product, row, at.column) : nullptr;
  const T* shift = shifted ? pointer<T>(part.shift, row, at.head) : nullptr;
  const T* grad_values = pointer<T>(part.grad_values, row, at.column);
  T* grad_product = pointer<T>(part.grad_product, row, at.column);
  T* grad_shift = shifted ? pointer<T>(part.grad_shift, row, at.head) : nullptr;
  float weights[kColumns], arriving[kColumns] = {};  // α_{t+1} dx_{t+1}
  load_weights(part, at, weights);
  Piece<T, kColumns> now{};
  if (reads_product) now = load<kColumns>(product);
  for (int first = last; first >= chunk.begin; first -= kBackwardAhead) {
    Piece<T, kColumns> gradients[kBackwardAhead], before[kBackwardAhead];
    T logits[kBackwardAhead];
#pragma unroll
    for (int a = 0; a < kBackwardAhead; ++a) {
      before[a] = {};
      if (first - a < chunk.begin) break;
      gradients[a] = load<kColumns>(grad_values - a * part.grad_values.pitch);
      if (reads_product && first - a > least) before[a] = load<kColumns>(product - (a + 1) * part.product.pitch);
      if (shifted) logits[a] = shift[-a * part.shift.pitch];
    }
#pragma unroll
    for (int a = 0; a < kBackwardAhead; ++a) {
      if (first - a < chunk.begin) break;
      const bool own = first - a < chunk.end;
      float dx[kColumns], x[kColumns], change[kColumns], alpha = 0;
      widen(gradients[a], dx);
      if (part.rotated) rotate<kLanes>(call, at.lane, first - a, true, dx);
      widen(now, x);
      if (shifted) {
        alpha = sigmoid(widened(logits[a]));
        widen(before[a], change);
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          change[i] -= x[i];
          x[i] += alpha * change[i];
        }
      }
      if (part.norm) {
        float square = 0, along = 0;
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          square += x[i] * x[i];
          along += x[i] * (weights[i] * dx[i]);
        }
        const float rstd = rsqrtf(lane_sum(square, kLanes) * kShare + static_cast<float>(call.epsilon));
        const float share = rstd * rstd * kShare * lane_sum(along, kLanes);
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          if (own) grad_norm[i] += x[i] * rstd * dx[i];
          dx[i] = rstd * (weights[i] * dx[i] - share * x[i]);
        }
      }
      if (own && at.active) {
        float du[kColumns];
#pragma unroll
        for (int i = 0; i < kColumns; ++i) du[i] = (1 - alpha) * dx[i] + arriving[i];
        store(narrow<T>(du), grad_product - a * part.grad_product.pitch);
      }
      if (shifted) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          sum += dx[i] * change[i];
          arriving[i] = alpha * dx[i];
        }
        sum = lane_sum(sum, kLanes);
        if (own && at.active && at.lane == 0)
          grad_shift[-a * part.grad_shift.pitch] = stored<T>(alpha * (1 - alpha) * sum);
      }
      now = before[a];
    }
    grad_values -= kBackwardAhead * part.grad_values.pitch;
    grad_product -= kBackwardAhead * part.grad_product.pitch;
    if (reads_product) product -= kBackwardAhead * part.product.pitch;
    if (shifted) shift -= kBackwardAhead * part.shift.pitch, grad_shift -= kBackwardAhead * part.grad_shift.pitch;
  }
}

// Of a norm whose weights the heads share, a row for each slice of each group; else a row for each group.
SumsSize sums_size(const Plan& plan, const HeadRows& part) {
  if (part.norm_per_head) return {plan.groups, plan.call.heads * plan.call.head_dim};
  return {plan.groups * plan.slices, plan.call.head_dim};
}

// The sum of the warps' gradients of the norm, into this block's row; where the heads share the weights also over the heads of the slice.
template <int kLanes>
__device__ void add_norm_gradients(const Plan& plan, const Place& place, const Columns& at,
                                   const float (&grad_norm)[kColumns]) {
  constexpr int kHeadDim = kLanes * kColumns;
  const AttentionInputs& call = plan.call;
  const HeadRows& part = call.parts[place.part];
  __shared__ float sums[kWarps][kSliceColumns];
#pragma unroll
  for (int i = 0; i < kColumns; ++i)
    sums[threadIdx.x / 32][threadIdx.x % 32 * kColumns + i] = at.active ? grad_norm[i] : 0;
  __syncthreads();
  const int column = threadIdx.x;
  float total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += sums[w][column];
  float* partials = static_cast<float*>(plan.norm_sums[place.part]);
  if (part.norm_per_head) {
    const int64_t width = call.heads * call.head_dim, of_row = int64_t{place.slice} * kSliceColumns + column;
    if (of_row < width) partials[place.group * width + of_row] = total;
    return;
  }
  sums[0][column] = total;
  __syncthreads();
  if (column >= kHeadDim) return;
#pragma unroll
  for (int other = column + kHeadDim; other < kSliceColumns; other += kHeadDim) total += sums[0][other];
  partials[(int64_t{place.group} * plan.slices + place.slice) * kHeadDim + column] = total;
}

template <typename T, int kLanes>
__global__ void __launch_bounds__(kThreads, 2) backward_kernel(const __grid_constant__ Plan plan) {
  static_assert(kThreads == kSliceColumns);
  const Place place = place_of_block(plan);
  const Chunk chunk = chunk_of_warp(plan, place.group);
  if (place.part == 3) return gate_gradients<T>(plan, chunk, place);
  const HeadRows& part = plan.call.parts[place.part];
  const Columns at = columns_of<kLanes>(plan.call, place.slice);
  float grad_norm[kColumns] = {};
  if (chunk.begin < chunk.end) part_gradients<T, kLanes>(plan.call, part, chunk, at, grad_norm);
  if (part.norm) add_norm_gradients<kLanes>(plan, place, at, grad_norm);
}

// ---- Calls

template <typename T>
bool holds(const void* data, int64_t pitch) {
  return holds_pieces<kColumns>(static_cast<const T*>(data), pitch);
}

template <typename T>
bool in_pieces(const AttentionInputs& call) {
  bool fits = holds<float>(call.cosine, 0) && holds<float>(call.sine, 0);
  for (const HeadRows& part : call.parts) {
    if (!part.product.data) continue;
    fits = fits && holds<T>(part.product.data, part.product.pitch) && holds<T>(part.values, 0) &&
           holds<T>(part.grad_values.data, part.grad_values.pitch) &&
           holds<T>(part.grad_product.data, part.grad_product.pitch);
  }
  return fits;
}

// work.operator()<T, kLanes>() for a call of 16-byte pieces; false for any other.
template <typename Work>
bool with_pieces(const AttentionInputs& call, const Work& work) {
  const auto of_type = [&]<typename T>(T*) {
    if (!in_pieces<T>(call)) return false;
    switch (call.head_dim) {
      case 16: work.template operator()<T, 2>(); return true;
      case 0:  // the gate alone
      case 32: work.template operator()<T, 4>(); return true;
      case 64: work.template operator()<T, 8>(); return true;
      case 128: work.template operator()<T, 16>(); return true;
      case 256: work.template operator()<T, 32>(); return true;
      default: return false;
    }
  };
  if (call.dtype == Dtype::kBFloat16) return of_type(static_cast<__nv_bfloat16*>(nullptr));
  if (call.dtype == Dtype::kFloat16) return of_type(static_cast<__half*>(nullptr));
  return false;
}

int64_t slices(const AttentionInputs& call) { return (call.heads * call.head_dim + kSliceColumns - 1) / kSliceColumns; }

Plan backward_plan(const AttentionInputs& call, Workspace& workspace) {
  Plan plan = plan_of(call, kBackwardTokens, slices(call));
  take_sums<float>(plan, workspace, [&](const HeadRows& part) { return sums_size(plan, part); });
  return plan;
}

}  // namespace

void attention_inputs(const AttentionInputs& call, cudaStream_t stream) {
  const bool done = with_pieces(call, [&]<typename T, int kLanes>() {
    launch(forward_kernel<T, kLanes>, plan_of(call, kForwardTokens, slices(call)), stream);
  });
  if (!done) elements_forward(call, stream);
}

size_t attention_inputs_workspace_bytes(const AttentionInputs& call) {
  Workspace workspace(nullptr);
  const bool done = with_pieces(call, [&]<typename T, int kLanes>() { backward_plan(call, workspace); });
  return done ? workspace.bytes() : elements_workspace_bytes(call);
}

void attention_inputs_backward(const AttentionInputs& call, void* memory, cudaStream_t stream) {
  const bool done = with_pieces(call, [&]<typename T, int kLanes>() {
    Workspace workspace(memory);
    const Plan plan = backward_plan(call, workspace);
    launch(backward_kernel<T, kLanes>, plan, stream);
    add_up<float>(
        plan, [&](const HeadRows& part) { return sums_size(plan, part); }, stream);
  });
  if (!done) elements_backward(call, memory, stream);
}

}  // namespace lethe::layers
