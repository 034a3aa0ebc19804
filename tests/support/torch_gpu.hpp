#pragma once
// The GPU of tests that use Torch.

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

/// Without a GPU that Torch finds the test skips, but fails where the environment's LETHE_REQUIRE_GPU is 1.
#define LETHE_NEEDS_TORCH_GPU()                                                              \
  if (!at::hasCUDA()) {                                                                      \
    const char* required = std::getenv("LETHE_REQUIRE_GPU");                                 \
    if (required && std::string(required) == "1") FAIL() << "GPU: expected one, found none"; \
    GTEST_SKIP() << "no GPU that this build can use";                                        \
  }
