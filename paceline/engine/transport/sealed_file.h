#pragma once

// Files in memory that processes share. Their size is sealed, so that to touch a mapping of one is
// no SIGBUS, whatever the process does that made it. They have no pages yet.

#include <cstddef>

#include "paceline/engine/core/fd.h"

namespace paceline {

// Empty, with errno set, when there is none.
Fd make_sealed_file(std::size_t bytes);
// Whether a file that another process made is at least that long and stays so.
bool is_sealed_file(const Fd& file, std::size_t bytes);

}  // namespace paceline
