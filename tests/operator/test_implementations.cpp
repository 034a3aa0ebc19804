// Which kernels run a call on which GPU, in words: asked of a build without a device.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "optimized/torch/implementations.hpp"

namespace lethe {
namespace {

using Gate = MatrixStateForm::Gate;

std::string variant_at(int64_t dim, int capability, Dtype dtype = Dtype::kBFloat16, bool deterministic = false) {
  return variant_of_ampere({1, 4096, 4096, 8, 8, dim, dim}, dtype, capability, deterministic);
}

ImplementationText text_of(const MatrixStateForm& form, Dtype dtype, int capability, int64_t dim = 64) {
  return implementation_text(matrix_state_implementations(), {.shape = {1, 4096, 4096, 8, 8, dim, dim},
                                                              .dtype = dtype,
                                                              .device = at::kCUDA,
                                                              .compute_capability = capability,
                                                              .form = form});
}

TEST(Implementations, BackwardOfAGpuGoesByItsSharedMemory) {
  const std::pair<int, std::vector<const char*>> expected[] = {
      {99,
       {"128 × 64, backward in two kernels 128 × 64", "128 × 32, wide backward 128 × 64, one stage",
        "128 × 32, fused backward 128 × 32", "128 × 32, backward in two kernels 64 × 64",
        "64 × 32, backward in two kernels 64 × 16"}},
      {163,
       {"128 × 64, backward in two kernels 128 × 64", "128 × 32, wide backward 128 × 64, two stages",
        "128 × 32, wide backward 128 × 64, two stages", "128 × 32, wide backward 128 × 64, one stage",
        "64 × 32, wide backward 64 × 64, one stage"}},
      {227,
       {"128 × 64, backward in two kernels 128 × 64", "128 × 32, wide backward 128 × 64, two stages",
        "128 × 32, wide backward 128 × 64, two stages", "128 × 32, wide backward 128 × 64, two stages",
        "64 × 32, wide backward 64 × 64, one stage"}},
  };
  for (const int capability : {90, 100, 80, 87, 86, 89, 120}) {
    for (const auto& [kilobytes, variants] : expected) {
      if (kilobytes != shared_kilobytes(capability)) continue;
      for (size_t i = 0; i < variants.size(); ++i)
        EXPECT_EQ(variant_at(std::vector{24, 64, 96, 128, 136}[i], capability),
                  std::string("forward tiles ") + variants[i])
            << capability;
    }
  }
}

TEST(Implementations, FixedOrderAndFloatsHaveTheTwoKernels) {
  EXPECT_EQ(variant_at(64, 80, Dtype::kFloat16, true), "forward tiles 128 × 32, backward in two kernels 128 × 64");
  EXPECT_EQ(variant_at(96, 90, Dtype::kFloat32), "forward tiles 64 × 16, backward in two kernels 32 × 16");
  EXPECT_EQ(variant_at(40, 90, Dtype::kFloat32), "forward tiles 128 × 32, backward in two kernels 128 × 16");
}

TEST(Implementations, AReasonThatAllShareIsGivenOnce) {
  const ImplementationText attention = implementation_text(
      attention_implementations(),
      {.shape = {1, 64, 64, 1, 1, 300, 64}, .dtype = Dtype::kFloat16, .device = at::kCUDA, .compute_capability = 90});
  EXPECT_EQ(attention.name + attention.variant, "portable");
  EXPECT_EQ(attention.passed_over, ", not the others: head dim: expected 1 to 256, found 300");
  EXPECT_EQ(listed_reasons({{"A", "size"}}), ", not the A: size");
  EXPECT_EQ(listed_reasons({{"A", "size"}, {"B", "dtype"}, {"C", "size"}}),
            ", not the A and the C: size, not the B: dtype");
  EXPECT_EQ(listed_reasons({}), "");
}

TEST(Implementations, FamiliesOfOtherRulesAreNotListed) {
  const std::string dtype = ": dtype: expected bfloat16 or float16, found float32";
  for (const Gate gate : {Gate::kNone, Gate::kToken, Gate::kKey}) {
    const bool of_rows = gate == Gate::kKey;
    const ImplementationText gated = text_of({.key_gate = gate}, Dtype::kFloat32, 90),
                             delta = text_of({.key_gate = gate, .delta = true}, Dtype::kFloat32, 90);
    EXPECT_EQ(gated.name, "scan kernels");
    EXPECT_EQ(gated.passed_over, std::string(", not the ") + (of_rows ? "vector gate" : "chunk") + " kernels" + dtype);
    EXPECT_EQ(delta.passed_over,
              std::string(", not the delta ") + (of_rows ? "key gate" : "chunk") + " kernels" + dtype);
  }
  const ImplementationText delta = text_of({.delta = true}, Dtype::kBFloat16, 80);
  EXPECT_EQ(delta.name + delta.variant + delta.passed_over, "delta chunk kernels");
}

TEST(Implementations, StatesThatAHopperForwardLeavesAreNamed) {
  EXPECT_EQ(text_of({.key_gate = Gate::kToken}, Dtype::kBFloat16, 90).variant, " (states kept for the backward)");
  EXPECT_EQ(text_of({.key_gate = Gate::kToken}, Dtype::kBFloat16, 90, 200).variant, "");
  EXPECT_EQ(text_of({.key_gate = Gate::kToken}, Dtype::kBFloat16, 80).variant, "");
  EXPECT_EQ(text_of({.key_gate = Gate::kKey}, Dtype::kBFloat16, 90).variant, "");
}

TEST(Implementations, AFormAloneDecidesWhatAFamilyRefusesOfAFittingCall) {
  for (const MatrixStateCoverage& family : kMatrixStateCoverage)
    for (const Gate gate : {Gate::kNone, Gate::kToken, Gate::kKey})
      for (const bool value_gate : {false, true})
        for (const bool delta : {false, true}) {
          const MatrixStateForm form{.key_gate = gate, .value_gate = value_gate, .delta = delta};
          EXPECT_EQ(family.unsupported({1, 64, 64, 1, 1, 64, 64}, form, Dtype::kBFloat16, 80), family.other_form(form))
              << family.name;
        }
}

}  // namespace
}  // namespace lethe
