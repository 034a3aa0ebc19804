#pragma once
// A dataset in parts of a bounded size, for machines without network.

#include <cstdint>
#include <filesystem>

namespace lethe {

/// Writes NAME.parts.json and NAME.000.part, NAME.001.part, … of a dataset NAME: together a tar.xz file.
///
/// reads    folder: of a dataset; part_bytes: of a part, at most; 0: as few as possible
/// returns  the path of NAME.parts.json
/// throws   std::invalid_argument, std::runtime_error naming the file, and for more than a thousand parts
std::filesystem::path pack_dataset(const std::filesystem::path& folder, const std::filesystem::path& to,
                                   int64_t part_bytes);

/// Joins the parts beside NAME.parts.json into the dataset <root>/NAME, which is checked against the hashes of its dataset.json first.
///
/// returns  <root>/NAME; unchanged where the same dataset is there
/// throws   std::invalid_argument, std::runtime_error naming a file that is absent or damaged, or another dataset of that name
std::filesystem::path unpack_dataset(const std::filesystem::path& list, const std::filesystem::path& root);

}  // namespace lethe
