// The operator's errors for wrong calls, and the cost of a call: memory, and the same bits every time.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <string>

#include "optimized/torch/forgetting_attention.hpp"
#include "tests/operator/problem_tensors.hpp"

namespace lethe {
namespace {

struct Call {
  at::Tensor query = at::ones({2, 3, 4, 8}), key = at::ones({2, 5, 2, 8}), value = at::ones({2, 5, 2, 6});
  at::Tensor log_forget = at::zeros({2, 5, 4});
  std::optional<double> scale, log_pruning_tolerance;
  std::optional<at::Tensor> logit_bound;
};

std::string message_of(const std::function<void(Call&)>& spoil) {
  Call call;
  spoil(call);
  try {
    forgetting_attention(call.query, call.key, call.value, call.log_forget, call.scale, call.log_pruning_tolerance,
                         call.logit_bound);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(Arguments, AreRefusedWithTheirNameTheExpectedAndTheFound) {
  const std::pair<const char*, std::function<void(Call&)>> cases[] = {
      {"query: expected 4 dimensions [B,Tq,Hq,D], found 3", [](Call& c) { c.query = c.query[0]; }},
      {"key: expected 4 dimensions [B,Tk,H,D], found 3", [](Call& c) { c.key = c.key[0]; }},
      {"log_forget: expected 3 dimensions [B,Tk,Hq], found 2", [](Call& c) { c.log_forget = c.log_forget[0]; }},
      {"query: expected a head dimension of at least 1, found 0",
       [](Call& c) {
         c.query = at::ones({2, 3, 4, 0});
       }},
      {"key: expected shape [2, 5, 2, 8], found [2, 5, 2, 7]",
       [](Call& c) {
         c.key = at::ones({2, 5, 2, 7});
       }},
      {"value: expected shape [2, 5, 2, 6], found [2, 4, 2, 6]",
       [](Call& c) {
         c.value = at::ones({2, 4, 2, 6});
       }},
      {"log_forget: expected shape [2, 5, 4], found [2, 5, 2]",
       [](Call& c) {
         c.log_forget = at::zeros({2, 5, 2});
       }},
      {"query: expected at most as many positions as key, 5, found 6",
       [](Call& c) {
         c.query = at::ones({2, 6, 4, 8});
       }},
      {"query: expected a multiple of key's 2 heads, found 3",
       [](Call& c) {
         c.query = at::ones({2, 3, 3, 8}), c.log_forget = at::zeros({2, 5, 3});
       }},
      {"query: expected dtype float64, float32, bfloat16 or float16, found Int",
       [](Call& c) { c.query = c.query.to(at::kInt); }},
      {"key: expected dtype Float, found BFloat16", [](Call& c) { c.key = c.key.to(at::kBFloat16); }},
      {"log_forget: expected dtype Float, found Double", [](Call& c) { c.log_forget = c.log_forget.to(at::kDouble); }},
      {"value: expected a strided layout, found Sparse", [](Call& c) { c.value = c.value.to_sparse(); }},
      {"scale: expected a finite number, found nan", [](Call& c) { c.scale = NAN; }},
      {"log_pruning_tolerance: expected a number <= 0, found 0.5", [](Call& c) { c.log_pruning_tolerance = 0.5; }},
      {"log_pruning_tolerance: expected a number <= 0, found nan", [](Call& c) { c.log_pruning_tolerance = NAN; }},
      {"logit_bound: expected shape [4], found [3]", [](Call& c) { c.logit_bound = at::ones({3}); }},
      {"logit_bound: expected 2 dimensions [B,Hq], or 1 dimension [Hq], found 3",
       [](Call& c) {
         c.logit_bound = at::ones({2, 4, 1});
       }},
      {"logit_bound: expected dtype float32 or float64, found Long",
       [](Call& c) { c.logit_bound = at::ones({4}, at::kLong); }},
      {"logit_bound: expected numbers >= 0, found -1", [](Call& c) { c.logit_bound = -at::ones({4}); }},
      {"logit_bound: expected numbers >= 0, found nan", [](Call& c) { c.logit_bound = at::full({4}, NAN); }},
      {"log_forget: expected a natural logarithm <= 0, found 0.25 at position 3",
       [](Call& c) { c.log_forget[1][3][2] = 0.25; }},
      {"log_forget: expected a natural logarithm <= 0, found nan at position 0",
       [](Call& c) { c.log_forget[0][0][0] = NAN; }},
  };
  for (const auto& [expected, spoil] : cases)
    EXPECT_EQ(message_of(spoil).substr(0, std::string(expected).size()), expected);
  EXPECT_EQ(message_of([](Call&) {}), "no error");
}

TEST(Arguments, OnAnotherDeviceThanTheQueryAreRefused) {
  Call call;
  for (at::Tensor* tensor : {&call.query, &call.value, &call.log_forget}) *tensor = tensor->to(at::kMeta);
  try {
    forgetting_attention(call.query, call.key, call.value, call.log_forget);
    FAIL() << "no error";
  } catch (const c10::Error& error) {
    EXPECT_EQ(std::string(error.what_without_backtrace()), "key: expected device meta as query, found cpu");
  }
}

std::vector<at::Tensor> values_and_gradients() {
  const Shape shape{
      .batch = 1, .query_length = 900, .key_length = 900, .heads = 2, .query_heads = 4, .key_dim = 24, .value_dim = 16};
  ProblemTensors inputs = tensors_of(random_problem(shape, Dtype::kFloat32, Gate::kInitial, 1));
  for (at::Tensor* input : {&inputs.query, &inputs.key, &inputs.value, &inputs.log_forget}) input->requires_grad_();
  const at::Tensor values =
      forgetting_attention(inputs.query, inputs.key, inputs.value, inputs.log_forget, std::nullopt, -5.0);
  values.square().sum().backward();
  return {values.detach(), inputs.query.grad(), inputs.key.grad(), inputs.value.grad(), inputs.log_forget.grad()};
}

TEST(Calls, GiveTheSameBitsWithAnyNumberOfThreads) {
  const int threads = at::get_num_threads();
  const std::vector<at::Tensor> expected = values_and_gradients();
  for (const int count : {threads, 1, 2}) {
    at::set_num_threads(count);
    const std::vector<at::Tensor> actual = values_and_gradients();
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(at::equal(actual[i], expected[i])) << "result " << i << ", threads " << count;
  }
  at::set_num_threads(threads);
}

TEST(Calls, LeaveTheCallersSubnormalNumbersAsTheyWere) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);  // every task is the caller's own
  values_and_gradients();
  at::set_num_threads(threads);
  volatile float smallest = std::numeric_limits<float>::min();
  EXPECT_GT(smallest / 2, 0.0f);
}

// The process's memory in MiB: "VmRSS" now, or "VmHWM" at its highest since the last reset.
double memory(const std::string& what) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == what + ":") {
      double kibibytes = 0.0;
      status >> kibibytes;
      return kibibytes / 1024.0;
    }
  }
  return NAN;
}

TEST(Calls, NeedLessThan200MebibytesBeyondTheirInputsAtLength4096) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the address sanitizer's own memory would be counted";
#endif
  const at::Tensor query = at::randn({1, 4096, 4, 64}).requires_grad_(),
                   key = at::randn({1, 4096, 4, 64}).requires_grad_();
  const at::Tensor value = at::randn({1, 4096, 4, 64}).requires_grad_(),
                   log_forget = at::full({1, 4096, 4}, -0.1).requires_grad_();
  std::ofstream("/proc/self/clear_refs") << 5;  // forget the highest so far
  const double before = memory("VmRSS");
  forgetting_attention(query, key, value, log_forget).sum().backward();
  const double needed = memory("VmHWM") - before;
  EXPECT_LT(needed, 200.0);
  EXPECT_GT(needed, 16.0) << "the gradients alone are 16 MiB: this measures nothing";
}

}  // namespace
}  // namespace lethe
