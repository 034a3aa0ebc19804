#include "experiments/data/dataset_files.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "experiments/data/sha256.hpp"
#include "experiments/files.hpp"
#include "experiments/json_file.hpp"

namespace lethe {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kDatasetFormat =
    2;  // of dataset.json, as tools/tokenize_corpus.py writes it; 1 had no hash of its own
constexpr int32_t kShardMagic = 20240520, kShardVersion = 1;
constexpr int64_t kHeaderBytes = 1024;         // 256 int32: magic, version, tokens, zeros
constexpr int64_t kLargestVocabulary = 65536;  // a token is a uint16
constexpr uintmax_t kLargestText = 256 << 20;  // bytes of dataset.json and vocabulary.bin
constexpr size_t kLongestReason = 200;         // bytes of what a message quotes
constexpr size_t kLongestName = 255;           // of a file
static_assert(std::endian::native == std::endian::little, "shards are little-endian and read as they lie");

// What dataset.json holds in the place of a hash or a name may be long.
std::string quoted(const std::string& text) { return text.size() > kLongestReason ? shown(text) : text; }

[[noreturn]] void refuse(const fs::path& file, const std::string& expected, const std::string& found) {
  throw std::invalid_argument(file.string() + ": expected " + quoted(expected) + ", found " + quoted(found));
}

uintmax_t size_of(const fs::path& file) {
  if (!fs::is_regular_file(file)) refuse(file, "a file", "none");
  return fs::file_size(file);
}

std::string contents(const fs::path& file) {
  if (const uintmax_t size = size_of(file); size > kLargestText)
    refuse(file, "at most " + std::to_string(kLargestText) + " bytes", std::to_string(size));
  return read_whole(file);
}

/// The member `key` of an object in `file`, a whole number from `low` to `high`.
int64_t whole(const fs::path& file, const json& object, const char* key, int64_t low, int64_t high) {
  const json& found = object.at(key);
  const bool large = found.is_number_unsigned() && found.get<uint64_t>() > static_cast<uint64_t>(high);
  if (!found.is_number_integer() || large || found.get<int64_t>() < low || found.get<int64_t>() > high)
    refuse(file, std::string(key) + " from " + std::to_string(low) + " to " + std::to_string(high), shown(found));
  return found.get<int64_t>();
}

/// The note .verified: the files that had their hash when they had these sizes and times. A damaged note is an empty one.
class VerifiedNote {
 public:
  explicit VerifiedNote(const fs::path& folder) : path_(folder / ".verified") {
    try {
      lines_ = read_json(path_);
    } catch (const std::exception&) {
    }
    if (!lines_.is_object()) lines_ = json::object();
  }

  bool has(const fs::path& file, const std::string& hash) const {
    return lines_.value(file.filename().string(), json()) == line_of(file, hash);
  }

  /// Nothing for a file that has just changed: another change within one step of the clock would have the same time.
  void add(const fs::path& file, const std::string& hash) {
    struct stat found {};
    if (stat(file.c_str(), &found) != 0 || now() - nanoseconds(found.st_ctim) < kClockStep) return;
    lines_[file.filename().string()] = line_of(file, hash);
    changed_ = true;
  }

  void write() const {
    if (!changed_) return;
    try {
      write_whole(path_, lines_.dump() + "\n");
    } catch (const std::exception&) {
      // A folder of another user, or a process that writes the same note: the next call hashes again.
    }
  }

 private:
  static constexpr int64_t kClockStep = 50'000'000;  // of a file's times, at most, in nanoseconds

