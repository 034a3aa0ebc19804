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

/// An error "name: expected …, found …" with the option that the call gave for that name in its place, e.g. --tokens for
/// total_tokens.
///
/// reads  app: after its parsing; a name that no given option has stays
std::string with_option(const CLI::App& app, const std::string& message);

}  // namespace lethe
