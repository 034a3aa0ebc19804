#pragma once
// Files of log-likelihood requests, as evaluation harnesses write them: JSON lines, compressed by gzip or not.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace lethe {

/// How probable is the continuation after the context? A document asks that of each of its choices.
///
/// A line is an object with these members, the first two of them in an object "request" or in the line itself:
///   context, continuation   texts; an empty context: the continuation is a text of its own
///   doc_id     whole number; absent: a document of its own
///   idx        the choice, from 0; absent: 0
///   label      the right choice; absent, null or a text: none
///   task_name  absent: ""
///   request_type  absent or "loglikelihood"
/// Others are not read. That is the format of OLMo's request files, and without "request" the simplest of all.
struct Request {
  int64_t line = 0;  ///< in the file, from 1
  std::string task = {}, context = {}, continuation = {};
  int64_t document = 0, choice = 0;
  std::optional<int64_t> label = {};
};

/// Reads such a file from its first line to its last, one in memory at a time.
class RequestFile {
 public:
  /// throws  std::runtime_error naming a file that can't be opened
  explicit RequestFile(const std::filesystem::path& path);

  /// The next request; none after the last. Empty lines are passed over.
  ///
  /// throws  std::invalid_argument "<path>, line N: member: expected …, found …"; std::runtime_error for damaged gzip
  std::optional<Request> next();

  /// "<path>, line N", for errors.
  std::string place(int64_t line) const { return path_.string() + ", line " + std::to_string(line); }

 private:
  std::optional<std::string> next_line();

  std::filesystem::path path_;
  std::shared_ptr<void> file_;
  int64_t line_ = 0;
};

}  // namespace lethe
