// Datasets read in C++: shards written by the tokenizer, checked, cut into batches, decoded.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "experiments/data/dataset.hpp"
#include "experiments/data/run_program.hpp"
#include "experiments/data/sha256.hpp"
#include "experiments/json_file.hpp"

namespace lethe {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

void write(const fs::path& file, const std::string& bytes) { std::ofstream(file, std::ios::binary) << bytes; }

/// The error message of a call of `act`.
template <class Error, class Act>
std::string message_of(Act act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

/// Twelve documents of arbitrary bytes, not only text, prepared once for all tests.
class Data : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    home_ = fs::path(testing::TempDir()) / ("lethe_data_" + std::to_string(getpid()));
    fs::create_directories(source() / "deeper");
    std::mt19937 random(1);
    for (int i = 0; i < 12; ++i) {
      std::string text(400 + 10 * i, '\0');
      std::ranges::generate(text, [&] { return static_cast<char>(random()); });
      const std::string name = std::string(i % 2 ? "deeper/" : "") + "document" + std::to_string(i) + ".txt";
      texts_[name] = text;
      write(source() / name, text);
    }
    folder_ = prepared_dataset(source().string(), "bytes", home_ / "data");
  }
  static void TearDownTestSuite() { fs::remove_all(home_); }

  static fs::path source() { return home_ / "source"; }

  /// A copy of the dataset for a test that breaks it.
  fs::path copy() const {
    const fs::path place = home_ / testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::copy(folder_, place);
    return place;
  }

  static inline fs::path home_, folder_;
  static inline std::map<std::string, std::string> texts_;
};

TEST_F(Data, AShardHasTheHeaderOfLlmCAndTwoBytesAToken) {
  const std::string shard = read(folder_ / "train_000.bin");
  std::array<int32_t, 256> header;
  ASSERT_GT(shard.size(), sizeof header);
  std::memcpy(header.data(), shard.data(), sizeof header);
  EXPECT_EQ(header[0], 20240520);
  EXPECT_EQ(header[1], 1);
  EXPECT_EQ(header[2], Dataset(folder_).tokens("train"));
  EXPECT_EQ(std::accumulate(header.begin() + 3, header.end(), 0), 0);
  EXPECT_EQ(shard.size(), sizeof header + 2 * static_cast<size_t>(header[2]));
}

TEST_F(Data, EveryDocumentLiesWholeInOneSplitBehindABeginToken) {
  const Dataset dataset(folder_);
  size_t found = 0;
  int64_t tokens = 0;
  for (const char* split : {"train", "valid", "test"}) {
    const int64_t length = dataset.tokens(split);
    tokens += length;
    const auto labels = dataset.sequences(split, 0, 1, length).labels;
    const auto* first = labels.data_ptr<int64_t>();
    EXPECT_EQ(first[0], dataset.begin_token());
    const std::string text = dataset.decode({first, first + length});
    int64_t documents = 0;
    for (const auto& [name, document] : texts_) documents += text.find(document) != std::string::npos;
    EXPECT_EQ(documents, dataset.documents(split)) << split;
    found += documents;
  }
  EXPECT_EQ(found, texts_.size());
  int64_t expected = 0;
  for (const auto& [name, document] : texts_) expected += 1 + static_cast<int64_t>(document.size());
  EXPECT_EQ(tokens, expected);
}

TEST_F(Data, DecodingUndoesEncodingForEveryByte) {
  const Dataset dataset(folder_);
  std::string text;
  for (int byte = 0; byte < 256; ++byte) text += static_cast<char>(byte);
  EXPECT_EQ(dataset.decode(dataset.encode_bytes(text)), text);
  EXPECT_EQ(tokens_of(dataset, text), dataset.encode_bytes(text));
  EXPECT_EQ(dataset.vocabulary(), 257);
  EXPECT_EQ(dataset.begin_token(), 256);
  EXPECT_THROW(dataset.decode({257}), std::invalid_argument);
}

TEST_F(Data, LabelsAreTheTextAndTokensFollowOneBehindTheBeginToken) {
  const Dataset dataset(folder_);
  const int64_t length = 64;
  for (const auto& batch : {dataset.training_batch(3, 5, length, 0), dataset.sequences("train", 3, 5, length)}) {
    EXPECT_TRUE(batch.tokens.select(1, 0).eq(dataset.begin_token()).all().item<bool>());
    EXPECT_TRUE(torch::equal(batch.tokens.slice(1, 1), batch.labels.slice(1, 0, length - 1)));
  }
}

