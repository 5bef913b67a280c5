#pragma once

// LibTorch's own process groups (c10d) as backends of Paceline's groups: every collective of
// tensors, DistributedDataParallel and the rest then run over them, with Paceline's own checks
// (engine/collectives/backends/connect_backend.h).
//
// If LibTorch carries Gloo, and Gloo's headers were found at build time, it is backend "c10d" of
// every program that communicates tensors. A program registers any other process group itself:
//
//   register_c10d_backend("ucc", [](const C10dMember& me) {
//     return c10::make_intrusive<c10d::ProcessGroupUCC>(me.store, me.rank, me.size);
//   });
//   init_process_group({.group = {.backend = "ucc"}});
//
// Tensors are in host memory. For element types and reductions that c10d's Gloo lacks, and always
// for reduce_scatter, c10d gathers or exchanges the elements and Paceline's kernel reduces them.

#include <chrono>
#include <functional>
#include <string>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "paceline/training/tensor/libtorch_version.h"

namespace paceline {

// The arguments of a process group's constructor.
struct C10dMember {
  c10::intrusive_ptr<c10d::Store> store;  // has keys of this group only
  int rank = 0;
  int size = 1;
  std::string address;  // of the interface on which other ranks reach this one
  std::chrono::milliseconds timeout{0};
};
using C10dFactory = std::function<c10::intrusive_ptr<C10dProcessGroup>(const C10dMember& me)>;

// Lets groups of this process choose the backend by `name`. Error(kInvalid) when the name is taken.
// Thread safety: any thread may call it; `factory` runs in the thread that makes a group.
void register_c10d_backend(const std::string& name, C10dFactory factory);

// Registers "c10d", either available or with the reason why it is not.
bool register_libtorch_gloo();

}  // namespace paceline
