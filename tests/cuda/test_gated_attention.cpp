// gated_attention's one backward on a GPU: Δ and the sums of dQ handed over, against the three operators in turn and against float64.
#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

#include <cstdlib>
#include <string>

#include "tests/operator/gated_attention_calls.hpp"
#include "tests/support/torch_gpu.hpp"

namespace lethe {
namespace {

using at::Tensor;

const at::Device kGpu(at::kCUDA);

// With LETHE_AS_A100=1 in the environment the library runs there what an A100 runs.
bool on_hopper() {
  const char* as_a100 = std::getenv("LETHE_AS_A100");
  return at::cuda::getCurrentDeviceProperties()->major == 9 && !std::getenv("LETHE_KERNELS") &&
         !(as_a100 && std::string(as_a100) == "1");
}

class GatedAttentionOnCuda : public testing::Test {
 protected:
  // One order of the sums of dQ; and new memory holds NaN.
  void SetUp() override { at::globalContext().setDeterministicAlgorithms(true, false); }
  void TearDown() override { at::globalContext().setDeterministicAlgorithms(false, false); }
};

Named leaves_on_gpu(const LayerSwitches& s, at::ScalarType dtype) {
  Named leaves = random_leaves(s, dtype);
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  for (auto& [name, leaf] : leaves)
    leaf = leaf.to(kGpu, name == "product" || name == "output" ? dtype : wide).set_requires_grad(true);
  return leaves;
}

// All switches; lengths and heads that leave tiles, slices and chunks partly filled; head dims that fill no instance, the last of padded rows.
std::vector<LayerSwitches> all_switches() {
  std::vector<LayerSwitches> all;
  for (const int64_t head_dim : {64, 128}) {
    for (const LayerSwitches& s : layer_switches()) all.push_back(s), all.back().head_dim = head_dim;
    for (const int64_t length : {1, 8, 9, 31, 32, 33, 64, 65, 129, 700})
      all.push_back({.rotation = length % 2 == 0,
                     .batch = 1 + length % 3,
                     .length = length,
                     .heads = 1 + length % 5,
                     .head_dim = head_dim});
  }
  for (const int64_t head_dim : {32, 96, 20, 256}) all.push_back({.rotation = true, .head_dim = head_dim});
  return all;
}

// Of one key: the query's gradient is 0 but for rounding.
bool is_noise(const LayerSwitches& s, const std::string& name) {
  return s.length == 1 && (name == "query" || name == "query_norm");
}

TEST_F(GatedAttentionOnCuda, HandsOverWhereKernelsCan) {
  LETHE_NEEDS_TORCH_GPU();
  for (const LayerSwitches& s : all_switches()) {
    SCOPED_TRACE(s.name());
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat, at::kDouble}) {
      const Named leaves = leaves_on_gpu(s, dtype);
      const Handover found = hands_over(call_on(s, leaves));
      const bool by_kernels = dtype != at::kDouble && (dtype != at::kFloat || s.head_dim <= 128);
      EXPECT_EQ(found.delta, by_kernels && (s.output_gate || s.output_norm)) << dtype;
      const bool by_hopper =
          on_hopper() && (dtype == at::kBFloat16 || dtype == at::kHalf) && (s.head_dim == 64 || s.head_dim == 128);
      EXPECT_EQ(found.query_sums, by_hopper && (s.norm || s.rotation)) << dtype;
    }
  }
}

TEST_F(GatedAttentionOnCuda, GradientsAreAsExactAsOfTheThreeInTurn) {
  LETHE_NEEDS_TORCH_GPU();
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const LayerSwitches& s : all_switches()) {
      SCOPED_TRACE(std::string(toString(dtype)) + " " + s.name());
      const Named leaves = random_leaves(s, dtype), exact = results_of(s, leaves, at::kDouble, at::kCPU, three_in_turn),
                  in_turn = results_of(s, leaves, dtype, kGpu, three_in_turn),
                  found = results_of(s, leaves, dtype, kGpu, gated_attention);
      for (size_t i = 0; i < exact.size(); ++i) {
        if (is_noise(s, exact[i].first)) continue;
        const double own = relative_difference(found[i].second, exact[i].second),
                     other = relative_difference(in_turn[i].second, exact[i].second);
        EXPECT_LE(own, 1.1 * other + 1e-5) << exact[i].first;
      }
    }
  }
}

TEST_F(GatedAttentionOnCuda, AllButTheQuerysGradientsKeepTheirBits) {
  LETHE_NEEDS_TORCH_GPU();
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const double rounding = dtype == at::kHalf ? 1e-3 : 8e-3;
    for (const LayerSwitches& s : all_switches()) {
      SCOPED_TRACE(std::string(toString(dtype)) + " " + s.name());
      const Named leaves = random_leaves(s, dtype), in_turn = results_of(s, leaves, dtype, kGpu, three_in_turn),
                  found = results_of(s, leaves, dtype, kGpu, gated_attention);
      for (size_t i = 0; i < found.size(); ++i) {
        const auto& [name, gradient] = found[i];
        if (is_noise(s, name)) continue;
        const double difference = relative_difference(gradient, in_turn[i].second);
        // Of Δ's sums: in pieces of rows, which begin at even addresses.
        const bool same_order = !s.misaligned && s.head_dim % 32 == 0 && s.head_dim != 96 && s.head_dim <= 128;
        if (!same_order || name == "query" || name == "query_norm") EXPECT_LT(difference, rounding) << name;
        else if (name == "output_norm") EXPECT_LT(difference, 1e-5) << name;  // another number of partial sums
        else EXPECT_TRUE(gradient.equal(in_turn[i].second)) << name << " differs by " << difference;
      }
    }
  }
}

