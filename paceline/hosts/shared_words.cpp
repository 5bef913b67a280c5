#include "paceline/hosts/shared_words.h"

#include <algorithm>

namespace paceline::launch {

bool SharedWords::heard(std::size_t host, const std::string& text) {
  const auto found = std::find_if(said_.begin(), said_.end(),
                                  [&](const auto& entry) { return entry.first == text; });
  if (found != said_.end() && found->second.insert(host).second) return true;
  if (found != said_.end()) said_.erase(found);
  said_.emplace_back(text, std::set<std::size_t>{host});
  if (said_.size() > kRemembered) said_.pop_front();
  return false;
}

}  // namespace paceline::launch
