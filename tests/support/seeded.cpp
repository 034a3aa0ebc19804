// Seeds Torch's random numbers before every test; by default each process has another seed.

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
