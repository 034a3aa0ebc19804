// The ranks of a training and their end.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>

#include "experiments/data/run_program.hpp"
#include "experiments/training/launch.hpp"
#include "experiments/training/world.hpp"
#include "tests/experiments/distributed/ranks.hpp"
#include "tests/experiments/tiny.hpp"

namespace lethe {
namespace {

RankPlace place_in(const std::map<std::string, std::string>& variables) {
  return RankPlace::in([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string refusal_in(const std::map<std::string, std::string>& variables) {
  try {
    place_in(variables);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(RankPlace, IsTheOnlyOneWithoutALauncher) {
  const RankPlace place = place_in({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}});  // a batch script, outside srun
  EXPECT_EQ(place.rank, 0);
  EXPECT_EQ(place.size, 1);
}

TEST(RankPlace, IsReadFromTorchrun) {
  const RankPlace place = place_in({{"RANK", "5"},
                                    {"WORLD_SIZE", "16"},
                                    {"LOCAL_RANK", "1"},
                                    {"MASTER_ADDR", "node7"},
                                    {"MASTER_PORT", "4242"},
                                    {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                    {"TORCHELASTIC_RESTART_COUNT", "2"}});
  EXPECT_EQ(place.rank, 5);
  EXPECT_EQ(place.size, 16);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.host, "node7");
  EXPECT_EQ(place.port, 4242);
  EXPECT_TRUE(place.has_launcher_store);
  EXPECT_EQ(place.attempt, "2");
}

TEST(RankPlace, IsReadFromSrun) {
  const std::map<std::string, std::string> one{
      {"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_LOCALID", "3"}, {"SLURM_STEP_NUM_NODES", "1"}};
  EXPECT_EQ(place_in(one).rank, 3);
  EXPECT_EQ(place_in(one).host, "127.0.0.1");
  EXPECT_FALSE(place_in(one).has_launcher_store);
  auto two = one;
  two["SLURM_STEP_NUM_NODES"] = "2";
  EXPECT_EQ(refusal_in(two), "MASTER_ADDR: expected the address of rank 0's machine, found none");
}

TEST(RankPlace, NamesWhatIsWrong) {
  EXPECT_EQ(refusal_in({{"RANK", "x"}, {"WORLD_SIZE", "2"}}), "RANK: expected a whole number ≥ 0, found x");
  EXPECT_EQ(refusal_in({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), "LOCAL_RANK: expected a whole number ≥ 0, found none");
  EXPECT_EQ(refusal_in({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}}),
            "RANK: expected one below WORLD_SIZE 2, found 2");
}

TEST(World, OfOneProcessKeepsItsValues) {
  World world;
  const torch::Tensor values = torch::arange(4, torch::kFloat32), part = torch::zeros({4});
  world.sum(values).wait();
  world.reduce_scatter(part, values).wait();
  EXPECT_TRUE(part.equal(torch::arange(4, torch::kFloat32)));
  EXPECT_EQ(world.from_first(3), 3);
}

class Processes : public testing::Test {
 protected:
  TemporaryFolder folder;

  // Rank 0 ends with status 1 and one line; the line.
  std::string line_of_survivor(const std::string& task) {
    Ranks ranks({task}, 2, folder.path());
    EXPECT_EQ(ranks.status(0), 1 << 8) << "an exit status of 1";
    const std::string errors = ranks.errors(0);
    EXPECT_EQ(std::count(errors.begin(), errors.end(), '\n'), 1) << errors;
    return errors.substr(0, errors.find('\n'));
  }
};

TEST_F(Processes, AgreeOnTheirOperations) { Ranks({"collectives"}, 3, folder.path()).expect_success(); }

TEST_F(Processes, AttendAsOneDevice) { Ranks({"attention"}, 2, folder.path()).expect_success(); }

TEST_F(Processes, EndWithTheErrorOfOne) {
  Ranks ranks({"fails"}, 3, folder.path());
  for (int rank : {1, 0, 2}) {
    EXPECT_EQ(ranks.status(rank), 1 << 8);
    EXPECT_EQ(ranks.errors(rank), "rank 1: disk: expected space, found none\n") << "of rank " << rank;
  }
}

TEST_F(Processes, NameTheOneThatWasKilled) {
  EXPECT_EQ(line_of_survivor("dies"), "rank 1: died (no sign of life for 5 s)");
}

TEST_F(Processes, NameTheOneThatStoppedAtTheTimeOut) {
  const std::string line = line_of_survivor("stops");
  EXPECT_TRUE(
      std::regex_match(line, std::regex("rank 1: expected to join operation [0-9]+, found it busy .*more than 2 s.*")))
      << line;
}

TEST_F(Processes, OfALauncherSucceedTogether) { EXPECT_NO_THROW(launch({rank_program(), "collectives"}, 3)); }

TEST_F(Processes, OfALauncherFailTogether) {
  testing::internal::CaptureStderr();
  try {
    launch({rank_program(), "fails"}, 2);
    ADD_FAILURE() << "expected an error";
  } catch (const ProgramFailed& error) {
    EXPECT_EQ(error.status(), 1);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "rank 1: disk: expected space, found none\n");
  try {
    launch({rank_program(), "dies"}, 2);
    ADD_FAILURE() << "expected an error";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "rank 1: ended by signal 9 (Killed)");
  }
}

}  // namespace
}  // namespace lethe
