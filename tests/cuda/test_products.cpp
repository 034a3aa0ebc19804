// Products by the fastest of cuBLASLt's candidates, which here need not be faster than ATen's default: every choice is a candidate.
#include "optimized/torch/products.hpp"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "optimized/torch/linear.hpp"
#include "optimized/torch/linear_cross_entropy.hpp"
#include "tests/support/torch_gpu.hpp"

namespace lethe {
namespace {

using at::Tensor;

double relative_error(const Tensor& found, const Tensor& expected) {
  const Tensor exact = expected.to(at::kDouble);
  return found.to(at::kDouble).sub(exact).norm().div(exact.norm()).item<double>();
}

// A random matrix: row-major, or the transpose of one.
Tensor matrix(int64_t rows, int64_t columns, at::ScalarType dtype, bool row_major = true) {
  const auto options = at::TensorOptions(at::kCUDA).dtype(at::kFloat);
  return row_major ? at::randn({rows, columns}, options).to(dtype) : at::randn({columns, rows}, options).to(dtype).t();
}

Tensor exact_product(const Tensor& a, const Tensor& b) { return at::mm(a.to(at::kDouble), b.to(at::kDouble)); }

MeasuredProduct measured_as(const std::string& name) {
  for (const MeasuredProduct& product : measured_products())
    if (product.name == name) return product;
  return {};
}

class ProductsOnCuda : public testing::Test {
 protected:
  static constexpr double kAlways = -1e6;  // a margin that every candidate exceeds

  static void SetUpTestSuite() { setenv("CUBLAS_WORKSPACE_CONFIG", ":16384:2", 0); }  // before cuBLAS starts
  void SetUp() override { measure_products(true, kAlways); }
  void TearDown() override {
    measure_products(false);
    at::globalContext().setDeterministicAlgorithms(false, false);
  }
};

TEST_F(ProductsOnCuda, AgreeWithFloat64InEveryLayout) {
  LETHE_NEEDS_TORCH_GPU();
  const int64_t m = 1536, k = 1024, n = 768;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const bool a_rows : {true, false}) {
      for (const bool b_rows : {true, false}) {
        SCOPED_TRACE(std::string(toString(dtype)) + (a_rows ? ", a" : ", aᵀ") + (b_rows ? " b" : " bᵀ"));
        const size_t before = measured_products().size();
        const Tensor a = matrix(m, k, dtype, a_rows), b = matrix(k, n, dtype, b_rows), exact = exact_product(a, b);
        const double rounding = dtype == at::kHalf ? 5e-4 : 4e-3;
        EXPECT_LT(relative_error(product(a, b), exact), rounding);
        EXPECT_LT(relative_error(product(a, b), exact), rounding);
        const Tensor sum = matrix(m, n, at::kFloat), expected = sum.to(at::kDouble).add(exact);
        add_product(sum, a, b);
        EXPECT_LT(relative_error(sum, expected), 1e-5) << "added more than once, or not in float32";
        add_product(sum, a, b);
        EXPECT_LT(relative_error(sum, expected.add(exact)), 1e-5);
        EXPECT_EQ(measured_products().size(), before + 2);
      }
    }
  }
  for (const MeasuredProduct& product : measured_products()) {
    EXPECT_GT(product.candidates, 0) << product.name;
    EXPECT_TRUE(product.changed) << product.name;
  }
}

TEST_F(ProductsOnCuda, MeasureOnceAndCountCalls) {
  LETHE_NEEDS_TORCH_GPU();
  const Tensor a = matrix(2048, 512, at::kBFloat16), b = matrix(512, 1024, at::kBFloat16);
  const std::string name = "[2048,512] x [512,1024]";
  for (int64_t call = 1; call <= 3; ++call) {
    product(a, b);
    EXPECT_EQ(measured_as(name).calls, call);
  }
  const MeasuredProduct first = measured_as(name);
  EXPECT_GT(first.default_time, 0);
  EXPECT_GT(first.best_time, 0);
  product(matrix(2048, 512, at::kBFloat16), b);
  EXPECT_EQ(measured_as(name).best_time, first.best_time);
}

TEST_F(ProductsOnCuda, TakeRowsOfAWiderMatrixAsTheyLie) {
  LETHE_NEEDS_TORCH_GPU();
  const Tensor wide = matrix(1024, 1280, at::kBFloat16), b = matrix(1024, 1024, at::kBFloat16);
  const Tensor out = matrix(1024, 1152, at::kBFloat16), untouched = out.narrow(1, 1024, 128).clone();
  const Tensor a = wide.narrow(1, 64, 1024);
  const size_t before = measured_products().size();
  product_out(out.narrow(1, 0, 1024), a, b);
  EXPECT_LT(relative_error(out.narrow(1, 0, 1024), exact_product(a, b)), 4e-3);
  EXPECT_TRUE(out.narrow(1, 1024, 128).equal(untouched));
  EXPECT_EQ(measured_products().size(), before + 1);
}

