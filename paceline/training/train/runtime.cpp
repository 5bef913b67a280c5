#include "paceline/training/train/runtime.h"

#include <cstdlib>
#include <cstring>

#include <dlfcn.h>
#include <fmt/format.h>
#include <malloc.h>

#include <ATen/ATen.h>
#include <torch/version.h>

#include "paceline/training/tensor/thread_count.h"

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

int set_num_threads(int num_threads) { return set_thread_count(num_threads); }

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
