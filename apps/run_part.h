#pragma once

#include "paceline/messages/remote_job.h"

#include "apps/commands.h"

namespace paceline::apps {

// `paceline run` as this host's part of a job that a launcher on another host started.
// Its own words go to `notices_fd` (output/consoles.h).
int run_part(const Arguments& arguments, const launch::HostPart& part, int notices_fd);

}  // namespace paceline::apps
