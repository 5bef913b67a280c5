#include "apps/cli/commands.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>

#include <fmt/format.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/launcher/process/program_file.h"

#include "apps/cli/option_value.h"

namespace paceline::apps {

namespace {

// Runs `command` and returns its exit code. If it throws, prints the error after `who`, the name of
// the command, and returns the exit code for the type of the exception.
int exit_code_of(const std::string& who, const std::function<int()>& command) {
  try {
    return command();
  } catch (const UsageError& error) {
    say(fmt::format("{}: {}", who, error.what()));
    return kExitUsage;
  } catch (const launcher::ProgramError& error) {
    say(fmt::format("{}: {}", who, error.what()));
    return error.exit_code();
  } catch (const Error& error) {
    say(fmt::format("{}: {}", who, error.what()));
    return error.code() == ErrorCode::kInvalid ? kExitUsage : kExitEnvironment;
  } catch (const std::exception& error) {  // from a library: fmt cannot write, or memory is short
    say(fmt::format("{}: {}", who, error.what()));
    return kExitEnvironment;
  }
}

}  // namespace

int guarded(const std::string& who, const std::function<int()>& command) {
  const int code = exit_code_of(who, command);
  // A command whose output was lost has failed, although it did not notice.
  const bool was_written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (was_written || code != 0) return code;
  say(fmt::format("{}: its output could not be written: {}", who, std::strerror(errno)));
  return kExitEnvironment;
}

}  // namespace paceline::apps
