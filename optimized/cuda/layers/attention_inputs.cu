// The path of pieces: a warp marches along a chunk of tokens with a slice of 256 columns, whose rows reach shared memory in pieces of 16 bytes,
// kAhead tokens early. A thread computes on four columns in each half of a head: both of every pair that a rotation mixes.
#include "optimized/cuda/layers/attention_inputs.cuh"
#include "optimized/cuda/ptx/address.cuh"
#include "optimized/cuda/ptx/copy_async.cuh"

namespace lethe::layers {
namespace {

using namespace attention_inputs_kernels;

constexpr int kHalf = 4, kColumns = 2 * kHalf;            // of a thread: in each half of its head, and in all
constexpr int kSliceColumns = 32 * kColumns;              // of a warp
constexpr int kStages = 4, kAhead = kStages - 1;          // tokens in shared memory; copied before the one in use
constexpr int kForwardTokens = 16, kForwardBlocks = 8;    // of a chunk; of an SM
constexpr int kBackwardTokens = 31, kBackwardBlocks = 4;  // 32 with the next chunk's first token

// A thread's place in its row; lanes beyond the last head compute on zeros and write nothing.
template <int kLanes>
struct Columns {
  static constexpr int kHeadDim = kLanes * kColumns;

  __device__ Columns(const AttentionInputs& call, unsigned slice)
      : lane(threadIdx.x % kLanes), slice_head(threadIdx.x % 32 / kLanes),
        head(int64_t{slice} * (32 / kLanes) + slice_head), column(head * kHeadDim + lane * kHalf),
        active(head < call.heads) {}

  int lane, slice_head;  // of the head; in the slice
  int64_t head, column;  // column: the first of its first half's; the second half's are D/2 after it
  bool active;
};

// What a warp has in shared memory: kRows rows and the angles of a token, stage by stage; α of all tokens.
template <int kLanes, int kRows, int kTokens>
struct Ring {
  uint4 rows[kStages][kRows][32];
  float4 cosine[kStages][kLanes], sine[kStages][kLanes];
  float alphas[kTokens][32 / kLanes];

  // Of heads whose half is shorter than the banks, every other 128 bytes have the halves exchanged: reading a half has no bank conflicts.
  static __device__ int place(int piece) { return piece ^ (kLanes <= 8 ? piece / 8 % 2 * (kLanes / 2) : 0); }

  // Zeros, and nothing is read, unless wanted. from: the slice's first column.
  template <typename T>
  __device__ void copy_row(int stage, int row, const T* from, bool wanted) {
    const int piece = threadIdx.x % 32;
    ptx::copy_chunk(ptx::shared_address(&rows[stage][row][place(piece)]), from + piece * kColumns, wanted);
  }

  __device__ void copy_angles(int stage, const AttentionInputs& call, int t) {
    for (int piece = threadIdx.x % 32; piece < 2 * kLanes; piece += 32) {
      const auto* from = static_cast<const float*>(piece < kLanes ? call.cosine : call.sine);
      float4* to = piece < kLanes ? &cosine[stage][piece] : &sine[stage][piece - kLanes];
      ptx::copy_chunk(ptx::shared_address(to), from + (int64_t{t} * kLanes + piece % kLanes) * kHalf);
    }
  }

  // α of the tokens [begin, last] of a chunk: σ of the shift's logits.
  template <typename T>
  __device__ void read_alphas(const AttentionInputs& call, const HeadRows& part, const Chunk& chunk, int last,
                              unsigned slice) {
    constexpr int kHeads = 32 / kLanes;
    const int head = threadIdx.x % kHeads;
    if (int64_t{slice} * kHeads + head >= call.heads) return;
    const T* logits = pointer<T>(part.shift, chunk.first, int64_t{slice} * kHeads + head);
#pragma unroll
    for (int t = threadIdx.x % 32 / kHeads; t < kTokens; t += kLanes)
      if (chunk.begin + t <= last) alphas[t][head] = sigmoid(widened(logits[(chunk.begin + t) * part.shift.pitch]));
  }

  template <typename T>
  __device__ void read_row(int stage, int row, const Columns<kLanes>& at, float (&x)[kColumns]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int piece = place(at.slice_head * kLanes + half * (kLanes / 2) + at.lane / 2);
      float numbers[kHalf];
      widen(load<kHalf>(reinterpret_cast<const T*>(&rows[stage][row][piece]) + at.lane % 2 * kHalf), numbers);
#pragma unroll
      for (int i = 0; i < kHalf; ++i) x[half * kHalf + i] = numbers[i];
    }
  }

