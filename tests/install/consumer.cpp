// Calls the installed reference and the installed operator on one problem, and compares them.
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cstdio>
#include <vector>

#include "optimized/torch/forgetting_attention.hpp"
#include "reference/agreement.hpp"
#include "reference/problem.hpp"

int main() {
  const lethe::Problem problem =
      lethe::random_problem({1, 5, 5, 1, 1, 4, 4}, lethe::Dtype::kFloat64, lethe::Gate::kInitial, 1);
  const auto tensor = [](const std::vector<double>& data, at::IntArrayRef shape) {
    return at::tensor(data, at::kDouble).view(shape);
  };
  const at::Tensor value = tensor(problem.value, {1, 5, 1, 4});
  const at::Tensor values =
      lethe::forgetting_attention(tensor(problem.query, {1, 5, 1, 4}), tensor(problem.key, {1, 5, 1, 4}), value,
                                  tensor(problem.log_forget, {1, 5, 1}), problem.scale)
          .contiguous();
  // The first query sees only itself: its output is its value.
  const lethe::Agreement agreement =
      lethe::compare({values.data_ptr<double>(), 4}, {problem.value.data(), 4}, lethe::budget(problem.dtype));
  std::printf("first row: %s\n", agreement.describe().c_str());
  return agreement.passed() ? 0 : 1;
}
