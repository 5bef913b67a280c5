#pragma once

// The communication backends that Paceline knows: which of them this build has, and how users
// choose one.
//
//   "gloo"                     for buffers in ordinary memory
//   "cpu:paceline,cuda:nccl"   one per kind of memory, as torch.distributed writes it
//
// Thread safety: every function may be called from any thread.

#include <string>
#include <vector>

#include "paceline/engine/collectives/buffer.h"
#include "paceline/engine/core/error.h"

namespace paceline {

// "cpu" or "cuda".
constexpr const char* name_of(Device device) { return device == Device::kCpu ? "cpu" : "cuda"; }

struct BackendInfo {
  std::string name;
  Device device = Device::kCpu;  // the kind of memory that the backend works on
  bool available = false;        // whether the backend is part of this build
  std::string text;              // a short description, or why the backend is not available
  std::string advice;            // how to get the backend; empty if it is available
};

// All backends, Paceline's own first.
std::vector<BackendInfo> list_backends();
// Whether this build has the backend; false for an unknown name.
bool is_backend_available(const std::string& name);
// Makes Error(kUnsupported), with the reason why the backend is not available and how to get it.
Error backend_missing(const BackendInfo& info);

// The backend for each kind of memory.
struct BackendChoice {
  std::string cpu = "paceline";
  std::string cuda;  // empty: no backend for CUDA memory
  bool operator==(const BackendChoice&) const = default;
  // A text that parse_backend_choice() accepts; equal choices have equal texts.
  std::string text() const;
};

// An empty text means paceline; "nccl" means cpu:paceline,cuda:nccl. Error(kInvalid) for an unknown
// device or backend, a device named twice, or a backend that does not work on that device.
BackendChoice parse_backend_choice(const std::string& text);

}  // namespace paceline
