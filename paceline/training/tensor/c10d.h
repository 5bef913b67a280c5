#pragma once

// LibTorch's own process groups (c10d) as backends of Paceline's groups: every collective of
// tensors, DistributedDataParallel and the rest then run over them, with Paceline's checks beside
// them (engine/collectives/backends/connect_backend.h).
//
// Where LibTorch carries Gloo, and its headers were there at build time, that one is backend
// "c10d" of every program that communicates tensors. Any other process group is registered by the
// program:
//
//   register_c10d_backend("ucc", [](const C10dMember& me) {
//     return c10::make_intrusive<c10d::ProcessGroupUCC>(me.store, me.rank, me.size);
//   });
//   init_process_group({.group = {.backend = "ucc"}});
//
// All memory is the host's. Element types and reductions that c10d's Gloo lacks are its all-gather
// or all-to-all followed by Paceline's kernel; reduce_scatter always is.

#include <chrono>
#include <functional>
#include <string>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "paceline/training/tensor/libtorch_version.h"

namespace paceline {

// What a process group is made from.
struct C10dMember {
  c10::intrusive_ptr<c10d::Store> store;  // with keys of this group alone
  int rank = 0;
  int size = 1;
  std::string address;  // of the interface on which the others reach this rank
  std::chrono::milliseconds timeout{0};
};
using C10dFactory = std::function<c10::intrusive_ptr<C10dProcessGroup>(const C10dMember& me)>;

// Groups of this process can choose it by `name` from now on. Error(kInvalid) when that is taken.
// Thread safety: any thread may call it; `factory` is called where groups are made.
void register_c10d_backend(const std::string& name, C10dFactory factory);

// Registers "c10d", available or with the reason why it is not.
bool register_libtorch_gloo();

}  // namespace paceline
