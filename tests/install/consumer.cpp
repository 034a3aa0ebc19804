// consumer [cuda]: calls the installed reference and the installed operator on one problem, compares them, and asks what the kernels cover; with
// `cuda`, that this program has loaded Torch's CUDA libraries too, without which Torch finds no GPU.
#include <ATen/Context.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cstdio>
#include <string>
#include <vector>

#include "optimized/coverage.hpp"
#include "optimized/torch/forgetting_attention.hpp"
#include "reference/agreement.hpp"
#include "reference/forgetting_attention.hpp"
#include "reference/head.hpp"
#include "reference/problem.hpp"

int main(int count, char**) {
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
  const auto expected = lethe::reference::forgetting_attention::recurrent(lethe::head_of(problem, 0, 0)).values;
  const std::vector<double> rows(expected.data(), expected.data() + expected.size());
  const lethe::Agreement agreement =
      lethe::compare({values.data_ptr<double>(), 20}, rows, lethe::budget(problem.dtype));
  std::printf("values: %s\n", agreement.describe().c_str());
  const std::string reason = lethe::kHopperCoverage.unsupported(problem.shape, problem.dtype, 90);
  std::printf("kernels on compute capability 9.0: %s\n", reason.empty() ? "cover it" : reason.c_str());
  const bool torch_has_cuda = at::globalContext().hasCUDART();
  std::printf("Torch's CUDA libraries: %s\n", torch_has_cuda ? "loaded" : "not loaded");
  return agreement.passed() && !reason.empty() && (count == 1 || torch_has_cuda) ? 0 : 1;
}
