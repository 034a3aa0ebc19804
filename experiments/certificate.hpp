#pragma once
// The birth certificate of results.

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace lethe {

/// The origin of a result: commit and dirty flag of the checkout around `folder` (null outside of one), command line,
/// machine, compiler, Torch and library versions, time.
nlohmann::json birth_certificate(const std::filesystem::path& folder, const std::string& command_line);

/// The folder of this machine's results: results/<name>, the name from the processor and the number of its cores, e.g.
/// "amd-epyc-9b14-2-cores".
std::string machine_name();

}  // namespace lethe
