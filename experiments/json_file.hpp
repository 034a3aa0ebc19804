#pragma once
// JSON of untrusted files and options: bounded in size and depth, refused in one line, sealed by a hash.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace lethe {

/// A text for a message: cut after a hundred bytes.
std::string shortened(std::string text);

/// A value for a message: its JSON, shortened.
std::string shown(const nlohmann::json& value);

/// Text that JSON can hold and a terminal can show: bytes that are no UTF-8 are replaced.
std::string as_utf8(const std::string& bytes);

/// The value of a JSON text of at most 64 levels, so that functions on it may recurse.
///
/// reads   name: of the file or option, for the message
/// throws  std::invalid_argument "name: expected …, found …"
nlohmann::json parse_json(std::string_view text, const std::string& name);

/// The same of a file of at most 64 MiB.
///
/// throws  std::invalid_argument, std::runtime_error naming the file
nlohmann::json read_json(const std::filesystem::path& path);

/// A whole number of 64 bits with sign. `get<int64_t>` converts any number, and one beyond those bits to anything.
///
/// throws  std::invalid_argument for another value
int64_t whole_number(const nlohmann::json& value);

/// Such a number of an object.
///
/// throws  std::invalid_argument naming the key where it is absent or holds another value
int64_t whole_number(const nlohmann::json& object, const std::string& key);

/// Writes an object with a further member, "sha256": the hash of the others as JSON with an indentation of one space.
///
/// throws  std::runtime_error naming the file
void write_sealed(const std::filesystem::path& path, nlohmann::json object);

/// An object without that member.
///
/// reads   name: of its file, for the message
/// throws  std::invalid_argument where the hash is absent or another
nlohmann::json without_seal(nlohmann::json object, const std::string& name);

/// Reads such an object back, without that member.
///
/// throws  as read_json; std::invalid_argument where the hash is absent or another
nlohmann::json read_sealed(const std::filesystem::path& path);

}  // namespace lethe
