#pragma once

// Shortens the list at the end of a message, for example of the tensors in which two models differ:
// a launcher that repeats the last lines of a rank must still see the line above the list.
//
// Thread safety: a pure function.

#include <string>

#include "paceline/engine/core/check.h"

namespace paceline {

// `lines`: a line end before each line. Returns the first 8, then the number of the others.
inline std::string first_lines(std::string lines) {
  constexpr int kShown = 8;
  std::size_t at = lines.find('\n');
  for (int i = 0; i < kShown && at != std::string::npos; ++i) at = lines.find('\n', at + 1);
  if (at == std::string::npos) return lines;
  int others = 0;
  for (std::size_t i = at; i < lines.size(); ++i) others += lines[i] == '\n' ? 1 : 0;
  lines.erase(at);
  return lines + "\n  and " + counted(others, "other");
}

}  // namespace paceline
