#pragma once

// A rank as messages name it: by its number in the group that the message is about and, where that
// is another one, by its number in the world as well. Logs and records of ranks go by the latter.
//
// Thread safety: free functions.

#include <string>

namespace paceline {

// "rank 1"; "rank 1 (rank 3 of the world)".
std::string rank_name(int rank, int in_world);
// "rank 1 (box)"; "rank 1 (rank 3 of the world, box)".
std::string rank_name(int rank, int in_world, const std::string& host);

}  // namespace paceline
