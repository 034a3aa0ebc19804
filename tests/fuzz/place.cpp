#include <algorithm>
#include <stdexcept>
#include <typeinfo>
#include <utility>

#include "experiments/files.hpp"
#include "tests/experiments/tiny.hpp"
#include "tests/fuzz/kinds.hpp"

namespace lethe {
namespace {

constexpr size_t kLongestMessage = 4096;

std::string fault_of_message(const std::string& message, const std::filesystem::path& folder) {
  if (message.find('\n') != std::string::npos) return "an error of several lines: " + message;
  if (message.find(folder.string()) == std::string::npos) return "an error that names no file: " + message;
  if (message.size() > kLongestMessage) return "an error of " + std::to_string(message.size()) + " bytes";
  return {};
}

}  // namespace

Place::Place(const Kind& kind, std::filesystem::path folder)
    : kind_(kind), folder_(std::move(folder)), file_(kind.write(folder_)), whole_(read_whole(file_)),
      content_(kind.read(folder_)) {}

std::string Place::fault_of(std::string_view bytes, bool seals) {
  const bool is_sealed = seals && kind_.sealed != nullptr;
  overwrite(file_, is_sealed ? kind_.sealed(folder_, std::string(bytes)) : std::string(bytes));
  std::string fault;
  was_refused_ = false;
  try {
    const std::string found = kind_.read(folder_);
    if (kind_.has_hash && !is_sealed && found != content_) fault = "damage that was read in silence: " + found;
  } catch (const std::invalid_argument& error) {
    was_refused_ = true;
    fault = fault_of_message(error.what(), folder_);
  } catch (const std::runtime_error& error) {
    was_refused_ = true;
    fault = fault_of_message(error.what(), folder_);
  } catch (const std::exception& error) {
    fault = std::string("an error of another kind, ") + typeid(error).name() + ": " + error.what();
  }
  if (is_sealed) static_cast<void>(kind_.sealed(folder_, whole_));  // for the files beside it
  return fault;
}

}  // namespace lethe
