#include "experiments/models/flat_parameters.hpp"

#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <map>

#include "optimized/torch/layers.hpp"
#include "optimized/torch/linear.hpp"
#include "optimized/torch/split_columns.hpp"

namespace lethe {

using torch::Tensor;

namespace {

constexpr int64_t kRowsOnCuda = 64;  // of a product's weight

int64_t rounded_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// The columns of each matrix, and those that fill up the product.
std::vector<Tensor> split(const Tensor& all, const std::vector<Tensor>& matrices) {
  std::vector<int64_t> sizes;
  int64_t rest = all.size(-1);
  for (const Tensor& matrix : matrices) {
    if (!matrix.defined()) continue;
    sizes.push_back(matrix.size(0));
    rest -= sizes.back();
  }
  if (rest == 0 && sizes.size() == 1) return {all};
  if (rest > 0) sizes.push_back(rest);
  return split_columns(all, sizes);
}

}  // namespace

Product::Product(std::vector<Tensor> matrices) : entry_(std::make_shared<Entry>()) {
  entry_->matrices = std::move(matrices);
}

// Without a flat gradient, a weight with a derivative must be the parameters themselves.
bool Product::is_flat() const {
  return entry_->weight.defined() && (entry_->gradient.defined() || !torch::GradMode::is_enabled());
}

Tensor Product::weight(torch::Dtype dtype) const {
  if (is_flat()) return entry_->weight;
  std::vector<Tensor> defined;
  std::copy_if(entry_->matrices.begin(), entry_->matrices.end(), std::back_inserter(defined),
               [](const Tensor& matrix) { return matrix.defined(); });
  return (defined.size() == 1 ? defined.front() : torch::cat(defined)).to(dtype);
}

bool Product::adds_gradient() const { return is_flat() && entry_->gradient.defined() && torch::GradMode::is_enabled(); }

// Runs after a use of the product has added its gradient.
struct Product::AfterBackward : torch::autograd::FunctionPostHook {
  explicit AfterBackward(Product of) : product(std::move(of)) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients,
                                            const torch::autograd::variable_list&) override {
    GradientWatch& watch = *product.entry_->watch;
    if (watch.complete && --watch.uses[product.entry_->place] == 0) product.complete_gradient();
    return gradients;
  }

  Product product;
};

void Product::complete_gradient() const {
  if (entry_->watch && entry_->watch->complete) entry_->watch->complete(entry_->place);
}

// Notifies the watch at the end of this use's backward pass.
Tensor Product::watched(Tensor use) const {
  if (!entry_->watch->complete || !use.grad_fn()) return use;
  ++entry_->watch->uses[entry_->place];
  use.grad_fn()->add_post_hook(std::make_unique<AfterBackward>(*this));
  return use;
}

Tensor Product::of_swiglu(const Tensor& gate_and_up) const {
  if (!adds_gradient()) return (*this)(swiglu(gate_and_up));
  const Tensor whole = weight(gate_and_up.scalar_type());
  return watched(linear_of_swiglu(gate_and_up, whole, entry_->gradient))
      .narrow(-1, 0, entry_->matrices.front().size(0));
}

std::vector<Tensor> Product::pieces(const Tensor& x) const {
  const Tensor whole = weight(x.scalar_type());
  const Tensor all = adds_gradient() ? watched(linear(x, whole, entry_->gradient)) : torch::linear(x, whole);
  const std::vector<Tensor> defined = split(all, entry_->matrices);
  std::vector<Tensor> pieces;
  auto next = defined.begin();
  for (const Tensor& matrix : entry_->matrices) pieces.push_back(matrix.defined() ? *next++ : Tensor());
  return pieces;
}

FlatParameters FlatParameters::of(const std::vector<std::pair<std::string, Tensor>>& parameters,
                                  const std::vector<Product>& products, torch::Dtype compute_dtype, bool with_gradients,
                                  int64_t parts) {
  const torch::NoGradGuard no_gradient;
  std::vector<std::pair<Tensor, int64_t>> places;  // a parameter and its offset
  std::map<const c10::TensorImpl*, bool> placed;
  int64_t size = 0;
  const auto place = [&](const Tensor& parameter) {
    if (!placed.emplace(parameter.unsafeGetTensorImpl(), true).second) return;
    places.emplace_back(parameter, size);
    size += parameter.numel();
  };

  struct Block {
    Product::Entry* entry;
    int64_t offset, rows, width;
  };
  std::vector<Block> blocks;
  for (const Product& product : products) {
    size = rounded_up(size, kAlignment);
    Block block{product.entry_.get(), size, 0, 0};
    for (const Tensor& matrix : product.entry_->matrices) {
      if (!matrix.defined()) continue;
      place(matrix);
      block.width = matrix.size(1);
      block.rows += matrix.size(0);
    }
    if (places.back().first.is_cuda()) block.rows = rounded_up(block.rows, kRowsOnCuda);
    size = block.offset + block.rows * block.width;
    blocks.push_back(block);
  }
  const int64_t in_products = size;
  for (const bool vectors : {false, true})
    for (const auto& [name, parameter] : parameters) {
      if ((parameter.dim() != 2) != vectors) continue;
      size = rounded_up(size, kAlignment);
      place(parameter);
    }

  FlatParameters flat;
  for (const auto& [parameter, offset] : places)
    if (parameter.dim() == 2) flat.matrices = std::max(flat.matrices, offset + parameter.numel());
  flat.matrices = rounded_up(flat.matrices, kAlignment);
  size = rounded_up(std::max(size, flat.matrices), kAlignment * parts);
  const auto options = places.front().first.options().requires_grad(false);
  flat.master = torch::zeros({size}, options);
  if (with_gradients) flat.gradient = torch::zeros({size}, options);
  for (auto& [parameter, offset] : places) {
    const auto view_of = [&, at = offset, &of = parameter](const Tensor& buffer) {
      return buffer.narrow(0, at, of.numel()).view(of.sizes());
    };
    const Tensor view = view_of(flat.master);
    view.copy_(parameter);
    parameter.set_data(view);
    parameter.mutable_grad() = with_gradients ? view_of(flat.gradient) : Tensor();
  }
  flat.compute =
      compute_dtype == torch::kFloat32 ? flat.master : flat.master.narrow(0, 0, in_products).to(compute_dtype);
  for (const Block& block : blocks) {
    const auto view_of = [&](const Tensor& buffer) {
      return buffer.narrow(0, block.offset, block.rows * block.width).view({block.rows, block.width});
    };
    block.entry->weight = view_of(flat.compute);
    block.entry->gradient = with_gradients ? view_of(flat.gradient) : Tensor();
    block.entry->place = flat.products.size();
    block.entry->watch = flat.watch;
    flat.products.push_back({block.offset, block.offset + block.rows * block.width});
  }
  return flat;
}

Tensor FlatParameters::part_of(const Tensor& buffer, const Tensor& parameter) {
  return buffer.as_strided(parameter.sizes(), parameter.strides(), parameter.storage_offset());
}

void FlatParameters::refresh() {
  if (!compute.is_same(master)) compute.copy_(master.narrow(0, 0, compute.size(0)));
}

}  // namespace lethe
