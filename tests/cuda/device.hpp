#pragma once
// Arrays on the device for tests: poisoned before use, with a canary after the end.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <vector>

namespace lethe::testing {

inline void require(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

/// Whether there is a Hopper GPU or, for the kernels of every GPU, one from compute capability 8.0 on. Without one a test skips, but fails where
/// there is none from 8.0 on and the environment's LETHE_REQUIRE_GPU is 1. With LETHE_AS_A100=1 in it, as for a build with that option, none is Hopper.
inline bool have_gpu(bool hopper = true) {
  int major = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess) major = 0;
  (void)cudaGetLastError();
  const char* as_a100 = std::getenv("LETHE_AS_A100");
  if (hopper ? major == 9 && !(as_a100 && std::string(as_a100) == "1") : major >= 8) return true;
  const char* required = std::getenv("LETHE_REQUIRE_GPU");
  if (major < 8 && required && std::string(required) == "1")
    ADD_FAILURE() << "GPU: expected compute capability 8.0 or more, found none";
  return false;
}

#define LETHE_NEEDS_GPU() \
  if (!::lethe::testing::have_gpu()) GTEST_SKIP() << "needs a GPU of compute capability 9.0"
#define LETHE_NEEDS_ANY_GPU() \
  if (!::lethe::testing::have_gpu(false)) GTEST_SKIP() << "needs a GPU of compute capability 8.0 or more"

/// Of the current device.
inline int attribute(cudaDeviceAttr which) {
  int device, value;
  require(cudaGetDevice(&device));
  require(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

/// Blocks of the device's memory, kept for the next array of their size: cudaMalloc and cudaFree wait for the device, and for a lock of the driver
/// that all tests of a machine share. A block's size stays what was asked for, so that memcheck finds what lies beyond.
class DeviceBlocks {
 public:
  static void* take(size_t bytes) {
    void* block = nullptr;
    if (const auto found = blocks_.find(bytes); found != blocks_.end()) {
      block = found->second;
      blocks_.erase(found);
      kept_ -= bytes;
    } else {
      require(cudaMalloc(&block, bytes));
    }
    return block;
  }
  static void give_back(void* block, size_t bytes) {
    if (kept_ + bytes > kMost) {
      cudaFree(block);
      return;
    }
    blocks_.emplace(bytes, block);
    kept_ += bytes;
  }

 private:
  static constexpr size_t kMost = size_t{512} << 20;
  inline static std::unordered_multimap<size_t, void*> blocks_;
  inline static size_t kept_ = 0;
};

/// `size` elements of T whose bytes are all 0xff at first (NaN in every float type), followed by a canary.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t size) : size_(size) {
    data_ = static_cast<T*>(DeviceBlocks::take(bytes() + kCanary));
    require(cudaMemset(data_, 0xff, bytes()));
    require(cudaMemset(reinterpret_cast<char*>(data_) + bytes(), 0x5a, kCanary));
  }
  explicit DeviceArray(const std::vector<T>& host) : DeviceArray(host.size()) {
    require(cudaMemcpy(data_, host.data(), bytes(), cudaMemcpyHostToDevice));
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { DeviceBlocks::give_back(data_, bytes() + kCanary); }

  T* data() const { return data_; }
  size_t size() const { return size_; }

  /// The contents, once the device is idle. Fails the test where the canary was overwritten.
  std::vector<T> host() const {
    require(cudaDeviceSynchronize());
    std::vector<T> values(size_ + kCanary / sizeof(T));  // in one copy: beside other processes each waits for its turn
    require(cudaMemcpy(values.data(), data_, bytes() + kCanary, cudaMemcpyDeviceToHost));
    const auto* all = reinterpret_cast<const unsigned char*>(values.data());
    EXPECT_TRUE(std::all_of(all + bytes(), all + bytes() + kCanary, [](unsigned char byte) { return byte == 0x5a; }))
        << "wrote past the end";
    values.resize(size_);
    return values;
  }

 private:
  static constexpr size_t kCanary = 256;
  static_assert(kCanary % sizeof(T) == 0);
  size_t bytes() const { return size_ * sizeof(T); }
  size_t size_;
  T* data_ = nullptr;
};

/// The numbers at a place on the device, once it is idle.
template <typename T>
std::vector<T> download(const T* device, size_t count) {
  require(cudaDeviceSynchronize());
  std::vector<T> host(count);
  require(cudaMemcpy(host.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost));
  return host;
}

/// Small integers from a fixed generator: exact in every format, sums exact in float.
inline std::vector<float> small_integers(size_t size, uint32_t seed) {
  std::vector<float> values(size);
  for (auto& value : values) {
    seed = seed * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<int>(seed >> 24) % 15 - 7);
  }
  return values;
}

/// Numbers, float or double, rounded to float, then to the element.
template <typename Element, typename Number = float>
std::vector<Element> to_element(const std::vector<Number>& values) {
  std::vector<Element> converted(values.size());
  std::transform(values.begin(), values.end(), converted.begin(), [](Number number) -> Element {
    const float value = static_cast<float>(number);
    if constexpr (std::is_same_v<Element, __half>) return __float2half(value);
    else if constexpr (std::is_same_v<Element, float>) return value;
    else return __float2bfloat16(value);
  });
  return converted;
}

template <typename Element>
double to_double(const Element& element) {
  return static_cast<double>(static_cast<float>(element));
}

template <typename Element>
std::vector<double> to_doubles(const std::vector<Element>& elements) {
  std::vector<double> numbers(elements.size());
  std::transform(elements.begin(), elements.end(), numbers.begin(), to_double<Element>);
  return numbers;
}

}  // namespace lethe::testing
