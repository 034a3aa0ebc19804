#include "experiments/certificate.hpp"

#include <sys/utsname.h>
#include <torch/version.h>
#include <unistd.h>

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cmath>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "experiments/data/run_program.hpp"

namespace lethe {
namespace {

/// The checkout around a folder; empty outside of one.
std::filesystem::path checkout_of(const std::filesystem::path& folder) {
  for (std::filesystem::path at = std::filesystem::absolute(folder); at != at.root_path(); at = at.parent_path())
    if (std::filesystem::exists(at / ".git")) return at;
  return {};
}

/// Commit and dirty flag of a checkout, null outside of one. The outputs of runs don't set the flag.
nlohmann::json revision(const std::filesystem::path& checkout) {
  if (checkout.empty()) return {{"commit", nullptr}, {"dirty", nullptr}};
  std::string commit = run_program({"git", "-C", checkout.string(), "rev-parse", "HEAD"});
  commit.resize(std::min(commit.size(), commit.find('\n')));
  const bool dirty =
      !run_program({"git", "-C", checkout.string(), "status", "--porcelain", "--", ".", ":(exclude)results"}).empty();
  return {{"commit", commit}, {"dirty", dirty}};
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
                           {"memory_gib", std::round(memory / (1 << 30))},
                           {"system", std::string(system.sysname) + " " + system.release + " " + system.machine}}},
                         {"versions",
                          {{"compiler", std::string("g++ ") + __VERSION__},
                           {"torch", TORCH_VERSION},
                           {"eigen", std::to_string(EIGEN_WORLD_VERSION) + "." + std::to_string(EIGEN_MAJOR_VERSION) +
                                         "." + std::to_string(EIGEN_MINOR_VERSION)}}}};
  if (device.is_cuda()) json["machine"]["gpu"] = gpu_certificate(gpu(device));
  json.update(revision(checkout_of(folder)));
  return json;
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
