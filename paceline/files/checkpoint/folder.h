#pragma once

// Whole folders: what is in them, and removing them.

#include <string>
#include <vector>

#include "paceline/files/checkpoint/file_system.h"

namespace paceline {

// Error(kSystem) when it cannot be listed, or when a component of its path is a symbolic link.
std::vector<std::string> names_in(const std::string& folder);

// Removes a path and everything under it. It removes a symbolic link but never what the link points
// to, even if the link replaces a folder meanwhile. False, with errno, when something stays. A path
// that does not exist counts as removed.
bool remove_tree(FileSystem& files, const std::string& path);

}  // namespace paceline
