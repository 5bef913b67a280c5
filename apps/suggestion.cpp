#include "apps/suggestion.h"

#include <algorithm>

namespace paceline::apps {

int edit_distance(const std::string& a, const std::string& b) {
  // Rows of the usual table: two back, one back, current.
  std::vector<int> before, previous(b.size() + 1), current(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) previous[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    current[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int replace = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({replace, previous[j] + 1, current[j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) current[j] = std::min(current[j], before[j - 2] + 1);
    }
    before = previous;
    previous = current;
  }
  return previous[b.size()];
}

std::string nearest(const std::string& typed, const std::vector<std::string>& known) {
  std::string best;
  const auto length = static_cast<int>(typed.size());
  int smallest = std::min(length / 3 + 1, length / 2) + 1;
  for (const std::string& word : known) {
    const bool beginning = length >= 3 && word.starts_with(typed);
    const int distance = beginning ? 1 : edit_distance(typed, word);
    if (distance < smallest) {
      smallest = distance;
      best = word;
    }
  }
  return best;
}

std::string did_you_mean(const std::string& typed, const std::vector<std::string>& known) {
  const std::string meant = nearest(typed, known);
  return meant.empty() ? "" : "; did you mean " + meant + "?";
}

}  // namespace paceline::apps