  // Rotates by the angles of a token, or back.
  __device__ void rotate(int stage, int lane, bool back, float (&x)[kColumns]) const {
    const float4 c = cosine[stage][lane], s = sine[stage][lane];
    const float cosines[kHalf] = {c.x, c.y, c.z, c.w}, sines[kHalf] = {s.x, s.y, s.z, s.w};
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float low = x[i], high = x[kHalf + i], sine = back ? -sines[i] : sines[i];
      x[i] = low * cosines[i] - high * sine;
      x[kHalf + i] = high * cosines[i] + low * sine;
    }
  }
};

// A thread's columns of a row in global memory.
template <int kLanes, typename T>
__device__ void load_columns(const T* from, float (&x)[kColumns]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float numbers[kHalf];
    widen(load<kHalf>(from + half * (kLanes * kHalf)), numbers);
#pragma unroll
    for (int i = 0; i < kHalf; ++i) x[half * kHalf + i] = numbers[i];
  }
}
template <int kLanes, typename T>
__device__ void store_columns(const float (&x)[kColumns], T* to) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float numbers[kHalf] = {x[half * kHalf], x[half * kHalf + 1], x[half * kHalf + 2], x[half * kHalf + 3]};
    store(narrow<T>(numbers), to + half * (kLanes * kHalf));
  }
}

// By single elements: among a model's parameters a weight may begin anywhere.
template <int kLanes>
__device__ void load_weights(const HeadRows& part, const Columns<kLanes>& at, float (&weights)[kColumns]) {
  const float* from = static_cast<const float*>(part.norm) + (part.norm_per_head ? at.column : at.lane * kHalf);
#pragma unroll
  for (int i = 0; i < kColumns; ++i) weights[i] = at.active ? from[i % kHalf + i / kHalf * (kLanes * kHalf)] : 0;
}

// work.operator()<kShifted, kNormed, kRotated>() for a part: a loop without the other switches' branches.
template <typename Work>
__device__ void with_switches(const HeadRows& part, const Work& work) {
  const auto with_norm = [&]<bool kShifted, bool kNormed>() {
    if (part.rotated) work.template operator()<kShifted, kNormed, true>();
    else work.template operator()<kShifted, kNormed, false>();
  };
  const auto with_shift = [&]<bool kShifted>() {
    if (part.norm) with_norm.template operator()<kShifted, true>();
    else with_norm.template operator()<kShifted, false>();
  };
  if (part.shift.data) with_shift.template operator()<true>();
  else with_shift.template operator()<false>();
}

// ---- Forward

template <int kLanes>
using ForwardRing = Ring<kLanes, 1, kForwardTokens>;

template <typename T, int kLanes, bool kShifted, bool kNormed, bool kRotated>
__device__ void part_values(const AttentionInputs& call, const HeadRows& part, const Chunk& chunk, unsigned slice,
                            ForwardRing<kLanes>& ring) {
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
using BackwardRing = Ring<kLanes, 2, kBackwardTokens + 1>;

// Marches down from the last token, or from the first one of the next chunk for what it sends back. grad_norm: the chunk's sum.
template <typename T, int kLanes, bool kShifted, bool kNormed, bool kRotated>
__device__ void part_gradients(const AttentionInputs& call, const HeadRows& part, const Chunk& chunk, unsigned slice,
                               BackwardRing<kLanes>& ring, float (&grad_norm)[kColumns]) {
  const Columns<kLanes> at(call, slice);
  constexpr float kShare = 1.0f / at.kHeadDim;
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
    if (kNormed) {
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

template <typename T, int kLanes>
__global__ void __launch_bounds__(kThreads, kBackwardBlocks) backward_kernel(const __grid_constant__ Plan plan) {
  __shared__ BackwardRing<kLanes> rings[kWarps];
  const Place place = place_of_block(plan);
  const Chunk chunk = chunk_of_warp(plan, place.group);
  if (place.part == 3) return gate_gradients<T>(plan, chunk, place);
  const HeadRows& part = plan.call.parts[place.part];
  float grad_norm[kColumns] = {};
  if (chunk.begin < chunk.end)
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
    launch(backward_kernel<T, kLanes>, plan, stream);
    add_up<float>(
        plan, [&](const HeadRows& part) { return sums_size(plan, part); }, stream);
  });
  if (!done) elements_backward(call, memory, stream);
}

}  // namespace lethe::layers
