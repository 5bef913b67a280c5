#pragma once

// `paceline bench rpc`: calls between two workers, beside other libraries.

#include "apps/commands.h"

namespace paceline::apps {

// `arguments` begin with "rpc". The exit code.
int bench_calls_command(const Arguments& arguments);

}  // namespace paceline::apps
