#include "experiments/certificate.hpp"

#include <ATen/Version.h>
#include <sys/utsname.h>
#include <torch/version.h>
#include <unistd.h>

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <vector>

#include "experiments/data/run_program.hpp"

namespace lethe {
namespace {

constexpr const char* kUnknown = "unknown";

/// The checkout around a folder; empty outside of one.
std::filesystem::path checkout_of(const std::filesystem::path& folder) {
  std::error_code unreadable;
  for (std::filesystem::path at = std::filesystem::absolute(folder); at != at.root_path(); at = at.parent_path())
    if (std::filesystem::exists(at / ".git", unreadable)) return at;
  return {};
}

/// The output of git in a checkout; its own messages are dropped.
///
/// throws  ProgramFailed: 127 where there is no git, 128 where git refuses the checkout
std::string git(const std::filesystem::path& checkout, std::vector<std::string> arguments) {
  std::vector<std::string> call{
      "sh", "-c", "exec git \"$@\" 2>/dev/null", "git", "--no-optional-locks", "-C", checkout.string()};
  call.insert(call.end(), std::make_move_iterator(arguments.begin()), std::make_move_iterator(arguments.end()));
  return run_program(call);
}

struct Revision {
  std::string commit = kUnknown;
  std::optional<bool> dirty;  // the outputs of runs don't count
  std::string reason;         // of an unknown commit
};

Revision revision_around(const std::filesystem::path& folder) {
  Revision found;
  const std::filesystem::path checkout = checkout_of(folder);
  if (checkout.empty()) {
    const char* named = std::getenv("LETHE_COMMIT");
    if (named && *named) found.commit = named;
    else found.reason = "none around " + folder.string() + " and no LETHE_COMMIT in the environment";
    return found;
  }
  try {
    std::string commit = git(checkout, {"rev-parse", "--verify", "HEAD"});
    commit.resize(std::min(commit.size(), commit.find('\n')));
    found.dirty = !git(checkout, {"status", "--porcelain", "--", ".", ":(exclude)results"}).empty();
    found.commit = commit;
  } catch (const ProgramFailed& error) {
    found.reason = error.status() == 127
                       ? std::string("no git program")
                       : "a checkout that git refuses (no commit yet, or another user's): " + checkout.string();
  } catch (const std::exception& error) {
    found.reason = error.what();
  }
  return found;
}

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown processor";
}

/// The line that nvidia-smi prints for a query of one GPU; empty where it is absent, or fails.
std::string nvidia_smi(const std::string& query, const std::string& bus_id) {
  try {
    return run_program({"nvidia-smi", "--query-gpu=" + query, "--format=csv,noheader,nounits", "--id=" + bus_id});
  } catch (const std::runtime_error&) {
    return {};
  }
}

}  // namespace

nlohmann::json gpu_certificate(const Gpu& gpu) {
  nlohmann::json json = {{"name", gpu.name}, {"driver", nullptr}};
  std::istringstream line(nvidia_smi("driver_version,clocks.sm,clocks.max.sm,power.limit", gpu.bus_id));
  if (std::string driver; std::getline(line, driver, ',')) json["driver"] = driver;
  for (const char* member : {"clock_mhz", "largest_clock_mhz", "power_limit_watts"}) {
    std::string field;
    std::getline(line, field, ',');
    const auto number = nlohmann::json::parse(field, nullptr, /*allow_exceptions=*/false);
    json[member] = number.is_number() ? number : nlohmann::json();
  }
  return json;
}

std::string built_commit() {
  std::error_code absent;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", absent);
  std::ifstream file(program.parent_path() / "lethe.commit");
  std::string commit;
  std::getline(file, commit);
  return commit;
}

nlohmann::json birth_certificate(const std::filesystem::path& folder, const std::string& command_line,
                                 torch::Device device) {
  utsname system{};
  uname(&system);
  std::array<char, 32> time;
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::strftime(time.data(), time.size(), "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  const double memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  nlohmann::json json = {{"command_line", command_line},
                         {"time", time.data()},
                         {"machine",
                          {{"name", machine_name()},
                           {"processor", processor()},
                           {"cores", std::thread::hardware_concurrency()},
                           {"instruction_set", at::get_cpu_capability()},
                           {"memory_gib", std::round(memory / (1 << 30))},
                           {"system", std::string(system.sysname) + " " + system.release + " " + system.machine}}},
                         {"versions",
                          {{"compiler", std::string("g++ ") + __VERSION__},
                           {"torch", TORCH_VERSION},
                           {"eigen", std::to_string(EIGEN_WORLD_VERSION) + "." + std::to_string(EIGEN_MAJOR_VERSION) +
                                         "." + std::to_string(EIGEN_MINOR_VERSION)}}}};
  if (device.is_cuda()) json["machine"]["gpu"] = gpu_certificate(gpu(device));
  const Revision revision = revision_around(folder);
  json["commit"] = revision.commit;
  json["dirty"] = revision.dirty ? nlohmann::json(*revision.dirty) : nlohmann::json(nullptr);
  if (const std::string commit = built_commit(); !commit.empty()) json["built"] = commit;
  return json;
}

std::string missing_commit(const std::filesystem::path& folder) {
  const Revision revision = revision_around(folder);
  return revision.reason.empty()
             ? ""
             : "commit: expected that of a checkout, found " + revision.reason + "; written as unknown";
}

std::string machine_name() {
  // The words of the processor's name, without those common to all processors of its kind.
  std::string text = processor();
  for (char& c : text)
    c = std::isalnum(static_cast<unsigned char>(c)) ? static_cast<char>(std::tolower(static_cast<unsigned char>(c)))
                                                    : ' ';
  std::istringstream words(text);
  std::string name;
  for (std::string word; words >> word;)
    if (word != "r" && word != "tm" && word != "cpu" && word != "processor") name += word + "-";
  return name + std::to_string(std::thread::hardware_concurrency()) + "-cores";
}

}  // namespace lethe
