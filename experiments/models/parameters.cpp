#include "experiments/models/parameters.hpp"

#include <memory>

namespace lethe {

using torch::Tensor;

namespace {

// The module that holds the last name of a dotted path, made on the way where it is not there.
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

std::string last_name(const std::string& path) { return path.substr(path.rfind('.') + 1); }

}  // namespace

Tensor add_parameter(torch::nn::Module& root, const std::string& path, torch::IntArrayRef sizes, torch::Device device) {
  return holder(root, path).register_parameter(last_name(path), torch::empty(sizes, device));
}

Tensor add_buffer(torch::nn::Module& root, const std::string& path, torch::IntArrayRef sizes, torch::Device device) {
  return holder(root, path).register_buffer(last_name(path), torch::empty(sizes, device));
}

}  // namespace lethe
