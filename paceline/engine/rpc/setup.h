#pragma once

// What all parts of a worker share.

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "paceline/engine/core/fd.h"
#include "paceline/engine/core/secret.h"
#include "paceline/engine/rpc/call_stats.h"
#include "paceline/engine/rpc/directory.h"
#include "paceline/engine/rpc/lease.h"
#include "paceline/engine/transport/cipher.h"

namespace paceline::rpc {

struct Setup {
  WorkerEntry self;
  Secret key;  // of the job, for calls
  std::shared_ptr<Directory> directory;
  std::size_t max_message = 0;
  std::size_t max_calls = 0;  // under way from one worker to another
  std::size_t max_bytes = 0;  // of their requests
  LeaseTime lease = kDefaultLease;
  std::chrono::nanoseconds spin{};
  CallStats stats{};
};
using SetupPointer = std::shared_ptr<const Setup>;

// The longest message that a connection takes: also lists of calls find room, however small the
// program's own messages are.
std::size_t longest_frame(const Setup& setup);

// CLOCK_BOOTTIME: it goes on while the machine sleeps.
LeaseTime boot_time();

inline constexpr std::chrono::milliseconds kNameless(50);  // between two looks for a name

// What both ends of a connection at `callee` mean by it, for the handshake.
std::string connection_context(const WorkerEntry& callee, bool is_encrypted);
// Whether a connection is encrypted: the workers of a host trust its kernel.
bool is_encrypted(const WorkerEntry& callee, const WorkerEntry& caller);
// The one that every worker can do.
inline constexpr CipherKind kCallCipher = CipherKind::kChaCha20Poly1305;

// A worker on another host has been silent for so long: its connection is broken.
inline constexpr std::chrono::seconds kSilence(5);
// Keeps what the kernel has not sent yet of a TCP connection small, so that urgent frames do not
// wait behind it, and notices a host that is gone.
void prepare_tcp(const Fd& socket);

}  // namespace paceline::rpc
