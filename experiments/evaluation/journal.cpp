#include "experiments/evaluation/journal.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "experiments/data/sha256.hpp"
#include "experiments/files.hpp"
#include "experiments/json_file.hpp"

namespace lethe {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what) {
  throw std::runtime_error(path.string() + ": " + what + ": " + std::strerror(errno));
}

std::string bytes_of(const torch::Tensor& tensor) {
  const torch::Tensor whole = tensor.detach().to(torch::kCPU).contiguous();
  return {static_cast<const char*>(whole.data_ptr()), whole.nbytes()};
}

}  // namespace

Journal::Journal(const std::filesystem::path& path, const nlohmann::json& about, std::vector<std::string> key)
    : path_(path), key_(std::move(key)) {
  if (path.empty()) return;
  descriptor_ = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail(path, "expected a file that can be written");
  try {
    if (flock(descriptor_, LOCK_EX | LOCK_NB) != 0) fail(path, "expected a file that no other call writes");
    read(path, about);
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

Journal::~Journal() {
  if (descriptor_ >= 0) close(descriptor_);
}

void Journal::read(const std::filesystem::path& path, const nlohmann::json& about) {
  const std::string text = read_whole(path), header = about.dump();
  if (text.find('\n') == std::string::npos && !header.starts_with(text))
    throw std::invalid_argument(path.string() + ": expected measurements of " + header + ", found another file");
  size_t begin = 0;
  for (int64_t line = 1;; ++line) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;
    const std::string name = path.string() + ", line " + std::to_string(line);
    const nlohmann::json found = parse_json(std::string_view(text).substr(begin, end - begin), name);
    if (line == 1 && found.dump() != header)
      throw std::invalid_argument(path.string() + ": expected measurements of " + header + ", found " + found.dump());
    if (line > 1) {
      for (const std::string& member : key_)
        if (!found.is_object() || !found.contains(member))
          throw std::invalid_argument(name + ": expected a measurement with " + member + ", found " + found.dump());
      measurements_[key_of(found)] = found;
    }
    begin = end + 1;
  }
  if (ftruncate(descriptor_, static_cast<off_t>(begin)) != 0) fail(path, "expected a file that can be cut");
  if (begin == 0 && ::write(descriptor_, (header + "\n").data(), header.size() + 1) != std::ssize(header) + 1)
    fail(path, "expected room for a line");
}

std::string Journal::key_of(const nlohmann::json& measurement) const {
  nlohmann::json key;
  for (const std::string& member : key_) key.push_back(measurement.at(member));
  return key.dump();
}

const nlohmann::json* Journal::find(const nlohmann::json& key) const {
  const auto found = measurements_.find(key_of(key));
  return found == measurements_.end() ? nullptr : &found->second;
}

void Journal::add(const nlohmann::json& measurement) {
  measurements_[key_of(measurement)] = measurement;
  if (descriptor_ < 0) return;
  const std::string line = measurement.dump() + "\n";
  if (::write(descriptor_, line.data(), line.size()) != std::ssize(line)) fail(path_, "expected room for a line");
}

nlohmann::json about_measuring(const std::string& evaluation, int version, nlohmann::json settings,
                               const LanguageModel& model, const Dataset& dataset) {
  std::string hashes;
  for (const auto& tensor : model->named_parameters()) hashes += tensor.key() + sha256(bytes_of(tensor.value()));
  for (const auto& tensor : model->named_buffers()) hashes += tensor.key() + sha256(bytes_of(tensor.value()));
  settings.erase("raw");
  return {{"evaluation", evaluation},  {"version", version},
          {"settings", settings},      {"model", nlohmann::json(model->config())},
          {"weights", sha256(hashes)}, {"data", dataset.content_hash()}};
}

}  // namespace lethe
