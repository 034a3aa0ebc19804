#include "optimized/torch/products.hpp"

#include <ATen/Context.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <atomic>

#ifdef LETHE_CUDA_KERNELS
#include "optimized/torch/cuda_gemm_choice.hpp"
#endif

namespace lethe {
namespace {

using at::Tensor;

std::atomic<bool> measured_in_process = false;
[[maybe_unused]] std::atomic<double> least_gain = 0;

bool is_measured(const Tensor& operand) {
  return measured_in_process && operand.is_cuda() && !at::globalContext().deterministicAlgorithms();
}

void by_aten(Tensor out, const Tensor& a, const Tensor& b, bool adds) {
  if (!adds) at::mm_out(out, a, b);
  else if (a.scalar_type() == out.scalar_type()) out.addmm_(a, b.to(out.scalar_type()));
  else if (a.is_cuda()) at::addmm_out(out, out, a, b, out.scalar_type());
  else out.add_(at::mm(a, b));
}

void multiply(const Tensor& out, const Tensor& a, const Tensor& b, bool adds) {
#ifdef LETHE_CUDA_KERNELS
  if (is_measured(a) && multiplied_by_choice(out, a, b, adds, by_aten, least_gain)) return;
#endif
  by_aten(out, a, b, adds);
}

}  // namespace

void measure_products(bool measured, double margin) {
  least_gain = margin;
  measured_in_process = measured;
}

std::vector<MeasuredProduct> measured_products() {
#ifdef LETHE_CUDA_KERNELS
  return gemm_choices();
#else
  return {};
#endif
}

Tensor product(const Tensor& a, const Tensor& b) {
  if (!is_measured(a)) return at::mm(a, b);
  const Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
  multiply(out, a, b, /*adds=*/false);
  return out;
}

void product_out(const Tensor& out, const Tensor& a, const Tensor& b) { multiply(out, a, b, /*adds=*/false); }

void add_product(const Tensor& sum, const Tensor& a, const Tensor& b) { multiply(sum, a, b, /*adds=*/true); }

}  // namespace lethe
