#pragma once

// The functions of the CUDA runtime that the backend nccl calls, and the loading of a GPU vendor's
// libraries at run time, because one program runs on machines with and without GPUs.
//
// The functions are looked up at run time, in the library that the process has already loaded or
// that the loader finds, so the build does not need CUDA. Types and numbers are those of the
// runtime's binary interface, which NVIDIA has kept since version 11. Handles of one runtime are
// valid in any other runtime of the same process.
//
// Thread safety: every function may be called from any thread. The current device is a setting of
// the thread.

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/engine/collectives/device_order.h"

namespace paceline {

// A GPU vendor's library that this process has loaded.
struct DeviceLibrary {
  void* handle = nullptr;  // never closed: the functions stay valid until the process ends
  std::string path;        // the file that was loaded, with symbolic links resolved
  std::string variable;    // the environment variable that can name another file

  // The address of a function; null if the library has no function of that name.
  void* find(const char* name) const;
  // Stores the function's address in `function`. Error(kUnsupported) if the library lacks the
  // function; `wanted` describes the needed library.
  template <class Function>
  void require(const char* name, const char* wanted, Function& function) const {
    function = reinterpret_cast<Function>(find(name));
    if (function == nullptr) refuse(name, wanted);
  }

 private:
  [[noreturn]] void refuse(const char* name, const char* wanted) const;
};

// Loads the library that the environment variable `variable` names. If the variable is not set,
// uses a library of `names` that the process has already loaded (LibTorch with CUDA brings its
// own), or else loads the first one that the loader finds. Error(kUnsupported), with `advice`, if
// none can be loaded.
DeviceLibrary load_device_library(const char* what, const char* variable,
                                  const std::vector<const char*>& names, const char* advice);

using CudaStream = struct CudaStreamHandle*;  // cudaStream_t
using CudaEvent = struct CudaEventHandle*;    // cudaEvent_t

namespace cuda {

// The values of cudaError_t on which messages or decisions depend.
inline constexpr int kSuccess = 0;
inline constexpr int kOutOfMemory = 2;
inline constexpr int kNotInitialized = 3;
inline constexpr int kStubDriver = 34;
inline constexpr int kDriverTooOld = 35;
inline constexpr int kDeviceBusy = 46;
inline constexpr int kNoDevice = 100;
inline constexpr int kInvalidDevice = 101;
inline constexpr int kMemoryError = 214;
inline constexpr int kNotReady = 600;
inline constexpr int kFabricNotReady = 802;
inline constexpr int kDriverMismatch = 803;
inline constexpr int kNotForThisDevice = 804;

inline constexpr unsigned kDisableTiming = 2;     // cudaEventDisableTiming
inline constexpr unsigned kNonBlocking = 1;       // cudaStreamNonBlocking
inline constexpr int kMemoryOfDevice = 2;         // cudaMemoryTypeDevice
inline constexpr int kManagedMemory = 3;          // cudaMemoryTypeManaged
inline constexpr int kToDevice = 1, kToHost = 2;  // cudaMemcpyHostToDevice, ...DeviceToHost
inline constexpr int kCaptureOfOwnThread = 1;     // cudaStreamCaptureModeThreadLocal
inline constexpr int kBeingCaptured = 1;          // cudaStreamCaptureStatusActive

// cudaPointerAttributes, large enough for every version of the runtime.
struct PointerAttributes {
  int type = 0;
  int device = 0;
  void* device_pointer = nullptr;
  void* host_pointer = nullptr;
  std::array<long, 16> reserved{};
};

}  // namespace cuda

struct CudaApi {
  // Loads the runtime once, and keeps it. Errors: kUnsupported if there is none; kInvalid in a
  // child of fork() whose parent has loaded it, because CUDA does not survive a fork.
  static const CudaApi& load();

  DeviceLibrary library;
  int runtime_version = 0;  // 12040 for 12.4
  int driver_version = 0;   // the newest runtime that the driver supports; 0: no driver

  // clang-format off
#define PACELINE_CUDA_FUNCTIONS(FUNCTION) \
  FUNCTION(cudaRuntimeGetVersion, (int*)) FUNCTION(cudaDriverGetVersion, (int*)) \
  FUNCTION(cudaGetDeviceCount, (int*)) FUNCTION(cudaGetDevice, (int*)) \
  FUNCTION(cudaSetDevice, (int)) FUNCTION(cudaDeviceGetPCIBusId, (char*, int, int)) \
  FUNCTION(cudaGetLastError, ()) FUNCTION(cudaMemGetInfo, (std::size_t*, std::size_t*)) \
  FUNCTION(cudaMalloc, (void**, std::size_t)) FUNCTION(cudaFree, (void*)) \
  FUNCTION(cudaMemcpy, (void*, const void*, std::size_t, int)) \
  FUNCTION(cudaMemcpyAsync, (void*, const void*, std::size_t, int, CudaStream)) \
  FUNCTION(cudaPointerGetAttributes, (cuda::PointerAttributes*, const void*)) \
  FUNCTION(cudaStreamCreateWithFlags, (CudaStream*, unsigned)) \
  FUNCTION(cudaStreamDestroy, (CudaStream)) FUNCTION(cudaStreamSynchronize, (CudaStream)) \
  FUNCTION(cudaStreamWaitEvent, (CudaStream, CudaEvent, unsigned)) \
  FUNCTION(cudaStreamIsCapturing, (CudaStream, int*)) \
  FUNCTION(cudaThreadExchangeStreamCaptureMode, (int*)) \
  FUNCTION(cudaEventCreateWithFlags, (CudaEvent*, unsigned)) \
  FUNCTION(cudaEventRecord, (CudaEvent, CudaStream)) FUNCTION(cudaEventQuery, (CudaEvent)) \
  FUNCTION(cudaEventDestroy, (CudaEvent))
  // clang-format on
#define PACELINE_CUDA_FUNCTION(name, parameters) \
  int(*name) parameters = nullptr;  // NOLINT(bugprone-macro-parentheses): a declaration
  PACELINE_CUDA_FUNCTIONS(PACELINE_CUDA_FUNCTION)
#undef PACELINE_CUDA_FUNCTION
  const char* (*cudaGetErrorString)(int) = nullptr;

  // Throws an Error that reports what failed and what to do, unless `code` is 0. The Error is
  // kInvalid if the configuration is at fault, otherwise kSystem. `self`: "rank 1"; may be empty.
  void require(int code, std::string_view self, std::string_view what) const;
};

// Returns an event that marks the end of the work queued on `stream` so far; null is the default
// stream. Errors: those of CudaApi::require().
DeviceEvent event_after(const CudaApi& api, CudaStream stream, std::string_view self);

// "12.4" for 12040.
std::string cuda_version_text(int version);

// Makes `device` the thread's current device, and restores the previous one on destruction.
class CudaDeviceGuard {
 public:
  // `goes_back`: false for a thread of Paceline, which stays on `device`. Device 0 is the current
  // device of a new thread; choosing it again on destruction would allocate memory on it for a
  // context.
  CudaDeviceGuard(const CudaApi& api, int device, std::string_view self, bool goes_back = true);
  ~CudaDeviceGuard();
  CudaDeviceGuard(const CudaDeviceGuard&) = delete;
  CudaDeviceGuard& operator=(const CudaDeviceGuard&) = delete;

 private:
  const CudaApi& api_;
  int before_ = 0;
  bool goes_back_ = false;
};

}  // namespace paceline
