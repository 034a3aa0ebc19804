#pragma once
// The matrix products of a training step: ATen's, or on a GPU the fastest of cuBLASLt's algorithms for each.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lethe {

/// Sets for the whole process whether large products on a GPU choose their algorithm by measurement; without a call they don't.
///
/// The first call of each (shapes, layouts, alignments, dtypes, whether it adds) times cuBLASLt's candidates on its operands, beside ATen's default.
/// That call and later ones run the fastest candidate where it needs less than 1 − margin of the default's time. Else they run ATen's default, and so
/// they do where cuBLASLt refuses, on a CPU, in 32 and 64 bits, below 1 GFLOP, without alignment to 16 bytes, and while a graph is captured before
/// the product was measured.
///
/// cost     of a first call some 70 runs of the product, and for a sum the memory of one more; the host waits for the device
/// numerics sums in float32, also those of parts (split-K). A timing decides their order: two processes may differ by rounding.
///          Under at::globalContext().deterministicAlgorithms() all products are ATen's default, and no bit depends on a timing
void measure_products(bool measured, double margin = 0.02);

/// A product that was measured. Times in microseconds.
struct MeasuredProduct {
  std::string name;  ///< of row-major matrices, such as "[32768,768] x [3136,768]^T", with "sum += " where it adds
  int64_t candidates = 0;   ///< of cuBLASLt's that ran
  double default_time = 0;  ///< of ATen's default
  double best_time = 0;     ///< of the fastest candidate
  bool changed = false;     ///< whether calls run that candidate
  int64_t calls = 0;        ///< since, with the first
  double seconds = 0;       ///< that measuring took
};

/// All that this process has measured.
std::vector<MeasuredProduct> measured_products();

/// a b
///
/// reads  a [m,k], b [k,n] of one dtype, in any layout
at::Tensor product(const at::Tensor& a, const at::Tensor& b);

/// out = a b
///
/// reads  out [m,n] of the dtype of a
void product_out(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b);

/// sum += a b
///
/// reads    sum [m,n] of the dtype of a, or wider
/// numerics on CUDA accumulated in the sum's dtype; on a CPU a b is rounded to the dtype of a first. A narrower b is widened
void add_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b);

}  // namespace lethe
