#pragma once
// The files that lethe reads, a kind each: how a whole one is written, and how any bytes in its place are read.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lethe {

/// A kind of file.
struct Kind {
  std::string name;
  /// Writes a whole file, with the files that belong to it, to an empty folder.
  ///
  /// returns  its path: what is damaged
  std::filesystem::path (*write)(const std::filesystem::path& folder);
  /// Reads the folder as lethe does.
  ///
  /// returns  all that was read of a file that has a hash, as text; without a hash, anything
  /// throws   what lethe throws
  std::string (*read)(const std::filesystem::path& folder);
  /// The same bytes with a hash that fits them, as from an attacker; null where no hash stands over the file. May write the files beside it.
  std::string (*sealed)(const std::filesystem::path& folder, std::string bytes) = nullptr;
  /// Whether any change of the file must be noticed, or be without effect.
  bool has_hash = true;
};

const std::vector<Kind>& kinds();

/// A folder with a whole file of a kind, in which any bytes are put in its place.
class Place {
 public:
  Place(const Kind& kind, std::filesystem::path folder);

  const std::string& whole() const { return whole_; }

  /// Reads `bytes` in the file's place.
  ///
  /// reads    seals: whether the hash is made to fit; nothing for a kind without one
  /// returns  the fault in one line, empty where there is none: a whole file is read, another one is read as the whole file or refused by
  ///          std::invalid_argument or std::runtime_error, in one line that names the folder
  std::string fault_of(std::string_view bytes, bool seals);

  bool was_refused() const { return was_refused_; }

 private:
  const Kind& kind_;
  std::filesystem::path folder_, file_;
  std::string whole_, content_;
  bool was_refused_ = false;
};

}  // namespace lethe
