#include "paceline/launcher/job/launcher_channel.h"

#include "paceline/launcher/messages/remote_frames.h"
#include "paceline/launcher/output/consoles.h"

namespace paceline::launcher {

void LauncherChannel::say_leads(const Endpoint& meeting) const {
  if (notices_fd_ < 0) return;
  write_notice(notices_fd_, encode_frame(FrameKind::kLeads, encode(meeting)));
}

void LauncherChannel::say_over(int exit_code) const {
  if (notices_fd_ < 0) return;
  const std::string payload(1, static_cast<char>(exit_code));
  write_notice(notices_fd_, encode_frame(FrameKind::kOver, payload));
}

void LauncherChannel::send_timeline(const std::string& packed) const {
  write_notice(notices_fd_, encode_frame(FrameKind::kTimeline, packed));
}

}  // namespace paceline::launcher
