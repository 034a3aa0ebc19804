#include "optimized/torch/cuda_gemm_choice.hpp"

#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>
#include <cublasLt.h>

#include <algorithm>
#include <chrono>
#include <compare>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace lethe {
namespace {

using at::Tensor;
using Algorithm = cublasLtMatmulHeuristicResult_t;

constexpr int kCandidates = 24, kFinalists = 3, kRounds = 5;
constexpr double kLeastFlops = 1e9;           // a smaller product's time is mostly its launch
constexpr size_t kMostProducts = 256;         // a process whose shapes keep changing measures no more than these
constexpr uint64_t kWorkspace = 32ull << 20;  // bytes; cuBLAS' own on Hopper
constexpr int64_t kAlignment = 16, kMostAlignment = 256;  // bytes

// The elements of a matrix as cuBLASLt sees them, in columns: those of a row-major matrix are its transpose.
struct Layout {
  cudaDataType_t type;
  bool row_major;
  int64_t rows, columns, pitch, alignment;

  auto operator<=>(const Layout&) const = default;
};

// Of a product: outᵀ = bᵀ aᵀ in columns is out = a b in rows.
struct Layouts {
  int device;
  bool adds;
  Layout out, a, b;

  auto operator<=>(const Layouts&) const = default;
};

// A product as cuBLASLt knows it.
struct Gemm {
  cublasLtMatmulDescOpaque_t operation{};
  cublasLtMatrixLayoutOpaque_t out{}, a{}, b{};
  float beta = 0;
  std::optional<Algorithm> chosen;  // none: ATen's default
  MeasuredProduct report;
};

std::optional<Layout> layout_of(const Tensor& matrix) {
  const int64_t rows = matrix.size(0), columns = matrix.size(1);
  const bool row_major = matrix.stride(1) == 1 && matrix.stride(0) >= columns;
  if (!row_major && !(matrix.stride(0) == 1 && matrix.stride(1) >= rows)) return std::nullopt;
  const int64_t pitch = matrix.stride(row_major ? 0 : 1);
  const auto address = reinterpret_cast<int64_t>(matrix.const_data_ptr());
  if (address % kAlignment != 0 || pitch * matrix.element_size() % kAlignment != 0) return std::nullopt;
  const at::ScalarType dtype = matrix.scalar_type();
  return Layout{.type = dtype == at::kFloat  ? CUDA_R_32F
                        : dtype == at::kHalf ? CUDA_R_16F
                                             : CUDA_R_16BF,
                .row_major = row_major,
                .rows = row_major ? columns : rows,
                .columns = row_major ? rows : columns,
                .pitch = pitch,
                .alignment = std::min(address & -address, kMostAlignment)};
}

// None for products that are not measured.
std::optional<Layouts> layouts_of(const Tensor& out, const Tensor& a, const Tensor& b, bool adds) {
  const at::ScalarType dtype = a.scalar_type();
  const double flops = 2 * static_cast<double>(a.numel()) * static_cast<double>(b.size(1));
  if ((dtype != at::kBFloat16 && dtype != at::kHalf) || b.scalar_type() != dtype || flops < kLeastFlops ||
      (out.scalar_type() != dtype && out.scalar_type() != at::kFloat))
    return std::nullopt;
  const auto of_out = layout_of(out), of_a = layout_of(a), of_b = layout_of(b);
  if (!of_out || !of_out->row_major || !of_a || !of_b) return std::nullopt;
  return Layouts{out.get_device(), adds, *of_out, *of_a, *of_b};
}

bool good(cublasStatus_t status) { return status == CUBLAS_STATUS_SUCCESS; }

// Whether cuBLASLt takes it.
bool describe(Gemm& gemm, const Layouts& layouts) {
  const auto init = [](cublasLtMatrixLayoutOpaque_t& matrix, const Layout& layout) {
    return good(cublasLtMatrixLayoutInit(&matrix, layout.type, static_cast<uint64_t>(layout.rows),
                                         static_cast<uint64_t>(layout.columns), layout.pitch));
  };
  const auto transpose = [&](cublasLtMatmulDescAttributes_t operand, const Layout& layout) {
    const int32_t operation = layout.row_major ? CUBLAS_OP_N : CUBLAS_OP_T;
    return good(cublasLtMatmulDescSetAttribute(&gemm.operation, operand, &operation, sizeof operation));
  };
  gemm.beta = layouts.adds ? 1 : 0;
  return init(gemm.out, layouts.out) && init(gemm.a, layouts.a) && init(gemm.b, layouts.b) &&
         good(cublasLtMatmulDescInit(&gemm.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F)) &&
         transpose(CUBLASLT_MATMUL_DESC_TRANSA, layouts.b) && transpose(CUBLASLT_MATMUL_DESC_TRANSB, layouts.a);
}

std::vector<Algorithm> candidates_of(Gemm& gemm, const Layouts& layouts) {
  cublasLtMatmulPreferenceOpaque_t preference;
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    return good(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value));
  };
  const auto aligned = [&](cublasLtMatmulPreferenceAttributes_t attribute, const Layout& layout) {
    return prefer(attribute, static_cast<uint32_t>(layout.alignment));
  };
  // Parts of a sum are added in float32: in the workspace, or in the output where that is float32.
  const auto reductions = static_cast<uint32_t>(
      layouts.out.type == CUDA_R_32F ? CUBLASLT_REDUCTION_SCHEME_MASK : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
  std::vector<Algorithm> found(kCandidates);
  int count = 0;
  const bool answered =
      good(cublasLtMatmulPreferenceInit(&preference)) && prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace) &&
      prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions) &&
      aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, layouts.b) &&
      aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, layouts.a) &&
      aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, layouts.out) &&
      aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, layouts.out) &&
      good(cublasLtMatmulAlgoGetHeuristic(at::cuda::getCurrentCUDABlasLtHandle(), &gemm.operation, &gemm.b, &gemm.a,
                                          &gemm.out, &gemm.out, &preference, kCandidates, found.data(), &count));
  found.resize(answered ? static_cast<size_t>(count) : 0);
  std::erase_if(found, [](const Algorithm& one) { return !good(one.state); });
  return found;
}

