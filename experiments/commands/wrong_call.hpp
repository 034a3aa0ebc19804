#pragma once
// The error message of an invalid command line.

#include <CLI/CLI.hpp>
#include <string>

namespace lethe {

/// The error of a wrong call, in the format of all errors: "name: expected …, found …", with the nearest known command or option where
/// an unknown one resembles it.
///
/// reads  app: the parser that threw `error`
std::string wrong_call(const CLI::App& app, const CLI::ParseError& error);

}  // namespace lethe