TEST_F(Data, SequencesFollowEachOtherInTheText) {
  const Dataset dataset(folder_);
  const auto whole = dataset.sequences("train", 0, 1, 512).labels.reshape({8, 64});
  EXPECT_TRUE(torch::equal(dataset.sequences("train", 0, 8, 64).labels, whole));
  EXPECT_TRUE(torch::equal(dataset.sequences("train", 5, 2, 64).labels, whole.slice(0, 5, 7)));
}

TEST_F(Data, APassageBeginsAnywhereInTheText) {
  const Dataset dataset(folder_);
  const auto pieces = dataset.sequences("valid", 0, 3, 8);
  EXPECT_TRUE(dataset.passage("valid", 5, 16).equal(pieces.labels.flatten().narrow(0, 5, 16)));
  const int64_t all = dataset.tokens("valid");
  EXPECT_EQ(dataset.passage("valid", all, 0).numel(), 0);
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>(-1, 2), {all - 1, 2}, {0, -1}})
    EXPECT_THROW(dataset.passage("valid", first, count), std::invalid_argument) << first << " " << count;
}

TEST_F(Data, ATrainingBatchIsAFunctionOfSeedAndSequenceAlone) {
  const Dataset dataset(folder_);
  const auto batch = dataset.training_batch(10, 6, 32, 7).labels;
  EXPECT_TRUE(torch::equal(batch, dataset.training_batch(10, 6, 32, 7).labels));
  EXPECT_TRUE(torch::equal(batch.slice(0, 2, 5), dataset.training_batch(12, 3, 32, 7).labels));
  EXPECT_FALSE(torch::equal(batch, dataset.training_batch(10, 6, 32, 8).labels));
}

TEST_F(Data, AShareOfTheTrainingSequencesRepeatsItsBeginning) {
  const Dataset dataset(folder_);
  constexpr int64_t kCount = 400, kLength = 32;
  const auto plain = dataset.training_batch(3, kCount, kLength, 7);
  const auto half = dataset.training_batch(3, kCount, kLength, 7, 0.5);
  std::map<int64_t, int64_t> periods;
  for (int64_t row = 0; row < kCount; ++row) {
    const auto labels = half.labels[row];
    EXPECT_TRUE(half.tokens[row].slice(0, 1).equal(labels.slice(0, 0, kLength - 1)));
    if (labels.equal(plain.labels[row])) continue;
    int64_t period = 1;
    while (!labels.slice(0, period).equal(labels.slice(0, 0, kLength - period))) ++period;
    EXPECT_TRUE(labels.slice(0, 0, period).equal(plain.labels[row].slice(0, 0, period)));
    ++periods[period];
  }
  int64_t repeating = 0;
  for (const auto& [period, count] : periods) repeating += count;
  EXPECT_NEAR(static_cast<double>(repeating) / kCount, 0.5, 0.1);
  EXPECT_TRUE(periods.contains(kLength / 16));  // text that repeats a shorter piece has a shorter period
  EXPECT_EQ(periods.rbegin()->first, kLength / 2);
  EXPECT_TRUE(dataset.training_batch(3, kCount, kLength, 7, 0).labels.equal(plain.labels));
  EXPECT_TRUE(dataset.training_batch(5, 2, kLength, 7, 0.5).labels.equal(half.labels.slice(0, 2, 4)));
}

TEST_F(Data, AnEpochReadsEveryPieceOnceAndTheNextInAnotherOrder) {
  const Dataset dataset(folder_);
  const int64_t length = 32, pieces = dataset.sequence_count("train", length);
  const auto rows = [&](const torch::Tensor& labels) {
    std::vector<std::vector<int64_t>> all;
    for (int64_t i = 0; i < labels.size(0); ++i)
      all.emplace_back(labels[i].data_ptr<int64_t>(), labels[i].data_ptr<int64_t>() + length);
    return all;
  };
  const auto text = rows(dataset.sequences("train", 0, pieces, length).labels);
  const auto first = rows(dataset.training_batch(0, pieces, length, 3).labels);
  const auto second = rows(dataset.training_batch(pieces, pieces, length, 3).labels);
  const std::set<std::vector<int64_t>> expected(text.begin(), text.end());
  ASSERT_EQ(expected.size(), text.size()) << "the documents are random, so no two pieces are alike";
  EXPECT_EQ(std::set(first.begin(), first.end()), expected);
  EXPECT_EQ(std::set(second.begin(), second.end()), expected);
  EXPECT_NE(first, text);
  EXPECT_NE(second, first);
}