// Whether it was launched.
bool run(Gemm& gemm, const Algorithm& algorithm, const Tensor& out, const Tensor& a, const Tensor& b) {
  constexpr float kAlpha = 1;
  const c10::DataPtr workspace = c10::cuda::CUDACachingAllocator::get()->allocate(algorithm.workspaceSize);
  const cublasStatus_t status = cublasLtMatmul(
      at::cuda::getCurrentCUDABlasLtHandle(), &gemm.operation, &kAlpha, b.const_data_ptr(), &gemm.b, a.const_data_ptr(),
      &gemm.a, &gemm.beta, out.const_data_ptr(), &gemm.out, out.mutable_data_ptr(), &gemm.out, &algorithm.algo,
      workspace.get(), algorithm.workspaceSize, c10::cuda::getCurrentCUDAStream());
  if (good(status)) return true;
  (void)cudaGetLastError();  // what cuBLASLt left is no error of a later launch
  return false;
}

// Times runs on the current stream. Each begins with other data in the L2 cache, as in a training step.
class Stopwatch {
 public:
  Stopwatch()
      : other_(at::empty({2 * int64_t{at::cuda::getCurrentDeviceProperties()->l2CacheSize}},
                         at::TensorOptions(at::kCUDA).dtype(at::kByte))) {}

  void time(const std::function<void()>& work) {
    const c10::Stream stream = c10::cuda::getCurrentCUDAStream().unwrap();
    other_.zero_();
    Run& run = runs_.emplace_back();
    run.begin.record(stream);
    work();
    run.end.record(stream);
  }

  // Microseconds of each run since the last call. Waits for them.
  std::vector<double> take() {
    std::vector<double> times;
    for (const Run& run : runs_) {
      run.end.synchronize();
      times.push_back(run.begin.elapsedTime(run.end) * 1e3);
    }
    runs_.clear();
    return times;
  }

 private:
  struct Run {
    c10::Event begin{c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT};
    c10::Event end{c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT};
  };
  Tensor other_;
  std::vector<Run> runs_;
};

