#include "tests/engine/collectives/nccl/gpus.h"

#include <stdexcept>

#include <cuda_runtime_api.h>
#include <fmt/format.h>

namespace paceline {

std::string why_no_gpus(int wanted) {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess) return fmt::format("no GPU can be used: {}", cudaGetErrorString(code));
  if (count < wanted) return fmt::format("{} GPUs are needed, one a rank; here: {}", wanted, count);
  return "";
}

void require_cuda(int code, const char* what) {
  if (code == cudaSuccess) return;
  const char* text = cudaGetErrorString(static_cast<cudaError_t>(code));
  throw std::runtime_error(fmt::format("{} failed: {}", what, text));
}

}  // namespace paceline
