#pragma once

// Texts of any length, between ranks: for messages, names and small descriptions, not for data.

#include <string>
#include <vector>

#include "paceline/collectives/group/process_group.h"

namespace paceline {

// Collective. Root's text, on every rank.
std::string broadcast_text(ProcessGroup& group, const std::string& text, int root);
// Collective. Every rank's text, in rank order.
std::vector<std::string> all_gather_text(ProcessGroup& group, const std::string& text);

}  // namespace paceline
