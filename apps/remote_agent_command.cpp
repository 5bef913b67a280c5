#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>
#include <unistd.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/exit_code.h"
#include "paceline/launcher/hosts/remote_end.h"
#include "paceline/launcher/process/environment.h"

#include "apps/commands.h"
#include "apps/guarded.h"
#include "apps/message.h"
#include "apps/run_part.h"
#include "apps/usage_error.h"
#include "apps/version.h"

namespace paceline::apps {
namespace {

// The options come from the launcher alone: what this host's variables say does not count, and the
// launcher's own must not make a part start hosts of its own.
void forget_options_in_variables() {
  for (const auto& [name, value] : launcher::inherited_environment()) {
    if (name.starts_with("PET_")) unsetenv(name.c_str());
  }
}

int run_job(const launcher::RemoteJob& job, int notices_fd) {
  for (const auto& [name, value] : job.environment) setenv(name.c_str(), value.c_str(), 1);
  forget_options_in_variables();
  if (chdir(job.directory.c_str()) != 0) {
    say(fmt::format("paceline run: on host {}: the working directory {}: {}", job.part.host,
                    job.directory, std::strerror(errno)));
    return kExitEnvironment;
  }
  Arguments arguments = job.arguments;
  if (job.port != 0) {
    arguments.insert(arguments.begin(), "--master-port=" + std::to_string(job.port));
  }
  return guarded("paceline run", [&] { return run_part(arguments, job.part, notices_fd); });
}

}  // namespace

int remote_agent_command(const Arguments& arguments) {
  if (!arguments.empty()) {
    throw UsageError("a launcher starts it on another host; there is nothing to type");
  }
  if (isatty(STDIN_FILENO) == 1) {
    throw UsageError("a launcher starts it on another host, and speaks to it through its stdin");
  }
  return launcher::serve_remote_end(version_number(), run_job);
}

}  // namespace paceline::apps
