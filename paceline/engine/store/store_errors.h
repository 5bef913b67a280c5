#pragma once

// How all stores speak about keys and time: the same words whichever store a job uses.

#include <chrono>
#include <string>
#include <vector>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/error.h"

namespace paceline {

// A key for messages: quoted, shortened, without bytes that a terminal would interpret.
std::string quote_key(const std::string& key);
// At most eight of them, then how many more.
std::string quote_keys(const std::vector<std::string>& keys);

// Error(kTimeout): `missing` was not set within `timeout`.
Error missing_keys_error(const std::vector<std::string>& missing,
                         std::chrono::milliseconds timeout);

}  // namespace paceline
