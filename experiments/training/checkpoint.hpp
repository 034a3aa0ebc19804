#pragma once
// The file of a checkpoint: tensors under their SHA-256, and the checkpoint before it.

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "experiments/training/training_log.hpp"

namespace lethe {

/// The header of a checkpoint.
struct CheckpointHeader {
  std::string identity;  ///< of its run
  int64_t steps_done = 0;
  LogPosition log;  ///< of log.jsonl after those steps
};

struct Checkpoint {
  CheckpointHeader header;
  std::string tensors;  ///< the bytes of a safetensors file
};

/// Writes "lethe checkpoint 2 SHA-256 BYTES", a line of JSON, and the pieces of a safetensors file; hash and count are those of all after
/// the first line. The file at `path` becomes the checkpoint before it once the new one is whole on the disk.
///
/// throws  std::runtime_error naming the file
void write_checkpoint(const std::filesystem::path& path, const CheckpointHeader& header,
                      std::span<const std::string_view> tensors);

/// The checkpoint at `path`.
///
/// throws  std::runtime_error "path: expected …, found …; delete it: …" where it is absent, cut, damaged or of another format
Checkpoint read_checkpoint(const std::filesystem::path& path);

/// The header of the checkpoint at `path`, or of the one before it where that is absent: without the tensors, and so without
/// their hash.
///
/// returns  nullopt where neither is there
/// throws   std::runtime_error as read_checkpoint for another kind of file
std::optional<CheckpointHeader> read_checkpoint_header(const std::filesystem::path& path);

/// The checkpoint before that at `path`: checkpoint.previous.pt beside checkpoint.pt.
std::filesystem::path previous_checkpoint(const std::filesystem::path& path);

/// The newest whole checkpoint of a run: that at `path`, or the one before it. A damaged file at `path` is then kept as
/// checkpoint.damaged.pt.
///
/// reads    warn: called with one line that names the damage
/// returns  nullopt where neither is there
/// throws   std::runtime_error where neither is whole, or the newest is another run's
std::optional<Checkpoint> newest_checkpoint(const std::filesystem::path& path, const std::string& identity,
                                            const std::function<void(const std::string&)>& warn);

}  // namespace lethe
