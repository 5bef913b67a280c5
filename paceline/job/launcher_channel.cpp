#include "paceline/job/launcher_channel.h"

#include <cerrno>
#include <utility>

#include <fcntl.h>

#include "paceline/core/error.h"
#include "paceline/core/io.h"
#include "paceline/core/log.h"
#include "paceline/output/consoles.h"

namespace paceline::launch {

LauncherChannel::LauncherChannel(EventLoop& loop, int notices_fd, Handler handler)
    : loop_(loop), notices_fd_(notices_fd), handler_(std::move(handler)) {
  if (notices_fd_ < 0) return;
  orders_ = Fd(fcntl(notices_fd_, F_DUPFD_CLOEXEC, 3));
  if (!orders_) throw system_error("watching for the launcher's orders");
  loop_.watch(orders_.get(), [this] { read(); });
}

LauncherChannel::~LauncherChannel() {
  if (orders_) loop_.forget(orders_.get());
}

void LauncherChannel::report(const Report& report) {
  write_notice(notices_fd_, encode_frame(FrameKind::kReport, encode(report)));
}

void LauncherChannel::say_leads(const Endpoint& meeting) {
  write_notice(notices_fd_, encode_frame(FrameKind::kLeads, encode(meeting)));
}

void LauncherChannel::send_timeline(const std::string& packed) {
  write_notice(notices_fd_, encode_frame(FrameKind::kTimeline, packed));
}

void LauncherChannel::read() {
  char buffer[16 << 10];
  const ssize_t length = receive_some(orders_.get(), std::as_writable_bytes(std::span(buffer)));
  if (length < 0 && errno == EAGAIN) return;
  if (length <= 0) {  // the remote end is gone, and ends this process
    loop_.forget(orders_.get());
    return orders_.reset();
  }
  try {
    reader_.feed({buffer, static_cast<std::size_t>(length)});
    while (auto frame = reader_.next()) handler_(decode_order(frame->payload));
  } catch (const Error& error) {
    log::warning(error.what());
  }
}

}  // namespace paceline::launch
