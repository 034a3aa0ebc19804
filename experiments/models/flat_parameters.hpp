#pragma once
// A model's parameters in a few flat buffers, and the products that read them.

#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lethe {

/// Counts in a backward pass the products whose gradients are complete. Without `complete` it costs nothing.
struct GradientWatch {
  /// Called with a product's place in FlatParameters::products, once every use of it in the forward pass has added its gradient.
  std::function<void(size_t product)> complete;
  std::vector<int64_t> uses;  ///< of each product, still to come in the backward pass
};

/// x Wᵀ for the matrices of one input in a single product. Copies share their weights.
///
/// Until the model is flattened the matrices are concatenated and cast in every call, and autograd returns their gradients. Flattened, they are
/// one array in the compute dtype; the gradient is added to the flat one (optimized/torch/linear.hpp).
class Product {
 public:
  /// reads  matrices [n_i, width], some of which may be undefined
  explicit Product(std::vector<torch::Tensor> matrices);

  /// reads    x [..., width] in the compute dtype
  /// returns  a piece [..., n_i] a matrix, views of one product; undefined where the matrix is
  std::vector<torch::Tensor> pieces(const torch::Tensor& x) const;

  /// x Wᵀ [..., n] of a single matrix.
  torch::Tensor operator()(const torch::Tensor& x) const { return pieces(x).front(); }

  /// This product of swiglu(gate_and_up), of a single matrix; the backward pass computes swiglu again.
  torch::Tensor of_swiglu(const torch::Tensor& gate_and_up) const;

  /// The matrices in `dtype`, one below the other, and rows of zeros up to the flat buffer's alignment.
  torch::Tensor weight(torch::Dtype dtype) const;
  /// Their part of the flat gradient, where there is one.
  const torch::Tensor& gradient() const { return entry_->gradient; }
  /// Notifies the watch that nothing more will be added to gradient() in this backward pass.
  void complete_gradient() const;

 private:
  friend struct FlatParameters;
  struct Entry {
    std::vector<torch::Tensor> matrices;
    torch::Tensor weight, gradient;  // [Σ n_i rounded up, width] of the flat buffers; undefined before flattening
    size_t place = 0;                // in FlatParameters::products
    std::shared_ptr<GradientWatch> watch;
  };
  struct AfterBackward;
  torch::Tensor watched(torch::Tensor use) const;
  bool is_flat() const;
  bool adds_gradient() const;
  std::shared_ptr<Entry> entry_;
};

/// All parameters of a model, each a view of `master`: the matrices of each Product adjacent, then the other matrices, then vectors. Every Product
/// starts at a multiple of 64 entries. On CUDA its rows are filled up to a multiple of 64 with zeros, whose gradient is zero: cuBLAS has
/// slower kernels for other widths.
struct FlatParameters {
  static constexpr int64_t kAlignment = 64;  ///< entries; of the buffers' length too

  torch::Tensor master;  ///< float32 [n]
  torch::Tensor
      gradient;  ///< float32 [n], the parameters' gradients are its views; undefined for a model that is not trained
  torch::Tensor compute;  ///< the matrices of the products in the compute dtype; `master` itself where that is float32
  int64_t matrices = 0;   ///< entries before the first vector: those with weight decay

  /// A range of entries of the buffers.
  struct Range {
    int64_t begin, end;
  };
  std::vector<Range> products;  ///< of each Product; no other parameter lies before the last one's end
  std::shared_ptr<GradientWatch> watch = std::make_shared<GradientWatch>();

  /// Moves the parameters into flat buffers, with their values. May be called again.
  ///
  /// reads  parameters by name, float32 on one device; products of some of them; whether to keep gradients; parts: the buffers' length is a multiple
  ///        of it, and so are the parts' of 64
  static FlatParameters of(const std::vector<std::pair<std::string, torch::Tensor>>& parameters,
                           const std::vector<Product>& products, torch::Dtype compute_dtype, bool with_gradients,
                           int64_t parts = 1);

  /// A parameter's part of a buffer that is laid out as `master`.
  static torch::Tensor part_of(const torch::Tensor& buffer, const torch::Tensor& parameter);

  /// Copies master to compute, after a change of the parameters.
  void refresh();
};

}  // namespace lethe
