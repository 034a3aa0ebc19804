// Output files, locks and untrusted JSON.

#include "experiments/files.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "experiments/json_file.hpp"
#include "tests/experiments/tiny.hpp"

namespace lethe {
namespace {

namespace fs = std::filesystem;

template <class Call>
std::string refusal(Call&& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

class Files : public testing::Test {
 protected:
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder.path())) found.push_back(entry.path().filename());
    return found;
  }
  TemporaryFolder folder;
  fs::path path = folder.path() / "out.csv";
};

TEST_F(Files, OfOutputAreAbsentUntilTheyAreWhole) {
  {
    const OutputFile file(path);
    EXPECT_TRUE(names().empty());
  }
  EXPECT_TRUE(names().empty()) << "work that failed leaves nothing";
  OutputFile(path).commit({"a,", "b\n"});
  EXPECT_EQ(read_whole(path), "a,b\n");
  EXPECT_EQ(names().size(), 1u);
}

TEST_F(Files, OfOutputAreRefusedBeforeTheWork) {
  EXPECT_NE(refusal([&] { OutputFile file(folder.path() / "absent" / "out.csv"); }), "no error");
  EXPECT_NE(refusal([&] { OutputFile file(folder.path()); }).find("expected a file, found a folder"),
            std::string::npos);
  EXPECT_NE(refusal([&] { OutputFile file("/dev/absent/out.csv"); }), "no error");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_NE(refusal([&] { OutputFile file(path); }).find("cannot be opened"), std::string::npos)
      << "a pipe without a reader";
}

TEST_F(Files, OfOutputNeverReplaceADeviceOrALink) {
  OutputFile("/dev/null").commit({"nothing"});
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const int reader = open(path.c_str(), O_RDONLY | O_NONBLOCK);
  OutputFile(path).commit({"into the pipe"});
  std::array<char, 32> text{};
  EXPECT_EQ(read(reader, text.data(), text.size()), 13);
  EXPECT_TRUE(fs::is_fifo(path));
  close(reader);
  const fs::path target = folder.path() / "target", link = folder.path() / "link";
  write_whole(target, "old");
  fs::create_symlink("target", link);
  OutputFile(link).commit({"new"});
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(read_whole(target), "new");
}

TEST_F(Files, OfInputAreRegular) {
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_NE(refusal([&] { read_whole(path); }).find("expected a regular file"), std::string::npos)
      << "and no wait for a writer";
  EXPECT_NE(refusal([&] { read_whole(folder.path()); }), "no error");
}

TEST_F(Files, OfALockNameTheirHolder) {
  const auto lock = std::make_unique<FileLock>(path);
  std::string told;
  EXPECT_THROW(FileLock(path, [&](const std::string& holder) { told = holder, throw std::runtime_error("enough"); }),
               std::runtime_error);
  EXPECT_EQ(told, std::to_string(getpid()));
}

TEST(Json, IsBoundedInDepth) {
  const auto nested = [](int levels) { return std::string(levels, '[') + std::string(levels, ']'); };
  EXPECT_NO_THROW(parse_json(nested(60), "text"));
  for (const int levels : {70, 100000, 5000000})
    EXPECT_EQ(refusal([&] { parse_json(nested(levels), "text"); }),
              "text: expected JSON of at most 64 levels, found a deeper one");
  EXPECT_EQ(refusal([] { parse_json(std::string(1000000, '['), "text"); }),
            "text: expected JSON of at most 64 levels, found a deeper one");
  EXPECT_EQ(refusal([] { parse_json("{\"a\": 1e999}", "text"); }),
            "text: expected JSON with numbers of double precision, found a larger number");
  EXPECT_EQ(refusal([] { parse_json("{]", "text"); }), "text: expected JSON, found an error at byte 2 of 2");
}

TEST_F(Files, OfJsonKeepTheirSeal) {
  write_sealed(path, {{"loss", 0.1}, {"name", "lethe"}});
  EXPECT_EQ(read_sealed(path), (nlohmann::json{{"loss", 0.1}, {"name", "lethe"}}));
  const std::string whole = read_whole(path);
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string bytes = whole;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
    overwrite(path, bytes);
    try {
      EXPECT_EQ(read_sealed(path).at("loss"), 0.1) << "white space alone may change";
    } catch (const std::exception& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with(path.string())) << error.what();
    }
  }
}

}  // namespace
}  // namespace lethe
