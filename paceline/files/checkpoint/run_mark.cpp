#include "paceline/files/checkpoint/run_mark.h"

#include <array>
#include <filesystem>

#include <fmt/format.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/engine/core/log.h"
#include "paceline/files/checkpoint/plain_file.h"
#include "paceline/files/checkpoint/strict_json.h"

namespace paceline {
namespace {

constexpr std::uint64_t kLimit = 64 << 10;

constexpr const char* kName = "/.run";

}  // namespace

std::optional<RunMark> read_run_mark(const std::string& directory, FileSystem& files) try {
  const auto path = directory + kName;
  if (!std::filesystem::exists(std::filesystem::symlink_status(path))) return std::nullopt;
  const auto json = parse_strict_json(to_string(read_plain_file(files, path, kLimit)), path, 1);
  RunMark mark{.run = json.at("run"), .job = {}, .seed = {}};
  if (json.contains("job")) mark.job = json.at("job").get<std::string>();
  if (json.contains("seed")) mark.seed = json.at("seed").get<std::uint64_t>();
  return mark;
} catch (const std::exception& error) {
  log::error(fmt::format("{}; treated as a directory that belongs to no run", error.what()));
  return std::nullopt;
}

void write_run_mark(const std::string& directory, const std::string& workspace, const RunMark& mark,
                    FileSystem& files) {
  nlohmann::json json = {{"run", mark.run}};
  if (mark.job) json["job"] = *mark.job;
  if (mark.seed) json["seed"] = *mark.seed;
  // A launcher's name for its job need not be UTF-8.
  const auto text = json_text(json) + "\n";
  const auto path = directory + kName;
  const auto temporary = workspace + kName;
  const std::array parts = {as_bytes(text)};
  try {
    write_plain_file(files, temporary, parts);
    if (files.rename(temporary, path) != 0) {
      throw system_error(fmt::format("{}: cannot rename to {}", temporary, path));
    }
  } catch (...) {
    files.unlink(temporary);
    throw;
  }
  sync_directory(files, directory);
}

}  // namespace paceline
