#include "experiments/training/checkpoint.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "experiments/data/sha256.hpp"
#include "experiments/files.hpp"
#include "experiments/json_file.hpp"

namespace lethe {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "lethe checkpoint ";
constexpr const char* kFormat = "2";  // 1 had an archive of Torch, whose reader trusts the sizes that it finds
constexpr size_t kLongestFirstLine = 128;
constexpr size_t kLongestHeader = size_t{4} << 20;  // both lines: an identity has the mixer of each layer

struct Damage : std::runtime_error {
  Damage(const fs::path& path, const std::string& expected, const std::string& found)
      : std::runtime_error(path.string() + ": expected " + expected + ", found " + found) {}
};

fs::path beside(const fs::path& path, const char* name) {
  return path.parent_path() / (path.stem().string() + "." + name + path.extension().string());
}

// The text up to the next line break, without it; `rest` begins after it.
std::string next_line(std::string_view& rest) {
  const size_t end = std::min(rest.find('\n'), rest.size());
  const std::string line(rest.substr(0, end));
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return line;
}

// The first line of a checkpoint; `rest` begins after it.
std::string first_line(const fs::path& path, std::string_view& rest) {
  if (!rest.starts_with(kMagic)) throw Damage(path, "a checkpoint of lethe with its SHA-256", "another kind of file");
  const std::string line = next_line(rest);
  const std::string format = line.substr(kMagic.size(), line.find(' ', kMagic.size()) - kMagic.size());
  if (format != kFormat) {
    const char* advice =
        format > kFormat && format <= "9" ? " (a newer lethe may have written it: update this one)" : "";
    throw Damage(path, std::string("format ") + kFormat + advice, "format " + format);
  }
  return line;
}

// The hash that the first line gives, after its count was compared with the size of the file: no memory has been taken for it.
std::string expected_hash(const fs::path& path) {
  std::array<char, kLongestFirstLine> start{};
  std::ifstream file(path, std::ios::binary);
  file.read(start.data(), start.size());
  std::string_view rest(start.data(), static_cast<size_t>(file.gcount()));
  const std::string line = first_line(path, rest);
  std::istringstream first(line);
  std::string word, format = "none", hash = "none", count = "none";
  first >> word >> word >> format >> hash >> count;
  const std::string size =
      std::to_string(fs::file_size(path) - std::min<uintmax_t>(fs::file_size(path), line.size() + 1));
  if (count != size) throw Damage(path, count + " bytes", size);
  return hash;
}

CheckpointHeader header_of(const fs::path& path, const std::string& line) {
  try {
    const auto json = parse_json(line, path.string());
    CheckpointHeader header{json.at("identity"), whole_number(json.at("steps_done")),
                            json.at("log").get<LogPosition>()};
    if (header.steps_done < 0) throw std::out_of_range("steps_done");
    return header;
  } catch (const std::exception&) {
    throw Damage(path, "a header with identity, steps_done and log", "another");
  }
}

Checkpoint checked(const fs::path& path) {
  if (!fs::exists(path)) throw Damage(path, "a checkpoint", "none");
  if (!fs::is_regular_file(path)) throw Damage(path, "a regular file", "another");
  const std::string hash = expected_hash(path);
  std::string bytes = read_whole(path);
  std::string_view rest = bytes;
  next_line(rest);
  if (const std::string found = sha256(rest); found != hash) throw Damage(path, "content with SHA-256 " + hash, found);
  Checkpoint checkpoint{header_of(path, next_line(rest)), {}};
  bytes.erase(0, bytes.size() - rest.size());
  checkpoint.tensors = std::move(bytes);
  return checkpoint;
}

// The remedy that the error of an unusable checkpoint names.
std::string advice(const fs::path& path) {
  const fs::path previous = previous_checkpoint(path);
  const std::string deed = fs::exists(path) ? "; delete it: " : "; ";
  return deed +
         (fs::exists(previous) ? "training goes on from " + previous.filename().string() : "training starts anew");
}

}  // namespace

fs::path previous_checkpoint(const fs::path& path) { return beside(path, "previous"); }

void write_checkpoint(const fs::path& path, const CheckpointHeader& header, std::span<const std::string_view> tensors) {
  const std::string line =
      nlohmann::json{{"identity", header.identity}, {"steps_done", header.steps_done}, {"log", header.log}}.dump() +
      "\n";
  std::vector<std::string_view> pieces{line};
  pieces.insert(pieces.end(), tensors.begin(), tensors.end());
  size_t size = 0;
  for (const std::string_view piece : pieces) size += piece.size();
  const std::string first = std::string(kMagic) + kFormat + " " + sha256(pieces) + " " + std::to_string(size) + "\n";
  pieces.insert(pieces.begin(), first);
  const fs::path next = beside(path, "next");
  OutputFile(next).commit(pieces);
  if (fs::exists(path)) fs::rename(path, previous_checkpoint(path));
  fs::rename(next, path);
}

Checkpoint read_checkpoint(const fs::path& path) {
  try {
    return checked(path);
  } catch (const Damage& damage) {
    throw std::runtime_error(damage.what() + advice(path));
  }
}

// A training may replace the file meanwhile: it is opened once.
std::optional<CheckpointHeader> read_checkpoint_header(const fs::path& path) {
  for (const fs::path& candidate : {path, previous_checkpoint(path)}) {
    std::error_code absent;
    const fs::file_type type = fs::status(candidate, absent).type();
    if (type == fs::file_type::not_found || type == fs::file_type::none) continue;
    if (type != fs::file_type::regular) throw Damage(candidate, "a regular file", "another");
    std::ifstream file(candidate, std::ios::binary);
    if (!file) continue;
    std::string start(kLongestHeader, '\0');
    file.read(start.data(), std::ssize(start));
    std::string_view rest(start.data(), static_cast<size_t>(file.gcount()));
    try {
      first_line(candidate, rest);
      return header_of(candidate, next_line(rest));
    } catch (const Damage& damage) {
      throw std::runtime_error(damage.what() + advice(candidate));
    }
  }
  return std::nullopt;
}

std::optional<Checkpoint> newest_checkpoint(const fs::path& path, const std::string& identity,
                                            const std::function<void(const std::string&)>& warn) {
  const fs::path previous = previous_checkpoint(path);
  std::optional<Checkpoint> found;
  try {
    if (fs::exists(path)) found = checked(path);
    else if (fs::exists(previous)) found = read_checkpoint(previous);
  } catch (const Damage& damage) {
    if (!fs::exists(previous)) throw std::runtime_error(damage.what() + advice(path));
    found = read_checkpoint(previous);
    fs::rename(path, beside(path, "damaged"));
    if (warn) warn(std::string(damage.what()) + "; training goes on from " + previous.filename().string());
  }
  if (found && found->header.identity != identity)
    throw std::runtime_error(path.string() + ": expected a checkpoint of this run, found another run's" + advice(path));
  return found;
}

}  // namespace lethe
