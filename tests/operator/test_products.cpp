#include "optimized/torch/products.hpp"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <string>

#include "optimized/torch/linear.hpp"

namespace lethe {
namespace {

using at::Tensor;

TEST(Products, AreAtensOnACpu) {
  for (const bool measured : {false, true}) {
    measure_products(measured);
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      const Tensor a = at::randn({1024, 1024}).to(dtype), b = at::randn({512, 1024}).to(dtype).t();
      const Tensor expected = at::mm(a, b), out = at::empty_like(expected), sum = at::ones_like(expected);
      EXPECT_TRUE(product(a, b).equal(expected)) << dtype;
      product_out(out, a, b);
      EXPECT_TRUE(out.equal(expected)) << dtype;
      add_product(sum, a, b);
      EXPECT_TRUE(sum.allclose(expected.add(1), 1e-2, 1e-2)) << dtype;
    }
  }
  measure_products(false);
  EXPECT_TRUE(measured_products().empty());
}

TEST(Products, AddToSumsOfAWiderDtype) {
  const Tensor a = at::randn({30, 40}).to(at::kBFloat16), b = at::randn({40, 50}).to(at::kBFloat16);
  const Tensor exact = at::mm(a.to(at::kDouble), b.to(at::kDouble));
  for (const Tensor& factor : {a, a.to(at::kFloat)}) {
    const Tensor sum = at::ones({30, 50});
    add_product(sum, factor, b);
    const double rounding = factor.scalar_type() == at::kFloat ? 1e-5 : 1e-2;
    EXPECT_TRUE(sum.to(at::kDouble).allclose(exact.add(1), rounding, 4 * rounding)) << factor.scalar_type();
  }
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(Linear, NamesWhatIsWrong) {
  const Tensor x = at::randn({5, 6}), weight = at::randn({4, 6}), gradient = at::zeros({4, 6});
  EXPECT_EQ(message_of([&] { linear(x, weight, gradient); }), "no error");
  EXPECT_EQ(message_of([&] { linear(at::randn({}), weight, gradient); }),
            "x: expected 6 columns for weight, found shape []");
  EXPECT_EQ(message_of([&] { linear(x, weight.t(), gradient); }),
            "x: expected 4 columns for weight, found shape [5, 6]");
  EXPECT_EQ(message_of([&] { linear(x, weight.to(at::kHalf), gradient); }), "weight: expected dtype Float, found Half");
  EXPECT_EQ(message_of([&] { linear(x, weight, gradient.t()); }), "gradient: expected shape [4, 6], found [6, 4]");
  EXPECT_EQ(message_of([&] { linear(x, weight, gradient.to(at::kDouble)); }),
            "gradient: expected dtype Float, found Double");
  EXPECT_EQ(message_of([&] { linear_of_swiglu(x, weight, gradient); }),
            "gate_and_up: expected 12 columns for weight, found shape [5, 6]");
}

TEST(Linear, RefusesASecondDerivativeByName) {
  const Tensor x = at::randn({5, 6}).set_requires_grad(true), weight = at::randn({4, 3}), gradient = at::zeros({4, 3});
  const auto message = [&](const Tensor& y) {
    return message_of([&] { torch::autograd::grad({y.sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true); });
  };
  EXPECT_EQ(message(linear_of_swiglu(x, weight, gradient)).find("lethe::linear_of_swiglu: expected a first derivative"),
            0);
  EXPECT_EQ(message(linear(x, at::randn({4, 6}), at::zeros({4, 6}))).find("lethe::linear: expected a first derivative"),
            0);
  EXPECT_TRUE(gradient.equal(at::zeros({4, 3})));
}

}  // namespace
}  // namespace lethe
