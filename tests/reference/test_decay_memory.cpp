// Memory of both ways to compute the decay rule's gradients. Linked with --wrap, so that every allocation of the
// reference, which Eigen allocates by malloc, is counted; allocations inside libstdc++ are not.

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstdio>

#include "reference/decay_fast_weights.hpp"
#include "tests/support/fast_weights.hpp"

namespace {

int64_t held = 0, most = 0;  // bytes; tests of the reference have one thread

void* counted(void* block) {
  if (block != nullptr) held += static_cast<int64_t>(malloc_usable_size(block));
  most = std::max(most, held);
  return block;
}
void uncounted(void* block) {
  if (block != nullptr) held -= static_cast<int64_t>(malloc_usable_size(block));
}

}  // namespace

extern "C" {
void* __real_malloc(size_t);
void* __real_calloc(size_t, size_t);
void* __real_realloc(void*, size_t);
void __real_free(void*);

void* __wrap_malloc(size_t size) { return counted(__real_malloc(size)); }
void* __wrap_calloc(size_t count, size_t size) { return counted(__real_calloc(count, size)); }
void* __wrap_realloc(void* block, size_t size) {
  uncounted(block);
  return counted(__real_realloc(block, size));
}
void __wrap_free(void* block) {
  uncounted(block);
  __real_free(block);
}
}

namespace lethe {
namespace {

namespace decay = reference::decay_fast_weights;

// Peak of the memory held beyond that held before, in MiB, the result included.
template <typename Function>
double peak_of(const Function& function) {
  const int64_t before = most = held;
  const auto result = function();
  return static_cast<double>(most - before) / (1 << 20);
}

TEST(DecayGradients, WithoutStoredStatesTakeAnEighthOfTheMemory) {
  // [memory]
  constexpr int64_t kTokens = 4096, kKeyDim = 32, kValueDim = 64;
  constexpr double kStoredMiB = 71.1, kSumsMiB = 9.1;  // in double, beyond the inputs; measured, and held to 2 %
  // [/memory]
  const Head head = random_head({kTokens, kTokens, kKeyDim, kValueDim}, Gate::kInitial);
  const LinearLoss loss(head);
  const double stored = peak_of([&] { return decay::gradients(head, loss.values, loss.state); });
  const double sums = peak_of([&] { return decay::gradients_without_stored_states(head, loss.values, loss.state); });
  std::printf("T = %ld, K = %ld, V = %ld: stored states %.2f MiB, sums %.2f MiB\n", long{kTokens}, long{kKeyDim},
              long{kValueDim}, stored, sums);
  EXPECT_NEAR(stored, kStoredMiB, 0.02 * kStoredMiB);
  EXPECT_NEAR(sums, kSumsMiB, 0.02 * kSumsMiB);
  EXPECT_LT(sums, stored / 7);
  // Of these, the states alone are T K V numbers, and the results, which both return, T (3K + 2V).
  EXPECT_GT(stored, 8.0 * kTokens * kKeyDim * kValueDim / (1 << 20));
  EXPECT_GT(sums, 8.0 * kTokens * (3 * kKeyDim + 2 * kValueDim) / (1 << 20));
}

TEST(DecayGradients, GrowByAStateATokenOnlyWhereStatesAreStored) {
  const auto grown = [](const auto& gradients) {
    const auto peak = [&](int64_t tokens) {
      const Head head = random_head({tokens, tokens, 32, 64}, Gate::kInitial);
      const LinearLoss loss(head);
      return peak_of([&] { return gradients(head, loss.values, loss.state); });
    };
    return (peak(2048) - peak(1024)) * (1 << 20) / (8.0 * 1024);  // numbers a token
  };
  EXPECT_NEAR(grown([](const auto&... x) { return decay::gradients(x...); }), 3 * 32 + 2 * 64 + 32 * 64, 32);
  // Besides the results it holds the values, which it computes anew.
  EXPECT_NEAR(grown([](const auto&... x) { return decay::gradients_without_stored_states(x...); }), 3 * 32 + 3 * 64, 8);
}

}  // namespace
}  // namespace lethe