TEST_F(ProductsOnCuda, KeepTheDefaultForOddSmallAndOtherProducts) {
  LETHE_NEEDS_TORCH_GPU();
  const size_t before = measured_products().size();
  const auto expect_default = [](const Tensor& a, const Tensor& b) {
    EXPECT_TRUE(product(a, b).equal(at::mm(a, b))) << a.sizes() << b.sizes();
  };
  expect_default(matrix(1001, 777, at::kBFloat16), matrix(777, 1003, at::kBFloat16));
  expect_default(matrix(1024, 1025, at::kBFloat16).narrow(1, 0, 1024), matrix(1024, 1024, at::kBFloat16));
  expect_default(matrix(1024, 1032, at::kBFloat16).narrow(1, 1, 1024), matrix(1024, 1024, at::kBFloat16));
  expect_default(matrix(256, 256, at::kBFloat16), matrix(256, 256, at::kBFloat16));
  expect_default(matrix(1024, 1024, at::kFloat), matrix(1024, 1024, at::kFloat));
  EXPECT_EQ(measured_products().size(), before);
}

TEST_F(ProductsOnCuda, KeepTheDefaultUnderDeterministicAlgorithms) {
  LETHE_NEEDS_TORCH_GPU();
  const Tensor a = matrix(1024, 2048, at::kBFloat16), b = matrix(2048, 512, at::kBFloat16);
  product(a, b);  // measured, and changed
  at::globalContext().setDeterministicAlgorithms(true, false);
  const size_t before = measured_products().size();
  const Tensor one = product(a, b), two = product(a, b);
  Tensor sum = at::zeros({1024, 512}, a.options().dtype(at::kFloat)), by_default = sum.clone();
  add_product(sum, a, b);
  at::addmm_out(by_default, by_default, a, b, at::kFloat);
  EXPECT_TRUE(one.equal(two) && one.equal(at::mm(a, b)) && sum.equal(by_default));
  EXPECT_EQ(measured_products().size(), before);
  EXPECT_EQ(measured_as("[1024,2048] x [2048,512]").calls, 1);
}

TEST_F(ProductsOnCuda, AreNotMeasuredWhileAGraphIsCaptured) {
  LETHE_NEEDS_TORCH_GPU();
  const c10::cuda::CUDAStreamGuard on(c10::cuda::getStreamFromPool());
  const Tensor a = matrix(1280, 1024, at::kBFloat16), b = matrix(1024, 640, at::kBFloat16);
  const Tensor exact = exact_product(a, b), out = at::empty({1280, 640}, a.options());
  at::mm(a, b);  // cuBLAS starts
  for (const bool measured : {false, true}) {
    const size_t before = measured_products().size();
    at::cuda::CUDAGraph graph;
    graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    product_out(out, a, b);
    graph.capture_end();
    EXPECT_EQ(measured_products().size(), before);
    out.zero_();
    graph.replay();
    EXPECT_LT(relative_error(out, exact), 4e-3) << measured;
    product_out(out, a, b);
  }
  EXPECT_TRUE(measured_as("[1280,1024] x [1024,640]").changed);
}

// The three products of a layer, and those of the output head.
TEST_F(ProductsOnCuda, OfLayersAndTheOutputHeadAgreeWithTheDefault) {
  LETHE_NEEDS_TORCH_GPU();
  const Tensor x = matrix(2 * 2048, 512, at::kBFloat16).view({2, 2048, 512}),
               weight = matrix(1024, 512, at::kBFloat16).mul(0.05);
  const Tensor dy = matrix(2 * 2048, 1024, at::kBFloat16).view({2, 2048, 1024});
  const Tensor labels = at::randint(1000, {2 * 2048}, x.options().dtype(at::kLong));
  const auto results = [&](bool measured) {
    measure_products(measured, kAlways);
    const Tensor input = x.detach().clone().set_requires_grad(true);
    Tensor gradient = at::ones({1024, 512}, x.options().dtype(at::kFloat)), of_head = gradient.clone();
    const Tensor y = linear(input, weight, gradient);
    y.backward(dy);
    const auto head = linear_cross_entropy_with_gradients(x.flatten(0, 1), weight, labels, 1000, 1, of_head);
    return std::vector<Tensor>{y.detach(), input.grad(), gradient, head.losses, head.grad_hidden, of_head};
  };
  const size_t before = measured_products().size();
  const std::vector<Tensor> by_default = results(false);
  EXPECT_EQ(measured_products().size(), before);
  const std::vector<Tensor> measured = results(true);
  EXPECT_GE(measured_products().size(), before + 3);
  for (size_t i = 0; i < measured.size(); ++i) EXPECT_LT(relative_error(measured[i], by_default[i]), 5e-3) << i;
  EXPECT_LT(relative_error(measured[2], by_default[2]), 1e-5) << "the weight gradient is float32";
}

}  // namespace
}  // namespace lethe
