#include "paceline/engine/collectives/planning/cost_file.h"

#include <cerrno>
#include <cmath>
#include <cstdlib>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/fd.h"
#include "paceline/engine/core/file_draft.h"
#include "paceline/engine/core/json_text.h"

namespace paceline {
namespace {

using Json = nlohmann::json;

Json to_json(const LinkCost& link) {
  return {{"latency_s", link.latency_s},
          {"message_s", link.message_s},
          {"bytes_per_s", link.bytes_per_s}};
}

double positive(const Json& json, const char* name) {
  const double value = json.at(name).get<double>();
  check(std::isfinite(value) && value > 0, "{} is {}", name, value);
  return value;
}

LinkCost link_from(const Json& json) {
  return {.latency_s = positive(json, "latency_s"),
          .message_s = positive(json, "message_s"),
          .bytes_per_s = positive(json, "bytes_per_s")};
}

// Nothing where there is none. Error for anything but a regular file of a plausible size: a name
// may lead to a pipe, which blocks forever, or to a device that never ends.
std::optional<std::string> read_small_file(const std::filesystem::path& path) {
  constexpr off_t kMostBytes = 1 << 20;
  const Fd file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!file && (errno == ENOENT || errno == ENOTDIR)) return {};
  struct stat status {};
  if (!file || fstat(file.get(), &status) != 0) throw system_error("opening it");
  check(S_ISREG(status.st_mode), "it is not a regular file");
  check(status.st_size <= kMostBytes, "it has {} bytes, and a calibration at most {}",
        status.st_size, kMostBytes);
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  const ssize_t got = pread(file.get(), text.data(), text.size(), 0);
  if (got < 0) throw system_error("reading it");
  text.resize(static_cast<std::size_t>(got));
  return text;
}

}  // namespace

std::string to_text(const CostModel& costs) {
  const Json json = {{"format", "paceline costs"},
                     {"version", 1},
                     {"origin", costs.origin},
                     {"spread", costs.spread},
                     {"network", to_json(costs.network)},
                     {"sockets", to_json(costs.sockets)},
                     {"reduce_bytes_per_s", costs.reduce_bytes_per_s},
                     {"copy_bytes_per_s", costs.copy_bytes_per_s},
                     {"meet_s", costs.meet_s}};
  return json_text(json, 2) + "\n";
}

CostModel costs_from_text(const std::string& text) {
  const Json json = parse_json(text);
  check(json.at("format") == "paceline costs" && json.at("version") == 1,
        "it is another kind of file");
  CostModel costs;
  costs.origin = json.at("origin").get<std::string>();
  costs.spread = json.value("spread", 0.0);  // files of earlier versions do not have it
  check(std::isfinite(costs.spread) && costs.spread >= 0, "spread is {}", costs.spread);
  costs.network = link_from(json.at("network"));
  costs.sockets = link_from(json.at("sockets"));
  costs.reduce_bytes_per_s = positive(json, "reduce_bytes_per_s");
  costs.copy_bytes_per_s = positive(json, "copy_bytes_per_s");
  costs.meet_s = positive(json, "meet_s");
  return costs;
}

std::string provenance(const CostModel& costs) {
  if (costs.spread <= kSteadySpread) return costs.origin;
  return fmt::format("{}, noisy (repetitions differed by up to {:.0f}%: measure again)",
                     costs.origin, costs.spread * 100);
}

std::filesystem::path calibration_path() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  const std::string chosen = variable("PACELINE_CALIBRATION");
  if (chosen == "off") return {};
  if (!chosen.empty()) return chosen;
  const std::string cache = variable("XDG_CACHE_HOME");
  const std::string home = variable("HOME");
  if (cache.empty() && home.empty()) return {};
  const auto base =
      cache.empty() ? std::filesystem::path(home) / ".cache" : std::filesystem::path(cache);
  return base / "paceline" / "costs.json";
}

void save_calibration(const CostModel& costs, const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  try {
    replace_file(path.string(), to_text(costs));
  } catch (const Error& problem) {
    fail(problem.code(), "the calibration cannot be saved: {}", problem.what());
  }
}

std::optional<CostModel> load_calibration(const std::filesystem::path& path) {
  if (path.empty()) return {};
  try {
    const auto text = read_small_file(path);
    return text ? std::optional(costs_from_text(*text)) : std::nullopt;
  } catch (const std::exception& error) {
    fail(ErrorCode::kCorrupt, "the calibration {} cannot be read: {}; measure again or remove it",
         path.string(), error.what());
  }
}

}  // namespace paceline
