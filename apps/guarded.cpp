#include "apps/guarded.h"

#include <fmt/format.h>

#include "paceline/core/error.h"
#include "paceline/launch/program.h"

#include "apps/message.h"
#include "apps/usage_error.h"

namespace paceline::apps {

int guarded(const std::string& who, const std::function<int()>& command) {
  try {
    return command();
  } catch (const UsageError& error) {
    say(fmt::format("{}: {}", who, error.what()));
    return kExitUsage;
  } catch (const launch::ProgramError& error) {
    say(fmt::format("{}: {}", who, error.what()));
    return error.exit_code();
  } catch (const Error& error) {
    say(fmt::format("{}: {}", who, error.what()));
    return error.code() == ErrorCode::kInvalid ? kExitUsage : kExitEnvironment;
  }
}

}  // namespace paceline::apps
