#pragma once
// The birth certificate of results.

#include <torch/types.h>

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "optimized/torch/gpu.hpp"

namespace lethe {

/// The commit that this program was built from, as lethe.commit beside it says; empty where that is absent.
std::string built_commit();

/// The origin of a result: commit and dirty flag of the checkout around `folder`, command line, machine, compiler, Torch and
/// library versions, time. Away from a checkout the commit is that of the environment's LETHE_COMMIT; where neither names one, or git refuses, it is
/// "unknown", and the flag is null: no result is lost for it. `built`: built_commit(), where it is known.
/// `device`: the device of the computation; for a GPU the machine's entry holds gpu_certificate.
nlohmann::json birth_certificate(const std::filesystem::path& folder, const std::string& command_line,
                                 torch::Device device = torch::kCPU);

/// A GPU at this moment: name; driver; clock_mhz of its multiprocessors now, largest_clock_mhz; power_limit_watts. Read by nvidia-smi; a value that
/// it does not report is null, and all but the name are where it is absent.
nlohmann::json gpu_certificate(const Gpu& gpu);

/// Why a result in `folder` has no commit, in one line; empty where it has one.
std::string missing_commit(const std::filesystem::path& folder);

/// The folder of this machine's results: results/<name>, the name from the processor and the number of its cores, e.g.
/// "amd-epyc-9b14-2-cores".
std::string machine_name();

}  // namespace lethe
