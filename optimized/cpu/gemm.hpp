#pragma once
// Row-major matrix products on LibTorch's own BLAS (MKL on x86).

#include <algorithm>
#include <cstdint>

extern "C" {
void sgemm_(const char*, const char*, const int*, const int*, const int*, const float*, const float*, const int*,
            const float*, const int*, const float*, float*, const int*);
void dgemm_(const char*, const char*, const int*, const int*, const int*, const double*, const double*, const int*,
            const double*, const int*, const double*, double*, const int*);
int MKL_Set_Num_Threads_Local(int) __attribute__((weak));  // absent where the BLAS is not MKL
}

namespace lethe::cpu {

/// During its lifetime, products of this thread run on this thread alone. MKL would divide even a product inside a parallel region as if more threads
/// were there, and so sum in an order that depends on Torch's number of threads.
class SingleThreadedProducts {
 public:
  SingleThreadedProducts() : before_(MKL_Set_Num_Threads_Local ? MKL_Set_Num_Threads_Local(1) : 0) {}
  ~SingleThreadedProducts() {
    if (MKL_Set_Num_Threads_Local) MKL_Set_Num_Threads_Local(before_);
  }
  SingleThreadedProducts(const SingleThreadedProducts&) = delete;
  SingleThreadedProducts& operator=(const SingleThreadedProducts&) = delete;

 private:
  int before_;
};

enum class Transpose : char { kNo = 'N', kYes = 'T' };

/// c [m,n] = alpha · op(a) [m,k] · op(b) [k,n] + beta · c, all row-major with the given distances between rows.
template <typename Scalar>
void multiply(Transpose op_a, Transpose op_b, int64_t m, int64_t n, int64_t k, Scalar alpha, const Scalar* a,
              int64_t a_stride, const Scalar* b, int64_t b_stride, Scalar beta, Scalar* c, int64_t c_stride) {
  // BLAS is column-major, where a row-major matrix reads as its transpose: cᵀ = op(b)ᵀ op(a)ᵀ.
  const char first = static_cast<char>(op_b), second = static_cast<char>(op_a);
  const int rows = static_cast<int>(n), columns = static_cast<int>(m), depth = static_cast<int>(k);
  const auto stride = [](int64_t distance) {
    return static_cast<int>(std::max<int64_t>(distance, 1));
  };  // 0 where a matrix is empty
  const int first_stride = stride(b_stride), second_stride = stride(a_stride), result_stride = stride(c_stride);
  if constexpr (sizeof(Scalar) == sizeof(float)) {
    sgemm_(&first, &second, &rows, &columns, &depth, &alpha, b, &first_stride, a, &second_stride, &beta, c,
           &result_stride);
  } else {
    dgemm_(&first, &second, &rows, &columns, &depth, &alpha, b, &first_stride, a, &second_stride, &beta, c,
           &result_stride);
  }
}

}  // namespace lethe::cpu
