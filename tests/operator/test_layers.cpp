// The layers' operators against the definitions in reference/layers.
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "optimized/torch/layers.hpp"
#include "reference/layers/swiglu.hpp"

namespace lethe {
namespace {

using at::Tensor;

constexpr at::ScalarType kDtypes[] = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};

double budget(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 1e-6 : dtype == at::kBFloat16 ? 5e-3 : 1e-3;
}

Tensor random(at::IntArrayRef sizes, at::ScalarType dtype) { return at::randn(sizes, at::kDouble).to(dtype); }

// The rows of [..., d] as the reference's matrix.
Matrix<double> matrix(const Tensor& tensor) {
  const Tensor rows = tensor.to(at::kDouble).reshape({-1, tensor.size(-1)}).contiguous();
  return Eigen::Map<const Matrix<double>>(rows.const_data_ptr<double>(), rows.size(0), rows.size(1));
}

double error(const Tensor& found, const Matrix<double>& expected) {
  return (matrix(found) - expected).norm() / expected.norm();
}

TEST(Swiglu, EqualsTheDefinitionInEveryDtype) {
  for (const at::ScalarType dtype : kDtypes) {
    const Tensor products = random({2, 9, 2 * 37 + 3}, dtype);
    for (const Tensor& rows : {products.narrow(-1, 2, 2 * 37), products.narrow(-1, 2, 2 * 37).transpose(0, 1)}) {
      const Tensor values = swiglu(rows);
      EXPECT_EQ(values.scalar_type(), dtype);
      EXPECT_EQ(values.sizes(), at::IntArrayRef({rows.size(0), rows.size(1), 37}));
      EXPECT_LT(error(values, reference::layers::swiglu(matrix(rows))), budget(dtype)) << dtype;
    }
  }
}

}  // namespace
}  // namespace lethe
