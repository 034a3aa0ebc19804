#include "optimized/torch/split_columns.hpp"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lethe {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The gradient of a tensor that was split, found by the storage that its pieces share. It keeps that storage, whose address is the key.
class GatheredGradient : public torch::CustomClassHolder {
 public:
  explicit GatheredGradient(const Tensor& all)
      : storage_(all.storage()), sizes_(all.sizes().vec()), offset_(all.storage_offset()) {
    const std::lock_guard<std::mutex> lock(mutex());
    known()[storage_.unsafeGetStorageImpl()] = this;
  }
  ~GatheredGradient() override {
    const std::lock_guard<std::mutex> lock(mutex());
    const auto found = known().find(storage_.unsafeGetStorageImpl());
    if (found != known().end() && found->second == this) known().erase(found);
  }

  // The place of a piece's gradient; undefined where it was given away before, or the tensor is no piece.
  static Tensor place_of(const Tensor& piece) {
    const std::lock_guard<std::mutex> lock(mutex());
    const auto found = known().find(piece.storage().unsafeGetStorageImpl());
    if (found == known().end()) return {};
    GatheredGradient& gathered = *found->second;
    if (!gathered.has_piece(piece)) return {};
    if (!gathered.given_.insert(piece.storage_offset()).second) return {};
    gathered.allocate(piece.options());
    return gathered.gradient_.as_strided(piece.sizes(), piece.strides(), piece.storage_offset() - gathered.offset_);
  }

  // The gradient of all pieces; the next backward pass begins with another.
  Tensor take(at::TensorOptions options) {
    const std::lock_guard<std::mutex> lock(mutex());
    allocate(options);
    given_.clear();
    return std::exchange(gradient_, Tensor());
  }

 private:
  // Whether a view is columns of all rows, of one dimension or in heads, and no other view of the storage: an operator writes all rows of a gradient
  // at one pitch.
  bool has_piece(const Tensor& view) const {
    const int64_t last = static_cast<int64_t>(sizes_.size()) - 1;
    if (view.dim() <= last) return false;
    int64_t columns = 1;
    for (int64_t dim = view.dim() - 1; dim >= last; columns *= view.size(dim--))
      if (view.size(dim) > 1 && view.stride(dim) != columns) return false;
    int64_t pitch = sizes_[last];
    for (int64_t dim = last - 1; dim >= 0; pitch *= sizes_[dim--])
      if (view.size(dim) != sizes_[dim] || view.stride(dim) != pitch) return false;
    return true;
  }
  static std::mutex& mutex() {
    static std::mutex mutex;
    return mutex;
  }
  static std::unordered_map<const c10::StorageImpl*, GatheredGradient*>& known() {
    static std::unordered_map<const c10::StorageImpl*, GatheredGradient*> known;
    return known;
  }
  void allocate(at::TensorOptions options) {
    if (!gradient_.defined()) gradient_ = at::empty(sizes_, options);
  }

  c10::Storage storage_;
  std::vector<int64_t> sizes_;
  int64_t offset_;
  Tensor gradient_;
  std::set<int64_t> given_;  // offsets of pieces
};

struct SplitColumns : torch::autograd::Function<SplitColumns> {
  static variable_list forward(AutogradContext* context, const Tensor& all, at::IntArrayRef sizes) {
    context->saved_data["gathered"] = c10::IValue::make_capsule(c10::make_intrusive<GatheredGradient>(all));
    context->saved_data["sizes"] = sizes.vec();
    return all.split_with_sizes(sizes, -1);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto capsule = context->saved_data["gathered"].toCapsule();
    const auto sizes = context->saved_data["sizes"].toIntVector();
    const auto first = std::find_if(gradients.begin(), gradients.end(), [](const Tensor& g) { return g.defined(); });
    if (first == gradients.end()) return {Tensor(), Tensor()};
    const Tensor whole = static_cast<GatheredGradient&>(*capsule).take(first->options());
    int64_t column = 0;
    for (size_t i = 0; i < sizes.size(); column += sizes[i++]) {
      Tensor place = whole.narrow(-1, column, sizes[i]);
      if (!gradients[i].defined()) place.zero_();
      else if (gradients[i].const_data_ptr() != place.const_data_ptr() || gradients[i].strides() != place.strides())
        place.copy_(gradients[i]);
    }
    return {whole, Tensor()};
  }
};

}  // namespace

std::vector<Tensor> split_columns(const Tensor& all, at::IntArrayRef sizes) {
  if (!all.requires_grad() || !all.is_contiguous()) return all.split_with_sizes(sizes, -1);
  return SplitColumns::apply(all, sizes);
}

Tensor gradient_like(const Tensor& tensor) {
  const Tensor place = GatheredGradient::place_of(tensor);
  return place.defined() ? place : at::empty(tensor.sizes(), tensor.options());
}

}  // namespace lethe
