#include "paceline/engine/collectives/selection/calibration.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "paceline/engine/collectives/group/object_collectives.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/collectives/kernels/reduce.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/core/system/safe_files.h"
#include "paceline/engine/core/timing.h"

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
  check(std::isfinite(value) && value > 0, "{} is {}; it must be positive", name, value);
  return value;
}

LinkCost link_from(const Json& json) {
  return {.latency_s = positive(json, "latency_s"),
          .message_s = positive(json, "message_s"),
          .bytes_per_s = positive(json, "bytes_per_s")};
}

// Reads a file; empty if it does not exist. Throws for anything but a regular file of a plausible
// size, because a name may lead to a pipe, which blocks forever, or to a device that never ends.
std::optional<std::string> read_small_file(const std::filesystem::path& path) {
  constexpr off_t kMaxBytes = 1 << 20;
  const Fd file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!file && (errno == ENOENT || errno == ENOTDIR)) return {};
  struct stat status {};
  if (!file || fstat(file.get(), &status) != 0) throw system_error("opening it");
  check(S_ISREG(status.st_mode), "it is not a regular file");
  check(status.st_size <= kMaxBytes, "it has {} bytes, and a calibration at most {}",
        status.st_size, kMaxBytes);
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
  check(std::isfinite(costs.spread) && costs.spread >= 0, "spread is {}; it must not be negative",
        costs.spread);
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

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kLargeBytes = 4 << 20;
constexpr std::size_t kRepetitions = 7;
constexpr std::size_t kRounds = 8;         // rounds of a measurement that takes milliseconds
constexpr std::size_t kShortRounds = 128;  // rounds of a measurement that takes microseconds

// The lower quartile of the rounds' times, because other load only makes a round longer.
double usual_seconds(const std::function<void()>& body, std::size_t rounds = kRounds) {
  std::vector<double> seconds;
  for (std::size_t round = 0; round < rounds; ++round) {
    const auto begin = Clock::now();
    body();
    seconds.push_back(seconds_since(begin));
  }
  const auto quartile = seconds.begin() + static_cast<std::ptrdiff_t>(rounds / 4);
  std::nth_element(seconds.begin(), quartile, seconds.end());
  return *quartile;
}

double reduce_rate() {
  const std::vector<float> a(kLargeBytes / 8, 1.0f);
  const std::vector<float> b(kLargeBytes / 8, 2.0f);
  std::vector<float> sum(a.size());
  const std::array sources = {reinterpret_cast<const std::byte*>(a.data()),
                              reinterpret_cast<const std::byte*>(b.data())};
  const double seconds = usual_seconds([&] {
    reduce(sources, reinterpret_cast<std::byte*>(sum.data()), sum.size(), Dtype::kFloat32,
           ReduceOp::kSum);
  });
  return static_cast<double>(kLargeBytes) / std::max(seconds, 1e-9);
}

double copy_rate() {
  const std::vector<std::byte> from(kLargeBytes);
  std::vector<std::byte> to(kLargeBytes);
  const double seconds = usual_seconds([&] { std::copy(from.begin(), from.end(), to.begin()); });
  return static_cast<double>(kLargeBytes) / std::max(seconds, 1e-9);
}

// Half a round trip between this rank and `peer`; the lower rank begins.
double one_way_seconds(ProcessGroup& group, int peer, std::size_t bytes) {
  std::vector<std::byte> data(bytes);
  const auto view = std::span(data);
  const auto round_trip = [&] {
    if (group.rank() < peer) {
      group.send(view, peer);
      group.recv(view, peer);
    } else {
      group.recv(view, peer);
      group.send(view, peer);
    }
  };
  round_trip();  // warms up connections and pages
  return usual_seconds(round_trip, bytes < kLargeBytes ? kShortRounds : kRounds) / 2;
}

// The time in which this rank and `peer` send `bytes` to each other.
double exchange_seconds(ProcessGroup& group, int peer, std::size_t bytes) {
  const std::vector<std::byte> mine(bytes);
  std::vector<std::byte> theirs(bytes);
  const auto exchange = [&] {
    const auto sent = group.isend(std::span(mine), peer);
    group.recv(std::span(theirs), peer);
    sent->wait();
  };
  exchange();
  return usual_seconds(exchange);
}

// Inside a host a processor moves both the sent and the received bytes, so both directions are
// measured; a network carries both directions at once, so one direction is measured.
enum class LinkKind { kSockets, kNetwork };