// Times the candidates, then the best of them and the default in turn, since the GPU's clock changes meanwhile.
void measure(Gemm& gemm, const Layouts& layouts, const Tensor& out, const Tensor& a, const Tensor& b,
             ProductByDefault by_default, double margin) {
  const Tensor target = layouts.adds ? at::empty_strided(out.sizes(), out.strides(), out.options()).zero_() : out;
  Stopwatch watch;
  std::vector<Algorithm> candidates = candidates_of(gemm, layouts);
  // A first run loads the kernel.
  std::erase_if(candidates, [&](const Algorithm& one) { return !run(gemm, one, target, a, b); });
  by_default(target, a, b, layouts.adds);
  gemm.report.candidates = static_cast<int64_t>(candidates.size());

  for (const Algorithm& one : candidates) watch.time([&] { run(gemm, one, target, a, b); });
  std::vector<std::pair<double, size_t>> order;
  for (const double time : watch.take()) order.emplace_back(time, order.size());
  std::ranges::sort(order);
  order.resize(std::min<size_t>(order.size(), kFinalists));

  for (int round = 0; round < kRounds; ++round) {
    watch.time([&] { by_default(target, a, b, layouts.adds); });
    for (const auto& [time, place] : order) watch.time([&, at = place] { run(gemm, candidates[at], target, a, b); });
  }
  const std::vector<double> times = watch.take();
  const auto median_of = [&](size_t first) {
    std::vector<double> own;
    for (size_t i = first; i < times.size(); i += 1 + order.size()) own.push_back(times[i]);
    std::ranges::sort(own);
    return own[own.size() / 2];
  };
  gemm.report.default_time = gemm.report.best_time = median_of(0);
  if (order.empty()) return;
  for (size_t i = 0; i < order.size(); ++i) order[i].first = median_of(1 + i);
  const auto [best, place] = std::ranges::min(order);
  gemm.report.best_time = best;
  gemm.report.changed = best < (1 - margin) * gemm.report.default_time;
  if (gemm.report.changed) gemm.chosen = candidates[place];
}

std::string name_of(const Layouts& layouts) {
  const auto operand = [](const Layout& layout) {
    return std::string("[") + std::to_string(layout.columns) + "," + std::to_string(layout.rows) +
           (layout.row_major ? "]" : "]^T");
  };
  return (layouts.adds ? "sum += " : "") + operand(layouts.a) + " x " + operand(layouts.b);
}

// The products that were measured.
struct Gemms {
  std::mutex mutex;
  std::map<Layouts, Gemm> all;
};

Gemms& gemms() {
  static Gemms instance;
  return instance;
}

}  // namespace

bool multiplied_by_choice(const Tensor& out, const Tensor& a, const Tensor& b, bool adds, ProductByDefault by_default,
                          double margin) {
  const std::optional<Layouts> layouts = layouts_of(out, a, b, adds);
  if (!layouts) return false;
  const c10::DeviceGuard device(out.device());
  auto& [mutex, all] = gemms();
  const std::lock_guard<std::mutex> lock(mutex);
  auto found = all.find(*layouts);
  if (found == all.end()) {
    if (all.size() >= kMostProducts ||
        c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None)
      return false;
    Gemm& gemm = (found = all.emplace(*layouts, Gemm{}).first)->second;
    gemm.report.name = name_of(*layouts);
    c10::cuda::getCurrentCUDAStream().synchronize();
    const auto start = std::chrono::steady_clock::now();
    try {
      if (describe(gemm, *layouts)) measure(gemm, *layouts, out, a, b, by_default, margin);
    } catch (const c10::Error&) {  // no memory for the copy of a sum, or for a library: the default needs none
      gemm.chosen.reset();
      gemm.report = {.name = gemm.report.name};
    }
    gemm.report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  Gemm& gemm = found->second;
  ++gemm.report.calls;
  if (!gemm.chosen) return false;
  RECORD_FUNCTION("lethe::chosen_product", c10::ArrayRef<const c10::IValue>());
  if (run(gemm, *gemm.chosen, out, a, b)) return true;
  gemm.chosen.reset();
  gemm.report.changed = false;
  return false;
}

std::vector<MeasuredProduct> gemm_choices() {
  auto& [mutex, all] = gemms();
  const std::lock_guard<std::mutex> lock(mutex);
  std::vector<MeasuredProduct> reports;
  for (const auto& [layouts, gemm] : all)
    if (gemm.report.default_time > 0) reports.push_back(gemm.report);
  return reports;
}

}  // namespace lethe
