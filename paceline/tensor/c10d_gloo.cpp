// The Gloo that LibTorch carries, as backend "c10d".

#include <csignal>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "paceline/tensor/c10d.h"

namespace paceline {
namespace {

// Gloo writes to connections that a peer may have closed. Threads inherit what their maker blocks.
class NoBrokenPipe {
 public:
  NoBrokenPipe() {
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, &before_);
  }
  ~NoBrokenPipe() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoBrokenPipe(const NoBrokenPipe&) = delete;
  NoBrokenPipe& operator=(const NoBrokenPipe&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

bool register_libtorch_gloo() {
  register_c10d_backend("c10d", [](const C10dMember& me) {
    const NoBrokenPipe guard;
    auto options = c10d::ProcessGroupGloo::Options::create(me.timeout);
    options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname(me.address)};
    return c10::intrusive_ptr<C10dProcessGroup>(
        c10::make_intrusive<c10d::ProcessGroupGloo>(me.store, me.rank, me.size, options));
  });
  return true;
}

}  // namespace paceline
