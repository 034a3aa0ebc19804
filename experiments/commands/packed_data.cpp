#include "experiments/commands/packed_data.hpp"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "experiments/commands/archive.hpp"
#include "experiments/commands/folders.hpp"
#include "experiments/data/dataset.hpp"
#include "experiments/data/sha256.hpp"
#include "experiments/files.hpp"
#include "experiments/json_file.hpp"

namespace lethe {
namespace {

namespace fs = std::filesystem;

constexpr int kPartsFormat = 1;
constexpr int64_t kLargestPart = int64_t{1} << 30;  // held in memory
constexpr int64_t kMostParts = 1000;                // their names have three digits

std::string numbered(const std::string& name, size_t number) {
  char digits[32];
  std::snprintf(digits, sizeof digits, ".%03zu.part", number);
  return name + digits;
}

}  // namespace

fs::path pack_dataset(const fs::path& folder, const fs::path& to, int64_t part_bytes) {
  const std::string name = fs::weakly_canonical(folder).filename();
  const std::string content = Dataset(folder).content_hash();  // reads, and so checks, every file
  fs::create_directories(to);
  const ScratchFolder scratch(to);
  const fs::path archive = scratch.path() / "archive";
  pack(folder, archive);
  const int64_t least = (static_cast<int64_t>(fs::file_size(archive)) + kMostParts - 1) / kMostParts;
  if (part_bytes > 0 && part_bytes < least)
    throw std::invalid_argument("part_bytes: expected at least " + std::to_string(least) + ", for at most " +
                                std::to_string(kMostParts) + " parts, found " + std::to_string(part_bytes));
  nlohmann::json parts = nlohmann::json::array();
  std::ifstream bytes(archive, std::ios::binary);
  std::string part(static_cast<size_t>(part_bytes > 0 ? std::min(part_bytes, kLargestPart) : kLargestPart), '\0');
  while (bytes.read(part.data(), std::ssize(part)) || bytes.gcount() > 0) {
    const std::string_view read(part.data(), static_cast<size_t>(bytes.gcount()));
    const std::string file = numbered(name, parts.size());
    write_whole(to / file, read);
    parts.push_back({{"file", file}, {"sha256", sha256(read)}});
  }
  const fs::path list = to / (name + ".parts.json");
  write_sealed(list, {{"format", kPartsFormat}, {"name", name}, {"content_sha256", content}, {"parts", parts}});
  return list;
}

fs::path unpack_dataset(const fs::path& list, const fs::path& root) {
  const nlohmann::json packed = read_sealed(list);
  for (const char* member : {"format", "name", "content_sha256", "parts"})
    if (!packed.contains(member)) throw std::invalid_argument(list.string() + ": expected " + member + ", found none");
  for (const char* member : {"name", "content_sha256"})
    if (!packed[member].is_string())
      throw std::invalid_argument(list.string() + ": " + member + ": expected a text, found " + shown(packed[member]));
  const auto is_part = [](const nlohmann::json& part) {
    return part.is_object() && part.value("file", nlohmann::json()).is_string() &&
           part.value("sha256", nlohmann::json()).is_string();
  };
  if (!packed["parts"].is_array() || !std::ranges::all_of(packed["parts"], is_part))
    throw std::invalid_argument(list.string() + ": parts: expected a list of files with their SHA-256, found " +
                                shown(packed["parts"]));
  const std::string name = packed.at("name"), content = packed.at("content_sha256");
  if (packed.at("format") != kPartsFormat || name.empty() || fs::path(name).filename() != name || name.starts_with("."))
    throw std::invalid_argument(list.string() + ": expected format " + std::to_string(kPartsFormat) +
                                " and the name of a folder, found " + packed.at("format").dump() + " and " + name);
  const fs::path target = root / name;
  const auto is_there = [&] {
    if (!fs::exists(target)) return false;
    if (const std::string found = Dataset(target).content_hash(); found != content)
      throw std::invalid_argument(target.string() + ": expected no dataset or that with content " + content +
                                  ", found " + found);
    return true;
  };
  if (is_there()) return target;
  const ScratchFolder scratch(root);
  const fs::path archive = scratch.path() / "archive", contents = scratch.path() / "contents";
  std::ofstream joined(archive, std::ios::binary);
  for (const nlohmann::json& part : packed.at("parts")) {
    const fs::path file = list.parent_path() / fs::path(part.at("file").get<std::string>()).filename();
    const std::string bytes = read_whole(file);
    if (const std::string found = sha256(bytes); found != part.at("sha256").get<std::string>())
      throw std::runtime_error(file.string() + ": expected content with SHA-256 " +
                               part.at("sha256").get<std::string>() + ", found " + found);
    joined.write(bytes.data(), std::ssize(bytes));
  }
  joined.close();
  if (!joined) throw std::runtime_error(archive.string() + ": cannot be written");
  fs::create_directories(contents);
  naming_members(list, scratch.path(), [&] { unpack(archive, contents); });
  naming_members(list, contents, [&] {
    if (const std::string found = Dataset(contents).content_hash(); found != content)
      throw std::invalid_argument(list.string() + ": expected a dataset with content " + content + ", found " + found);
  });
  std::error_code other;
  fs::rename(contents, target, other);
  if (other && !is_there())  // else another call was first
    throw fs::filesystem_error("rename", target, other);
  return target;
}

}  // namespace lethe
