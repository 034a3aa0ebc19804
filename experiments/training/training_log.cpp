#include "experiments/training/training_log.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "experiments/data/sha256.hpp"
#include "experiments/files.hpp"
#include "experiments/json_file.hpp"
#include "experiments/training/checkpoint.hpp"

namespace lethe {

void to_json(nlohmann::json& json, const LogPosition& position) {
  json = {{"bytes", position.bytes}, {"hash", position.hash}};
}

void from_json(const nlohmann::json& json, LogPosition& position) {
  position = {whole_number(json.at("bytes")), json.at("hash").get<std::string>()};
}

namespace {

namespace fs = std::filesystem;

constexpr size_t kLastSteps = 20;
constexpr std::streamsize kLongestLine = 1 << 16;  // a longer one ends what is read
constexpr const char* kAdvice = ", those of its checkpoint; restore it, or delete its folder: training starts anew";

// Visits the whole lines of a file that end at or before `end`.
//
// returns  the position after the last of them
LogPosition for_each_line(const fs::path& path, int64_t end, const std::function<void(const std::string&)>& visit) {
  std::ifstream file(path);
  LogPosition at;
  std::vector<char> text(kLongestLine);
  while (at.bytes < end && file.getline(text.data(), kLongestLine) && !file.eof()) {
    const std::string line(text.data(), static_cast<size_t>(file.gcount()) - 1);
    const int64_t next = at.bytes + std::ssize(line) + 1;
    if (next > end) break;
    at = {next, sha256(at.hash + line)};
    visit(line);
  }
  return at;
}

void expect_position(const fs::path& path, const LogPosition& found, const LogPosition& expected, const char* advice) {
  if (found.bytes == expected.bytes && found.hash == expected.hash) return;
  throw std::runtime_error(path.string() + ": expected " + std::to_string(expected.bytes) +
                           " bytes of lines with the hash " + expected.hash + ", found " + std::to_string(found.bytes) +
                           " with " + found.hash + advice);
}

}  // namespace

TrainingLog::TrainingLog(fs::path path, const LogPosition& at) : path_(std::move(path)) {
  if (at.bytes == 0) write_whole(path_, "");
  std::deque<std::string> last;
  position_ = for_each_line(path_, at.bytes, [&](const std::string& line) {
    last.push_back(line);
    if (last.size() > kLastSteps) last.pop_front();
  });
  expect_position(path_, position_, at, kAdvice);
  for (const std::string& line : last) remember(parse_json(line, path_.string()));
  fs::resize_file(path_, static_cast<uintmax_t>(at.bytes));
  file_.open(path_, std::ios::app);
}

void TrainingLog::remember(const nlohmann::json& line) {
  losses_.push_back(line.at("loss").get<double>());
  if (losses_.size() > kLastSteps) losses_.pop_front();
  seconds_ = line.at("seconds").get<double>();
}

void TrainingLog::append(const nlohmann::json& line) {
  const std::string text = line.dump();
  file_ << text << '\n' << std::flush;
  if (!file_) throw std::runtime_error(path_.string() + ": cannot be written");
  position_ = {position_.bytes + std::ssize(text) + 1, sha256(position_.hash + text)};
  remember(line);
}

LogPosition TrainingLog::sync() {
  sync_file(path_);
  return position_;
}

double TrainingLog::last_losses() const {
  if (losses_.empty()) return std::numeric_limits<double>::quiet_NaN();
  return std::accumulate(losses_.begin(), losses_.end(), 0.0) / static_cast<double>(losses_.size());
}

void expect_log_of_checkpoint(const fs::path& folder) {
  // Read before the log, which has its lines and may have more.
  const auto header = read_checkpoint_header(folder / "checkpoint.pt");
  if (!header) return;
  const fs::path path = folder / "log.jsonl";
  expect_position(path, for_each_line(path, header->log.bytes, [](const std::string&) {}), header->log, kAdvice);
}

nlohmann::json last_logged(const fs::path& folder) {
  constexpr std::streamoff kEnd = 16384;
  std::ifstream file(folder / "log.jsonl", std::ios::binary | std::ios::ate);
  if (!file) return nlohmann::json::object();
  file.seekg(std::max<std::streamoff>(0, static_cast<std::streamoff>(file.tellg()) - kEnd));
  nlohmann::json last = nlohmann::json::object();
  for (std::string line; std::getline(file, line);) {
    nlohmann::json read = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (read.is_object() && read.contains("step") && read.contains("loss")) last = std::move(read);
  }
  return last;
}

void read_log(const fs::path& folder, const std::function<void(const nlohmann::json&)>& visit) {
  const fs::path path = folder / "log.jsonl";
  if (fs::exists(folder / "done.json")) {
    const nlohmann::json done = read_sealed(folder / "done.json");
    LogPosition all;
    try {
      all = done.at("log").get<LogPosition>();
    } catch (const std::exception&) {
      throw std::invalid_argument((folder / "done.json").string() + ": log: expected bytes and hash, found another");
    }
    const auto size = static_cast<int64_t>(fs::file_size(path));
    expect_position(path, for_each_line(path, size, [](const std::string&) {}), all,
                    ", those of its training; restore it");
  } else {
    expect_log_of_checkpoint(folder);
  }
  for_each_line(path, std::numeric_limits<int64_t>::max(),
                [&](const std::string& line) { visit(parse_json(line, path.string())); });
}

}  // namespace lethe