TEST_F(Data, WhatIsNotThereIsRefusedByName) {
  const Dataset dataset(folder_);
  EXPECT_EQ(message_of<std::invalid_argument>([&] { dataset.tokens("dev"); }),
            "split: expected train, valid or test, found 'dev'");
  EXPECT_THROW(dataset.sequences("valid", 0, 1, dataset.tokens("valid") + 1), std::invalid_argument);
  EXPECT_THROW(dataset.sequences("valid", -1, 1, 8), std::invalid_argument);
  EXPECT_THROW(dataset.training_batch(0, 1, dataset.tokens("train") + 1, 0), std::invalid_argument);
  EXPECT_THROW(dataset.training_batch(0, 1, 0, 0), std::invalid_argument);
  EXPECT_THROW(prepared_dataset("no such folder", "bytes", home_), std::invalid_argument);
  EXPECT_THROW(prepared_dataset(source().string(), "words", home_), std::invalid_argument);
}

TEST_F(Data, ATruncatedShardIsRefused) {
  const fs::path place = copy(), shard = place / "train_000.bin";
  fs::resize_file(shard, fs::file_size(shard) - 2);
  EXPECT_NE(message_of<std::invalid_argument>([&] { Dataset{place}; }).find("bytes for its"), std::string::npos);
  fs::resize_file(shard, 1000);
  EXPECT_NE(message_of<std::invalid_argument>([&] { Dataset{place}; }).find("a header of 1024 bytes, found 1000"),
            std::string::npos);
  fs::remove(shard);
  EXPECT_NE(message_of<std::invalid_argument>([&] { Dataset{place}; }).find("train_000.bin: expected a file, found none"),
            std::string::npos);
}

TEST_F(Data, AShardOfAnotherFormatIsRefused) {
  const fs::path place = copy(), shard = place / "valid_000.bin";
  std::string bytes = read(shard);
  bytes[4] = 2;
  write(shard, bytes);
  EXPECT_NE(message_of<std::invalid_argument>([&] { Dataset{place}; }).find("version 1, found 20240520 and 2"),
            std::string::npos);
}

TEST_F(Data, OneFlippedBitIsRefusedInEveryFile) {
  for (const char* name : {"train_000.bin", "test_000.bin", "vocabulary.bin"}) {
    const fs::path place = copy();
    std::string bytes = read(place / name);
    bytes.back() ^= 1;
    write(place / name, bytes);
    const auto message = message_of<std::invalid_argument>([&] { Dataset{place}; });
    EXPECT_NE(message.find(std::string(name) + ": expected content with SHA-256"), std::string::npos) << message;
    fs::remove_all(place);
  }
}

TEST_F(Data, ADescriptionThatDoesNotFitTheShardsIsRefused) {
  const fs::path place = copy();
  const auto refusal = [&] { return message_of<std::invalid_argument>([&] { Dataset{place}; }); };
  nlohmann::json json = read_sealed(place / "dataset.json");
  json["splits"]["valid"]["bytes"] = json["splits"]["valid"]["bytes"].get<int64_t>() + 1;
  write(place / "dataset.json", json.dump());
  EXPECT_NE(refusal().find("dataset.json: expected an object with its SHA-256, found none"), std::string::npos);
  json["content_sha256"] = std::string(64, '0');
  write_sealed(place / "dataset.json", json);
  EXPECT_NE(refusal().find("dataset.json: expected content_sha256"), std::string::npos);
  json["format"] = 1;
  write(place / "dataset.json", json.dump());
  EXPECT_NE(refusal().find("dataset.json: expected format 2 (prepare it anew), found 1"), std::string::npos);
  write(place / "dataset.json", "{}");
  EXPECT_NE(refusal().find("the members that lethe data prepare writes"), std::string::npos);
}

