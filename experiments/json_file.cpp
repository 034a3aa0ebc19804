#include "experiments/json_file.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "experiments/data/sha256.hpp"
#include "experiments/files.hpp"

namespace lethe {
namespace {

using nlohmann::json;

constexpr int kDeepest = 64;
constexpr uintmax_t kLargest = uintmax_t{64} << 20;

[[noreturn]] void refuse(const std::string& name, const std::string& expected, const std::string& found) {
  throw std::invalid_argument(name + ": expected " + expected + ", found " + found);
}

/// The largest nesting depth of a JSON text. A callback of json::parse would be quadratic: after each element it scans the parent.
int depth_of(std::string_view text) {
  int depth = 0, deepest = 0;
  bool is_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (is_string && c == '\\') ++i;
    else if (c == '"') is_string = !is_string;
    else if (!is_string && (c == '[' || c == '{')) deepest = std::max(deepest, ++depth);
    else if (!is_string && (c == ']' || c == '}')) --depth;
  }
  return deepest;
}

constexpr size_t kLongestShown = 100;

}  // namespace

std::string shortened(std::string text) {
  if (text.size() <= kLongestShown) return text;
  text.resize(kLongestShown);
  while (!text.empty() && (text.back() & 0x80) != 0) text.pop_back();  // no part of a character
  return text + "…";
}

std::string shown(const json& value) { return shortened(value.dump(-1, ' ', false, json::error_handler_t::replace)); }

std::string as_utf8(const std::string& bytes) {
  return json::parse(json(bytes).dump(-1, ' ', false, json::error_handler_t::replace)).get<std::string>();
}

json parse_json(std::string_view text, const std::string& name) {
  if (depth_of(text) > kDeepest)
    refuse(name, "JSON of at most " + std::to_string(kDeepest) + " levels", "a deeper one");
  try {
    return json::parse(text);
  } catch (const json::parse_error& error) {
    refuse(name, "JSON", "an error at byte " + std::to_string(error.byte) + " of " + std::to_string(text.size()));
  } catch (const json::exception&) {
    refuse(name, "JSON with numbers of double precision", "a larger number");
  }
}

namespace {

int64_t whole_number_called(const std::string& name, const json& value) {
  const bool is_large = value.is_number_unsigned() && !std::in_range<int64_t>(value.get<uint64_t>());
  if (!value.is_number_integer() || is_large) refuse(name, "a whole number of 64 bits with sign", shown(value));
  return value.get<int64_t>();
}

}  // namespace

int64_t whole_number(const json& value) { return whole_number_called("number", value); }

int64_t whole_number(const json& object, const std::string& key) {
  if (!object.is_object() || !object.contains(key)) refuse(key, "a whole number", "none");
  return whole_number_called(key, object[key]);
}

json read_json(const std::filesystem::path& path) {
  std::error_code absent;
  if (const auto size = std::filesystem::file_size(path, absent); !absent && size > kLargest)
    refuse(path.string(), "a file of at most 64 MiB", std::to_string(size) + " bytes");
  return parse_json(read_whole(path), path.string());
}

void write_sealed(const std::filesystem::path& path, json object) {
  object["sha256"] = sha256(object.dump(1));
  write_whole(path, object.dump(1) + "\n");
}

json without_seal(json object, const std::string& name) {
  if (!object.is_object() || !object.contains("sha256")) refuse(name, "an object with its SHA-256", "none");
  const json written = object["sha256"];
  object.erase("sha256");
  if (const std::string found = sha256(object.dump(1)); written != found)
    refuse(name, "content with SHA-256 " + shown(written), found);
  return object;
}

json read_sealed(const std::filesystem::path& path) { return without_seal(read_json(path), path.string()); }

}  // namespace lethe
