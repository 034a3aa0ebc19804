// The layers' operators against the definitions in reference/layers.
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <optional>

#include "optimized/torch/layers.hpp"
#include "reference/layers/rms_norm.hpp"
#include "reference/layers/sigmoid.hpp"
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

Vector<double> vector(const Tensor& tensor) { return matrix(tensor.unsqueeze(0)).row(0).transpose(); }

TEST(AddRmsNorm, EqualsTheDefinitionInEveryDtype) {
  constexpr double kEpsilon = 1e-3;
  for (const at::ScalarType dtype : kDtypes) {
    const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
    const Tensor branch = random({2, 9, 40}, dtype).narrow(-1, 2, 37), weight = random({37}, wide);
    for (const at::ScalarType residual_dtype : {wide, dtype}) {
      const Tensor residual = random({9, 2, 37}, residual_dtype).transpose(0, 1);
      for (const bool has_branch : {true, false}) {
        const auto [normed, sum] =
            add_rms_norm(residual, has_branch ? std::optional(branch) : std::nullopt, weight, kEpsilon, dtype);
        Matrix<double> expected = matrix(residual);
        if (has_branch) expected += matrix(branch);
        EXPECT_EQ(normed.scalar_type(), dtype);
        EXPECT_EQ(sum.scalar_type(), residual_dtype);
        EXPECT_LE(error(sum, expected), budget(residual_dtype)) << dtype;
        expected = reference::layers::rms_norm(expected, vector(weight), 1, kEpsilon);
        EXPECT_LT(error(normed, expected), budget(dtype)) << dtype;
      }
    }
  }
}

TEST(GatedOutput, EqualsTheDefinitionInEveryDtype) {
  constexpr double kEpsilon = 1e-3;
  for (const at::ScalarType dtype : kDtypes) {
    const Tensor o = random({2, 9, 3, 12}, dtype), gate = random({2, 9, 100}, dtype).narrow(-1, 7, 36);
    const Tensor norm = random({36}, dtype == at::kDouble ? at::kDouble : at::kFloat);
    for (const bool has_gate : {true, false}) {
      for (const bool has_norm : {true, false}) {
        const Tensor values = gated_output(o, has_gate ? std::optional(gate) : std::nullopt,
                                           has_norm ? std::optional(norm) : std::nullopt, kEpsilon);
        Matrix<double> expected = matrix(o.flatten(2));
        if (has_norm) expected = reference::layers::rms_norm(expected, vector(norm), 3, kEpsilon);
        if (has_gate) expected = expected.cwiseProduct(reference::layers::sigmoid(matrix(gate))).eval();
        EXPECT_EQ(values.sizes(), at::IntArrayRef({2, 9, 36}));
        EXPECT_LE(error(values, expected), budget(dtype)) << dtype;
      }
    }
  }
}

}  // namespace
}  // namespace lethe
