#include "experiments/evaluation/request_file.hpp"

#include <zlib.h>

#include <array>
#include <stdexcept>

#include "experiments/json_file.hpp"
#include "experiments/models/json_members.hpp"

namespace lethe {
namespace {

using nlohmann::json;

constexpr size_t kLongestRequest = size_t{1} << 26;

gzFile opened(const std::shared_ptr<void>& file) { return static_cast<gzFile>(file.get()); }

// An object's member, or null where it is absent.
const json& member(const json& object, const char* name) {
  static const json null;
  const auto found = object.find(name);
  return found == object.end() ? null : *found;
}

[[noreturn]] void refuse_member(const char* name, const char* expected, const json& found) {
  const std::string text = found.dump(-1, ' ', false, json::error_handler_t::replace);
  throw std::invalid_argument(std::string(name) + ": expected " + expected + ", found " +
                              (found.is_null() ? "none" : text.substr(0, 80)));
}

std::string text_of(const json& object, const char* name) {
  if (const json& found = member(object, name); found.is_string()) return found.get<std::string>();
  refuse_member(name, "a text", member(object, name));
}

int64_t number_of(const json& object, const char* name, int64_t absent) {
  const json& found = member(object, name);
  if (found.is_null()) return absent;
  if (!found.is_number_integer() || found.get<double>() < 0 || found.get<double>() > 9e15)
    refuse_member(name, "a whole number ≥ 0", found);
  return found.get<int64_t>();
}

Request request_of(const json& line, int64_t number) {
  if (!line.is_object()) refuse_member("request", "a JSON object", line);
  const json& type = member(line, "request_type");
  if (!type.is_null() && type != "loglikelihood") refuse_member("request_type", "\"loglikelihood\"", type);
  const json& inner = member(line, "request").is_null() ? line : member(line, "request");
  if (!inner.is_object()) refuse_member("request", "a JSON object", inner);
  Request request{.line = number, .context = text_of(inner, "context"), .continuation = text_of(inner, "continuation")};
  expect(!request.continuation.empty(), "continuation", "a text", "an empty one");
  request.document = number_of(line, "doc_id", -number);
  request.choice = number_of(line, "idx", 0);
  if (const json& label = member(line, "label"); !label.is_null() && !label.is_string())
    request.label = number_of(line, "label", 0);
  if (!member(line, "task_name").is_null()) request.task = text_of(line, "task_name");
  return request;
}

}  // namespace

RequestFile::RequestFile(const std::filesystem::path& path) : path_(path) {
  const gzFile file = std::filesystem::is_regular_file(path) ? gzopen(path.c_str(), "rb") : nullptr;
  if (file == nullptr) throw std::runtime_error(path.string() + ": expected a file of requests, found none");
  file_ = {file, [](void* open) { gzclose(static_cast<gzFile>(open)); }};
}

std::optional<std::string> RequestFile::next_line() {
  std::array<char, 1 << 16> part;
  std::string line;
  ++line_;
  while (gzgets(opened(file_), part.data(), static_cast<int>(part.size())) != nullptr) {
    line += part.data();
    if (line.ends_with('\n')) return line;
    if (line.size() > kLongestRequest)
      throw std::invalid_argument(place(line_) + ": expected at most 64 MiB, found a longer line");
  }
  int status = Z_OK;
  const char* what = gzerror(opened(file_), &status);
  if (status != Z_OK && status != Z_STREAM_END)
    throw std::runtime_error(place(line_) + ": expected whole gzip data, found " + what);
  return line.empty() ? std::nullopt : std::optional(line);
}

std::optional<Request> RequestFile::next() {
  while (const auto line = next_line()) {
    if (line->find_first_not_of(" \t\r\n") == std::string::npos) continue;
    try {
      return request_of(parse_json(*line, "line"), line_);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(place(line_) + ": " + error.what());
    }
  }
  return std::nullopt;
}

}  // namespace lethe
