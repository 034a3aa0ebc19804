// The path of pieces: a warp marches along a chunk of tokens with a slice of 256 columns.
#include "optimized/cuda/layers/attention_inputs_sums.cuh"

namespace lethe::layers {
namespace {

using namespace attention_inputs_kernels;

constexpr int kForwardTokens = 8, kForwardBlocks = 8;     // of a chunk; of an SM
constexpr int kBackwardTokens = 31, kBackwardBlocks = 4;  // 32 with the next chunk's first token
static_assert(kBackwardTokens <= kSumTokens);

// ---- Forward

template <int kLanes>
using ForwardRing = Ring<kLanes, 1, kForwardTokens, 4>;

template <typename T, int kLanes, bool kShifted, bool kNormed, bool kRotated>
__device__ void part_values(const AttentionInputs& call, const HeadRows& part, const Chunk& chunk, unsigned slice,
                            ForwardRing<kLanes>& ring) {
  constexpr int kStages = ForwardRing<kLanes>::kStages, kAhead = kStages - 1;
  const Columns<kLanes> at(call, slice);
  const bool copies = int64_t{slice} * kSliceColumns + threadIdx.x % 32 * kColumns < call.heads * at.kHeadDim;
  const T* products = pointer<T>(part.product, chunk.first, int64_t{slice} * kSliceColumns);
  const auto copy_token = [&](int t) {
    if (t < chunk.end) {
      ring.copy_row(t % kStages, 0, products + t * part.product.pitch, copies);
      if (kRotated) ring.copy_angles(t % kStages, call, t);
    }
    ptx::copies_commit();
  };
#pragma unroll
  for (int a = 0; a < kAhead; ++a) copy_token(chunk.begin + a);

  float weights[kColumns], previous[kColumns] = {};
  if (kNormed) load_weights(part, at, weights);
  if (kShifted) {
    ring.template read_alphas<T>(call, part, chunk, chunk.end - 1, slice);
    if (at.active && chunk.begin > 0)
      load_columns<kLanes>(pointer<T>(part.product, chunk.first + chunk.begin - 1, at.column), previous);
  }
  const int64_t width = call.heads * at.kHeadDim;
  T* values = static_cast<T*>(part.values) + (chunk.first + chunk.begin) * width + at.column;
  for (int t = chunk.begin; t < chunk.end; ++t, values += width) {
    const int stage = t % kStages;
    ptx::copies_wait<kAhead - 1>();
    __syncwarp();
    copy_token(t + kAhead);
    float x[kColumns];
    ring.template read_row<T>(stage, 0, at, x);
    if (kShifted) {
      const float alpha = ring.alphas[t - chunk.begin][at.slice_head];
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const float now = x[i];
        x[i] += alpha * (previous[i] - now);
        previous[i] = now;
      }
    }
    if (kNormed) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) sum += x[i] * x[i];
      const float rstd = rsqrtf(lane_sum(sum, kLanes) / at.kHeadDim + static_cast<float>(call.epsilon));
#pragma unroll
      for (int i = 0; i < kColumns; ++i) x[i] *= rstd * weights[i];
    }
    if (kRotated) ring.rotate(stage, at.lane, false, x);
    if (at.active) store_columns<kLanes>(x, values);
  }
}

template <typename T, int kLanes>
__global__ void __launch_bounds__(kThreads, kForwardBlocks) forward_kernel(const __grid_constant__ Plan plan) {
  __shared__ ForwardRing<kLanes> rings[kWarps];
  const Place place = place_of_block(plan);
  const Chunk chunk = chunk_of_warp(plan, place.group);
  if (chunk.begin == chunk.end) return;
  if (place.part == 3) return gate_values<T>(plan.call, chunk, place.slice);
  const HeadRows& part = plan.call.parts[place.part];
  with_switches(part, [&]<bool kShifted, bool kNormed, bool kRotated>() {
    part_values<T, kLanes, kShifted, kNormed, kRotated>(plan.call, part, chunk, place.slice, rings[threadIdx.x / 32]);
  });
}

