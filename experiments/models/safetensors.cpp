#include "experiments/models/safetensors.hpp"

#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>
#include <vector>

#include "experiments/json_file.hpp"

namespace lethe {

using torch::Tensor;

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian");

namespace {

constexpr std::pair<torch::Dtype, const char*> kDtypes[] = {
    {torch::kFloat64, "F64"}, {torch::kFloat32, "F32"}, {torch::kBFloat16, "BF16"}, {torch::kFloat16, "F16"},
    {torch::kInt64, "I64"},   {torch::kInt32, "I32"},   {torch::kUInt8, "U8"}};
constexpr const char* kMetadata = "__metadata__";

std::string name_of(torch::Dtype dtype) {
  for (const auto& [known, name] : kDtypes)
    if (known == dtype) return name;
  throw std::invalid_argument(std::string("dtype: expected one that safetensors names, found ") + c10::toString(dtype));
}

// The tensor of a header's entry, in the bytes after the header.
StoredTensor tensor_of(const nlohmann::json& entry, std::string_view data) {
  const auto& offsets = entry.at("data_offsets");
  const int64_t begin = whole_number(offsets.at(0)), end = whole_number(offsets.at(1));
  std::vector<int64_t> shape;
  for (const nlohmann::json& size : entry.at("shape")) shape.push_back(whole_number(size));
  const std::string name = entry.at("dtype").get<std::string>();
  for (const auto& [dtype, known] : kDtypes) {
    if (name != known) continue;
    uint64_t bytes = c10::elementSize(dtype);
    for (const int64_t size : shape)
      if (size < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes))
        throw std::runtime_error("a shape of the bytes that it has");
    if (begin < 0 || begin > end || end > std::ssize(data) || static_cast<uint64_t>(end - begin) != bytes)
      throw std::runtime_error("offsets inside the file that fit the shape");
    return {dtype, shape, data.substr(static_cast<size_t>(begin), bytes)};
  }
  throw std::runtime_error("a known dtype");
}

}  // namespace

SafetensorsPieces pieces_of(const Safetensors& file) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!file.metadata.empty()) header[kMetadata] = file.metadata;
  SafetensorsPieces pieces;
  uint64_t offset = 0;
  for (const auto& [name, tensor] : file.tensors) {
    pieces.tensors.push_back(tensor.detach().cpu().contiguous());
    const uint64_t bytes = pieces.tensors.back().nbytes();
    header[name] = {{"dtype", name_of(tensor.scalar_type())},
                    {"shape", tensor.sizes().vec()},
                    {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data begin at a multiple of 8 bytes
  const uint64_t length = text.size();
  pieces.header.assign(reinterpret_cast<const char*>(&length), sizeof length);
  pieces.header += text;
  return pieces;
}

std::vector<std::string_view> SafetensorsPieces::bytes() const {
  std::vector<std::string_view> all{header};
  for (const Tensor& tensor : tensors)
    all.emplace_back(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
  return all;
}

void write_safetensors(const OutputFile& output, const Safetensors& file) { output.commit(pieces_of(file).bytes()); }

Tensor StoredTensor::copy() const {
  Tensor tensor = torch::empty(shape, dtype);
  if (!bytes.empty()) std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

SafetensorsHeader parse_safetensors(std::string_view bytes, const std::string& file) {
  uint64_t length = 0;
  std::string expected = "a header of 8 bytes and its JSON";
  if (bytes.size() >= sizeof length) std::memcpy(&length, bytes.data(), sizeof length);
  if (bytes.size() >= sizeof length && length <= bytes.size() - sizeof length) {
    const std::string_view data = bytes.substr(sizeof length + length);
    try {
      const auto json = parse_json(bytes.substr(sizeof length, length), file);
      SafetensorsHeader header;
      size_t tensor_bytes = 0;  // of all: tensors that share bytes could exceed the memory
      for (const auto& [name, entry] : json.items()) {
        if (name == kMetadata) {
          header.metadata = entry.get<std::map<std::string, std::string>>();
          continue;
        }
        tensor_bytes += header.tensors.emplace(name, tensor_of(entry, data)).first->second.bytes.size();
        if (tensor_bytes > data.size()) throw std::runtime_error("bytes for each tensor of its own");
      }
      return header;
    } catch (const nlohmann::json::exception&) {
    } catch (const std::invalid_argument&) {
    } catch (const std::runtime_error& error) {
      expected = error.what();
    }
  }
  throw std::runtime_error(file + ": expected safetensors with " + expected + ", found another file or a part");
}

Safetensors read_safetensors(const std::filesystem::path& path) {
  const std::string bytes = read_whole(path);
  const SafetensorsHeader header = parse_safetensors(bytes, path.string());
  Safetensors file{.tensors = {}, .metadata = header.metadata};
  try {
    for (const auto& [name, tensor] : header.tensors) file.tensors[name] = tensor.copy();
  } catch (const c10::Error&) {
    throw std::runtime_error(path.string() + ": expected safetensors with shapes that Torch can hold, found others");
  }
  return file;
}

}  // namespace lethe
