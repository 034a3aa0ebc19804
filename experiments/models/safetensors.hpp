#pragma once
// Weights as safetensors, the format of the published checkpoints: a JSON header, then the tensors' bytes.

#include <torch/types.h>

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

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

/// Such a file in pieces, in which no tensor on the host is copied.
struct SafetensorsPieces {
  std::string header;                  ///< with its length
  std::vector<torch::Tensor> tensors;  ///< on the host, contiguous, one after the other

  /// The file's bytes, as long as these pieces live.
  std::vector<std::string_view> bytes() const;
};

/// throws  std::invalid_argument for another dtype
SafetensorsPieces pieces_of(const Safetensors& file);

/// A file's tensor that has not been read.
struct StoredTensor {
  torch::Dtype dtype;
  std::vector<int64_t> shape;
  std::string_view bytes;  ///< as many as shape and dtype take

  torch::Tensor copy() const;
};

/// A header, checked against the bytes after it.
struct SafetensorsHeader {
  std::map<std::string, StoredTensor> tensors;
  std::map<std::string, std::string> metadata;
};

/// Reads the header of the bytes of such a file. No memory is taken for the tensors.
///
/// reads   file: names the bytes in the error
/// throws  std::runtime_error "FILE: expected …, found …" where they are no whole safetensors file
SafetensorsHeader parse_safetensors(std::string_view bytes, const std::string& file);

/// Reads such a file into CPU tensors. Every offset is checked before it is read.
///
/// throws  std::runtime_error "FILE: expected …, found …" where it is no whole safetensors file
Safetensors read_safetensors(const std::filesystem::path& path);

}  // namespace lethe
