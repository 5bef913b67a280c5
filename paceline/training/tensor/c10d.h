#pragma once

// LibTorch's own process groups (c10d) as backends of Paceline's groups: all collectives on
// tensors, DistributedDataParallel and everything else then use them, with Paceline's own checks
// (engine/collectives/backends/connect_backend.h).
//
// If LibTorch includes Gloo, and Gloo's headers were found at build time, every program that
// communicates tensors has it as backend "c10d". A program can register any other process group
// itself:
//
//   register_c10d_backend("ucc", [](const C10dMember& me) {
//     return c10::make_intrusive<c10d::ProcessGroupUCC>(me.store, me.rank, me.size);
//   });
//   init_process_group({.group = {.backend = "ucc"}});
//
// Tensors are in host memory. For reduce_scatter, and for element types and reductions that c10d's
// Gloo does not support, c10d gathers or exchanges the elements and Paceline's kernel reduces them.

#include <chrono>
#include <functional>
#include <string>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "paceline/training/tensor/libtorch_version.h"

namespace paceline {

// The arguments of a process group's constructor.
struct C10dMember {
  c10::intrusive_ptr<c10d::Store> store;  // contains only keys of this group
  int rank = 0;
  int size = 1;
  std::string address;  // address of the interface on which other ranks reach this one
  std::chrono::milliseconds timeout{0};
};
using C10dFactory = std::function<c10::intrusive_ptr<C10dProcessGroup>(const C10dMember& me)>;

// Makes the backend available under `name` to groups of this process. Error(kInvalid) when the name
// is taken. Thread safety: any thread may call it; `factory` runs in the thread that forms a group.
void register_c10d_backend(const std::string& name, C10dFactory factory);

// Registers "c10d", with the reason if it is not available. Returns whether it is available.
bool register_libtorch_gloo();

}  // namespace paceline
