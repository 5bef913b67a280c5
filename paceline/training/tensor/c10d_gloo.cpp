// The Gloo that LibTorch carries, as backend "c10d".

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "paceline/engine/collectives/backends/blocking_calls.h"
#include "paceline/training/tensor/c10d.h"

namespace paceline {

bool register_libtorch_gloo() {
  register_c10d_backend("c10d", [](const C10dMember& me) {
    const BrokenPipeGuard guard;  // its threads inherit it
    auto options = c10d::ProcessGroupGloo::Options::create(me.timeout);
    options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname(me.address)};
    return c10::intrusive_ptr<C10dProcessGroup>(
        c10::make_intrusive<c10d::ProcessGroupGloo>(me.store, me.rank, me.size, options));
  });
  return true;
}

}  // namespace paceline
