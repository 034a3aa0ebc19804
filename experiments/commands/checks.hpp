#pragma once
// Checks of an option's value, with the message of all errors: "--name: expected …, found …".

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "experiments/commands/nearest.hpp"
#include "experiments/json_file.hpp"
#include "experiments/listed.hpp"

namespace lethe {

/// A number from `low` to `high`, both included.
inline CLI::Validator number_between(double low, double high = std::numeric_limits<double>::infinity()) {
  const auto written = [](double bound) {
    std::string digits = std::to_string(bound);
    digits.erase(digits.find_last_not_of('0') + 1);
    return digits.back() == '.' ? digits.substr(0, digits.size() - 1) : digits;
  };
  const bool bounded = high < std::numeric_limits<double>::infinity();
  const std::string range = bounded ? "from " + written(low) + " to " + written(high) : "of at least " + written(low);
  const auto wrong = [=](const std::string& text) {
    double value;
    const bool good = CLI::detail::lexical_cast(text, value) && std::isfinite(value) && value >= low && value <= high;
    return good ? std::string() : "expected a number " + range + ", found " + shortened(text);
  };
  return CLI::Validator([wrong](std::string& text) { return wrong(text); }, "");
}

/// A whole number that `Integer` holds. A larger one would be read as the largest, without an error.
template <typename Integer>
CLI::Validator held_by() {
  return CLI::Validator(
      [](std::string& text) {
        Integer value;
        const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
        return end.ec != std::errc::result_out_of_range
                   ? std::string()
                   : "expected a number of at most " + std::to_string(std::numeric_limits<Integer>::max()) +
                         ", found " + shortened(text);
      },
      "");
}

/// throws  std::invalid_argument for more processes than eight a core
inline void expect_cores(int processes) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (processes > 8 * cores)
    throw std::invalid_argument("processes: expected at most " + std::to_string(8 * cores) + ", eight a core, found " +
                                std::to_string(processes));
}

/// One of some words.
inline CLI::Validator one_of(const std::vector<std::string>& words) {
  return CLI::Validator(
      [words](std::string& found) {
        if (std::ranges::find(words, found) != words.end()) return std::string();
        return "expected one of " + listed(words) + ", found " + shortened(found) + suggestion(found, words);
      },
      "");
}

/// One of the words that `word_of` reads from the elements of a range.
template <class Range, class Projection>
CLI::Validator one_of(const Range& range, Projection word_of) {
  std::vector<std::string> words;
  for (const auto& element : range) words.push_back(std::invoke(word_of, element));
  return one_of(words);
}

/// An existing file.
inline CLI::Validator existing_file() {
  return CLI::Validator(
      [](std::string& path) {
        return CLI::ExistingFile(path).empty() ? std::string() : "expected a file, found " + path;
      },
      "");
}

/// An existing folder.
inline CLI::Validator existing_folder() {
  return CLI::Validator(
      [](std::string& path) {
        return CLI::ExistingDirectory(path).empty() ? std::string() : "expected a folder, found " + path;
      },
      "");
}

}  // namespace lethe
