#include "experiments/data/dataset.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "experiments/data/sha256.hpp"
#include "experiments/files.hpp"

namespace lethe {
namespace {

namespace fs = std::filesystem;

constexpr int32_t kShardMagic = 20240520, kShardVersion = 1;
constexpr size_t kHeaderBytes = 1024;  // 256 int32: magic, version, tokens, zeros
static_assert(std::endian::native == std::endian::little, "shards are little-endian and read as they lie");

[[noreturn]] void refuse(const std::string& expected, const std::string& found) {
  throw std::invalid_argument("dataset: expected " + expected + ", found " + found);
}

std::string contents(const fs::path& file) {
  if (!fs::is_regular_file(file)) refuse("the file " + file.string(), "none");
  return read_whole(file);
}

void check_hash(const fs::path& file, const std::string& bytes, const std::string& hash) {
  if (const auto found = sha256(bytes); found != hash) refuse(file.string() + " with SHA-256 " + hash, found);
}

/// Appends the tokens of one shard. Header and size are checked before the hash: their errors are more specific.
void read_shard(const fs::path& file, const std::string& hash, std::vector<uint16_t>& tokens) {
  const std::string bytes = contents(file);
  std::array<int32_t, 3> header{};
  if (bytes.size() < kHeaderBytes)
    refuse(file.string() + " with a header of 1024 bytes", std::to_string(bytes.size()) + " bytes");
  std::memcpy(header.data(), bytes.data(), sizeof header);
  const auto [magic, version, count] = header;
  if (magic != kShardMagic || version != kShardVersion)
    refuse(file.string() + " with magic 20240520 and version 1",
         std::to_string(magic) + " and " + std::to_string(version));
  const size_t size = kHeaderBytes + sizeof(uint16_t) * static_cast<size_t>(std::max(count, 0));
  if (bytes.size() != size)
    refuse(file.string() + " with " + std::to_string(size) + " bytes for its " + std::to_string(count) + " tokens",
         std::to_string(bytes.size()));
  check_hash(file, bytes, hash);
  const size_t before = tokens.size();
  tokens.resize(before + count);
  std::memcpy(tokens.data() + before, bytes.data() + kHeaderBytes, size - kHeaderBytes);
}

/// vocabulary.bin: the count as uint32, then every token's length as uint16 and its bytes.
std::vector<std::string> read_vocabulary(const fs::path& file, const std::string& hash) {
  const std::string bytes = contents(file);
  check_hash(file, bytes, hash);
  size_t at = 0;
  const auto take = [&](void* to, size_t size) {
    if (at + size > bytes.size()) refuse(file.string() + " to be whole", std::to_string(bytes.size()) + " bytes");
    std::memcpy(to, bytes.data() + at, size);
    at += size;
  };
  uint32_t count = 0;
  take(&count, sizeof count);
  std::vector<std::string> pieces(count);
  for (auto& piece : pieces) {
    uint16_t length = 0;
    take(&length, sizeof length);
    piece.resize(length);
    take(piece.data(), length);
  }
  return pieces;
}

/// A 64-bit mixer: every bit of the result depends on every bit of x (the finalizer of SplitMix64).
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

}  // namespace

int64_t permutation(uint64_t key, int64_t count, int64_t n) {
  const int half = (std::bit_width(static_cast<uint64_t>(count - 1)) + 1) / 2;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  auto x = static_cast<uint64_t>(n);
  do {
    uint64_t left = x >> half, right = x & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t next = left ^ (mix(key ^ mix(right ^ round << 62)) & mask);
      left = right, right = next;
    }
    x = left << half | right;
  } while (x >= static_cast<uint64_t>(count));
  return static_cast<int64_t>(x);
}

