// Prints which devices and libraries the program and its LibTorch can use on this machine.

#include <cstdio>

#include <torch/version.h>

#include "paceline/engine/collectives/backends/nccl/cuda_api.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/training/device/streams.h"

#include "apps/gpu_check/rank/ranks.h"

namespace paceline::gpu_check {
namespace {

nlohmann::json devices_now() {
  const CudaApi& cuda = CudaApi::load();
  int count = 0;
  cuda.require(cuda.cudaGetDeviceCount(&count), "", "counting the GPUs");
  nlohmann::json devices = nlohmann::json::array();
  for (int i = 0; i < count; ++i) {
    std::size_t free = 0, total = 0;
    char bus_id[32] = {};
    cuda.require(cuda.cudaSetDevice(i), "", "choosing a GPU");
    cuda.require(cuda.cudaMemGetInfo(&free, &total), "", "querying the memory size of a GPU");
    cuda.require(cuda.cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, i), "", "reading a bus id");
    devices.push_back({{"bus_id", bus_id}, {"free_bytes", free}, {"total_bytes", total}});
  }
  return devices;
}

}  // namespace

void print_probe() {
  nlohmann::json facts = {{"libtorch", TORCH_VERSION},
                          {"cuda_error", load_libtorch_cuda()},
                          {"has_c10d_nccl", has_cuda_headers()},
                          {"devices", nlohmann::json::array()}};
  const bool knows_cuda = knows_device_type(c10::kCUDA);
  facts["knows_cuda"] = knows_cuda;
  if (knows_cuda) {
    try {
      facts["devices"] = devices_now();
      if (num_cuda_devices() == 0) {
        facts["devices"] = nlohmann::json::array();
        facts["cuda_error"] = "LibTorch's device count is 0";
      }
    } catch (const Error& error) {
      facts["cuda_error"] = error.what();
    }
  }
  std::printf("\n%s\n", json_text(facts).c_str());
}

}  // namespace paceline::gpu_check
