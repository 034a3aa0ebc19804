// Every test starts from the same random numbers of Torch's, whatever ran before it. By itself Torch seeds them anew in each process.

#include <ATen/Context.h>
#include <gtest/gtest.h>

namespace lethe {
namespace {

class Seed : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo&) override { at::manual_seed(1); }
};

[[maybe_unused]] const bool appended = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new Seed);  // gtest deletes it
  return true;
}();

}  // namespace
}  // namespace lethe
