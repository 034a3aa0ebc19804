#pragma once
// Tests that run for each of the CUDA kernels' instances, and what they take out of a result.

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "reference/problem.hpp"
#include "tests/cuda/device.hpp"

namespace lethe::testing {

/// A test of one instance: dtype and head dim.
class EveryKernel : public ::testing::TestWithParam<std::tuple<Dtype, int64_t>> {
 protected:
  void SetUp() override { LETHE_NEEDS_GPU(); }
  Dtype dtype() const { return std::get<0>(GetParam()); }
  Shape shape(int64_t batch, int64_t queries, int64_t keys, int64_t heads, int64_t query_heads) const {
    return {batch, queries, keys, heads, query_heads, std::get<1>(GetParam()), std::get<1>(GetParam())};
  }
};

inline auto all_instances() {
  return ::testing::Combine(::testing::Values(Dtype::kBFloat16, Dtype::kFloat16), ::testing::Values(64, 128));
}

inline std::string name_of_instance(const ::testing::TestParamInfo<std::tuple<Dtype, int64_t>>& info) {
  return dtype_name(std::get<0>(info.param)) + "_" + std::to_string(std::get<1>(info.param));
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