// Measures the link between `a` and `b`, on these two ranks; the others do nothing.
void measure_link(ProcessGroup& group, int a, int b, LinkKind kind, LinkCost& link) {
  if (group.rank() != a && group.rank() != b) return;
  const int peer = group.rank() == a ? b : a;
  const double small = one_way_seconds(group, peer, 8);
  // An estimate from experience: each end's processor is busy for a fifth of a message's time.
  link.message_s = small / 5;
  link.latency_s = small - 2 * link.message_s;
  const bool both = kind == LinkKind::kSockets;
  const double large =
      both ? exchange_seconds(group, peer, kLargeBytes) : one_way_seconds(group, peer, kLargeBytes);
  // On a busy machine the small message may have been slower than the large one.
  link.bytes_per_s = (both ? 2.0 : 1.0) * static_cast<double>(kLargeBytes) /
                     std::max({large - small, large / 2, 1e-9});
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 16> text{};
  const std::size_t length = std::strftime(text.data(), text.size(), "%Y-%m-%d", &parts);
  return {text.data(), length};
}

struct Quantity {
  std::string_view name;
  double& (*of)(CostModel& costs);
};
constexpr std::array<Quantity, 9> kQuantities = {{
    {"network latency", [](CostModel& costs) -> double& { return costs.network.latency_s; }},
    {"network message", [](CostModel& costs) -> double& { return costs.network.message_s; }},
    {"network rate", [](CostModel& costs) -> double& { return costs.network.bytes_per_s; }},
    {"sockets latency", [](CostModel& costs) -> double& { return costs.sockets.latency_s; }},
    {"sockets message", [](CostModel& costs) -> double& { return costs.sockets.message_s; }},
    {"sockets rate", [](CostModel& costs) -> double& { return costs.sockets.bytes_per_s; }},
    {"reduce", [](CostModel& costs) -> double& { return costs.reduce_bytes_per_s; }},
    {"copy", [](CostModel& costs) -> double& { return costs.copy_bytes_per_s; }},
    {"meeting", [](CostModel& costs) -> double& { return costs.meet_s; }},
}};

// Runs one repetition of all measurements that are possible in the group.
CostModel measure_once(ProcessGroup& group, const CostModel& known) {
  CostModel costs = known;
  const Hosts hosts = group.hosts();
  costs.reduce_bytes_per_s = reduce_rate();
  costs.copy_bytes_per_s = copy_rate();
  // Rank 0 is one end of both links that are measured, so that it knows the results.
  const auto& local = hosts.members[0];
  if (local.size() > 1) measure_link(group, 0, local[1], LinkKind::kSockets, costs.sockets);
  if (hosts.size() > 1) {
    measure_link(group, 0, hosts.members[1][0], LinkKind::kNetwork, costs.network);
  }
  group.barrier();
  if (hosts.size() == 1 && group.transport() != "tcp") {
    costs.meet_s = usual_seconds([&] { group.barrier(); }, kShortRounds);
  }
  return costs;
}

}  // namespace

Calibration agree_on_costs(std::span<const CostModel> repetitions) {
  check(repetitions.size() >= 5, "{} repetitions are too few to compare", repetitions.size());
  Calibration agreed{repetitions.front(), {}};
  agreed.costs.spread = 0;
  for (const Quantity& quantity : kQuantities) {
    std::vector<double> values;
    for (CostModel one : repetitions) values.push_back(quantity.of(one));
    std::sort(values.begin(), values.end());
    const double median = values[values.size() / 2];
    quantity.of(agreed.costs) = median;
    if (values.front() == values.back()) continue;
    const double spread = (values[values.size() - 2] - values[1]) / median;
    agreed.spreads.push_back({quantity.name, spread});
    agreed.costs.spread = std::max(agreed.costs.spread, spread);
  }
  return agreed;
}

std::string why_not_replace(const std::optional<CostModel>& kept, const Calibration& fresh) {
  if (fresh.is_steady() || !kept || kept->spread > kSteadySpread) return {};
  return fmt::format(
      "the repetitions differ by up to {:.0f}%, so the machine was busy with something else; the "
      "costs of {} are kept, whose repetitions differed by {:.0f}%",
      fresh.costs.spread * 100, kept->origin, kept->spread * 100);
}

Calibration measure_costs(ProcessGroup& group, const CostModel& known) {
  std::vector<CostModel> repetitions;
  for (std::size_t i = 0; i < kRepetitions; ++i) repetitions.push_back(measure_once(group, known));
  Calibration calibration = agree_on_costs(repetitions);
  calibration.costs.origin = fmt::format("{} of {}", host_name(), today());
  calibration.costs = costs_from_text(broadcast_object(group, to_text(calibration.costs), 0));
  if (group.rank() != 0) calibration.spreads.clear();
  return calibration;
}

}  // namespace paceline
