#include "paceline/train/runtime.h"

#include <cstdlib>
#include <cstring>

#include <dlfcn.h>
#include <malloc.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/version.h>

#include "paceline/core/check.h"

namespace paceline::train {
namespace {

// A function of a library that LibTorch brought into the process; null when it is not there.
template <class Function>
Function* find(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

}  // namespace

void keep_large_blocks() {
  constexpr int kLargestThreshold = 32 << 20;  // glibc takes no more
  mallopt(M_MMAP_THRESHOLD, kLargestThreshold);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

int set_num_threads(int num_threads) {
  check(num_threads >= 0, "the number of threads {} is negative", num_threads);
  if (num_threads > 0) at::set_num_threads(num_threads);
  const int threads = at::get_num_threads();
  if (auto* const set_openblas = find<void(int)>("openblas_set_num_threads")) {
    // OpenBLAS's pool and OpenMP's fight for the same cores unless OpenBLAS itself uses OpenMP
    // (get_parallel() == 2).
    auto* const parallel = find<int()>("openblas_get_parallel");
    set_openblas(parallel != nullptr && parallel() == 2 ? threads : 1);
  }
  return threads;
}

std::string blas_name() {
  if (at::hasMKL()) return "MKL";
  if (auto* const config = find<char*()>("openblas_get_config")) {
    const std::string text = config();  // "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ..."
    return text.substr(0, text.find(' ', text.find(' ') + 1));
  }
  return "reference BLAS";
}

bool is_reference_blas() { return blas_name() == "reference BLAS"; }

std::string describe_libtorch() {
  return fmt::format("LibTorch {}, {}", TORCH_VERSION, blas_name());
}

}  // namespace paceline::train
