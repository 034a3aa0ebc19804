#pragma once
// Content hashes: shards against dataset.json, and the names of artefacts.

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace lethe {

/// SHA-256 (FIPS 180-4) of bytes, as 64 lower-case hexadecimal digits.
///
/// throws   std::runtime_error where OpenSSL fails, e.g. a build without SHA-256
/// cost     one pass, with the processor's SHA instructions where it has them
std::string sha256(std::string_view bytes);

/// The same of the pieces joined.
std::string sha256(std::span<const std::string_view> pieces);
inline std::string sha256(std::initializer_list<std::string_view> pieces) {
  return sha256(std::span(pieces.begin(), pieces.size()));
}

}  // namespace lethe
