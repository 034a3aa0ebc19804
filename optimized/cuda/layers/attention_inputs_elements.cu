// The path of single elements: a warp has one head of a chunk of tokens, its lanes every 32nd element.
#include "optimized/cuda/layers/attention_inputs.cuh"
#include "optimized/cuda/query_sums.hpp"

namespace lethe::layers::attention_inputs_kernels {
namespace {

constexpr int kTokens = 32;  // of a chunk

// One head of one sequence.
template <typename T>
struct Head {
  using Number = Wide<T>;

  __device__ Head(const AttentionInputs& call, const HeadRows& part, int64_t first, int64_t head)
      : part(part), first(first), head(head), of_sums(first / call.length * call.heads + head), size(call.head_dim),
        column(head * call.head_dim), half(call.head_dim / 2), epsilon(static_cast<Number>(call.epsilon)),
        weight(static_cast<const Number*>(part.norm)), cosine(static_cast<const Number*>(call.cosine)),
        sine(static_cast<const Number*>(call.sine)) {
    if (part.norm_per_head) weight += column;
  }

  __device__ Number alpha(int64_t t) const {
    return part.shift.data ? sigmoid(widened(*pointer<T>(part.shift, first + t, head))) : Number(0);
  }
  __device__ Number product(int64_t t, int64_t e) const {
    return t < 0 ? Number(0) : widened(*pointer<T>(part.product, first + t, column + e));
  }
  // x, with α of its token
  __device__ Number mixed(int64_t t, int64_t e, Number alpha) const {
    const Number now = product(t, e);
    return part.shift.data ? now + alpha * (product(t - 1, e) - now) : now;
  }
  // g
  __device__ Number gradient(int64_t t, int64_t e) const {
    const QuerySums& sums = part.grad_sums;
    if (!sums.data) return widened(*pointer<T>(part.grad_values, first + t, column + e));
    const int64_t slice = of_sums * sums.slices + t / 64 * (size / 64) + e / 64;
    const int r = t % 64, c = e % 64;
    return sums.scale * sums.data[slice * kSliceFloats + c / 8 * 512 + r / 16 * 128 + r % 8 * 16 + r % 16 / 8 * 2 +
                                  c % 8 / 2 * 4 + c % 2];
  }
  // R_tᵀ g
  __device__ Number turned_back(int64_t t, int64_t e) const {
    const Number own = gradient(t, e);
    if (!part.rotated) return own;
    const bool low = e < half;
    const Number partner = gradient(t, low ? e + half : e - half);
    const int64_t angle = t * half + (low ? e : e - half);
    return own * cosine[angle] + (low ? partner : -partner) * sine[angle];
  }