// The gate's gradient by many CTAs, the last kernels before attention_inputs reads the slices; and the order of sums that training has.
TEST_F(GatedAttentionOnCuda, GradientsOfALongHeadAreThoseOfTheThreeInTurn) {
  LETHE_NEEDS_TORCH_GPU();
  for (const bool deterministic : {true, false}) {
    at::globalContext().setDeterministicAlgorithms(deterministic, false);
    for (const int64_t length : {700, 8200}) {
      const LayerSwitches s{.rotation = true, .batch = 1, .length = length, .heads = 2};
      SCOPED_TRACE(s.name() + (deterministic ? " deterministic" : ""));
      const Named leaves = random_leaves(s, at::kBFloat16),
                  in_turn = results_of(s, leaves, at::kBFloat16, kGpu, three_in_turn),
                  found = results_of(s, leaves, at::kBFloat16, kGpu, gated_attention);
      for (size_t i = 0; i < found.size(); ++i)
        EXPECT_LT(relative_difference(found[i].second, in_turn[i].second), 8e-3) << found[i].first;
    }
  }
}

TEST_F(GatedAttentionOnCuda, RefusesGradientsOfValuesThatWereChanged) {
  LETHE_NEEDS_TORCH_GPU();
  const LayerSwitches s{.rotation = true, .output_gate = false, .output_norm = false};
  const Named leaves = leaves_on_gpu(s, at::kBFloat16);
  Tensor y = gated_attention(call_on(s, leaves));
  y.mul_(2);
  EXPECT_THROW(torch::autograd::grad({y}, {tensor_of(leaves, "product")}, {tensor_of(leaves, "output")}), c10::Error);
}

TEST_F(GatedAttentionOnCuda, EqualCallsGiveEqualBits) {
  LETHE_NEEDS_TORCH_GPU();
  for (const LayerSwitches& s : all_switches()) {
    SCOPED_TRACE(s.name());
    const Named leaves = random_leaves(s, at::kBFloat16),
                first = results_of(s, leaves, at::kBFloat16, kGpu, gated_attention),
                second = results_of(s, leaves, at::kBFloat16, kGpu, gated_attention);
    for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(first[i].second.equal(second[i].second)) << first[i].first;
  }
}

TEST_F(GatedAttentionOnCuda, FloatsHandOverDeltaAlone) {
  LETHE_NEEDS_TORCH_GPU();
  for (const int64_t head_dim : {20, 64, 96}) {
    const LayerSwitches s{.rotation = true, .head_dim = head_dim};
    SCOPED_TRACE(s.name());
    const Named leaves = random_leaves(s, at::kFloat),
                exact = results_of(s, leaves, at::kDouble, at::kCPU, three_in_turn),
                found = results_of(s, leaves, at::kFloat, kGpu, gated_attention);
    for (size_t i = 0; i < exact.size(); ++i)
      EXPECT_LT(relative_difference(found[i].second, exact[i].second), 1e-4) << exact[i].first;
  }
}

TEST_F(GatedAttentionOnCuda, ADerivativeMayBeTakenAgainButNotOfItself) {
  LETHE_NEEDS_TORCH_GPU();
  const LayerSwitches s{};
  const Named leaves = leaves_on_gpu(s, at::kBFloat16);
  const Tensor product = tensor_of(leaves, "product"), y = gated_attention(call_on(s, leaves)),
               arriving = tensor_of(leaves, "output");
  const Tensor first = torch::autograd::grad({y}, {product}, {arriving}, true)[0].clone();
  EXPECT_TRUE(first.equal(torch::autograd::grad({y}, {product}, {arriving}, true)[0]));
  EXPECT_THROW(torch::autograd::grad({y}, {product}, {arriving}, true, true), c10::NotImplementedError);
}

TEST_F(GatedAttentionOnCuda, RunsOnTheCurrentStream) {
  LETHE_NEEDS_TORCH_GPU();
  const LayerSwitches s{.length = 300};
  const Named leaves = random_leaves(s, at::kBFloat16),
              expected = results_of(s, leaves, at::kBFloat16, kGpu, gated_attention);
  at::cuda::getCurrentCUDAStream().synchronize();
  const c10::cuda::CUDAStream stream = at::cuda::getStreamFromPool();
  const c10::cuda::CUDAStreamGuard guard(stream);
  const Named found = results_of(s, leaves, at::kBFloat16, kGpu, gated_attention);
  stream.synchronize();
  for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(found[i].second.equal(expected[i].second)) << found[i].first;
}

}  // namespace
}  // namespace lethe
