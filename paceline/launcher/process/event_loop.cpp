#include "paceline/launcher/process/event_loop.h"

#include <array>
#include <utility>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"

namespace paceline::launcher {
namespace {

constexpr int kEventsAtOnce = 256;

std::uint64_t pack(std::uint32_t id, int fd) {
  return static_cast<std::uint64_t>(id) << 32 | static_cast<std::uint32_t>(fd);
}

}  // namespace

EventLoop::EventLoop() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) throw system_error("epoll_create1()");
}

void EventLoop::watch(int fd, Handler handler, std::uint32_t events) {
  const std::uint32_t id = ++last_id_;
  epoll_event event{.events = events, .data = {.u64 = pack(id, fd)}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) throw system_error("epoll_ctl()");
  watched_.insert_or_assign(fd, Watched{id, std::make_shared<Handler>(std::move(handler))});
}

void EventLoop::change(int fd, std::uint32_t events) {
  const auto found = watched_.find(fd);
  if (found == watched_.end()) return;
  epoll_event event{.events = events, .data = {.u64 = pack(found->second.id, fd)}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void EventLoop::forget(int fd) {
  if (watched_.erase(fd) > 0) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void EventLoop::turn(Deadline deadline) {
  std::array<epoll_event, kEventsAtOnce> events;
  int count = 0;
  do {
    vigil_.look();
    count = epoll_wait(epoll_.get(), events.data(), events.size(),
                       deadline.poll_timeout_ms(Vigil::kRound));
  } while (count == 0 && !deadline.expired());
  vigil_.look();
  for (int i = 0; i < count; ++i) {
    const std::uint64_t tag = events[i].data.u64;
    const auto found = watched_.find(static_cast<int>(tag & 0xffffffff));
    if (found == watched_.end() || found->second.id != tag >> 32) continue;
    const auto handler = found->second.handler;  // a copy: the handler may call forget() on itself
    (*handler)();
  }
}

}  // namespace paceline::launcher