  const HeadRows& part;
  int64_t first, head, of_sums, size, column, half;
  Number epsilon;
  const Number *weight, *cosine, *sine;
};

template <typename T>
__device__ void values_of(const AttentionInputs& call, const HeadRows& part, const Chunk& chunk, int64_t h) {
  using Number = Wide<T>;
  const Head<T> head(call, part, chunk.first, h);
  const int lane = threadIdx.x % 32;
  for (int64_t t = chunk.begin; t < chunk.end; ++t) {
    const Number alpha = head.alpha(t);
    Number square = 0;
    for (int64_t e = lane; part.norm && e < head.size; e += 32) {
      const Number x = head.mixed(t, e, alpha);
      square += x * x;
    }
    const Number rstd = inverse_root(lane_sum(square) / static_cast<Number>(head.size) + head.epsilon);
    const auto normed = [&](int64_t e) {
      const Number x = head.mixed(t, e, alpha);
      return part.norm ? x * rstd * head.weight[e] : x;
    };
    T* values = static_cast<T*>(part.values) + (chunk.first + t) * call.heads * head.size + head.column;
    for (int64_t e = lane; e < head.size; e += 32) {
      Number y = normed(e);
      if (part.rotated) {
        const bool low = e < head.half;
        const Number partner = normed(low ? e + head.half : e - head.half);
        const int64_t angle = t * head.half + (low ? e : e - head.half);
        y = y * head.cosine[angle] + (low ? -partner : partner) * head.sine[angle];
      }
      values[e] = stored<T>(y);
    }
  }
}

// What a token's dx needs beside its element.
template <typename Number>
struct Statistics {
  Number alpha, rstd, share;  // share = rstd² · mean(x ∘ e)
};

template <typename T>
__device__ Statistics<Wide<T>> statistics(const Head<T>& head, int64_t t) {
  using Number = Wide<T>;
  const Number alpha = head.alpha(t);
  Number square = 0, along = 0;
  for (int64_t e = threadIdx.x % 32; head.weight && e < head.size; e += 32) {
    const Number x = head.mixed(t, e, alpha);
    square += x * x;
    along += x * head.weight[e] * head.turned_back(t, e);
  }
  const Number size = static_cast<Number>(head.size), rstd = inverse_root(lane_sum(square) / size + head.epsilon);
  return {alpha, rstd, rstd * rstd * lane_sum(along) / size};
}

template <typename T>
__device__ Wide<T> mixture_gradient(const Head<T>& head, int64_t t, int64_t e, const Statistics<Wide<T>>& of) {
  const Wide<T> g = head.turned_back(t, e);
  return head.weight ? of.rstd * (head.weight[e] * g - of.share * head.mixed(t, e, of.alpha)) : g;
}

// grad_norm: this warp's row of sums, or null.
template <typename T>
__device__ void gradients_of(const AttentionInputs& call, const HeadRows& part, const Chunk& chunk, int64_t h,
                             Wide<T>* grad_norm) {
  using Number = Wide<T>;
  const Head<T> head(call, part, chunk.first, h);
  const int lane = threadIdx.x % 32;
  for (int64_t e = lane; grad_norm && e < head.size; e += 32) grad_norm[e] = 0;
  const bool shifted = part.shift.data;
  Statistics<Number> next{};
  if (shifted && chunk.end < call.length) next = statistics(head, chunk.end);
  for (int64_t t = chunk.end - 1; t >= chunk.begin; --t) {
    const Statistics<Number> own = statistics(head, t);
    Number change = 0;
    for (int64_t e = lane; e < head.size; e += 32) {
      const Number dx = mixture_gradient(head, t, e, own);
      Number du = (1 - own.alpha) * dx;
      if (shifted && t + 1 < call.length) du += next.alpha * mixture_gradient(head, t + 1, e, next);
      *pointer<T>(part.grad_product, chunk.first + t, head.column + e) = stored<T>(du);
      if (shifted) change += dx * (head.product(t - 1, e) - head.product(t, e));
      if (grad_norm) grad_norm[e] += head.mixed(t, e, own.alpha) * own.rstd * head.turned_back(t, e);
    }
    change = lane_sum(change);
    if (shifted && lane == 0)
      *pointer<T>(part.grad_shift, chunk.first + t, h) = stored<T>(own.alpha * (1 - own.alpha) * change);
    next = own;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) forward_kernel(const __grid_constant__ Plan plan) {
  const Place place = place_of_block(plan);
  const Chunk chunk = chunk_of_warp(plan, place.group);
  if (place.part == 3) return gate_values<T>(plan.call, chunk, place.slice);
  values_of<T>(plan.call, plan.call.parts[place.part], chunk, place.slice);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) backward_kernel(const __grid_constant__ Plan plan) {
  const Place place = place_of_block(plan);
  const Chunk chunk = chunk_of_warp(plan, place.group);
  if (place.part == 3) return gate_gradients<T>(plan, chunk, place);
  const AttentionInputs& call = plan.call;
  const HeadRows& part = call.parts[place.part];
  const int64_t warp = int64_t{place.group} * kWarps + threadIdx.x / 32;
  Wide<T>* sums = static_cast<Wide<T>*>(plan.norm_sums[place.part]);
  gradients_of<T>(call, part, chunk, place.slice,
                  part.norm ? sums + (warp * call.heads + place.slice) * call.head_dim : nullptr);
}

// A row a warp of every head, for a norm of every head; the heads' rows one after the other for one that they share.
SumsSize sums_size(const Plan& plan, const HeadRows& part) {
  const int64_t warps = plan.groups * kWarps, heads = plan.call.heads, head_dim = plan.call.head_dim;
  return part.norm_per_head ? SumsSize{warps, heads * head_dim} : SumsSize{warps * heads, head_dim};
}

template <typename Number>
Plan backward_plan(const AttentionInputs& call, Workspace& workspace) {
  Plan plan = plan_of(call, kTokens, call.heads);
  take_sums<Number>(plan, workspace, [&](const HeadRows& part) { return sums_size(plan, part); });
  return plan;
}

}  // namespace

void elements_forward(const AttentionInputs& call, cudaStream_t stream) {
  with_element(call.dtype,
               [&]<typename T>(T*) { launch(forward_kernel<T>, plan_of(call, kTokens, call.heads), stream); });
}

size_t elements_workspace_bytes(const AttentionInputs& call) {
  Workspace workspace(nullptr);
  with_element(call.dtype, [&]<typename T>(T*) { backward_plan<Wide<T>>(call, workspace); });
  return workspace.bytes();
}

void elements_backward(const AttentionInputs& call, void* memory, cudaStream_t stream) {
  with_element(call.dtype, [&]<typename T>(T*) {
    Workspace workspace(memory);
    const Plan plan = backward_plan<Wide<T>>(call, workspace);
    launch(backward_kernel<T>, plan, stream);
    add_up<Wide<T>>(
        plan, [&](const HeadRows& part) { return sums_size(plan, part); }, stream);
  });
}

}  // namespace lethe::layers::attention_inputs_kernels
