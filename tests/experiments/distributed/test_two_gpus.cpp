// What only two GPUs can show.

#include <torch/cuda.h>

#include "tests/experiments/distributed/training.hpp"

namespace lethe {
namespace {

void skip_without_two() {
  if (torch::cuda::device_count() < 2) GTEST_SKIP() << "GPUs: expected 2, found " << torch::cuda::device_count();
}

class TwoGpus : public testing::Test {
 protected:
  void SetUp() override { skip_without_two(); }
  TemporaryFolder folder;
};

TEST_F(TwoGpus, AgreeOnTheirOperations) { Ranks({"collectives"}, 2, folder.path(), "cuda").expect_success(); }

TEST_F(TwoGpus, AttendAsOneDevice) { Ranks({"attention"}, 2, folder.path(), "cuda").expect_success(); }

TEST_F(TwoGpus, EndWithTheErrorOfOne) {
  Ranks ranks({"fails"}, 2, folder.path(), "cuda");
  for (int rank : {1, 0}) {
    EXPECT_EQ(ranks.status(rank), 1 << 8);
    EXPECT_EQ(ranks.errors(rank), "rank 1: disk: expected space, found none\n") << "of rank " << rank;
  }
}

class TrainingByTwoGpus : public TrainingByProcesses {
 protected:
  void SetUp() override {
    skip_without_two();
    run.training.device = "cuda";
  }
};

TEST_F(TrainingByTwoGpus, IsThatOfOneWithTheWholeBatch) {
  trained(run, dataset, root("alone"));
  for (const bool zero : {false, true}) {
    run.training.zero = zero;
    begin(zero ? "shared moments" : "both", 2, "cuda").expect_success();
    expect_equal(zero ? "shared moments" : "both", "alone", 1e-3);
  }
}

}  // namespace
}  // namespace lethe