Dataset::Dataset(const fs::path& folder) {
  const auto description = contents(folder / "dataset.json");
  try {
    const auto json = nlohmann::json::parse(description);
    name_ = json.at("name");
    tokenizer_ = json.at("tokenizer");
    begin_token_ = json.at("begin_token");
    std::string listing;  // the input of content_sha256
    for (const std::string name : {"train", "valid", "test"}) {
      const auto& entry = json.at("splits").at(name);
      Split& split = splits_[name];
      split.documents = static_cast<int64_t>(entry.at("documents").size());
      split.tokens.reserve(entry.at("tokens").get<size_t>());
      for (const auto& shard : entry.at("shards")) {
        const std::string file = shard.at("file"), hash = shard.at("sha256");
        read_shard(folder / file, hash, split.tokens);
        listing += hash + "  " + file + "\n";
      }
    }
    const std::string hash = json.at("vocabulary").at("sha256");
    pieces_ = read_vocabulary(folder / "vocabulary.bin", hash);
    listing += hash + "  vocabulary.bin\n";
    content_hash_ = json.at("content_sha256");
    if (const auto found = sha256(listing); found != content_hash_) refuse("content_sha256 " + content_hash_, found);
  } catch (const nlohmann::json::exception& error) {
    refuse((folder / "dataset.json").string() + " as lethe data prepare writes it", error.what());
  }
  if (begin_token_ < 0 || begin_token_ >= vocabulary())
    refuse("a begin token below " + std::to_string(vocabulary()), std::to_string(begin_token_));
  for (const auto& [name, split] : splits_)
    if (const auto largest = std::ranges::max_element(split.tokens);
        largest != split.tokens.end() && *largest >= vocabulary())
      refuse("tokens below " + std::to_string(vocabulary()) + " in " + name, std::to_string(*largest));
}

const Dataset::Split& Dataset::split(const std::string& name) const {
  const auto found = splits_.find(name);
  if (found == splits_.end()) throw std::invalid_argument("split: expected train, valid or test, found '" + name + "'");
  return found->second;
}

int64_t Dataset::tokens(const std::string& name) const { return static_cast<int64_t>(split(name).tokens.size()); }
int64_t Dataset::documents(const std::string& name) const { return split(name).documents; }

Dataset::Batch Dataset::cut(const Split& split, const std::vector<int64_t>& pieces, int64_t length) const {
  const auto count = static_cast<int64_t>(pieces.size());
  Batch batch{torch::empty({count, length}, torch::kInt64), torch::empty({count, length}, torch::kInt64)};
  auto* tokens = batch.tokens.data_ptr<int64_t>();
  auto* labels = batch.labels.data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t* text = split.tokens.data() + pieces[i] * length;
    std::copy_n(text, length, labels + i * length);
    tokens[i * length] = begin_token_;
    std::copy_n(text, length - 1, tokens + i * length + 1);
  }
  return batch;
}

Dataset::Batch Dataset::training_batch(int64_t first_sequence, int64_t count, int64_t length, uint64_t seed) const {
  const Split& train = split("train");
  const auto size = static_cast<int64_t>(train.tokens.size());
  if (length < 1 || length > size)
    throw std::invalid_argument("length: expected 1 to " + std::to_string(size) + ", the tokens of " + name_ +
                                "'s train split, found " + std::to_string(length));
  const int64_t an_epoch = size / length;
  std::vector<int64_t> pieces(count);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t sequence = first_sequence + i;
    pieces[i] = permutation(mix(seed) ^ static_cast<uint64_t>(sequence / an_epoch), an_epoch, sequence % an_epoch);
  }
  return cut(train, pieces, length);
}

Dataset::Batch Dataset::sequences(const std::string& name, int64_t first, int64_t count, int64_t length) const {
  const Split& chosen = split(name);
  if (length < 1) throw std::invalid_argument("length: expected at least 1, found " + std::to_string(length));
  if (const int64_t all = sequence_count(name, length); first < 0 || count < 0 || first + count > all)
    throw std::invalid_argument("sequences: expected a range within the " + std::to_string(all) + " of " + name +
                                ", found " + std::to_string(first) + " to " + std::to_string(first + count));
  std::vector<int64_t> pieces(count);
  for (int64_t i = 0; i < count; ++i) pieces[i] = first + i;
  return cut(chosen, pieces, length);
}

std::string Dataset::decode(const std::vector<int64_t>& tokens) const {
  std::string text;
  for (int64_t token : tokens) {
    if (token < 0 || token >= vocabulary())
      throw std::invalid_argument("tokens: expected 0 to " + std::to_string(vocabulary() - 1) + ", found " +
                                  std::to_string(token));
    text += pieces_[token];
  }
  return text;
}

std::vector<int64_t> Dataset::encode_bytes(const std::string& text) const {
  if (tokenizer_ != "bytes")
    throw std::invalid_argument("encode_bytes: expected a dataset of bytes, found one of '" + tokenizer_ + "'");
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  return {bytes, bytes + text.size()};
}

}  // namespace lethe
