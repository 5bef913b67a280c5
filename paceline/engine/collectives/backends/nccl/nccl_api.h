#pragma once

// The functions of NCCL that the backend calls, looked up at run time (cuda_api.h). Types and
// numbers are those of NCCL's binary interface since version 2.14, the first one whose calls need
// not block.
//
// Thread safety: every function may be called from any thread, but only one call at a time may use
// a communicator.

#include <climits>
#include <cstddef>
#include <string>
#include <string_view>

#include "paceline/engine/collectives/backends/nccl/cuda_api.h"

namespace paceline {

using NcclHandle = struct NcclCommunicatorHandle*;  // ncclComm_t

namespace nccl {

// ncclResult_t
inline constexpr int kSuccess = 0;
inline constexpr int kCudaError = 1;
inline constexpr int kSystemError = 2;
inline constexpr int kInvalidUsage = 5;
inline constexpr int kRemoteError = 6;
inline constexpr int kInProgress = 7;

enum Type : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};
enum Reduction : int { kSum = 0, kProduct = 1, kMax = 2, kMin = 3, kMean = 4 };

// ncclUniqueId, which is passed by value.
struct Id {
  char bytes[128] = {};
};

// ncclConfig_t as of version 2.14; newer libraries use defaults for the fields that it lacks.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};

}  // namespace nccl

struct NcclApi {
  // Loads NCCL and the CUDA runtime once, and keeps them. Errors: those of CudaApi::load(), and
  // kUnsupported for a missing NCCL or one that is older than 2.14.
  static const NcclApi& load();

  const CudaApi* cuda = nullptr;
  DeviceLibrary library;
  int version = 0;  // 22103 for 2.21.3

  // clang-format off
#define PACELINE_NCCL_FUNCTIONS(FUNCTION) \
  FUNCTION(ncclGetVersion, (int*)) FUNCTION(ncclGetUniqueId, (nccl::Id*)) \
  FUNCTION(ncclCommInitRankConfig, (NcclHandle*, int, nccl::Id, int, nccl::Config*)) \
  FUNCTION(ncclCommGetAsyncError, (NcclHandle, int*)) FUNCTION(ncclCommFinalize, (NcclHandle)) \
  FUNCTION(ncclCommDestroy, (NcclHandle)) FUNCTION(ncclCommAbort, (NcclHandle)) \
  FUNCTION(ncclAllReduce, (const void*, void*, std::size_t, int, int, NcclHandle, CudaStream)) \
  FUNCTION(ncclReduce, (const void*, void*, std::size_t, int, int, int, NcclHandle, CudaStream)) \
  FUNCTION(ncclBroadcast, (const void*, void*, std::size_t, int, int, NcclHandle, CudaStream)) \
  FUNCTION(ncclAllGather, (const void*, void*, std::size_t, int, NcclHandle, CudaStream)) \
  FUNCTION(ncclReduceScatter, (const void*, void*, std::size_t, int, int, NcclHandle, CudaStream)) \
  FUNCTION(ncclSend, (const void*, std::size_t, int, int, NcclHandle, CudaStream)) \
  FUNCTION(ncclRecv, (void*, std::size_t, int, int, NcclHandle, CudaStream)) \
  FUNCTION(ncclGroupStart, ()) FUNCTION(ncclGroupEnd, ())
  // clang-format on
#define PACELINE_NCCL_FUNCTION(name, parameters) \
  int(*name) parameters = nullptr;  // NOLINT(bugprone-macro-parentheses): a declaration
  PACELINE_NCCL_FUNCTIONS(PACELINE_NCCL_FUNCTION)
#undef PACELINE_NCCL_FUNCTION
  const char* (*ncclGetErrorString)(int) = nullptr;
  const char* (*ncclGetLastError)(NcclHandle) = nullptr;

  // Throws an Error that reports what failed, NCCL's text and what to do, unless `code` is kSuccess
  // or kInProgress. The Error is kPeerLost if another rank failed, otherwise kSystem.
  void require(int code, std::string_view self, std::string_view what) const;
};

// "2.21.3" for 22103.
std::string nccl_version_text(int version);

}  // namespace paceline
