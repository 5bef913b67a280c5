// Registers the Gloo that is part of LibTorch as backend "c10d", or the reason why this build does
// not have it.

#ifndef PACELINE_NO_C10D
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#endif

#include "paceline/engine/collectives/backends/blocking_calls.h"
#include "paceline/engine/collectives/backends/library_list.h"
#include "paceline/training/tensor/c10d.h"

namespace paceline {

#ifdef PACELINE_NO_C10D
bool register_libtorch_gloo() {
  register_library({.info = {.name = "c10d",
                             .device = Device::kCpu,
                             .available = false,
                             .text = PACELINE_NO_C10D,
                             .advice = "apt-get install libgloo-dev and build again"},
                    .connect = {}});
  return false;
}
#else
bool register_libtorch_gloo() {
  register_c10d_backend("c10d", [](const C10dMember& me) {
    const BrokenPipeGuard guard;  // Gloo's threads inherit the blocked signal
    auto options = c10d::ProcessGroupGloo::Options::create(me.timeout);
    options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname(me.address)};
    return c10::intrusive_ptr<C10dProcessGroup>(
        c10::make_intrusive<c10d::ProcessGroupGloo>(me.store, me.rank, me.size, options));
  });
  return true;
}
#endif

}  // namespace paceline