// ---- Backward

template <int kLanes>
using BackwardRing = Ring<kLanes, 2, kBackwardTokens + 1, kLanes <= 16 ? 6 : 4>;  // static shared memory ends at 48 KB

// Marches down from the last token, or from the first one of the next chunk for what it sends back. grad_norm: the chunk's sum.
template <typename T, int kLanes, bool kShifted, bool kNormed, bool kRotated>
__device__ void part_gradients(const AttentionInputs& call, const HeadRows& part, const Chunk& chunk, unsigned slice,
                               BackwardRing<kLanes>& ring, float (&grad_norm)[kColumns]) {
  constexpr int kStages = BackwardRing<kLanes>::kStages, kAhead = kStages - 1;
  const Columns<kLanes> at(call, slice);
  const bool copies = int64_t{slice} * kSliceColumns + threadIdx.x % 32 * kColumns < call.heads * at.kHeadDim;
  const T* gradients = pointer<T>(part.grad_values, chunk.first, int64_t{slice} * kSliceColumns);
  const T* products = pointer<T>(part.product, chunk.first, int64_t{slice} * kSliceColumns);
  const int last = kShifted && chunk.end < call.length ? chunk.end : chunk.end - 1;
  const auto copy_token = [&](int t) {
    if (t >= chunk.begin) {
      ring.copy_row(t % kStages, 0, gradients + t * part.grad_values.pitch, copies);
      if (kShifted) ring.copy_row(t % kStages, 1, products + (t - 1) * part.product.pitch, copies && t > 0);
      else if (kNormed) ring.copy_row(t % kStages, 1, products + t * part.product.pitch, copies);
      if (kRotated) ring.copy_angles(t % kStages, call, t);
    }
    ptx::copies_commit();
  };
#pragma unroll
  for (int a = 0; a < kAhead; ++a) copy_token(last - a);

  float weights[kColumns], now[kColumns] = {}, arriving[kColumns] = {};  // u_t; α_{t+1} dx_{t+1}
  if (kNormed) load_weights(part, at, weights);
  if (kShifted) {
    ring.template read_alphas<T>(call, part, chunk, last, slice);
    if (at.active) load_columns<kLanes>(pointer<T>(part.product, chunk.first + last, at.column), now);
  }
  T* grad_product = pointer<T>(part.grad_product, chunk.first + last, at.column);
  for (int t = last; t >= chunk.begin; --t, grad_product -= part.grad_product.pitch) {
    const int stage = t % kStages;
    const bool own = t < chunk.end;
    ptx::copies_wait<kAhead - 1>();
    __syncwarp();
    copy_token(t - kAhead);
    float dx[kColumns], x[kColumns], change[kColumns], alpha = 0;
    ring.template read_row<T>(stage, 0, at, dx);
    if (kRotated) ring.rotate(stage, at.lane, true, dx);
    if (kShifted || kNormed) ring.template read_row<T>(stage, 1, at, x);
    if (kShifted) {
      alpha = ring.alphas[t - chunk.begin][at.slice_head];
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const float before = x[i];
        change[i] = before - now[i];
        x[i] = now[i] + alpha * change[i];
        now[i] = before;
      }
    }
    if (kNormed) through_norm<kLanes>(call, x, weights, own, dx, grad_norm);
    if (own && at.active) {
      float du[kColumns];
#pragma unroll
      for (int i = 0; i < kColumns; ++i) du[i] = (1 - alpha) * dx[i] + arriving[i];
      store_columns<kLanes>(du, grad_product);
    }
    if (kShifted) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        sum += dx[i] * change[i];
        arriving[i] = alpha * dx[i];
      }
      sum = lane_sum(sum, kLanes);
      if (own && at.active && at.lane == 0)
        *pointer<T>(part.grad_shift, chunk.first + t, at.head) = stored<T>(alpha * (1 - alpha) * sum);
    }
  }
}

