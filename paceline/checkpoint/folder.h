#pragma once

// Whole folders: what is in them, and removing them.

#include <string>
#include <vector>

#include "paceline/checkpoint/file_system.h"

namespace paceline {

// Error(kSystem) when it cannot be listed.
std::vector<std::string> names_in(const std::string& folder);

// Removes a path and everything under it; of a symbolic link the link. False, with errno, when
// something stays. A path that does not exist counts as removed.
bool remove_tree(FileSystem& files, const std::string& path);

}  // namespace paceline
