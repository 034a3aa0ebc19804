#include "experiments/commands/version.hpp"

#include <torch/version.h>

#include <filesystem>
#include <fstream>

namespace lethe {

std::string version() {
  std::error_code absent;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", absent);
  std::ifstream file(program.parent_path() / "lethe.commit");
  std::string commit;
  if (!std::getline(file, commit)) commit = "unknown";
#ifdef LETHE_WITH_CUDA
  const char* kernels = "with CUDA kernels";
#else
  const char* kernels = "without CUDA kernels";
#endif
  return std::string("lethe ") + LETHE_VERSION + "\ncommit  " + commit + "\nbuild   " + LETHE_BUILD_TYPE + ", g++ " +
         __VERSION__ + ", torch " + TORCH_VERSION + ", " + kernels;
}

}  // namespace lethe
