#include "optimized/torch/packed.hpp"

#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/TensorWrapper.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#ifdef LETHE_CUDA_KERNELS
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#endif

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <vector>

#include "optimized/operators/checks.hpp"

namespace lethe {
namespace {

// Whether a CUDA graph is being captured on that device, in which no number can be read.
bool is_captured([[maybe_unused]] at::Device device) {
#ifdef LETHE_CUDA_KERNELS
  const c10::cuda::CUDAGuard guard(device);
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
#else
  return true;  // no kernels of ours: not known
#endif
}

// A tensor of numbers, not one that a compiler puts in its place.
bool is_readable(const at::Tensor& tensor) {
  using c10::DispatchKey;
  const c10::DispatchKeySet wrapped{DispatchKey::Python, DispatchKey::PythonTLSSnapshot, DispatchKey::Functionalize};
  return tensor.has_storage() && !tensor.key_set().has_any(wrapped) &&
         (tensor.is_cpu() || (tensor.is_cuda() && !is_captured(tensor.device())));
}

// The tensors on a GPU whose numbers a thread has found right, the last of them: all layers of a model get one, and each reading waits for the GPU.
class RightNumbers {
 public:
  bool has(const at::Tensor& tensor, int64_t length) const {
    return !tensor.is_inference() && std::ranges::any_of(entries_, [&](const Entry& entry) {
      return entry.tensor._unsafe_get_target() == tensor.unsafeGetTensorImpl() && entry.version == tensor._version() &&
             entry.length == length;
    });
  }
  void add(const at::Tensor& tensor, int64_t length) {
    if (tensor.is_inference()) return;  // has no version
    entries_[next_] = {Weak(tensor.getIntrusivePtr()), tensor._version(), length};
    next_ = (next_ + 1) % entries_.size();
  }

