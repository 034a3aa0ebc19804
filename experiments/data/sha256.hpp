#pragma once
// Content hashes: shards against dataset.json, and the names of artefacts.

#include <string>
#include <string_view>
#include <vector>

namespace lethe {

/// SHA-256 (FIPS 180-4) of bytes, or of several pieces as if they lay in a row, as 64 lower-case hexadecimal digits.
///
/// throws   std::runtime_error where OpenSSL fails, e.g. a build without SHA-256
/// cost     one pass, with the processor's SHA instructions where it has them
std::string sha256(std::string_view bytes);
std::string sha256(const std::vector<std::string_view>& pieces);

}  // namespace lethe
