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

// The tensor of a header's entry, from the bytes after the header.
Tensor tensor_of(const nlohmann::json& entry, std::string_view data) {
  const auto offsets = entry.at("data_offsets").get<std::pair<uint64_t, uint64_t>>();
  const auto shape = entry.at("shape").get<std::vector<int64_t>>();
  const std::string name = entry.at("dtype").get<std::string>();
  for (const auto& [dtype, known] : kDtypes) {
    if (name != known) continue;
    uint64_t bytes = c10::elementSize(dtype);
    for (const int64_t size : shape)
      if (size < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes))
        throw std::runtime_error("a shape of the bytes that it has");
    if (offsets.first > offsets.second || offsets.second > data.size() || offsets.second - offsets.first != bytes)
      throw std::runtime_error("offsets inside the file that fit the shape");
    Tensor tensor = torch::empty(shape, dtype);
    std::memcpy(tensor.data_ptr(), data.data() + offsets.first, bytes);
    return tensor;
  }
  throw std::runtime_error("a known dtype");
}

}  // namespace

void write_safetensors(const OutputFile& output, const Safetensors& file) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!file.metadata.empty()) header[kMetadata] = file.metadata;
  std::vector<Tensor> contents;
  uint64_t offset = 0;
  for (const auto& [name, tensor] : file.tensors) {
    contents.push_back(tensor.detach().cpu().contiguous());
    const uint64_t bytes = contents.back().nbytes();
    header[name] = {{"dtype", name_of(tensor.scalar_type())},
                    {"shape", tensor.sizes().vec()},
                    {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string bytes(sizeof(uint64_t), '\0'), text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data begin at a multiple of 8 bytes
  const uint64_t length = text.size();
  std::memcpy(bytes.data(), &length, sizeof length);
  bytes += text;
  bytes.reserve(bytes.size() + offset);
  for (const Tensor& tensor : contents)
    bytes.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
  output.commit({bytes});
}

Safetensors read_safetensors(const std::filesystem::path& path) {
  const std::string bytes = read_whole(path);
  uint64_t length = 0;
  std::string expected = "a header of 8 bytes and its JSON";
  if (bytes.size() >= sizeof length) std::memcpy(&length, bytes.data(), sizeof length);
  if (bytes.size() >= sizeof length && length <= bytes.size() - sizeof length) {
    const std::string_view all = bytes, data = all.substr(sizeof length + length);
    try {
      const auto header = parse_json(all.substr(sizeof length, length), path.string());
      Safetensors file;
      size_t tensor_bytes = 0;  // of all: tensors that share bytes could exceed the memory
      for (const auto& [name, entry] : header.items()) {
        if (name == kMetadata) {
          file.metadata = entry.get<std::map<std::string, std::string>>();
          continue;
        }
        tensor_bytes += (file.tensors[name] = tensor_of(entry, data)).nbytes();
        if (tensor_bytes > data.size()) throw std::runtime_error("bytes for each tensor of its own");
      }
      return file;
    } catch (const nlohmann::json::exception&) {
    } catch (const std::invalid_argument&) {
    } catch (const std::runtime_error& error) {
      expected = error.what();
    } catch (const c10::Error&) {
      expected = "shapes that Torch can hold";
    }
  }
  throw std::runtime_error(path.string() + ": expected safetensors with " + expected +
                           ", found another file or a part");
}

}  // namespace lethe
