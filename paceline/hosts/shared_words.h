#pragma once

// The agents of a job that goes on tell each other what happened, and each says it to the launcher,
// which says it once.
//
// Thread safety: none.

#include <cstddef>
#include <deque>
#include <set>
#include <string>
#include <utility>

namespace paceline::launch {

class SharedWords {
 public:
  // Whether another host has said this, and this one has not, since it was last news.
  bool heard(std::size_t host, const std::string& text);

 private:
  static constexpr std::size_t kRemembered = 64;
  std::deque<std::pair<std::string, std::set<std::size_t>>> said_;
};

}  // namespace paceline::launch