  static int64_t nanoseconds(const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

  static int64_t now() {
    timespec time{};
    clock_gettime(CLOCK_REALTIME, &time);
    return nanoseconds(time);
  }

  static json line_of(const fs::path& file, const std::string& hash) {
    struct stat found {};
    if (stat(file.c_str(), &found) != 0) return nullptr;
    return {{"size", found.st_size},
            {"modified", nanoseconds(found.st_mtim)},
            {"changed", nanoseconds(found.st_ctim)},
            {"inode", found.st_ino},
            {"sha256", hash}};
  }

  fs::path path_;
  json lines_;
  bool changed_ = false;
};

void check_hash(const fs::path& file, std::initializer_list<std::string_view> pieces, const std::string& hash,
                VerifiedNote& note) {
  if (note.has(file, hash)) return;
  if (const auto found = sha256(pieces); found != hash) refuse(file, "content with SHA-256 " + hash, found);
  note.add(file, hash);
}

/// A shard as dataset.json lists it, after its header and its size were checked: no memory has been taken for its tokens.
struct Shard {
  fs::path file;
  std::string hash;
  int64_t tokens;
  std::array<char, kHeaderBytes> header;
};

Shard checked_shard(const fs::path& folder, const json& entry) {
  const std::string name = entry.at("file");
  Shard shard{folder / name, entry.at("sha256"), 0, {}};
  if (name.size() > kLongestName || shard.file.filename() != name)
    refuse(folder / "dataset.json", "a shard in its folder", shard.file.string());
  const auto size = static_cast<int64_t>(size_of(shard.file));
  if (size < kHeaderBytes) refuse(shard.file, "a header of 1024 bytes", std::to_string(size) + " bytes");
  std::ifstream stream(shard.file, std::ios::binary);
  if (!stream.read(shard.header.data(), kHeaderBytes)) refuse(shard.file, "a file that can be read", "an error");
  std::array<int32_t, 3> numbers;
  std::memcpy(numbers.data(), shard.header.data(), sizeof numbers);
  const auto [magic, version, tokens] = numbers;
  if (magic != kShardMagic || version != kShardVersion)
    refuse(shard.file, "magic 20240520 and version 1", std::to_string(magic) + " and " + std::to_string(version));
  const int64_t expected = kHeaderBytes + int64_t{sizeof(uint16_t)} * tokens;
  if (tokens < 0 || size != expected)
    refuse(shard.file,
           (tokens < 0 ? "0 or more tokens"
                       : std::to_string(expected) + " bytes for its " + std::to_string(tokens) + " tokens"),
           std::to_string(tokens < 0 ? tokens : size));
  shard.tokens = whole(folder / "dataset.json", entry, "tokens", tokens, tokens);
  return shard;
}

void read_tokens(const Shard& shard, uint16_t* to, VerifiedNote& note) {
  const auto bytes = static_cast<std::streamsize>(sizeof(uint16_t)) * shard.tokens;
  std::ifstream stream(shard.file, std::ios::binary);
  stream.seekg(kHeaderBytes);
  if (!stream.read(reinterpret_cast<char*>(to), bytes)) refuse(shard.file, "a file that can be read", "an error");
  check_hash(
      shard.file,
      {{shard.header.data(), shard.header.size()}, {reinterpret_cast<const char*>(to), static_cast<size_t>(bytes)}},
      shard.hash, note);
}

/// vocabulary.bin: the count as uint32, then every token's length as uint16 and its bytes.
std::vector<std::string> read_vocabulary(const fs::path& file, const json& entry, VerifiedNote& note) {
  const std::string bytes = contents(file);
  check_hash(file, {bytes}, entry.at("sha256"), note);
  size_t at = 0;
  const auto take = [&](void* to, size_t size) {
    if (size > bytes.size() - at) refuse(file, "a whole vocabulary", std::to_string(bytes.size()) + " bytes");
    std::memcpy(to, bytes.data() + at, size);
    at += size;
  };
  uint32_t count = 0;
  take(&count, sizeof count);
  if (count < 1 || count > kLargestVocabulary)
    refuse(file, "1 to " + std::to_string(kLargestVocabulary) + " tokens", std::to_string(count));
  whole(file.parent_path() / "dataset.json", entry, "size", count, count);
  std::vector<std::string> pieces(count);
  for (auto& piece : pieces) {
    uint16_t length = 0;
    take(&length, sizeof length);
    piece.resize(length);
    take(piece.data(), length);
  }
  return pieces;
}

/// "empty files: 2, links: 3": what a preparation left out, in the order of its names.
std::string words_of(const fs::path& file, const json& left_out) {
  std::string words;
  for (const auto& [what, count] : left_out.items())
    words +=
        (words.empty() ? "" : ", ") + what + ": " + std::to_string(whole(file, left_out, what.c_str(), 0, INT64_MAX));
  return words;
}

void expect_format(const fs::path& file, const json& description) {
  const int64_t format = whole(file, description, "format", 0, INT64_MAX);
  if (format != kDatasetFormat)
    refuse(file,
           "format " + std::to_string(kDatasetFormat) +
               (format > kDatasetFormat ? ", the newest that this lethe reads" : " (prepare it anew)"),
           std::to_string(format));
}

/// Checks dataset.json against its files, in this order: names, headers and sums; then memory; then hashes.
DatasetFiles read_described(const fs::path& folder, const json& description) {
  const fs::path file = folder / "dataset.json";
  DatasetFiles files;
  files.name = description.at("name"), files.tokenizer = description.at("tokenizer");
  files.content_hash = description.at("content_sha256");
  files.source_hash = description.at("source").at("sha256");
  files.left_out = words_of(file, description.value("left_out", json::object()));

  VerifiedNote note(folder);
  std::set<fs::path> listed;
  std::string listing;  // the input of content_sha256
  std::map<std::string, std::vector<Shard>> shards;
  for (const std::string name : {"train", "valid", "test"}) {
    const json& entry = description.at("splits").at(name);
    int64_t tokens = 0;
    for (const json& shard : entry.at("shards")) {
      shards[name].push_back(checked_shard(folder, shard));
      const Shard& last = shards[name].back();
      if (!listed.insert(last.file).second)
        refuse(file, "every shard once, in one split", last.file.string() + " twice");
      tokens += last.tokens;
      listing += last.hash + "  " + last.file.filename().string() + "\n";
    }
    whole(file, entry, "tokens", tokens, tokens);
    files.splits[name].documents = static_cast<int64_t>(entry.at("documents").size());
    files.splits[name].bytes = whole(file, entry, "bytes", 0, INT64_MAX);
    if (files.splits[name].documents > tokens)
      refuse(file, "at most a document a token in " + name, std::to_string(files.splits[name].documents));
  }
  const json& vocabulary = description.at("vocabulary");
  listing += vocabulary.at("sha256").get<std::string>() + "  vocabulary.bin\n";
  if (const auto found = sha256(listing); found != files.content_hash)
    refuse(file, "content_sha256 " + found, files.content_hash);

  files.pieces = read_vocabulary(folder / "vocabulary.bin", vocabulary, note);
  const auto largest_token = static_cast<int64_t>(files.pieces.size()) - 1;
  files.begin_token = whole(file, description, "begin_token", 0, largest_token);
  for (const auto& [name, list] : shards) {
    std::vector<uint16_t>& tokens = files.splits[name].tokens;
    tokens.resize(static_cast<size_t>(description.at("splits").at(name).at("tokens").get<int64_t>()));
    uint16_t* to = tokens.data();
    for (const Shard& shard : list) {
      read_tokens(shard, to, note);
      to += shard.tokens;
    }
    if (const auto largest = std::ranges::max_element(tokens); largest != tokens.end() && *largest > largest_token)
      refuse(folder, "tokens below " + std::to_string(files.pieces.size()) + " in " + name, std::to_string(*largest));
  }
  note.write();
  return files;
}

}  // namespace

DatasetFiles read_dataset(const fs::path& folder) {
  const fs::path file = folder / "dataset.json";
  const json description = parse_json(contents(file), file.string());
  try {
    expect_format(file, description);
    return read_described(folder, without_seal(description, file.string()));
  } catch (const json::exception& error) {
    refuse(file, "the members that lethe data prepare writes", std::string(error.what()).substr(0, kLongestReason));
  }
}

std::string recorded(const fs::path& folder, const std::string& member) {
  const fs::path file = folder / "dataset.json";
  std::error_code error;
  if (!fs::is_regular_file(file, error) || fs::file_size(file, error) > kLargestText) return {};
  std::ifstream stream(file);
  const json description = json::parse(stream, nullptr, /*allow_exceptions=*/false);
  if (!description.is_object() || !description.contains(member) || !description[member].is_string()) return {};
  return description[member].get<std::string>();
}

}  // namespace lethe
