#include <gtest/gtest.h>

#include "experiments/files.hpp"
#include "experiments/models/safetensors.hpp"
#include "tests/experiments/tiny.hpp"

namespace lethe {
namespace {

TEST(Safetensors, ReturnWhatWasWritten) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "weights.safetensors";
  Safetensors file{.tensors = {}, .metadata = {{"commit", "unknown"}}};
  for (const auto dtype : {torch::kFloat64, torch::kFloat32, torch::kBFloat16, torch::kFloat16, torch::kInt64})
    file.tensors[c10::toString(dtype)] = (torch::randn({3, 5}) * 10).to(dtype).t();
  file.tensors["scalar"] = torch::ones({});
  file.tensors["empty"] = torch::ones({0, 4});
  write_safetensors(OutputFile(path), file);
  const Safetensors read = read_safetensors(path);
  EXPECT_EQ(read.metadata, file.metadata);
  ASSERT_EQ(read.tensors.size(), file.tensors.size());
  for (const auto& [name, tensor] : file.tensors) {
    EXPECT_EQ(read.tensors.at(name).dtype(), tensor.dtype()) << name;
    EXPECT_TRUE(read.tensors.at(name).equal(tensor)) << name;
  }
}

TEST(Safetensors, RefuseEveryPrefixOfAFile) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "weights.safetensors";
  write_safetensors(OutputFile(path), {.tensors = {{"a", torch::ones({3})}, {"b", torch::ones({2, 2})}}});
  const std::string bytes = read_whole(path);
  for (size_t length = 0; length < bytes.size(); ++length) {
    write_whole(path, bytes.substr(0, length));
    EXPECT_THROW(read_safetensors(path), std::runtime_error) << length;
  }
}

TEST(Safetensors, RefuseShapesThatOverflow) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "weights.safetensors";
  for (const std::string shape : {"[4611686018427387904,4]", "[-1]", "[3]"}) {
    std::string header = R"({"a":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":[0,8]}})";
    std::string bytes(8, '\0');
    bytes[0] = static_cast<char>(header.size());
    write_whole(path, bytes + header + std::string(8, '\0'));
    EXPECT_THROW(read_safetensors(path), std::runtime_error) << shape;
  }
}

}  // namespace
}  // namespace lethe
