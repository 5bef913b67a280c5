#include "paceline/engine/collectives/backends/nccl/cuda_api.h"

#include <cstdlib>
#include <filesystem>
#include <optional>

#include <dlfcn.h>
#include <link.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/host.h"

namespace paceline {
namespace {

std::string path_of(void* library, const char* name) {
  link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return name;
  std::error_code error;
  const auto real = std::filesystem::canonical(map->l_name, error);
  return error ? map->l_name : real.string();
}

}  // namespace

void* DeviceLibrary::find(const char* name) const { return dlsym(handle, name); }

void DeviceLibrary::refuse(const char* name, const char* wanted) const {
  fail(ErrorCode::kUnsupported,
       "{} is not a {}: it lacks {}; install another one, or name one in {}", path, wanted, name,
       variable);
}

DeviceLibrary load_device_library(const char* what, const char* variable,
                                  const std::vector<const char*>& names, const char* advice) {
  const char* const chosen = std::getenv(variable);
  const bool is_chosen = chosen != nullptr && *chosen != '\0';
  const auto candidates = is_chosen ? std::vector{chosen} : names;
  std::string why;
  for (const int only_loaded : {RTLD_NOLOAD, 0}) {
    for (const char* const name : candidates) {
      if (void* const handle = dlopen(name, RTLD_NOW | RTLD_LOCAL | only_loaded)) {
        return {handle, path_of(handle, name), variable};
      }
      const char* const error = dlerror();
      if (why.empty() && only_loaded == 0) why = error != nullptr ? error : name;
    }
  }
  fail(ErrorCode::kUnsupported, "{} cannot be loaded: {}; {}, or set {} to the path of its file",
       what, why, advice, variable);
}

namespace {

// The advice for an error, and its code: kInvalid if the configuration is at fault.
struct Cure {
  ErrorCode code = ErrorCode::kSystem;
  std::string text;
};

Cure cure_of(int code, const CudaApi& api) {
  using enum ErrorCode;
  switch (code) {
    case cuda::kOutOfMemory:
      return {kSystem,
              "the GPU's memory is full: make the batch smaller, or end the other processes on it "
              "(nvidia-smi)"};
    case cuda::kNotInitialized:
      return {kInvalid,
              "CUDA cannot be used in a child of fork() whose parent has used it: fork before the "
              "first use, or start the child as a program (exec, paceline run)"};
    case cuda::kStubDriver:
      return {kInvalid,
              "the loaded libcuda.so.1 is the toolkit's stub: remove its folder from "
              "LD_LIBRARY_PATH"};
    case cuda::kDriverTooOld:
      return {kInvalid,
              fmt::format("the driver supports CUDA up to {}, but the runtime {} is for CUDA {}: "
                          "update the driver, or install an older runtime",
                          cuda_version_text(api.driver_version), api.library.path,
                          cuda_version_text(api.runtime_version))};
    case cuda::kDeviceBusy:
      return {
          kInvalid,
          "another process has exclusive use of the GPU: end it (nvidia-smi), or reset the GPU's "
          "compute mode (nvidia-smi -c 0)"};
    case cuda::kNoDevice:
      return {kInvalid,
              "no GPU is visible: check CUDA_VISIBLE_DEVICES, and start a container with "
              "--gpus all"};
    case cuda::kInvalidDevice:
      return {kInvalid,
              "the process does not see that GPU: choose it by LOCAL_RANK, not by RANK, and start "
              "no more ranks than GPUs (--nproc-per-node gpu)"};
    case cuda::kMemoryError:
      return {kSystem, "the GPU's memory is damaged: stop using this GPU, and restart the host"};
    case cuda::kFabricNotReady:
      return {kSystem, "start the fabric manager: systemctl start nvidia-fabricmanager"};
    case cuda::kDriverMismatch:
      return {
          kSystem,
          "the driver was updated, but the old kernel module is still loaded: restart the host"};
    case cuda::kNotForThisDevice:
      return {kInvalid,
              "the forward compatibility package supports only datacenter GPUs: remove it from "
              "LD_LIBRARY_PATH"};
    default:
      return {kSystem, "dmesg and nvidia-smi may show more"};
  }
}

struct LoadedCuda {
  CudaApi api;
  std::optional<Error> error;
  OwnerProcess owner;
};

constexpr const char* kWantedCuda = "CUDA runtime of version 11 or later";

void load_into(CudaApi& api) {
  api.library = load_device_library(
      "the CUDA runtime", "PACELINE_LIBCUDART",
      {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so",
       "/usr/local/cuda/lib64/libcudart.so"},
      "install the CUDA runtime (libcudart12, or pip install nvidia-cuda-runtime-cu12)");
#define PACELINE_FIND(name, parameters) api.library.require(#name, kWantedCuda, api.name);
  PACELINE_CUDA_FUNCTIONS(PACELINE_FIND)
#undef PACELINE_FIND
  api.library.require("cudaGetErrorString", kWantedCuda, api.cudaGetErrorString);
  api.cudaRuntimeGetVersion(&api.runtime_version);
  api.cudaDriverGetVersion(&api.driver_version);
}

LoadedCuda* load_cuda() {
  auto* const loaded = new LoadedCuda;
  try {
    load_into(loaded->api);
  } catch (const Error& error) {
    loaded->error = error;
  }
  return loaded;
}

}  // namespace

const CudaApi& CudaApi::load() {
  // Never destroyed, because the library stays loaded.
  static const LoadedCuda* const loaded = load_cuda();
  if (loaded->error) throw Error(*loaded->error);
  check(loaded->owner.is_this(),
        "process {} used CUDA before it created this one by fork(), which CUDA does not "
        "survive: fork before the first use, or start the child as a program (exec, paceline run)",
        loaded->owner.pid());
  return loaded->api;
}

void CudaApi::require(int code, std::string_view self, std::string_view what) const {
  if (code == cuda::kSuccess) return;
  cudaGetLastError();  // resets the error, so that later calls do not report it
  const Cure cure = cure_of(code, *this);
  fail(cure.code, "{}{}{} failed: {} (CUDA error {}); {}", self, self.empty() ? "" : ": ", what,
       cudaGetErrorString(code), code, cure.text);
}

DeviceEvent event_after(const CudaApi& api, CudaStream stream, std::string_view self) {
  CudaEvent event = nullptr;
  api.require(api.cudaEventCreateWithFlags(&event, cuda::kDisableTiming), self, "cudaEventCreate");
  DeviceEvent end(event, [destroy = api.cudaEventDestroy](void* last) {
    destroy(static_cast<CudaEvent>(last));
  });
  api.require(api.cudaEventRecord(event, stream), self, "cudaEventRecord");
  return end;
}

std::string cuda_version_text(int version) {
  if (version == 0) return "0 (no driver)";
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

CudaDeviceGuard::CudaDeviceGuard(const CudaApi& api, int device, std::string_view self,
                                 bool goes_back)
    : api_(api) {
  api_.require(api_.cudaGetDevice(&before_), self, "cudaGetDevice");
  if (before_ == device) return;
  api_.require(api_.cudaSetDevice(device), self, "cudaSetDevice");
  goes_back_ = goes_back;
}

CudaDeviceGuard::~CudaDeviceGuard() {
  if (goes_back_) api_.cudaSetDevice(before_);
}

}  // namespace paceline
