// Damaged datasets: each kind of damage is one line, before any memory is taken for what the files claim.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "experiments/data/dataset.hpp"
#include "experiments/files.hpp"
#include "experiments/json_file.hpp"
#include "tests/experiments/tiny.hpp"

namespace lethe {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class DatasetFiles : public TinyDatasetTest {
 protected:
  /// The message of reading the dataset after `damage` to its dataset.json.
  std::string refusal(const std::function<void(json&)>& damage) {
    const fs::path place = copy();
    json description = json::parse(read_whole(place / "dataset.json"));
    damage(description);
    description.erase("sha256");
    write_sealed(place / "dataset.json", description);
    return refusal_of(place);
  }

  fs::path copy() {
    const fs::path place = folder.path() / "copy";
    fs::remove_all(place);
    fs::copy(dataset_folder, place);
    return place;
  }

  static std::string refusal_of(const fs::path& place) {
    try {
      Dataset{place};
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "nothing";
  }

  static void overwrite(const fs::path& file, std::streamoff at, const std::string& bytes) {
    std::fstream stream(file, std::ios::binary | std::ios::in | std::ios::out);
    stream.seekp(at);
    stream << bytes;
  }
};

TEST_F(DatasetFiles, CountsThatTheFilesDontHaveAreRefused) {
  const auto counts = {json(-1),   json(INT64_MIN), json(int64_t{1} << 40), json(UINT64_MAX),
                       json(1e30), json("7"),       json(nullptr)};
  for (const json& count : counts) {
    for (const char* key :
         {"/splits/train/tokens", "/splits/valid/shards/0/tokens", "/vocabulary/size", "/begin_token"}) {
      const std::string message = refusal([&](json& description) { description[json::json_pointer(key)] = count; });
      EXPECT_TRUE(message.starts_with((folder.path() / "copy/dataset.json").string() + ": expected "))
          << key << " = " << count << ": " << message;
    }
  }
  EXPECT_NE(refusal([](json& description) { description["splits"]["train"]["bytes"] = -1; }).find("bytes from 0"),
            std::string::npos);
}

TEST_F(DatasetFiles, AShardInTwoSplitsIsRefused) {
  const auto message =
      refusal([](json& description) { description["splits"]["valid"] = description["splits"]["train"]; });
  EXPECT_NE(message.find("train_000.bin twice"), std::string::npos) << message;
}

TEST_F(DatasetFiles, AShardOutsideOfTheFolderIsRefused) {
  for (const char* path : {"../train_000.bin", "/etc/passwd", "a/train_000.bin"}) {
    const auto message =
        refusal([&](json& description) { description["splits"]["train"]["shards"][0]["file"] = path; });
    EXPECT_NE(message.find("dataset.json: expected a shard in its folder"), std::string::npos) << message;
  }
}

TEST_F(DatasetFiles, AFormatFromTheFutureIsRefused) {
  const auto message = refusal([](json& description) { description["format"] = 7; });
  EXPECT_NE(message.find("format 2, the newest that this lethe reads, found 7"), std::string::npos) << message;
}

TEST_F(DatasetFiles, JsonOfAnotherShapeIsRefused) {
  for (const char* text : {"", "{", "[]", "7", "{\"format\": 1}", "{\"format\": {}}", "\xff"}) {
    const fs::path place = copy();
    write_whole(place / "dataset.json", text);
    EXPECT_TRUE(refusal_of(place).starts_with((place / "dataset.json").string() + ": expected ")) << text;
  }
  const fs::path place = copy();
  write_whole(place / "dataset.json", std::string(1'000'000, '['));
  EXPECT_TRUE(refusal_of(place).ends_with("dataset.json: expected JSON of at most 64 levels, found a deeper one"));
}

TEST_F(DatasetFiles, HugeCountsTakeNoMemory) {
  const fs::path place = copy(), shard = place / "train_000.bin";
  overwrite(shard, 8, std::string("\xff\xff\xff\x7f", 4));  // 2^31 − 1 tokens
  EXPECT_NE(refusal_of(place).find("bytes for its 2147483647 tokens"), std::string::npos);
  fs::resize_file(shard, 1024 + 2 * uintmax_t{2147483647});  // sparse: the size fits, dataset.json doesn't
  EXPECT_NE(refusal_of(place).find("expected tokens from 2147483647"), std::string::npos);
  overwrite(shard, 8, std::string("\xff\xff\xff\xff", 4));
  EXPECT_NE(refusal_of(place).find("0 or more tokens, found -1"), std::string::npos);

  const fs::path other = copy();
  fs::resize_file(other / "vocabulary.bin", uintmax_t{1} << 40);
  EXPECT_NE(refusal_of(other).find("expected at most"), std::string::npos);
  fs::resize_file(other / "dataset.json", uintmax_t{1} << 40);
  EXPECT_NE(refusal_of(other).find("expected at most"), std::string::npos);
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  EXPECT_LT(used.ru_maxrss, 2 << 20) << "KiB";
}

TEST_F(DatasetFiles, FilesAreHashedOnceAndAgainAfterAnyChange) {
  const fs::path place = copy(), note = place / ".verified", shard = place / "train_000.bin";
  fs::remove(note);
  Dataset{place};
  EXPECT_FALSE(fs::exists(note)) << "files that may have changed again within one step of the clock";
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  Dataset{place};
  const std::string written = read_whole(note);
  for (const char* name : {"train_000.bin", "valid_000.bin", "test_000.bin", "vocabulary.bin"})
    EXPECT_TRUE(json::parse(written).contains(name)) << name;
  Dataset{place};
  EXPECT_EQ(read_whole(note), written);

  // Damage that keeps the size and puts the time back.
  const auto time = fs::last_write_time(shard);
  overwrite(shard, 1024 + 10, "\x01");
  fs::last_write_time(shard, time);
  EXPECT_NE(refusal_of(place).find("train_000.bin: expected content with SHA-256"), std::string::npos);
}

TEST_F(DatasetFiles, ADamagedNoteOfWhatWasHashedIsIgnored) {
  const fs::path place = copy();
  for (const char* text : {"", "[]", "{\"train_000.bin\": true}", "{\"train_000.bin\": {\"size\": -1}}", "\xff\xfe"}) {
    write_whole(place / ".verified", text);
    EXPECT_EQ(refusal_of(place), "nothing") << text;
  }
}

TEST_F(DatasetFiles, RandomDamageIsOneLineOrNone) {
  std::mt19937 random(3);
  const std::vector<fs::path> names{"dataset.json", "train_000.bin", "vocabulary.bin", ".verified"};
  int refused = 0;
  const int rounds = 300;
  for (int round = 0; round < rounds; ++round) {
    const fs::path place = copy(), file = place / names[random() % names.size()];
    std::string bytes = fs::exists(file) ? read_whole(file) : "";
    for (int flips = 1 + static_cast<int>(random() % 4); flips > 0 && !bytes.empty(); --flips)
      bytes[random() % std::min<size_t>(bytes.size(), 2000)] = static_cast<char>(random());
    if (random() % 8 == 0) bytes.resize(bytes.size() / 2);
    write_whole(file, bytes);
    const std::string message = refusal_of(place);  // any other exception fails the test
    refused += message != "nothing";
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    if (message == "nothing") {
      const Dataset read{place};
      EXPECT_EQ(read.content_hash(), dataset.content_hash());
    }
  }
  EXPECT_GT(refused, rounds / 3);
}

}  // namespace
}  // namespace lethe
