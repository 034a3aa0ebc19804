#include "experiments/models/parameters.hpp"

#include <ATen/CPUGeneratorImpl.h>

#include <atomic>
#include <random>
#include <utility>

#include "experiments/parallel.hpp"

namespace lethe {

using torch::Tensor;

namespace {

// The module that holds the last name of a dotted path; absent modules along the path are created.
torch::nn::Module& holder(torch::nn::Module& root, const std::string& path) {
  torch::nn::Module* module = &root;
  size_t begin = 0;
  for (size_t dot; (dot = path.find('.', begin)) != std::string::npos; begin = dot + 1) {
    const std::string name = path.substr(begin, dot - begin);
    const auto children = module->named_children();
    const auto* child = children.find(name);
    module = child ? child->get() : module->register_module(name, std::make_shared<torch::nn::Module>(name)).get();
  }
  return *module;
}

torch::Generator generator_of(uint64_t seed, const std::string& name) {
  std::vector<uint32_t> words{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  words.insert(words.end(), name.begin(), name.end());
  std::seed_seq mixed(words.begin(), words.end());
  uint32_t drawn;
  mixed.generate(&drawn, &drawn + 1);
  return at::make_generator<at::CPUGeneratorImpl>(drawn);
}

std::string last_name(const std::string& path) { return path.substr(path.rfind('.') + 1); }

}  // namespace

Initial constant(double value) {
  return [value](Tensor& tensor, const torch::Generator&) { tensor.fill_(value); };
}

Initial normal(double deviation) {
  return [deviation](Tensor& tensor, const torch::Generator& generator) {
    tensor.copy_(torch::empty(tensor.sizes()).normal_(0, deviation, generator));
  };
}

Initial uniform(double bound) {
  return [bound](Tensor& tensor, const torch::Generator& generator) {
    tensor.copy_(torch::empty(tensor.sizes()).uniform_(-bound, bound, generator));
  };
}

Weights::Weights(torch::nn::Module& root, torch::Device device)
    : root_(&root), device_(device), register_(std::make_shared<Register>()) {}

Weights Weights::below(const std::string& path) const {
  Weights weights = *this;
  weights.prefix_ += path + ".";
  return weights;
}

Tensor Weights::parameter(const std::string& path, torch::IntArrayRef sizes, Initial initial) const {
  const std::string whole = prefix_ + path;
  register_->initial[whole] = std::move(initial);
  return holder(*root_, whole).register_parameter(last_name(whole), torch::empty(sizes, device_));
}

Tensor Weights::buffer(const std::string& path, torch::IntArrayRef sizes, Initial initial) const {
  const std::string whole = prefix_ + path;
  register_->initial[whole] = std::move(initial);
  return holder(*root_, whole).register_buffer(last_name(whole), torch::empty(sizes, device_));
}

Product Weights::product(std::vector<Tensor> matrices) const {
  return register_->products.emplace_back(std::move(matrices));
}

FlatParameters Weights::flatten(torch::Dtype compute_dtype, bool with_gradients, int64_t parts) const {
  std::vector<std::pair<std::string, Tensor>> named;
  for (const auto& parameter : root_->named_parameters()) named.emplace_back(parameter.key(), parameter.value());
  return FlatParameters::of(named, register_->products, compute_dtype, with_gradients, parts);
}

void Weights::replace_initial(const std::function<Initial(const std::string& path, const Tensor& value)>& other) const {
  for (const auto& parameter : root_->named_parameters())
    if (Initial initial = other(parameter.key(), parameter.value()))
      register_->initial.at(parameter.key()) = std::move(initial);
}

void Weights::initialize(uint64_t seed) const {
  std::vector<std::pair<std::string, Tensor>> named;
  for (auto& parameter : root_->named_parameters()) named.emplace_back(parameter.key(), parameter.value());
  for (auto& buffer : root_->named_buffers()) named.emplace_back(buffer.key(), buffer.value());
  std::atomic<size_t> next = 0;
  at::parallel_for(0, at::get_num_threads(), 1, [&](int64_t, int64_t) {
    const torch::NoGradGuard no_gradient;
    for (size_t i; (i = next++) < named.size();) {
      auto& [name, tensor] = named[i];
      register_->initial.at(name)(tensor, generator_of(seed, name));
    }
  });
}

}  // namespace lethe
