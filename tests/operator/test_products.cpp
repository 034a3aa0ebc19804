#include "optimized/torch/products.hpp"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace lethe