TEST_F(Data, AFolderIsPreparedOnceAndBesideItWhenItsTextChanges) {
  const fs::path texts = home_ / "changing", root = home_ / "changed";
  fs::create_directories(texts);
  for (const char* name : {"a.txt", "b.txt", "c.txt"}) write(texts / name, name);
  const fs::path first = prepared_dataset(texts.string(), "bytes", root);
  const auto hash = Dataset(first).content_hash();
  const auto written = fs::last_write_time(first / "dataset.json");
  EXPECT_EQ(prepared_dataset(texts.string(), "bytes", root), first);
  EXPECT_EQ(fs::last_write_time(first / "dataset.json"), written);
  write(texts / "b.txt", "something else");
  const fs::path second = prepared_dataset(texts.string(), "bytes", root);
  EXPECT_NE(second, first);
  EXPECT_NE(Dataset(second).content_hash(), hash);
  EXPECT_EQ(Dataset(first).content_hash(), hash) << "no dataset is written over another";
  EXPECT_EQ(dataset_with(hash, {home_ / "nowhere", root}), first);
  EXPECT_EQ(dataset_with(hash, {first}), first);
  EXPECT_EQ(dataset_with(std::string(64, '0'), {root}), fs::path());
  EXPECT_EQ(dataset_with("", {root, home_}), fs::path());
}

TEST_F(Data, OneFileIsACorpusThatIsSplitByPosition) {
  const fs::path text = home_ / "input.txt";
  std::string lines;
  for (int line = 0; line < 1000; ++line) lines += "line " + std::to_string(line) + "\n";
  write(text, lines);
  const Dataset dataset(prepared_dataset(text.string(), "bytes", home_ / "single"));
  std::string found;
  for (const char* split : {"train", "valid", "test"}) {
    const auto labels = dataset.sequences(split, 0, 1, dataset.tokens(split)).labels;
    const auto* first = labels.data_ptr<int64_t>();
    found += dataset.decode({first + 1, first + dataset.tokens(split)});
    EXPECT_EQ(dataset.bytes(split), dataset.tokens(split) - 1);
  }
  EXPECT_EQ(found, lines);
}

TEST_F(Data, AFinishedDatasetIsACorpusInItsOwnTokensOnly) {
  EXPECT_EQ(prepared_dataset(folder_.string(), "bytes", home_ / "nothing is written here"), folder_);
  EXPECT_FALSE(fs::exists(home_ / "nothing is written here"));
  EXPECT_THROW(prepared_dataset(folder_.string(), "gpt2", home_), std::invalid_argument);
}

TEST(Permutation, IsABijectionForEveryCount) {
  for (int64_t count : {1, 2, 3, 4, 5, 16, 17, 255, 1000}) {
    std::set<int64_t> images;
    for (int64_t n = 0; n < count; ++n) images.insert(permutation(42, count, n));
    EXPECT_EQ(static_cast<int64_t>(images.size()), count);
    EXPECT_EQ(*images.begin(), 0);
    EXPECT_EQ(*images.rbegin(), count - 1);
  }
}

TEST(Permutation, SpreadsNeighboursAndDiffersBetweenKeys) {
  // In a random order of 1000, about two pairs of neighbours stay neighbours, and two orders agree in about one place.
  int neighbours = 0, agreements = 0;
  for (int64_t n = 0; n + 1 < 1000; ++n) {
    neighbours += std::abs(permutation(1, 1000, n) - permutation(1, 1000, n + 1)) == 1;
    agreements += permutation(1, 1000, n) == permutation(2, 1000, n);
  }
  EXPECT_LT(neighbours, 12);
  EXPECT_LT(agreements, 12);
}

// The examples of the standard, and a message of 56 bytes, whose padding needs its own block.
TEST(Sha256, EqualsTheStandardsExamples) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(RunProgram, ReturnsWhatTheProgramWroteAndFeedsItItsInput) {
  EXPECT_EQ(run_program({"cat"}, "one\ntwo"), "one\ntwo");
  EXPECT_EQ(run_program({"printf", "%s|", "a b", "$HOME"}), "a b|$HOME|") << "no shell reads the arguments";
}

TEST(RunProgram, TellsHowAProgramFailed) {
  try {
    run_program({"sh", "-c", "exit 7"});
    FAIL() << "an exit status of 7 is a failure";
  } catch (const ProgramFailed& error) {
    EXPECT_EQ(error.status(), 7);
  }
  EXPECT_THROW(run_program({"no-such-program-anywhere"}), std::runtime_error);
}

}  // namespace
}  // namespace lethe