 private:
  // Keeps the object's address from another tensor, not its memory on the GPU.
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Entry {
    Weak tensor{c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
    int64_t version = 0, length = 0;
  };
  std::array<Entry, 4> entries_;
  size_t next_ = 0;
};

void check_numbers(const at::Tensor& cu_seqlens, int64_t length) {
  const at::Tensor numbers = cu_seqlens.to(at::kCPU, at::kLong).contiguous();
  const int64_t* first = numbers.const_data_ptr<int64_t>();
  const int64_t* last = first + numbers.numel() - 1;
  TORCH_CHECK(*first == 0, "cu_seqlens: expected 0 first, found ", *first);
  TORCH_CHECK(*last == length, "cu_seqlens: expected ", length, " last, the number of tokens, found ", *last);
  const int64_t* falls = std::adjacent_find(first, last + 1, std::greater<>());
  TORCH_CHECK(falls == last + 1, "cu_seqlens: expected ascending numbers, found ", falls[1], " after ", falls[0]);
}

// The same of a tensor that can be read, on a GPU once a thread; of what torch.func puts in a tensor's place the tensor inside, each of several.
void check_readable_numbers(const at::Tensor& cu_seqlens, int64_t length) {
  using c10::DispatchKey;
  const c10::impl::ExcludeDispatchKeyGuard outside_of_func(
      c10::DispatchKeySet{DispatchKey::FuncTorchDynamicLayerFrontMode, DispatchKey::FuncTorchDynamicLayerBackMode});
  at::Tensor inside = cu_seqlens;
  std::vector<int64_t> batches;  // dimensions of several, the outermost first
  for (;;) {
    if (const auto* wrapper = at::functorch::maybeGetTensorWrapper(inside)) {
      inside = at::Tensor(wrapper->value());
    } else if (const auto* several = at::functorch::maybeGetBatchedImpl(inside)) {
      batches.push_back(several->bdim());
      inside = at::Tensor(several->value());
    } else {
      break;
    }
  }
  if (!is_readable(inside)) return;
  thread_local RightNumbers right;
  if (!inside.is_cpu() && right.has(inside, length)) return;
  std::vector<at::Tensor> all{inside.to(at::kCPU, at::kLong)};
  for (; !batches.empty(); batches.pop_back()) {
    std::vector<at::Tensor> each;
    for (const at::Tensor& one : all)
      for (const at::Tensor& part : one.unbind(batches.back())) each.push_back(part);
    all = std::move(each);
  }
  for (const at::Tensor& one : all) check_numbers(one, length);
  if (!inside.is_cpu()) right.add(inside, length);
}

}  // namespace

at::Tensor gate_of_sequences(const char* gate_name, const std::optional<at::Tensor>& gate, const at::Tensor& cu_seqlens,
                             const char* name, const at::Tensor& like) {
  check_layout("cu_seqlens", cu_seqlens);
  check_rank("cu_seqlens", cu_seqlens, 1, "[N+1]");
  check_rank(name, like, 4, "[1,T,H,D]");
  TORCH_CHECK(cu_seqlens.scalar_type() == at::kInt || cu_seqlens.scalar_type() == at::kLong,
              "cu_seqlens: expected dtype int32 or int64, found ", cu_seqlens.scalar_type());
  TORCH_CHECK(cu_seqlens.sym_size(0) >= 2, "cu_seqlens: expected at least 2 numbers, found ", cu_seqlens.sym_size(0));
  TORCH_CHECK(like.sym_size(0) == 1, name, ": expected a batch of one with cu_seqlens, found ", like.sym_size(0));
  TORCH_CHECK(cu_seqlens.is_cpu() || cu_seqlens.device() == like.device(), "cu_seqlens: expected device cpu",
              like.is_cpu() ? "" : " or " + like.device().str(), ", found ", cu_seqlens.device());
  const c10::SymInt length = like.sym_size(1);
  if (const auto tokens = length.maybe_as_int()) check_readable_numbers(cu_seqlens, *tokens);

  const at::Tensor open = gate ? *gate
                               : at::zeros_symint({1, length, like.sym_size(2)},
                                                  like.options().dtype(accumulation_dtype(like.scalar_type())));
  check_like(gate_name, open, open.scalar_type(), like, name);  // its device
  check_floating(gate_name, open);  // of which type, the operator asks: autocast may have cast it by then
  TORCH_CHECK(open.dim() >= 2 && open.sym_size(1) == length, gate_name, ": expected ", length, " tokens as ", name,
              ", found shape ", open.sym_sizes());
  if (open.sym_numel() == 0) return open;
  // An empty sequence at the end begins after the last token: the first token, which begins one anyhow, stands for it.
  const at::Tensor starts = at::remainder(at::clamp(cu_seqlens.to(at::kLong), 0, length), length).to(like.device());
  return open.index_fill(1, starts, -std::numeric_limits<double>::infinity());
}

at::Tensor visited_pairs_of_sequences(const at::Tensor& boundary, const at::Tensor& cu_seqlens,
                                      const c10::SymInt& length, int64_t query_rows, int64_t key_rows) {
  const at::Tensor starts = at::clamp(cu_seqlens.to(boundary.device(), at::kLong), 0, length);  // [N+1]
  const at::Tensor positions = at::arange(length, starts.options());                            // [T]
  // The first token of each token's sequence: the last start that is not after it.
  const at::Tensor sequence =
      at::clamp_min(at::bucketize(positions, starts, /*out_int32=*/false, /*right=*/true).sub(1), 0);
  const at::Tensor first_token = starts.index_select(0, sequence);
  const at::Tensor visited =
      boundary.squeeze(0).to(at::kLong).mul(key_rows).index_select(1, positions.floor_divide(query_rows));
  const at::Tensor pairs = positions.add(1).sub(at::maximum(visited, first_token)).transpose(0, 1);  // [T,Hq]
  const at::Tensor up_to = at::constant_pad_nd(pairs.cumsum(0), {0, 0, 1, 0}).index_select(0, starts);
  return up_to.narrow_symint(0, 1, starts.sym_size(0) - 1).sub(up_to.narrow_symint(0, 0, starts.sym_size(0) - 1));
}

}  // namespace lethe