// Of a norm whose weights the heads share, a row for each slice of each group; else a row for each group.
SumsSize sums_size(const Plan& plan, const HeadRows& part) {
  if (part.norm_per_head) return {plan.groups, plan.call.heads * plan.call.head_dim};
  return {plan.groups * plan.slices, plan.call.head_dim};
}

// The sum of the warps' gradients of the norm, into this block's row; where the heads share the weights also over the heads of the slice.
template <int kLanes>
__device__ void add_norm_gradients(const Plan& plan, const Place& place, const Columns<kLanes>& at,
                                   const float (&grad_norm)[kColumns]) {
  constexpr int kHeadDim = kLanes * kColumns;
  const AttentionInputs& call = plan.call;
  const HeadRows& part = call.parts[place.part];
  __shared__ float sums[kWarps][kSliceColumns];
  const int first = at.slice_head * kHeadDim + at.lane * kHalf;
#pragma unroll
  for (int i = 0; i < kColumns; ++i)
    sums[threadIdx.x / 32][first + i % kHalf + i / kHalf * (kHeadDim / 2)] = at.active ? grad_norm[i] : 0;
  __syncthreads();
  const int columns = part.norm_per_head ? kSliceColumns : kHeadDim;  // of the block's row
  for (int column = threadIdx.x; column < columns; column += kThreads) {
    float total = 0;
    for (int same = column; same < kSliceColumns; same += columns)
#pragma unroll
      for (int w = 0; w < kWarps; ++w) total += sums[w][same];
    float* partials = static_cast<float*>(plan.norm_sums[place.part]);
    if (part.norm_per_head) {
      const int64_t width = call.heads * call.head_dim, of_row = int64_t{place.slice} * kSliceColumns + column;
      if (of_row < width) partials[place.group * width + of_row] = total;
    } else {
      partials[(int64_t{place.group} * plan.slices + place.slice) * kHeadDim + column] = total;
    }
  }
}

// kSums: the query's gradient arrives as sums.
template <typename T, int kLanes, bool kSums>
__global__ void __launch_bounds__(kThreads, kBackwardBlocks) backward_kernel(const __grid_constant__ Plan plan) {
  __shared__ BackwardRing<kLanes> rings[kWarps];
  const Place place = place_of_block(plan);
  const Chunk chunk = chunk_of_warp(plan, place.group);
  if (place.part == 3) return gate_gradients<T>(plan, chunk, place);
  const HeadRows& part = plan.call.parts[place.part];
  float grad_norm[kColumns] = {};
  const bool of_sums = kSums && place.part == 0;
  if constexpr (kSums) {
    if (of_sums) gradients_of_sums<T, kLanes>(plan, part, place, grad_norm);
  }
  if (!of_sums && chunk.begin < chunk.end)
    with_switches(part, [&]<bool kShifted, bool kNormed, bool kRotated>() {
      part_gradients<T, kLanes, kShifted, kNormed, kRotated>(plan.call, part, chunk, place.slice,
                                                             rings[threadIdx.x / 32], grad_norm);
    });
  if (part.norm) add_norm_gradients<kLanes>(plan, place, Columns<kLanes>(plan.call, place.slice), grad_norm);
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
    if constexpr (kLanes == 8 || kLanes == 16) {
      launch(call.parts[0].grad_sums.data ? backward_kernel<T, kLanes, true> : backward_kernel<T, kLanes, false>, plan,
             stream);
    } else {
      launch(backward_kernel<T, kLanes, false>, plan, stream);
    }
    add_up<float>(
        plan, [&](const HeadRows& part) { return sums_size(plan, part); }, stream);
  });
  if (!done) elements_backward(call, memory, stream);
}

}  // namespace lethe::layers
