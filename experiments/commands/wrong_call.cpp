#include "experiments/commands/wrong_call.hpp"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "experiments/commands/nearest.hpp"
#include "experiments/json_file.hpp"
#include "experiments/listed.hpp"

namespace lethe {
namespace {

const CLI::App& innermost_command(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : innermost_command(*chosen.front());
}

std::string call_of(const CLI::App& command) {
  return command.get_parent() ? call_of(*command.get_parent()) + " " + command.get_name() : command.get_name();
}

std::string missing_command(const CLI::App& command, const std::string& found) {
  std::vector<std::string> names;
  for (const CLI::App* one : command.get_subcommands(nullptr)) names.push_back(one->get_name());
  return "command: expected one of " + listed(names) + ", found " + (found.empty() ? "none" : found) +
         suggestion(found, names);
}

// An option of the command or of one around it, which every command takes too.
std::string unknown_argument(const CLI::App& command, const std::string& found) {
  std::vector<std::string> names;
  for (const CLI::App* at = &command; at != nullptr; at = at->get_parent())
    for (const CLI::Option* option : at->get_options())
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  const std::string word = found.substr(0, found.find('='));
  return "argument: expected what " + call_of(command) + " --help lists, found " + word + suggestion(word, names);
}

std::string between(const std::string& text, const std::string& before, const std::string& after) {
  const size_t at = text.find(before);
  const size_t begin = at == std::string::npos ? 0 : at + before.size();
  return text.substr(begin, text.find(after, begin) - begin);
}

std::string unconverted(const CLI::App& command, const std::string& name, const std::string& found) {
  const CLI::Option* option = command.get_option_no_throw(name);
  const bool fraction = option != nullptr && option->get_type_name() == "FLOAT";
  return name + ": expected a " + (fraction ? "" : "whole ") + "number, found " + shortened(found);
}

// Options with another name than the value that they set; a dash is an underscore in the others.
constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {
    {"tokens", "total_tokens"}, {"context", "context_length"}, {"features", "feature_map"}, {"from", "artefact"}};

std::string value_set_by(std::string option) {
  for (const auto& [name, value] : kOtherNames)
    if (option == name) return std::string(value);
  std::ranges::replace(option, '-', '_');
  return option;
}

}  // namespace

std::string with_option(const CLI::App& app, const std::string& message) {
  const size_t end = message.find(": ");
  const std::string head = message.substr(0, end);
  const bool is_file = head.find('/') != std::string::npos || head.ends_with(".json") || head.ends_with(".toml");
  if (end == std::string::npos || is_file) return message;
  const std::string value = head.substr(head.rfind('.') + 1);  // of "training.total_tokens"
  for (const CLI::App* at = &innermost_command(app); at != nullptr; at = at->get_parent())
    for (const CLI::Option* option : at->get_options())
      for (const std::string& name : option->get_lnames())
        if (option->count() > 0 && value_set_by(name) == value) return "--" + name + message.substr(end);
  return message;
}

std::string wrong_call(const CLI::App& app, const CLI::ParseError& error) {
  const auto extras = app.remaining(true);
  const std::string found = extras.empty() ? "" : extras.front();
  const CLI::App& command = innermost_command(app);
  const std::string message = error.what();
  if (dynamic_cast<const CLI::RequiredError*>(&error)) {
    const bool lacks_command = command.get_require_subcommand_min() > 0;  // the innermost command has no chosen one
    if (lacks_command)
      return found.starts_with('-') ? unknown_argument(command, found) : missing_command(command, found);
    return between(message, "", " is required") + ": expected a value, found none";
  }
  if (dynamic_cast<const CLI::ExtrasError*>(&error) && !found.empty()) return unknown_argument(command, found);
  if (dynamic_cast<const CLI::ConversionError*>(&error) && message.starts_with("Could not convert: "))
    return unconverted(command, between(message, "Could not convert: ", " = "), between(message, " = ", "\n"));
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error)) {
    const std::string name = message.substr(0, message.find(':'));
    if (message.find("At Most") != std::string::npos)
      return name + ": expected once, found " + between(message, "received ", "\n") + " times";
    return name + ": expected a value, found none";
  }
  return message;  // a check's message, already in this format
}

}  // namespace lethe
