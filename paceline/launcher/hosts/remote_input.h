#pragma once

// What rank 0 of a job of --hosts reads: the launcher's stdin, passed on to the first host and read
// only as fast as rank 0 takes it.
//
// Thread safety: none. Everything happens in the handlers it gives to the loop.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "paceline/engine/core/fd.h"
#include "paceline/launcher/messages/remote_frames.h"
#include "paceline/launcher/process/event_loop.h"

namespace paceline::launcher {

class RemoteInput {
 public:
  using Send = std::function<void(FrameKind kind, std::string_view payload)>;

  // `stdin_fd` may be empty. Sends nothing before begin(). `loop` outlives it.
  RemoteInput(EventLoop& loop, Fd stdin_fd, Send send);
  RemoteInput(const RemoteInput&) = delete;
  RemoteInput& operator=(const RemoteInput&) = delete;
  ~RemoteInput();

  void begin() { watch(); }
  // So many bytes have been taken by rank 0.
  void taken(std::uint32_t bytes);
  // Once a turn: a plain file is always ready, and no loop can wait for it.
  void tend();

 private:
  void watch();
  void pump();

  EventLoop& loop_;
  Fd stdin_;
  const Send send_;
  std::size_t in_flight_ = 0;
  bool watched_ = false, is_file_ = false;
};

}  // namespace paceline::launcher
