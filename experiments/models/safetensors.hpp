#pragma once
// Weights as safetensors, the format of the published checkpoints: a JSON header, then the tensors' bytes.

#include <torch/types.h>

#include <filesystem>
#include <map>
#include <string>

#include "experiments/files.hpp"

namespace lethe {

/// Tensors by name, and the texts of the header's metadata.
struct Safetensors {
  std::map<std::string, torch::Tensor> tensors;
  std::map<std::string, std::string> metadata = {};
};

/// Writes float64, float32, bfloat16, float16, int64, int32 and uint8 tensors of any device, in the order of their names.
///
/// source  https://github.com/huggingface/safetensors, "Format"
/// throws  std::invalid_argument for another dtype; std::runtime_error naming the file
void write_safetensors(const OutputFile& output, const Safetensors& file);

/// Reads such a file into CPU tensors. Every offset is checked before it is read.
///
/// throws  std::runtime_error "FILE: expected …, found …" where it is no whole safetensors file
Safetensors read_safetensors(const std::filesystem::path& path);

}  // namespace lethe
