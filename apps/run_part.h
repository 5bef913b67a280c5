#pragma once

#include "paceline/messages/remote_job.h"

#include "apps/commands.h"

namespace paceline::apps {

// `paceline run` as this host's part of a job that a launcher on another host started.
int run_part(const Arguments& arguments, const launch::HostPart& part);

}  // namespace paceline::apps
