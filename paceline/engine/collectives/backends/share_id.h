#pragma once

// What a library's ranks need to find each other, from rank 0 to all: NCCL's id, oneCCL's address.

#include <span>
#include <string>

#include "paceline/engine/collectives/backends/library.h"

namespace paceline {

// Collective. Rank 0 gives `id`, the others' are filled; all have the same size. Errors: those of
// wait_for_keys(), and kCorrupt for an id of another size, which another version of the library
// has.
void share_id(const LibraryContext& context, std::span<char> id, const std::string& library);

}  // namespace paceline
