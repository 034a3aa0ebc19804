#pragma once
// What forward and backward of the path of pieces share: a row reaches shared memory in pieces of 16 bytes, some tokens before it is used, and a
// thread computes on four columns in each half of a head: both of every pair that a rotation mixes. Internal to optimized/cuda/layers.

#include "optimized/cuda/layers/attention_inputs.cuh"
#include "optimized/cuda/ptx/address.cuh"
#include "optimized/cuda/ptx/copy_async.cuh"

namespace lethe::layers::attention_inputs_kernels {

constexpr int kHalf = 4, kColumns = 2 * kHalf;  // of a thread: in each half of its head, and in all
constexpr int kSliceColumns = 32 * kColumns;    // of a warp

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

// Rotates a thread's pairs by their angles, or back.
__device__ inline void rotate_by(float4 cosine, float4 sine, bool back, float (&x)[kColumns]) {
  const float cosines[kHalf] = {cosine.x, cosine.y, cosine.z, cosine.w},
              sines[kHalf] = {sine.x, sine.y, sine.z, sine.w};
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float low = x[i], high = x[kHalf + i], turn = back ? -sines[i] : sines[i];
    x[i] = low * cosines[i] - high * turn;
    x[kHalf + i] = high * cosines[i] + low * turn;
  }
}

// The gradient of the norm's input x in place of the output's, and what x adds to the weights' gradient.
template <int kLanes>
__device__ void through_norm(const AttentionInputs& call, const float (&x)[kColumns], const float (&weights)[kColumns],
                             bool own, float (&dx)[kColumns], float (&grad_norm)[kColumns]) {
  constexpr float kShare = 1.0f / Columns<kLanes>::kHeadDim;
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

// What a warp has in shared memory: kRows rows and the angles of a token, stage by stage; α of all tokens.
template <int kLanes, int kRows, int kTokens, int kTokensAtOnce>
struct Ring {
  static constexpr int kStages = kTokensAtOnce;  // tokens in shared memory: the one in use and those copied ahead
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
    rotate_by(cosine[stage][lane], sine[stage][lane], back, x);
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

}  // namespace lethe::layers::attention_inputs_kernels
