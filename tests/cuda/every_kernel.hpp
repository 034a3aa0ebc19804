#pragma once
// Tests that run for each of the CUDA kernels' instances, and the parts of a result that they compare.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "optimized/cuda/attention.hpp"
#include "reference/problem.hpp"
#include "tests/cuda/device.hpp"
#include "tests/cuda/kernels_under_test.hpp"

namespace lethe::testing {

/// A test of one instance: family, dtype and head dim.
using Instance = std::tuple<Family, Dtype, int64_t>;

class EveryKernel : public ::testing::TestWithParam<Instance> {
 protected:
  void SetUp() override {
    family_under_test = std::get<Family>(GetParam());
    if (family_under_test == Family::kHopperWindows) {
      family_under_test = Family::kHopper;
      window_under_test = kLargestWindow;
    }
    const bool has_less = family_under_test == Family::kAmpereOfLess;
    if (has_less) family_under_test = Family::kAmpere;
    const bool hopper = family_under_test == Family::kHopper;
    if (!have_gpu(hopper)) GTEST_SKIP() << "needs a GPU of compute capability " << (hopper ? "9.0" : "8.0 or more");
    const int64_t instance = ampere::dim_of_instance(shape(1, 1, 1, 1, 1));
    if (has_less)
      shared_bytes_under_test = std::min(ampere::bytes_of_wide(instance).largest - 1, ampere::shared_bytes_of_device());
    if (!hopper && dim() < instance) columns_between_heads = 32;
  }
  void TearDown() override {
    family_under_test = Family::kHopper, window_under_test = kNoWindow, shared_bytes_under_test.reset();
    columns_between_heads = 0;
  }
  Dtype dtype() const { return std::get<Dtype>(GetParam()); }
  int64_t dim() const { return std::get<int64_t>(GetParam()); }
  Shape shape(int64_t batch, int64_t queries, int64_t keys, int64_t heads, int64_t query_heads) const {
    return {batch, queries, keys, heads, query_heads, dim(), dim()};
  }
};

inline auto instances_of(Family family, std::vector<int64_t> dims,
                         std::vector<Dtype> dtypes = {Dtype::kBFloat16, Dtype::kFloat16}) {
  return ::testing::Combine(::testing::Values(family), ::testing::ValuesIn(dtypes), ::testing::ValuesIn(dims));
}
inline auto window_instances() { return instances_of(Family::kHopperWindows, {64, 128}); }
inline auto hopper_instances() { return instances_of(Family::kHopper, {64, 128, 256}); }
/// Head dims below the instance's: rows that end inside a tile. Of some every test; of the others a few.
inline auto short_rows(Dtype dtype) {
  return instances_of(Family::kHopper, {dtype == Dtype::kBFloat16 ? 96 : 40}, {dtype});
}
inline auto wide_short_rows() { return instances_of(Family::kHopper, {136, 160, 192, 200, 248}); }
inline auto other_short_rows() { return instances_of(Family::kHopper, {8, 24, 32, 48, 56, 72, 80, 88, 104, 112, 120}); }
inline auto ampere_instances() { return instances_of(Family::kAmpere, {32, 64, 96, 128, 256}); }
/// Head dims below the instance's, as a few tests run them.
inline auto ampere_short_rows(Family family = Family::kAmpere) { return instances_of(family, {72, 88}); }
inline auto ampere_instances_of_less() { return instances_of(Family::kAmpereOfLess, {64, 96, 128}); }
inline auto float_instances() { return instances_of(Family::kAmpere, {32, 64, 128}, {Dtype::kFloat32}); }

inline std::string name_of_instance(const ::testing::TestParamInfo<Instance>& info) {
  const char* prefixes[] = {"", "windows_", "sm_80_", "less_shared_sm_80_"};
  return prefixes[static_cast<int>(std::get<Family>(info.param))] + dtype_name(std::get<Dtype>(info.param)) + "_" +
         std::to_string(std::get<int64_t>(info.param));
}

/// Finite gates whose sums within a tile are so large that floats of that size can't resolve its pairs: for each name gates by token, of the last
/// query head alone.
inline std::vector<std::pair<std::string, Problem>> with_strong_gates(const Problem& problem) {
  std::vector<std::pair<std::string, Problem>> problems;
  const auto add = [&](const std::string& name, auto gate_at) {
    Problem& strong = problems.emplace_back(name, problem).second;
    for (int64_t t = 0; t < problem.shape.key_length; ++t)
      for (int64_t batch = 0; batch < problem.shape.batch; ++batch) {
        double& gate = strong.log_forget[(batch * problem.shape.key_length + t + 1) * problem.shape.query_heads - 1];
        gate = round_to(Dtype::kFloat32, gate_at(t, gate));
      }
  };
  for (const double mean : {-10.0, -40.0, -100.0, -1000.0, -9000.0})
    add("throughout " + std::to_string(mean),
        [=](int64_t t, double) { return mean * (0.9 + 0.2 * (t * 7 % 16) / 16); });
  // A few tokens see one another; no others do.
  add("every fifth", [](int64_t t, double open) { return t % 5 == 3 ? -9000 : open; });
  const int64_t end = (problem.shape.key_length - 1) / kGateBlock * kGateBlock;
  add("one block's last", [=](int64_t t, double open) { return t >= end - 66 && t < end ? -9000 : open; });
  add("nine in a row", [](int64_t t, double open) { return t % 150 > 140 ? -9000 : open; });
  add("all but a block's first", [](int64_t t, double open) { return t % kGateBlock >= 28 ? -1000 : open; });
  add("all but a block's last", [](int64_t t, double open) { return t % kGateBlock < 100 ? -1000 : open; });
  return problems;
}

/// Finite gates of all heads, each block's just short of strong.
inline std::vector<Problem> with_almost_strong_gates(const Problem& problem) {
  std::vector<Problem> problems(2, problem);
  for (size_t i = 0; i < problem.log_forget.size(); ++i) {
    problems[0].log_forget[i] = round_to(Dtype::kFloat32, -3.99);
    const bool first = i / problem.shape.query_heads % problem.shape.key_length % kGateBlock == 0;
    problems[1].log_forget[i] = round_to(Dtype::kFloat32, first ? -508.3 : 0.01 * problem.log_forget[i]);
  }
  return problems;
}

/// Column `head` of [B, T, heads, width] at `batch`, flat [T, width].
inline std::vector<double> slice(const std::vector<double>& tensor, int64_t length, int64_t heads, int64_t width,
                                 int64_t batch, int64_t head) {
  std::vector<double> result;
  for (int64_t t = 0; t < length; ++t) {
    const auto begin = tensor.begin() + ((batch * length + t) * heads + head) * width;
    result.insert(result.end(), begin, begin + width);
  }
  return result;
}

}  // namespace lethe::testing
