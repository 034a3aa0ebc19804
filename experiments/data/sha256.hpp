#pragma once
// Content hashes: shards against dataset.json, and the names of artefacts.

#include <string>
#include <string_view>

namespace lethe {

/// SHA-256 (FIPS 180-4) of bytes, as 64 lower-case hexadecimal digits.
///
/// cost     one pass, about 200 MB/s
std::string sha256(std::string_view bytes);

}  // namespace lethe
