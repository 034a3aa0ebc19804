// attention_inputs against the reference's layers, and what it leaves as it is.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "optimized/torch/layers.hpp"
#include "reference/layers/kv_shift.hpp"
#include "reference/layers/rms_norm.hpp"
#include "reference/layers/rotary_embedding.hpp"
#include "reference/layers/sigmoid.hpp"
#include "tests/support/matrices.hpp"

namespace lethe {
namespace {

namespace ref = reference::layers;

constexpr double kEpsilon = 1e-5, kBase = 10000;

struct Switches {
  bool shift = true, norm = true, norm_per_head = false, rotation = true, gate = true;
  int64_t batch = 2, length = 9, heads = 3, head_dim = 8;
};

// Every input as a piece of one product with x, where a row's pitch is the width of all pieces.
AttentionInputProducts random_products(const Switches& s, at::ScalarType dtype) {
  at::manual_seed(1);
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  const int64_t width = s.heads * s.head_dim, h = s.heads;
  const auto pieces = at::randn({s.batch, s.length, 3 * width + 3 * h + 5}, at::kDouble)
                          .to(dtype)
                          .split_with_sizes({width, width, width, h, h, h, 5}, -1);
  AttentionInputProducts products{
      .query = pieces[0], .key = pieces[1], .value = pieces[2], .heads = h, .epsilon = kEpsilon};
  if (s.shift) products.key_shift = pieces[3], products.value_shift = pieces[4];
  if (s.norm) {
    const int64_t size = s.norm_per_head ? width : s.head_dim;
    products.query_norm = 1 + 0.3 * at::randn({size}, wide);
    products.key_norm = 1 + 0.3 * at::randn({size}, wide);
  }
  if (s.rotation) {
    const at::Tensor exponents = at::arange(0, s.head_dim, 2, at::kDouble) / static_cast<double>(s.head_dim);
    const at::Tensor angles = at::outer(at::arange(s.length, at::kDouble), at::pow(kBase, -exponents));
    products.cosine = angles.cos().to(wide);
    products.sine = angles.sin().to(wide);
  }
  if (s.gate) products.gate_logits = pieces[5], products.gate_bias = at::randn({h}, wide);
  return products;
}

Matrix<double> matrix_of(const at::Tensor& rows) {  // [T, ...]
  const at::Tensor flat = rows.to(at::kDouble).flatten(1).contiguous();
  return Eigen::Map<const Matrix<double>>(flat.const_data_ptr<double>(), flat.size(0), flat.size(1));
}

Vector<double> vector_of(const at::Tensor& numbers) {
  const at::Tensor wide = numbers.to(at::kDouble).contiguous();
  return Eigen::Map<const Vector<double>>(wide.const_data_ptr<double>(), wide.numel());
}

// One sequence's queries, keys or values.
Matrix<double> expected_rows(const AttentionInputProducts& in, const at::Tensor& product,
                             const std::optional<at::Tensor>& shift, const std::optional<at::Tensor>& norm,
                             bool rotated, int64_t sequence) {
  Matrix<double> rows = matrix_of(product[sequence]);
  if (shift)
    rows = ref::kv_shift<double>(rows, ref::sigmoid(matrix_of((*shift)[sequence])), Vector<double>::Zero(rows.cols()));
  if (norm) rows = ref::rms_norm<double>(rows, vector_of(*norm), in.heads, kEpsilon);
  if (rotated) rows = ref::rotary_embedding<double>(rows, in.heads, kBase);
  return rows;
}

void expect_equals_reference(const Switches& switches, at::ScalarType dtype) {
  const AttentionInputProducts in = random_products(switches, dtype);
  const HeadInputs out = attention_inputs(in);
  const double budget = dtype == at::kDouble ? kExact : dtype == at::kFloat ? 1e-6 : 5e-3;
  const bool rotated = in.cosine.has_value();
  for (int64_t b = 0; b < switches.batch; ++b) {
    const auto expect_rows = [&](const char* name, const at::Tensor& found, const Matrix<double>& expected) {
      EXPECT_LE(relative_error(matrix_of(found[b]), expected), budget) << name << " of sequence " << b;
    };
    expect_rows("query", out.query, expected_rows(in, in.query, {}, in.query_norm, rotated, b));
    expect_rows("key", out.key, expected_rows(in, in.key, in.key_shift, in.key_norm, rotated, b));
    expect_rows("value", out.value, expected_rows(in, in.value, in.value_shift, {}, false, b));
    if (!in.gate_logits) continue;
    Matrix<double> logits = matrix_of((*in.gate_logits)[b]);
    logits.rowwise() += vector_of(*in.gate_bias).transpose();
    expect_rows("log_forget", out.log_forget, ref::log_sigmoid(logits));
  }
  EXPECT_EQ(out.log_forget.defined(), switches.gate);
}

TEST(AttentionInputs, EqualTheReferenceWithEverySwitch) {
  for (int bits = 0; bits < 32; ++bits) {
    Switches switches{.shift = (bits & 1) != 0,
                      .norm = (bits & 2) != 0,
                      .norm_per_head = (bits & 4) != 0,
                      .rotation = (bits & 8) != 0,
                      .gate = (bits & 16) != 0};
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      SCOPED_TRACE(std::to_string(bits) + " " + c10::toString(dtype));
      expect_equals_reference(switches, dtype);
    }
  }
}

TEST(AttentionInputs, EqualTheReferenceAtEveryLength) {
  for (const int64_t length : {1, 2, 63, 64, 65, 200}) {
    SCOPED_TRACE(length);
    expect_equals_reference({.batch = 3, .length = length, .heads = 2, .head_dim = 6}, at::kDouble);
  }
}

TEST(AttentionInputs, AreViewsOfTheProductsThatNothingChanges) {
  for (const bool gate : {false, true}) {
    const AttentionInputProducts in =
        random_products({.shift = false, .norm = false, .rotation = false, .gate = gate}, at::kFloat);
    const HeadInputs out = attention_inputs(in);
    EXPECT_TRUE(out.query.is_alias_of(in.query) && out.key.is_alias_of(in.key) && out.value.is_alias_of(in.value));
    EXPECT_EQ(out.query.sizes(), (at::IntArrayRef{2, 9, 3, 8}));
  }
  const AttentionInputProducts rotated = random_products({.shift = false, .norm = false}, at::kFloat);
  EXPECT_TRUE(attention_inputs(rotated).value.is_alias_of(rotated.value));
  EXPECT_FALSE(attention_inputs(rotated).key.is_alias_of(rotated.key));
}

TEST(AttentionInputs, OfNoTokensAreEmpty) {
  for (const auto& [batch, length] : {std::pair<int64_t, int64_t>{0, 5}, {2, 0}}) {
    const HeadInputs out = attention_inputs(random_products({.batch = batch, .length = length}, at::kFloat));
    EXPECT_EQ(out.query.sizes(), (at::IntArrayRef{batch, length, 3, 8}));
    EXPECT_EQ(out.log_forget.sizes(), (at::IntArrayRef{batch, length, 3}));
  }
}

TEST(AttentionInputs, RefuseWhatDoesNotFitWithItsName) {
  const auto message_of = [](const std::function<void(AttentionInputProducts&)>& spoil) -> std::string {
    AttentionInputProducts in = random_products({}, at::kFloat);
    spoil(in);
    try {
      attention_inputs(in);
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "no error";
  };
  using In = AttentionInputProducts;
  const std::pair<const char*, std::function<void(In&)>> cases[] = {
      {"query: expected a tensor, found none", [](In& in) { in.query = at::Tensor(); }},
      {"key_shift: expected a tensor, found none", [](In& in) { in.key_shift = at::Tensor(); }},
      {"query_norm: expected a strided layout", [](In& in) { in.query_norm = in.query_norm->to_sparse(); }},
      {"query: expected 3 dimensions [B,T,H·D], found 2", [](In& in) { in.query = in.query[0]; }},
      {"query: expected a multiple of 5 heads in the last dimension, found 24", [](In& in) { in.heads = 5; }},
      {"heads: expected at least 1, found 0", [](In& in) { in.heads = 0; }},
      {"key: expected shape [2, 9, 24], found [2, 8, 24]", [](In& in) { in.key = in.key.narrow(1, 0, 8); }},
      {"value: expected dtype Float, found Half", [](In& in) { in.value = in.value.to(at::kHalf); }},
      {"key_shift: expected shape [2, 9, 3], found [2, 9, 2]",
       [](In& in) { in.key_shift = in.key_shift->narrow(2, 0, 2); }},
      {"query_norm: expected 8 or 24 numbers, found 7", [](In& in) { in.query_norm = in.query_norm->narrow(0, 0, 7); }},
      {"key_norm: expected dtype Float, found Double", [](In& in) { in.key_norm = in.key_norm->to(at::kDouble); }},
      {"sine: expected shape [9, 4], found [8, 4]", [](In& in) { in.sine = in.sine->narrow(0, 0, 8); }},
      {"cosine: expected sine with it and none without, found no sine", [](In& in) { in.sine = {}; }},
      {"cosine: expected an even head dim, found 7", [](In& in) { in = random_products({.head_dim = 7}, at::kFloat); }},
      {"gate_bias: expected shape [3], found [2]", [](In& in) { in.gate_bias = in.gate_bias->narrow(0, 0, 2); }},
      {"gate_bias: expected none without gate_logits, found one", [](In& in) { in.gate_logits = {}; }},
      {"epsilon: expected a finite number >= 0, found -1", [](In& in) { in.epsilon = -1; }},
  };
  for (const auto& [expected, spoil] : cases)
    EXPECT_NE(message_of(spoil).find(expected), std::string::npos) << message_of(spoil);
}

}  // namespace
}  // namespace lethe
