// Rows of logits against the definition in double: staged rows, rows too long for shared memory, rows at any address, and what labels may be.

#include <cmath>
#include <limits>
#include <vector>

#include "optimized/cuda/layers/layers.hpp"
#include "tests/cuda/device.hpp"

namespace lethe {
namespace {

using testing::DeviceArray;

struct Case {
  int64_t vocabulary, pitch;
  int64_t offset = 0;  // of the first row, in elements
};

// 16-byte pieces in shared memory; single elements, by pitch and by address; rows of 256 KiB and more.
constexpr Case kCases[] = {{97, 104}, {1, 8}, {50257, 50304}, {97, 97}, {97, 104, 1}, {131073, 131080}};
constexpr int64_t kRows = 5;

template <typename Element>
struct Format;
template <>
struct Format<float> {
  static constexpr Dtype kDtype = Dtype::kFloat32;
  static constexpr double kBudget = 1e-5;
};
template <>
struct Format<__nv_bfloat16> {
  static constexpr Dtype kDtype = Dtype::kBFloat16;
  static constexpr double kBudget = 4e-3;  // half a unit of the gradient
};
template <>
struct Format<__half> {
  static constexpr Dtype kDtype = Dtype::kFloat16;
  static constexpr double kBudget = 6e-4;
};

template <typename Element>
std::vector<Element> as_elements(const std::vector<float>& numbers) {
  if constexpr (std::is_same_v<Element, float>) return numbers;
  else return testing::to_element<Element>(numbers);
}

struct Result {
  std::vector<float> loss, logits;
  std::vector<char> correct;
};

// NaN lies before the first row and in the columns past the vocabulary: it must stay unread.
template <typename Element>
Result run(const Case& shape, const std::vector<float>& logits, const std::vector<int64_t>& labels, bool gradient,
           float scale = 0.5f) {
  std::vector<float> padded(shape.offset + kRows * shape.pitch, NAN);
  for (int64_t n = 0; n < kRows; ++n)
    for (int64_t v = 0; v < shape.vocabulary; ++v)
      padded[shape.offset + n * shape.pitch + v] = logits[n * shape.vocabulary + v];
  const DeviceArray<Element> device(as_elements<Element>(padded));
  const DeviceArray<int64_t> device_labels(labels);
  const DeviceArray<float> loss(kRows);
  const DeviceArray<char> correct(kRows);
  layers::cross_entropy_rows({.rows = kRows,
                              .vocabulary = shape.vocabulary,
                              .pitch = shape.pitch,
                              .dtype = Format<Element>::kDtype,
                              .logits = device.data() + shape.offset,
                              .labels = device_labels.data(),
                              .loss = loss.data(),
                              .correct = reinterpret_cast<bool*>(correct.data()),
                              .gradient = gradient,
                              .scale = scale,
                              .stream = nullptr});
  Result result{loss.host(), {}, correct.host()};
  const std::vector<Element> after = device.host();
  for (size_t i = shape.offset; i < after.size(); ++i) result.logits.push_back(static_cast<float>(after[i]));
  return result;
}

// Multiples of 1/16 below 8: exact in every format.
std::vector<float> random_logits(int64_t count) {
  std::vector<float> logits(count);
  uint32_t seed = 5;
  for (float& logit : logits) {
    seed = seed * 1664525u + 1013904223u;
    logit = (static_cast<int>(seed >> 24) - 128) / 16.0f;
  }
  return logits;
}

template <typename Element>
void expect_definition(const Case& shape) {
  const int64_t vocabulary = shape.vocabulary;
  const auto logits = random_logits(kRows * vocabulary);
  std::vector<int64_t> labels(kRows), first_largest(kRows);
  for (int64_t n = 0; n < kRows; ++n) {
    const float* row = logits.data() + n * vocabulary;
    first_largest[n] = std::max_element(row, row + vocabulary) - row;
    labels[n] = n % 2 == 0 ? first_largest[n] : (n * 7919) % vocabulary;
  }
  const Result found = run<Element>(shape, logits, labels, true),
               evaluated = run<Element>(shape, logits, labels, false);
  const Result again = run<Element>(shape, logits, labels, true);
  EXPECT_EQ(found.loss, evaluated.loss);
  EXPECT_EQ(found.loss, again.loss);
  EXPECT_EQ(found.logits, again.logits);
  for (int64_t n = 0; n < kRows; ++n) {
    const float* row = logits.data() + n * vocabulary;
    double sum = 0;
    for (int64_t v = 0; v < vocabulary; ++v) sum += std::exp(static_cast<double>(row[v]));
    EXPECT_NEAR(found.loss[n], std::log(sum) - row[labels[n]], 1e-5);
    EXPECT_EQ(found.correct[n], labels[n] == first_largest[n]);
    EXPECT_EQ(evaluated.correct[n], found.correct[n]);
    double worst = 0;
    for (int64_t v = 0; v < vocabulary; ++v) {
      const double expected = 0.5 * (std::exp(row[v]) / sum - (v == labels[n]));
      const double error = std::abs(found.logits[n * shape.pitch + v] - expected);
      if (!(error <= Format<Element>::kBudget * std::abs(expected) + 1e-7)) worst = std::max(worst, error + 1e-300);
      EXPECT_TRUE(error == error) << v;
    }
    EXPECT_EQ(worst, 0) << "row " << n;
    for (int64_t v = vocabulary; v < shape.pitch; ++v) EXPECT_EQ(found.logits[n * shape.pitch + v], 0) << v;
    for (int64_t v = 0; v < vocabulary; ++v) ASSERT_EQ(evaluated.logits[n * shape.pitch + v], row[v]) << v;
  }
}

TEST(CrossEntropyRows, AgreeWithTheirDefinition) {
  LETHE_NEEDS_ANY_GPU();
  for (const Case& shape : kCases) {
    SCOPED_TRACE(std::to_string(shape.vocabulary) + " of " + std::to_string(shape.pitch));
    expect_definition<float>(shape);
    expect_definition<__nv_bfloat16>(shape);
    expect_definition<__half>(shape);
  }
}

TEST(CrossEntropyRows, SpoilOnlyTheRowsOfUnknownLabels) {
  LETHE_NEEDS_ANY_GPU();
  for (const Case& shape : {kCases[0], kCases[3]}) {
    const auto logits = random_logits(kRows * 97);
    const std::vector<int64_t> good{1, 2, 3, 4, 5}, bad{1, -1, 97, int64_t{1} << 40, 5};
    const Result expected = run<float>(shape, logits, good, true), found = run<float>(shape, logits, bad, true);
    for (int64_t n = 0; n < kRows; ++n) {
      const bool spoilt = n >= 1 && n <= 3;
      EXPECT_EQ(std::isnan(found.loss[n]), spoilt) << n;
      EXPECT_TRUE(!spoilt || !found.correct[n]);
      for (int64_t v = 0; v < 97; ++v) {
        const float gradient = found.logits[n * shape.pitch + v];
        EXPECT_TRUE(spoilt ? std::isnan(gradient) : gradient == expected.logits[n * shape.pitch + v]) << n << ", " << v;
      }
    }
  }
}

TEST(CrossEntropyRows, CallTheFirstLargestLogitCorrect) {
  LETHE_NEEDS_ANY_GPU();
  for (const Case& shape : {kCases[0], kCases[3]}) {
    std::vector<float> logits(kRows * 97, 1);
    for (int64_t n = 0; n < kRows; ++n) logits[n * 97 + 40] = logits[n * 97 + 43] = logits[n * 97 + 90] = 3;
    const Result found = run<__half>(shape, logits, {40, 43, 90, 0, 96}, false);
    EXPECT_EQ(found.correct, (std::vector<char>{1, 0, 0, 0, 0}));
  }
}

TEST(CrossEntropyRows, KeepNaNAndSurviveHugeLogits) {
  LETHE_NEEDS_ANY_GPU();
  std::vector<float> logits(kRows * 97, 0);
  logits[0 * 97 + 50] = NAN;
  for (int64_t v = 0; v < 97; ++v) logits[1 * 97 + v] = -1e30f;
  logits[2 * 97 + 3] = 1e30f;
  logits[3 * 97 + 3] = -std::numeric_limits<float>::infinity();
  for (int64_t v = 0; v < 97; ++v) logits[4 * 97 + v] = -std::numeric_limits<float>::infinity();
  const Result found = run<float>(kCases[0], logits, {3, 3, 3, 4, 3}, true);
  EXPECT_TRUE(std::isnan(found.loss[0]) && !found.correct[0]);
  EXPECT_LT(std::abs(found.loss[1]), 1e24f);
  EXPECT_LT(std::abs(found.loss[2]), 1e24f);
  EXPECT_NEAR(found.loss[3], std::log(96.0), 1e-5);
  EXPECT_EQ(found.logits[3 * 104 + 3], 0);
  EXPECT_TRUE(std::isnan(found.loss[4]));
}

}  // namespace
}  // namespace lethe
