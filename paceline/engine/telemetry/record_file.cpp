#include "paceline/engine/telemetry/record_file.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

namespace paceline {

int rank_of_process() {
  const char* const rank = std::getenv("RANK");
  return rank != nullptr ? std::atoi(rank) : 0;
}

std::optional<std::string> record_folder(const char* variable) {
  const char* const folder = std::getenv(variable);
  return folder != nullptr && *folder != '\0' ? std::optional<std::string>(folder) : std::nullopt;
}

std::vector<std::string> records_in(const std::string& folder, std::string_view suffix,
                                    std::error_code& error) {
  namespace fs = std::filesystem;
  std::vector<std::string> paths;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().native().ends_with(suffix)) paths.push_back(it->path());
  }
  std::ranges::sort(paths);
  return paths;
}

void remove_record(const std::string& path) {
  const char* const keep = std::getenv("PACELINE_FLIGHT_KEEP");
  if (keep == nullptr || std::string_view(keep) != "1") unlink(path.c_str());
}

}  // namespace paceline
