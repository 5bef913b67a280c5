#include "paceline/engine/collectives/backends/nccl/nccl_api.h"

#include <optional>

#include "paceline/engine/core/check.h"

namespace paceline {
namespace {

constexpr int kOldest = 21400;

constexpr const char* kWantedNccl = "library of NCCL 2.14 or later";

void load_into(NcclApi& api) {
  api.cuda = &CudaApi::load();
  api.library = load_device_library("NCCL", "PACELINE_LIBNCCL", {"libnccl.so.2", "libnccl.so"},
                                    "install NCCL (libnccl2, or pip install nvidia-nccl-cu12)");
#define PACELINE_FIND(name, parameters) api.library.require(#name, kWantedNccl, api.name);
  PACELINE_NCCL_FUNCTIONS(PACELINE_FIND)
#undef PACELINE_FIND
  api.library.require("ncclGetErrorString", kWantedNccl, api.ncclGetErrorString);
  api.library.require("ncclGetLastError", kWantedNccl, api.ncclGetLastError);
  api.require(api.ncclGetVersion(&api.version), "", "ncclGetVersion");
  if (api.version >= kOldest) return;
  fail(ErrorCode::kUnsupported,
       "{} is NCCL {}, but Paceline needs NCCL {} or later, which has non-blocking calls; install "
       "a newer NCCL, or set PACELINE_LIBNCCL to the path of its library file",
       api.library.path, nccl_version_text(api.version), nccl_version_text(kOldest));
}

struct LoadedNccl {
  NcclApi api;
  std::optional<Error> error;
};

LoadedNccl* load_nccl() {
  auto* const loaded = new LoadedNccl;
  try {
    load_into(loaded->api);
  } catch (const Error& error) {
    loaded->error = error;
  }
  return loaded;
}

const char* cure_of(int code) {
  switch (code) {
    case nccl::kCudaError:
      return "a CUDA operation failed in or before this NCCL call: see also dmesg and nvidia-smi";
    case nccl::kSystemError:
      return "a socket, file or shared memory failed: check /dev/shm (docker run "
             "--shm-size=2g), NCCL_SOCKET_IFNAME and ulimit -l, and set NCCL_DEBUG=WARN";
    case nccl::kInvalidUsage:
      return "two ranks may have the same GPU; set NCCL_DEBUG=WARN for the reason";
    case nccl::kRemoteError:
      return "another rank ended or lost its network: see that rank's output";
    default:
      return "set NCCL_DEBUG=WARN for the reason";
  }
}

}  // namespace

const NcclApi& NcclApi::load() {
  CudaApi::load();  // also checks that this process did not inherit CUDA by fork()
  static const LoadedNccl* const loaded = load_nccl();
  if (loaded->error) throw Error(*loaded->error);
  return loaded->api;
}

void NcclApi::require(int code, std::string_view self, std::string_view what) const {
  if (code == nccl::kSuccess || code == nccl::kInProgress) return;
  const std::string last = [&]() -> std::string {
    const char* const text = ncclGetLastError == nullptr ? nullptr : ncclGetLastError(nullptr);
    return text == nullptr || *text == '\0' ? "" : fmt::format(": {}", text);
  }();
  const char* const text = ncclGetErrorString == nullptr ? "?" : ncclGetErrorString(code);
  fail(code == nccl::kRemoteError ? ErrorCode::kPeerLost : ErrorCode::kSystem,
       "{}{}{} failed: {} (NCCL error {}){}; {}", self, self.empty() ? "" : ": ", what, text, code,
       last, cure_of(code));
}

std::string nccl_version_text(int version) {
  if (version < 10000) {  // up to 2.8 a version had four digits, such as 2804
    return fmt::format("{}.{}.{}", version / 1000, version % 1000 / 100, version % 100);
  }
  return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

}  // namespace paceline
