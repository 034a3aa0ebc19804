#pragma once
// Where results come from.

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace lethe {

/// Where and from what a result comes: commit and dirty flag of the checkout around `folder` (null outside of one), command line,
/// machine, compiler, Torch and library versions, time.
nlohmann::json birth_certificate(const std::filesystem::path& folder, const std::string& command_line);

/// Where results of this machine go: results/<name>, the name from the processor and the number of its cores, e.g.
/// "amd-epyc-9b14-2-cores".
std::string machine_name();

}  // namespace lethe
