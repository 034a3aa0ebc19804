#pragma once
// The trained models as a table.

#include <filesystem>
#include <string>

namespace lethe {

/// A line a folder below `models`, by name: state, architecture, parameters, tokens of the training, corpus, loss in nats (of validation where
/// the training is finished, else of the last logged step), date of the last change, label. "" where the folder is absent.
///
/// State: "finished"; "training 12 %" while a process holds its lock; "stopped 12 %" where none does: the same lethe train resumes it;
/// "failed: <reason>" for a training that diverged and for a folder that can't be read. One that fails leaves the other lines as they are.
std::string models_table(const std::filesystem::path& models);

}  // namespace lethe
