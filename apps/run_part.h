#pragma once

#include "paceline/launcher/messages/remote_job.h"

#include "apps/commands.h"

namespace paceline::apps {

// `paceline run` as this host's part of a job that a launcher on another host started.
// Its own words go to `notices_fd` (launcher/output/consoles.h).
int run_part(const Arguments& arguments, const launcher::HostPart& part, int notices_fd);

}  // namespace paceline::apps
