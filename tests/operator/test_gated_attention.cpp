// gated_attention where nothing is handed over, and the plain backward that it is made of.
#include <gtest/gtest.h>

#include "optimized/torch/layers/backward.hpp"
#include "tests/operator/gated_attention_calls.hpp"

namespace lethe {
namespace {

TEST(GatedAttention, IsTheThreeInTurnOnTheCpu) {
  for (LayerSwitches s : layer_switches()) {
    s.length = std::min<int64_t>(s.length, 70);
    s.head_dim = 16;
    SCOPED_TRACE(s.name());
    const Named leaves = random_leaves(s, at::kDouble);
    EXPECT_FALSE(hands_over(call_on(s, leaves)).any());
    const Named found = results_of(s, leaves, at::kDouble, at::kCPU, gated_attention),
                expected = results_of(s, leaves, at::kDouble, at::kCPU, three_in_turn);
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(found[i].second.equal(expected[i].second)) << expected[i].first;
  }
}

TEST(GatedAttention, WantsOneSourceOfLogForget) {
  const LayerSwitches s{.head_dim = 16};
  GatedAttention call = call_on(s, random_leaves(s, at::kDouble));
  const auto message = [&] {
    try {
      gated_attention(call);
    } catch (const c10::Error& error) {
      return std::string(error.what_without_backtrace());
    }
    return std::string();
  };
  call.log_forget = at::zeros({s.batch, s.length, s.heads}, at::kDouble);
  EXPECT_EQ(message(), "log_forget: expected one where gate_logits is absent and none elsewhere, found both");
  call.log_forget.reset(), call.products.gate_logits.reset(), call.products.gate_bias.reset();
  EXPECT_EQ(message(), "log_forget: expected one where gate_logits is absent and none elsewhere, found neither");
}

TEST(GatedAttention, ThePlainBackwardOfItsInputsIsAutograds) {
  for (LayerSwitches s : layer_switches()) {
    s.head_dim = 16;
    SCOPED_TRACE(s.name());
    Named leaves = random_leaves(s, at::kDouble);
    for (auto& [name, leaf] : leaves) leaf.set_requires_grad(true);
    const AttentionInputProducts in = call_on(s, leaves).products;
    const HeadInputs out = attention_inputs(in);
    const auto gradient = [](const at::Tensor& of) { return of.defined() ? at::randn_like(of) : at::Tensor(); };
    const HeadInputs arriving{gradient(out.query), gradient(out.key), gradient(out.value), gradient(out.log_forget)};
    std::vector<at::Tensor> outputs{out.query, out.key, out.value},
        gradients{arriving.query, arriving.key, arriving.value};
    if (s.gate) outputs.push_back(out.log_forget), gradients.push_back(arriving.log_forget);
    const AttentionInputGradients found = attention_inputs_backward(arriving, {}, 1, in);
    const auto expect = [&](const char* name, const at::Tensor& own, const std::optional<at::Tensor>& of) {
      ASSERT_EQ(own.defined(), of.has_value()) << name;
      if (of) EXPECT_TRUE(own.equal(torch::autograd::grad(outputs, {*of}, gradients, true)[0])) << name;
    };
    expect("query", found.query, in.query);
    expect("key", found.key, in.key);
    expect("value", found.value, in.value);
    expect("key_shift", found.key_shift, in.key_shift);
    expect("value_shift", found.value_shift, in.value_shift);
    expect("query_norm", found.query_norm, in.query_norm);
    expect("key_norm", found.key_norm, in.key_norm);
    expect("gate_logits", found.gate_logits, in.gate_logits);
    expect("gate_bias", found.gate_bias, in.gate_bias);
  }
}

}  // namespace
}  // namespace lethe
