// The same at the benchmark's length. Slow because of the reference, which needs most of the time.
#include <gtest/gtest.h>

#include "tests/operator/operator_and_reference.hpp"
#include "tests/support/heads.hpp"

namespace lethe {
namespace {

TEST(ForgettingAttentionOperator, EqualsTheReferenceAtLength4096) {
  const Shape shape{.query_length = 4096, .key_length = 4096, .key_dim = 64, .value_dim = 64};
  for (const Dtype dtype : {Dtype::kFloat64, Dtype::kFloat32, Dtype::kBFloat16, Dtype::kFloat16}) {
    for (const Gate gate : kEveryGate) {
      if (dtype != Dtype::kFloat32 && gate != Gate::kInitial && gate != Gate::kStrong) continue;
      SCOPED_TRACE(dtype_name(dtype) + ", " + gate_name(gate));
      expect_equals_reference(random_problem(shape, dtype, gate, 3));
    }
  }
}

}  // namespace
}  // namespace lethe
